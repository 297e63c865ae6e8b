"""A histogram of times that costs a bisection per value: plain integers, no locks, no text.

Hot paths time once per loop turn, or sample, never per message, and only note the time (`fresh`): it is sorted into
its bucket about once a second. Monitoring reads the counts (`/metrics`).
"""

from __future__ import annotations

from bisect import bisect_left

BOUNDS = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Seconds; upper bounds, inclusive. What is longer falls into a bucket of its own behind them."""


class Latency:
    """A histogram over `BOUNDS`. Times may come from another thread, as `fresh.append` only."""

    __slots__ = ("_counts", "_seconds", "fresh")

    def __init__(self) -> None:
        self.fresh: list[float] = []
        """Seconds, not in a bucket yet. Who appends here has `sort` called about once a second."""
        self._counts = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    @property
    def counts(self) -> list[int]:
        """Observations per bucket, not cumulative."""
        self.sort()
        return self._counts

    @property
    def seconds(self) -> float:
        """All together."""
        self.sort()
        return self._seconds

    def observe(self, seconds: float) -> None:
        """For what is timed now and then: at once."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._seconds += seconds

    def sort(self) -> None:
        """Puts what is `fresh` into buckets."""
        count = len(self.fresh)  # more may come meanwhile
        for seconds in self.fresh[:count]:
            self.observe(seconds)
        del self.fresh[:count]
