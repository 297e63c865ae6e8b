"""A pulse of the process: it shows a pause so long that others may have taken over what the process owns."""

from __future__ import annotations

from typing import Final

STOOD_STILL: Final = 1.0
"""Seconds without a tick."""


class Pulse:
    """One per node. Times are those of its monotonic clock."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._stops = 0

    def beat(self, now: float) -> None:
        """A tick."""
        self.stops(now)
        self._at = now

    def stops(self, now: float) -> int:
        """The number of times it stood still so far; a stop that lasts until `now` counts."""
        if self._at is not None and now - self._at > STOOD_STILL:
            self._stops += 1
            self._at = now
        return self._stops
