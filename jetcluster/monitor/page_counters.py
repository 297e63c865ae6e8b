"""Counters that the pages of a node share, over HTTP and in the system account alike."""

from __future__ import annotations

import time
from dataclasses import field

from jetcluster.records import dataclass


class CpuMeter:
    """Percent of one core since the previous question, at least a second apart, as `top` would show it."""

    def __init__(self) -> None:
        self._wall = time.monotonic()
        self._cpu = time.process_time()
        self._percent = 0.0

    def percent(self) -> float:
        wall, cpu = time.monotonic(), time.process_time()
        if wall - self._wall >= 1.0:
            self._percent = round((cpu - self._cpu) / (wall - self._wall) * 100, 1)
            self._wall, self._cpu = wall, cpu
        return self._percent


@dataclass(slots=True)
class PageCounters:
    """`requests` counts HTTP requests by path, only paths that there are (`http_req_stats` of /varz)."""

    cpu: CpuMeter = field(default_factory=CpuMeter)
    requests: dict[str, int] = field(default_factory=dict)
