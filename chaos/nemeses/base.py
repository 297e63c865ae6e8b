"""A nemesis: one kind of fault, injected and healed again by `strike`."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from chaos.history import History
from chaos.replicas import api, wait_current
from chaos.target import Target
from testkit.client import ClientError
from testkit.harness import HarnessError

SCRATCH = "SCRATCH"
FLUSHED = 0.6
"""Seconds until all nodes have."""


class Trouble:
    """The means of a strike, and its record."""

    def __init__(self, target: Target, history: History, dice: random.Random, streams: list[str]) -> None:
        self.target = target
        self.history = history
        self.dice = dice
        self.streams = streams
        self.detail = ""
        """The exact strike, for the history."""
        self.victim = ""
        """The node that it was done to, where checkers need to know; several are separated by spaces."""
        self.rotten: list[str] = []
        """Nodes whose data rotted in this run."""

    @property
    def probed(self) -> str:
        """The stream that a probe writes to (chaos/probe.py)."""
        return "QUEUE" if "QUEUE" in self.streams else ""

    async def hold(self, least: float = 0.5, most: float = 2.5) -> None:
        await asyncio.sleep(self.dice.uniform(least, most))

    def one(self) -> str:
        return self.dice.choice(self.target.names)

    def some(self, count: int) -> list[str]:
        return self.dice.sample(self.target.names, count)

    @property
    def minority(self) -> int:
        return (len(self.target.names) - 1) // 2

    async def leader(self, stream: str = "") -> str:
        """The leader of `stream` or of any one of the streams, or just a node where none can be asked."""
        try:
            info = await api(self.target, f"STREAM.INFO.{stream or self.dice.choice(self.streams)}")
        except (HarnessError, ClientError):
            return self.one()
        name = str((info.get("cluster") or {}).get("leader") or "")
        return name if name in self.target.names else self.one()

    async def all_current(self) -> None:
        """Before a fault that takes durable data away from one node: the others must have it. Raises HarnessError."""
        for stream in self.streams:
            await wait_current(self.target, stream)


async def flush(trouble: Trouble) -> None:
    """Has every node make its data durable, as it does when a stream is deleted."""
    with contextlib.suppress(ClientError, HarnessError):
        await api(trouble.target, f"STREAM.CREATE.{SCRATCH}", {"name": SCRATCH, "num_replicas": 3})
        await api(trouble.target, f"STREAM.DELETE.{SCRATCH}")
    await asyncio.sleep(FLUSHED)


def empty(store: Path) -> None:
    """Empties the store of a dead node, as a new machine has it. The folder stays, a file system may be mounted
    there."""
    for path in store.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@dataclass(frozen=True)
class Nemesis:
    name: str
    kind: str
    """process, pause, link, disk, files, clock, membership or load: colour of the timeline, and which late deliveries
    are excused (checkers/consumers.py)."""
    strike: Callable[[Trouble], Awaitable[None]]
    needs: frozenset[str] = frozenset()
    """Abilities of the target: links, shim, disk, files, system, disconnect, drill, drill-store, few-files."""
    nodes: int = 3
    """At least."""
