"""`Stall`: tells an operator that a link's answers to flow control do not reach its consumer.

The consumer says in each heartbeat at which question it waits. Every such heartbeat is answered; when the same question
comes a third time, the answers get lost: an export, an import or a permission for `$JS.FC.>` is missing. nats-server
2.15.3 has the same rule and error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError

HEARTBEATS: Final = 3
STALLED: Final = errors.by_code(10228)


class Stall:
    """The question at which one consumer waits."""

    __slots__ = ("_count", "_failed", "_question")

    def __init__(self, failed: Callable[[ApiError], None]) -> None:
        """`failed` is called once for each stall."""
        self._failed = failed
        self._question = b""
        self._count = 0

    def after(self, question: bytes, error: ApiError | None) -> ApiError | None:
        """Return the link's error after a heartbeat. `question`: where the consumer waits, b"" if it does not. `error`:
        the error of before."""
        if question and question == self._question:
            self._count += 1
        else:
            self._question, self._count = question, 1
        if question and self._count >= HEARTBEATS:
            if self._count == HEARTBEATS:
                self._failed(STALLED)
            return STALLED
        return None if error == STALLED else error
