"""`LinkLog`: what the links of a stream tell the log: a few lines at once, and then how many there were."""

from __future__ import annotations

from typing import Final

from jetcluster.clock import Timers
from jetcluster.logs import Log

EVERY: Final = 10.0
"""Seconds that one line with a number stands for."""
AT_ONCE: Final = 4
"""Lines of the first links in that time."""


class LinkLog:
    """One per stream."""

    def __init__(self, log: Log, timers: Timers, stream: str) -> None:
        self._log = log
        self._timers = timers
        self._stream = stream
        self._lines = 0
        self._more = 0
        """Not told yet, since the last line."""
        self._last = ("", "")
        self._open = False

    def again(self, upstream: str, why: str) -> None:
        """An attempt is over, for a reason that is no error."""
        if self._tells(upstream, why):
            self._log.info("link begins again", stream=self._stream, upstream=upstream, reason=why)

    def failed(self, upstream: str, error: str) -> None:
        if self._tells(upstream, error):
            self._log.warning("link failed", stream=self._stream, upstream=upstream, error=error)

    def _tells(self, upstream: str, why: str) -> bool:
        if not self._open:
            self._open = True
            self._timers.call_later(EVERY, self._over)
        self._lines += 1
        if self._lines <= AT_ONCE:
            return True
        self._more += 1
        self._last = upstream, why
        return False

    def _over(self) -> None:
        more, self._more = self._more, 0
        self._open = bool(more)
        if not more:
            self._lines = 0
            return
        self._timers.call_later(EVERY, self._over)
        upstream, why = self._last
        self._log.warning("links failed or began again", stream=self._stream, times=more, last=upstream, error=why)
