"""`Row`, one figure of the page, and `Group`, the rows that are measured on one cluster.

A row is declared once, with the function that measures it:

    READS = Group("reads", nodes=3)

    @READS.measure(Row("direct seq sync", "ms, p50", better=LOWER))
    async def direct_sync(stand: Stand) -> Measured: ...

A function with several rows returns one `Measured` for each, in their order.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field

from bench.result import LoadResult, percentile
from bench.stand import Stand

HIGHER, LOWER = "higher", "lower"


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    unit: str
    better: str = HIGHER
    durable: bool = False
    """fsync plays a part, so nats-server is measured in both modes."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """The figure of one row in one round."""

    value: float
    cpu_us: float | None = None
    """Microseconds of CPU of all servers per message."""
    client: float | None = None
    """The share of one core that the load client took."""

    @classmethod
    def rate(cls, result: LoadResult) -> Measured:
        return cls(result.rate, result.server_us, result.client_share)

    @classmethod
    def latency(cls, result: LoadResult) -> Measured:
        """Milliseconds, the median."""
        return cls(percentile(result.latencies_ms, 0.5), result.server_us, result.client_share)

    @classmethod
    def worst(cls, result: LoadResult) -> Measured:
        """Milliseconds that one request in a hundred takes longer than; its CPU is told with the median."""
        return cls(percentile(result.latencies_ms, 0.99))


Measure = Callable[[Stand], Awaitable[Measured | tuple[Measured, ...]]]
Prepare = Callable[[Stand], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A function and its rows."""

    rows: tuple[Row, ...]
    work: Measure
    within: float
    """Seconds after which it has failed."""

    @property
    def durable(self) -> bool:
        return any(row.durable for row in self.rows)

    async def run(self, stand: Stand) -> dict[str, Measured]:
        """Returns the figures by name of row."""
        found = await self.work(stand)
        each = found if isinstance(found, tuple) else (found,)
        return {row.name: one for row, one in zip(self.rows, each, strict=True)}


@dataclass(slots=True)
class Group:
    """Measurements that take turns on one fresh cluster of `nodes` nodes, in the order in which they are declared."""

    title: str
    nodes: int
    text: str = ""
    """A sentence for the page: the conditions of all rows."""
    monitor: bool = False
    measurements: list[Measurement] = field(default_factory=list)
    prepare: Prepare | None = None

    def measure(self, *rows: Row, within: float = 60.0) -> Callable[[Measure], Measure]:
        def add(work: Measure) -> Measure:
            self.measurements.append(Measurement(rows, work, within))
            return work

        return add

    def prepares(self, work: Prepare) -> Prepare:
        """Declares what makes the streams and messages that are there before the first measurement."""
        self.prepare = work
        return work

    @property
    def rows(self) -> Iterator[Row]:
        return (row for one in self.measurements for row in one.rows)

    def matching(self, pattern: str) -> list[Measurement]:
        """Those with a row whose name, or whose group's title, has `pattern` in it (`*` and `?` stand for anything)."""
        wanted = f"*{pattern.lower()}*"
        if fnmatch.fnmatchcase(self.title.lower(), wanted):
            return list(self.measurements)
        return [
            one for one in self.measurements if any(fnmatch.fnmatchcase(row.name.lower(), wanted) for row in one.rows)
        ]


def all_rows(groups: Iterable[Group]) -> list[Row]:
    return [row for group in groups for row in group.rows]
