"""`RateLimit`: a push consumer's rate_limit_bps, as a bucket that fills with time and that a message may overdraw."""

from __future__ import annotations

from typing import Final

_SECOND: Final = 1_000_000_000
_BURST: Final = _SECOND // 10
"""Nanoseconds of rate that may be saved up."""


class RateLimit:
    """Counts in nanoseconds: sending `n` bytes takes `n * 8 / bits per second`."""

    __slots__ = ("_bits", "wait_until")

    def __init__(self, bits_per_second: int) -> None:
        self._bits = bits_per_second
        self.wait_until = 0
        """The time until which the permitted rate takes for everything sent so far, Unix nanoseconds: nothing is sent
        before."""

    def fitting(self, sizes: list[int], now: int) -> int:
        """Number of messages of these sizes that may go at `now`; they count as sent."""
        free_at = max(self.wait_until, now - _BURST)
        count = 0
        for size in sizes:
            if free_at > now:
                break
            free_at += size * 8 * _SECOND // self._bits
            count += 1
        self.wait_until = free_at
        return count
