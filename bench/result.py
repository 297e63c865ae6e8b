"""`LoadResult`: what a load measured, and the processor time that it took."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

CLIENT = "client"


@dataclass(slots=True)
class LoadResult:
    """The measurements of one load. Times in seconds; latencies in milliseconds; CPU in seconds per million
    messages."""

    name: str
    messages: int
    seconds: float
    latencies_ms: list[float] = field(default_factory=list, repr=False)
    cpu: dict[str, float] = field(default_factory=dict)
    """CPU-seconds spent by each watched process during the load, and by the client's busiest thread (CLIENT)."""

    @property
    def rate(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def server_us(self) -> float:
        """Microseconds of CPU per message, of all watched processes but the client."""
        return sum(used for name, used in self.cpu.items() if name != CLIENT) / max(1, self.messages) * 1e6

    @property
    def client_share(self) -> float:
        """The share of one core that the client's busiest thread took: near 1 it is the limit."""
        return self.cpu.get(CLIENT, 0.0) / self.seconds if self.seconds else 0.0

    def summary(self) -> dict[str, object]:
        return {
            "name": self.name,
            "messages": self.messages,
            "seconds": round(self.seconds, 4),
            "rate": round(self.rate, 1),
            "p50_ms": round(percentile(self.latencies_ms, 0.50), 4) if self.latencies_ms else None,
            "p99_ms": round(percentile(self.latencies_ms, 0.99), 4) if self.latencies_ms else None,
            "cpu_s_per_million": {k: round(v / max(1, self.messages) * 1e6, 3) for k, v in self.cpu.items()},
        }


class CpuWatch:
    """CPU seconds since it was made: of processes, by name, from `/proc`; of the thread that made it as CLIENT."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._start = {name: cpu_seconds(pid) for name, pid in pids.items()}
        self._thread = time.thread_time()

    def read(self) -> dict[str, float]:
        used = {CLIENT: time.thread_time() - self._thread}
        return used | {name: cpu_seconds(pid) - self._start[name] for name, pid in self._pids.items()}


def cpu_seconds(pid: int) -> float:
    """CPU time of the process's threads, from their `schedstat` in nanoseconds; 0.0 for a process that is gone.

    `stat` counts in ticks of 10 ms, which are 8 % of 60,000 messages of 2 us. It is read only where the kernel keeps no
    `schedstat`. Threads that have ended are not counted; servers keep theirs."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return 0.0
    spent = [_thread_seconds(task) for task in tasks]
    return sum(spent) or _ticks(pid)


def _thread_seconds(task: Path) -> float:
    try:
        return int((task / "schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return 0.0


def _ticks(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(values: Iterable[float], share: float) -> float:
    """Nearest rank; NaN for nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
