"""A server that starts again, in place, for the sake of its data store; a supervisor sees the same process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jetcluster.clock import Clock
from jetcluster.files import Files, exists, read_text, write
from jetcluster.node import data_renewal

if TYPE_CHECKING:
    from jetcluster.logs import Log

AGAIN: Final = "started-again"
"""A file beside the data: when the last starts of this kind were, in seconds since the Unix epoch, one a line."""
COOL_DOWN: Final = 60
"""Seconds between two of them: clients lose their connections each time."""
PERIOD, MOST = 3600, 3
"""So many in so many seconds: what a start does not put right comes back with each."""


class DataRestarts:
    def __init__(self, directory: Path, clock: Clock, files: Files, log: Log, start: Callable[[], None]) -> None:
        """`start` stops the process as on SIGTERM, and has it begin anew."""
        self._directory = directory
        self._clock = clock
        self._files = files
        self._log = log
        self._start = start

    def renew(self, reason: str) -> None:
        """With another data store (`data_renewal`)."""
        if data_renewal.recently_renewed(self._directory, self._now(), self._files):
            self._log.error("the data store is damaged again: the disk may be failing", damage=reason)
            return
        try:
            data_renewal.mark(self._directory, reason, self._files)
        except OSError as error:
            self._log.error("the damaged data store cannot be marked", error=str(error))
            return
        self._log.error("the data store is damaged: the server starts again and renews it", damage=reason)
        self._start()

    def again(self, reason: str) -> None:
        """With the data store that there is, opened anew."""
        stamp = self._directory / AGAIN
        try:
            now = int(self._now())
            lines = read_text(stamp, self._files, errors="replace").split() if exists(stamp, self._files) else []
            # Not what a clock has written that was wrong.
            recent = [int(line) for line in lines if line.isdecimal() and 0 <= now - int(line) < PERIOD]
            if recent and (now - max(recent) < COOL_DOWN or len(recent) >= MOST):
                text = "the data store failed again soon after a start: the disk may be failing"
                self._log.warning(text, error=reason)
                return
            write(stamp, "".join(f"{when}\n" for when in (*recent, now)).encode(), self._files)
        except OSError as error:
            self._log.error("the disk is not well", error=str(error))
            return
        self._log.error("the data store failed, and the disk is well: the server starts again", error=reason)
        self._start()

    def _now(self) -> float:
        return self._clock.time_ns() / 1e9
