"""Use of the machine by this process, for monitoring pages. No decision depends on it."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from jetcluster.clock import Clock, SystemClock

_PAGE = resource.getpagesize()


class Usage(Protocol):
    """Current figures of one process."""

    def memory_bytes(self) -> int:
        """The resident set size."""

    def cpu_seconds(self) -> float:
        """The processor time of all threads since the start."""

    def cores(self) -> int:
        """The number of the machine's cores."""

    def collections(self) -> tuple[int, int]:
        """The numbers of garbage collections and of freed objects."""


class ProcessUsage:
    """`Usage` of this process, from the operating system and the interpreter."""

    def memory_bytes(self) -> int:
        try:
            return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE
        except (OSError, ValueError, IndexError):
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def cpu_seconds(self) -> float:
        return time.process_time()

    def cores(self) -> int:
        return os.cpu_count() or 1

    def collections(self) -> tuple[int, int]:
        generations = gc.get_stats()
        return (
            sum(generation["collections"] for generation in generations),
            sum(generation["collected"] for generation in generations),
        )


class CpuMeter:
    """Percent of one core since the previous measurement, at least a second ago, as `top` shows it."""

    def __init__(self, monotonic: Callable[[], float], cpu_seconds: Callable[[], float]) -> None:
        """Both return seconds: elapsed time, and processor time used."""
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
    """Counters shared by a node's monitoring pages, over HTTP and in the system account. `requests` counts HTTP
    requests by existing path (`http_req_stats` of /varz)."""

    def __init__(self, clock: Clock | None = None, usage: Usage | None = None) -> None:
        """The operating system's by default."""
        self.usage: Usage = usage or ProcessUsage()
        self.cpu = CpuMeter((clock or SystemClock()).monotonic, self.usage.cpu_seconds)
        self.requests: dict[str, int] = {}
