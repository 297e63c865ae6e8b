"""Restores under way, as the meta leader watches them, and those that are abandoned.

A stream under restore is bound to the node that talks to the client, which reports every few seconds; if it dies, the
stream would keep its name and subjects for ever. Only the meta leader counts the time, anew with each term.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from jetcluster.clock import Clock
from jetcluster.errors import ApiError
from jetcluster.meta.state import Assignment
from jetcluster.stream.rules import RESTORING

ALIVE_SECONDS: Final = 3.0
"""Time between two reports of the receiving node."""
SILENT_SECONDS: Final = 15.0
"""Time without a report after which the stream is deleted."""


class RestoreWatch:
    """The last report of each receiving node, by stream, in monotonic time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: dict[int, float] = {}
        self._ending: set[int] = set()
        self._term = 0

    def alive(self, gid: int) -> None:
        if gid in self._heard:
            self._heard[gid] = self._clock.monotonic()

    @contextmanager
    def ending(self, gid: int) -> Iterator[None]:
        """While it lasts the stream is not overdue: the command that makes it an ordinary one is on its way into the
        log, and a deletion behind it would take that. Where the outcome stays unknown this holds for the rest of the
        term, as the command may still come true."""
        self._ending.add(gid)
        try:
            yield
        except ApiError:  # decided
            self._ending.discard(gid)
            raise
        self._ending.discard(gid)

    def overdue(self, assignments: Iterable[Assignment], term: int) -> list[Assignment]:
        """Returns the streams whose restore must be given up. Must be called regularly while this node leads."""
        if term != self._term:
            self._term, self._heard, self._ending = term, {}, set()
        now = self._clock.monotonic()
        restoring = {a.gid: a for a in assignments if a.config.get(RESTORING)}
        self._heard = {gid: self._heard.get(gid, now) for gid in restoring}
        self._ending &= restoring.keys()
        return [a for gid, a in restoring.items() if self.silent(gid)]

    def silent(self, gid: int) -> bool:
        """Returns True while a stream that was overdue still is."""
        heard = self._heard.get(gid)
        return heard is not None and gid not in self._ending and self._clock.monotonic() - heard >= SILENT_SECONDS
