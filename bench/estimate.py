"""The formula of docs/sizing.md: what a plan needs on each node, from figures that were measured."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

CACHES = 256e6
"""Bytes of memory that messages take at most: the caches of blocks and of RocksDB."""
SPARE_MEMORY, SPARE_DISK, SPARE_CPU = 1.5, 1.5, 2.0
"""A replica that fetches, a compaction, and a node that does the work of another one."""
SLACK = 0.3
"""The share of messages' bytes on disk that a compaction may take beside them."""


@dataclass
class Figures:
    """Bytes, per cent of a core and microseconds, by the name of the thing."""

    date: str = ""
    conditions: dict[str, str] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    disk: dict[str, float] = field(default_factory=dict)
    rest: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    journal: float = 0.0
    data: float = 0.0
    """Bytes on disk of an empty data store."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises OSError, ValueError."""
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))


@dataclass(frozen=True)
class Plan:
    """Contents and work of a cluster."""

    name: str
    nodes: int
    replicas: int
    streams: int
    subjects: int
    messages: int
    size: int
    """Bytes of a message."""
    consumers: int
    connections: int
    publishes: int
    """Per second, as the next two."""
    deliveries: int
    gets: int

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("nodes, replicas", f"{self.nodes}, {self.replicas}"),
            ("streams", f"{self.streams:,}"),
            ("subjects", f"{self.subjects:,}"),
            ("messages kept, each", f"{self.messages:,} of {self.size:,} B"),
            ("consumers", f"{self.consumers:,}"),
            ("connections", f"{self.connections:,}"),
            ("publishes, deliveries, Direct Gets a second", f"{self.publishes:,}, {self.deliveries:,}, {self.gets:,}"),
        ]


@dataclass(frozen=True)
class Need:
    """For each node, with what is to spare."""

    memory: float
    disk: float
    cores: float

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("**memory of a node**", f"**{self.memory / 1e9:.2g} GB**"),
            ("**disk of a node**", f"**{self.disk / 1e9:.2g} GB**"),
            ("**cores of a node**", f"**{self.cores:.2g}**"),
        ]


EXAMPLES = (
    Plan("edge: one node that mirrors", 1, 1, 5, 1000, 500_000, 500, 5, 50, 100, 100, 500),
    Plan("team: a service's events", 3, 3, 50, 100_000, 20_000_000, 1000, 200, 500, 2000, 4000, 2000),
    Plan("large: many tenants", 5, 3, 5000, 5_000_000, 500_000_000, 1000, 10_000, 10_000, 20_000, 40_000, 20_000),
)


def estimate(plan: Plan, figures: Figures) -> Need:
    """By the formula of the page. Connections and work are spread evenly over the nodes, replicas too."""
    share = plan.replicas / plan.nodes
    memory = figures.memory
    held = (
        memory["node"]
        + min(CACHES, memory["message"] * plan.messages * share)
        + share * (memory["stream"] * plan.streams + memory["subject"] * plan.subjects)
        + share * memory["consumer"] * plan.consumers
        + memory["connection"] * plan.connections / plan.nodes
    )
    disk = figures.disk
    kept = share * (
        plan.messages * (plan.size + disk["message"]) * (1 + SLACK)
        + disk["subject"] * plan.subjects
        + disk["stream"] * plan.streams
        + disk["consumer"] * plan.consumers
    )
    cpu = figures.cpu
    busy = 1e-6 * (
        plan.publishes * cpu["publish, 1 KiB, many in flight"]
        + plan.deliveries * cpu["delivery by a pull consumer, with its ack"]
        + plan.gets * cpu["Direct Get"]
    ) / plan.nodes + (figures.rest["node"] + share * figures.rest["stream"] * plan.streams) / 100  # fmt: skip
    return Need(SPARE_MEMORY * held, figures.journal + SPARE_DISK * kept, SPARE_CPU * busy)
