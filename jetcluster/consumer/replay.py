"""`Replay`: messages go out with the gaps with which they came in (replay_policy original)."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

_LATE: Final = 100_000_000
"""Nanoseconds that may be made up for; who was held up longer goes on with the gap behind the last message."""


class Replay:
    __slots__ = ("_at", "_time")

    def __init__(self) -> None:
        self._time = 0
        """Stored time of the last message that was sent."""
        self._at = 0
        """The time that it was due at, 0 before the first."""

    def due(self, times: list[int], now: int) -> int:
        """Number of messages with these ascending times that may go at `now`."""
        return bisect_right(times, now - self._shift(times, now))

    def sent(self, times: list[int], count: int, now: int) -> int:
        """The first `count` went out; returns when the next one is due, 0 when that is not among them."""
        shift = self._shift(times, now)
        if count:
            self._time = times[count - 1]
            self._at = self._time + shift
        return times[count] + self._at - self._time if count < len(times) else 0

    def _shift(self, times: list[int], now: int) -> int:
        """From stored times to those of today."""
        if not self._at:
            return now - times[0]
        shift = self._at - self._time
        return max(shift, now - _LATE - times[0])
