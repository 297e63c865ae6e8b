"""`ProcessUsage`: what this process takes of its machine, for the pages that show it. Nothing is decided by it."""

from __future__ import annotations

import gc
import os
import resource
import time
from pathlib import Path
from typing import Protocol

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
