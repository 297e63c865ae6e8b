"""Counters that the pages of a node share, over HTTP and in the system account alike."""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.clock import Clock, SystemClock
from jetcluster.health.usage import ProcessUsage, Usage


class CpuMeter:
    """Percent of one core since the previous question, at least a second apart, as `top` would show it."""

    def __init__(self, monotonic: Callable[[], float], cpu_seconds: Callable[[], float]) -> None:
        """Both return seconds: of the time that passed, of the processor's that was used."""
        self._monotonic = monotonic
        self._cpu_seconds = cpu_seconds
        self._wall = monotonic()
        self._cpu = cpu_seconds()
        self._percent = 0.0

    def percent(self) -> float:
        wall, cpu = self._monotonic(), self._cpu_seconds()
        if wall - self._wall >= 1.0:
            self._percent = round((cpu - self._cpu) / (wall - self._wall) * 100, 1)
            self._wall, self._cpu = wall, cpu
        return self._percent


class PageCounters:
    """`requests` counts HTTP requests by path, only paths that there are (`http_req_stats` of /varz)."""

    def __init__(self, clock: Clock | None = None, usage: Usage | None = None) -> None:
        """The operating system's by default."""
        self.usage: Usage = usage or ProcessUsage()
        self.cpu = CpuMeter((clock or SystemClock()).monotonic, self.usage.cpu_seconds)
        self.requests: dict[str, int] = {}
