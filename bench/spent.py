"""Rates of reads and the CPU that they cost servers and clients, as samples and a table of their medians."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import reads
from testkit.harness import ProcessCluster

_TICK = os.sysconf("SC_CLK_TCK")


class Sample(NamedTuple):
    """The figures of one load: messages per second, and CPU in microseconds per message."""

    rate: float
    server: float
    client: float


class CpuTree:
    """CPU-seconds of a process and all it has started, those that have ended (and were waited for) included."""

    def __init__(self, *roots: int) -> None:
        self._roots = roots
        self._before = self._read()

    def spent(self) -> float:
        return self._read() - self._before

    def _read(self) -> float:
        return sum(_cpu(pid) for root in self._roots for pid in _tree(root))


def _tree(root: int) -> Iterator[int]:
    yield root
    for task in Path(f"/proc/{root}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # the thread has ended
            continue
        for child in children:
            yield from _tree(int(child))


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICK


async def own_rate(cluster: ProcessCluster, stream: str, messages: int, connections: int, seconds: float) -> Sample:
    """Batched Direct Gets by a client that counts bytes."""
    pids = {node.name: node.pid for node in cluster.nodes}
    urls = cluster.urls[:connections]
    found = await reads.batched_gets(urls, stream, messages, batch=10_000, seconds=seconds, pids=pids)
    server = sum(spent for name, spent in found.cpu.items() if name != "client")
    return Sample(found.rate, server / found.messages * 1e6, found.cpu["client"] / found.messages * 1e6)


def table(samples: Mapping[str, Sequence[Sample]], client: str = "client or Spark", what: str = "messages") -> str:
    """Returns Markdown: medians, and the lowest and highest rate of all rounds. `what` is counted."""
    one = what.removesuffix("s")
    lines = [
        f"| | {what}/s | lowest to highest | server CPU us/{one} | {client} CPU us/{one} |",
        "|---|---|---|---|---|",
    ]
    for name, found in sorted(samples.items()):
        rate, server, own = (statistics.median(values) for values in zip(*found, strict=True))
        rates = [sample.rate for sample in found]
        lines.append(f"| {name} | {rate:,.0f} | {min(rates):,.0f} to {max(rates):,.0f} | {server:.2f} | {own:.2f} |")
    return "\n".join(lines) + "\n"
