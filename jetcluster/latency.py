"""A histogram of times that costs a bisection per value: plain integers, no locks, no text.

Hot paths observe once per loop turn, or sample, never per message. Monitoring reads the counts (`/metrics`).
"""

from __future__ import annotations

from bisect import bisect_left

BOUNDS = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Seconds; upper bounds, inclusive. What is longer falls into a bucket of its own behind them."""


class Latency:
    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        """Observations per bucket, not cumulative."""
        self.seconds = 0.0
        """All together."""

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds
