"""The use that this process makes of its machine, for the pages that show it. Nothing is decided by it."""

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
    """Figures of one process, as they are when they are asked for."""

    def memory_bytes(self) -> int:
        """The resident set size."""
        ...

    def cpu_seconds(self) -> float:
        """The time of all threads since the start."""
        ...

    def cores(self) -> int:
        """The number that the machine has."""
        ...

    def collections(self) -> tuple[int, int]:
        """The number of runs of the garbage collector, and of the objects that it freed."""
        ...


class ProcessUsage:
    """`Usage` of this process, as the operating system and the interpreter have it."""

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
    """Counters that the pages of a node share, over HTTP and in the system account alike. `requests` counts HTTP
    requests by path, only paths that there are (`http_req_stats` of /varz)."""

    def __init__(self, clock: Clock | None = None, usage: Usage | None = None) -> None:
        """The operating system's by default."""
        self.usage: Usage = usage or ProcessUsage()
        self.cpu = CpuMeter((clock or SystemClock()).monotonic, self.usage.cpu_seconds)
        self.requests: dict[str, int] = {}
