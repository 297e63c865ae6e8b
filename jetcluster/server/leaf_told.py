"""`Told`: what one end of a leaf link has told the other that it wants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from jetcluster.budget import Steps
from jetcluster.protocol import leaf

AT_ONCE: Final = 4096
"""Subjects that are told in one turn of the loop when a link joins; more in steps."""
IN_STEP: Final = 256


class Told:
    """One per link. `send` queues lines for the other end."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._counts: dict[tuple[bytes, bytes | None], int] = {}
        """Members by subject and queue."""
        self._noting = True
        """`_counts` is being made, and the other end has been told nothing yet."""

    def change(self, subject: bytes, queue: bytes | None, change: int) -> None:
        """Members came, or went; tells it where the other end has to know."""
        before, after = self._note(subject, queue, change)
        if before != after and not self._noting and (queue is not None or not before or not after):
            self._send(leaf.interest(subject, queue, after))

    def _note(self, subject: bytes, queue: bytes | None, change: int) -> tuple[int, int]:
        """Members before and after."""
        key = (subject, queue)
        before = self._counts.get(key, 0)
        after = before + change
        assert after >= 0 or self._noting, key  # what ends may end before it was noted
        if after:
            self._counts[key] = after
        else:
            self._counts.pop(key, None)
        return before, after

    def all_of(self, wanted: Iterable[tuple[bytes, bytes | None, int]], is_over: Callable[[], bool]) -> Steps[None]:
        """Tells what is `wanted`, (subject, queue, members), when the link joins, and what changes meanwhile."""
        for number, (subject, queue, members) in enumerate(wanted, 1):
            self._note(subject, queue, members)
            if not number % IN_STEP:
                yield
                if is_over():
                    return
        self._noting = False  # from here on changes are told at once; what follows them tells how it is by then
        counts, keys = self._counts, list(self._counts)
        for start in range(0, len(keys), IN_STEP):
            lines = [leaf.interest(*key, counts[key]) for key in keys[start : start + IN_STEP] if key in counts]
            self._send(b"".join(lines))
            yield
            if is_over():
                return
