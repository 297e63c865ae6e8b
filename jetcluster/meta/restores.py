"""The restores that are going on, as the meta leader knows them, and the giving up of those that nobody goes on with.

A stream that is being restored is bound to the node that talks to the client. That node says so every few seconds;
when it dies, or forgets, the stream would keep its name and its subjects for ever and never become one. Only the meta
leader counts, and it counts anew with its term: a new leader waits the full time for everybody.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jetcluster.clock import Clock
from jetcluster.meta.state import Assignment
from jetcluster.stream.rules import RESTORING

ALIVE_SECONDS: Final = 3.0
"""Seconds between two words of the receiving node that it goes on."""
SILENT_SECONDS: Final = 15.0
"""After so long without a word the stream is deleted."""


class RestoreWatch:
    """The words of the receiving nodes, by stream, with the monotonic time of the last one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: dict[int, float] = {}
        self._term = 0

    def alive(self, gid: int) -> None:
        if gid in self._heard:
            self._heard[gid] = self._clock.monotonic()

    def overdue(self, assignments: Iterable[Assignment], term: int) -> list[Assignment]:
        """Those of all streams whose restore is to be given up. To be asked again and again while leading."""
        if term != self._term:
            self._term, self._heard = term, {}
        now = self._clock.monotonic()
        restoring = {a.gid: a for a in assignments if a.config.get(RESTORING)}
        self._heard = {gid: self._heard.get(gid, now) for gid in restoring}
        return [a for gid, a in restoring.items() if now - self._heard[gid] >= SILENT_SECONDS]
