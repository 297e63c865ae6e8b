"""`StopWatch`: ends a process whose stop hangs.

A write that does not return keeps the thread that waits for it, and with it the last flush or the journal's close, for
ever; nothing on the event loop can end that. Nothing is lost by not waiting: what was acknowledged is in the journal.
"""

from __future__ import annotations

import os
import threading

from jetcluster import logs
from jetcluster.logs import Logger

STOP_SECONDS = 120.0
"""From the order to stop to the end of the process. Longer than the last flush takes on a slow disk."""


class StopWatch:
    """One per process."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """The process has been told to stop."""
        self._timer = threading.Timer(STOP_SECONDS, self._end)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """It has stopped."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self._log.error(f"Shutdown: not done after {STOP_SECONDS:g} s, the process ends as it is")
        logs.shutdown()  # waits for half a second at most: its disk may be the same one
        os._exit(1)
