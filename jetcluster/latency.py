"""A histogram of times that costs a bisection per value: plain integers, no locks, no text.

Hot paths take a time once per loop turn, or by sampling, never per message, and only append it to `fresh`: about once a
second it is sorted into its bucket. Monitoring reads the counts (`/metrics`).
"""

from __future__ import annotations

from bisect import bisect_left

BOUNDS = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper bounds of the buckets in seconds, inclusive. One more bucket holds longer times."""


class Latency:
    """A histogram over `BOUNDS`. Times may come from another thread, as `fresh.append` only."""

    __slots__ = ("_counts", "_seconds", "fresh")

    def __init__(self) -> None:
        self.fresh: list[float] = []
        """Times in seconds that are in no bucket yet. A user that appends here must call `sort` about once a second."""
        self._counts = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    @property
    def counts(self) -> list[int]:
        """Observations per bucket, not cumulative."""
        self.sort()
        return self._counts

    @property
    def seconds(self) -> float:
        """Sum of all times."""
        self.sort()
        return self._seconds

    def observe(self, seconds: float) -> None:
        """Put one time into its bucket at once, for rare measurements."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._seconds += seconds

    def sort(self) -> None:
        """Put the `fresh` times into buckets."""
        count = len(self.fresh)  # another thread may append more
        for seconds in self.fresh[:count]:
            self.observe(seconds)
        del self.fresh[:count]
