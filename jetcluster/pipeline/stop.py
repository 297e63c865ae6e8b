"""SIGINT and SIGTERM end a following job in order."""

from __future__ import annotations

import signal
import threading
from typing import Any


class Stop:
    """A context in which SIGINT and SIGTERM end a job in order. Outside the main thread it has no effect."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self._before: dict[int, Any] = {}

    @property
    def wanted(self) -> bool:
        return self._wanted.is_set()

    def within(self, seconds: float) -> bool:
        """Waits for so long, or until an end is wanted, and returns whether it is."""
        return self._wanted.wait(seconds)

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._stop)
        return self

    def _stop(self, number: int, frame: object) -> None:
        self._wanted.set()

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
