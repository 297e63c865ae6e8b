"""`Stand`: a running cluster of one contender, and how long loads on it take."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import loads
from bench.contender import Contender
from bench.profile import Profiler
from bench.result import cpu_seconds
from testkit.client import Client, ClientError, create_stream
from testkit.harness import Node, ProcessCluster, eventually

_TRIES, _RETRY = 20, 0.3
PEERS_TICK = 2.5
"""Seconds in which followers of a new stream of nats-server begin to answer Direct Gets: they join on a 2 s tick."""


@dataclass(slots=True)
class Stand:
    contender: Contender
    nodes: ProcessCluster
    seconds: float
    """Length of each load."""
    root: Path
    leaders: dict[str, Node] = field(default_factory=dict)
    profiler: Profiler | None = None
    made: set[str] = field(default_factory=set)
    """For measurements that build on the same things, whichever of them is asked for: what is there."""

    @property
    def pids(self) -> dict[str, int]:
        return {node.name: node.pid for node in self.nodes.nodes if node.alive}

    def scaled(self, count: int) -> int:
        """`count` messages, fewer where loads are shorter than a second: that is no benchmark but a trial."""
        return count if self.seconds >= 1 else max(1000, round(count * self.seconds / 1000) * 1000)

    async def settle(self) -> None:
        """Until a stream can be placed on all nodes: a fresh nats-server answers its API before its leader sees all
        peers."""

        async def placed() -> bool:
            with contextlib.suppress(ClientError, TimeoutError):
                async with await self.nodes[0].connect() as client:
                    await create_stream(client, "READY", ["ready"], min(3, len(self.nodes.nodes)))
                    await client.api("STREAM.DELETE.READY")
                    return True
            return False

        if len(self.nodes.nodes) != 2:  # no replicas of streams there
            await eventually(placed, 20, "no stream can be created", every=0.2)

    async def stream(self, name: str, subjects: list[str] | None = None, **config: Any) -> Node:
        """Creates it (subjects: its name in lower case) with a replica on every node, and returns its leader."""
        replicas = min(3, len(self.nodes.nodes))
        async with await self.nodes[0].connect() as client:
            for left in range(_TRIES, -1, -1):
                try:
                    await create_stream(client, name, subjects or [name.lower()], replicas, **config)
                    break
                except ClientError as error:  # routes of a young nats-server come and go
                    if "no suitable peers" not in str(error) or not left:
                        raise
                    await asyncio.sleep(_RETRY)
        self.leaders[name] = await self.nodes.stream_leader(name)
        return self.leaders[name]

    async def filled(self, name: str, count: int) -> Node:
        """A new stream with `count` messages, current on all nodes, whose followers answer; returns its leader."""
        leader = await self.stream(name)
        await loads.js_publish(leader.url, name.lower(), window=1000, count=count)
        await self.current(name)
        return leader

    async def current(self, name: str) -> None:
        if len(self.nodes.nodes) < 2:
            return
        await self.nodes.wait_current(name, within=60)
        await asyncio.sleep(PEERS_TICK if self.contender.server == "nats-server" else 0.5)

    def leader(self, name: str) -> Node:
        """The node that led the stream when it was made; a profile is of this one."""
        self.watch(self.leaders[name])
        return self.leaders[name]

    def follower(self, name: str) -> Node:
        """A node that did not; a profile is still of the leader."""
        leader = self.leader(name)
        return next(node for node in self.nodes.nodes if node is not leader)

    def watch(self, node: Node) -> None:
        """The work of the row that is measured now is done by this node."""
        if self.profiler is not None:
            self.profiler.watch(node)

    def watch_start(self, node: Node) -> None:
        """The row is about the start of this node."""
        if self.profiler is not None:
            self.profiler.watch_start(node)

    def spent(self) -> float:
        """CPU seconds of all nodes since they began."""
        return sum(cpu_seconds(pid) for pid in self.pids.values())

    async def follower_is_current(self, name: str, follower: Node, *, want: bool, within: float = 60.0) -> None:
        """Polls the stream's leader until it says of the follower that it is current, or is not."""
        leader = await self.nodes.stream_leader(name)
        async with await leader.connect() as client:

            async def asked() -> bool:
                info = await client.api(f"STREAM.INFO.{name}", within=5.0)
                peers = [peer for peer in info["cluster"].get("replicas") or [] if peer["name"] == follower.name]
                now = bool(peers) and peers[0]["current"] and not peers[0].get("offline") and not peers[0].get("lag")
                return now is want

            await eventually(asked, within, f"{follower.name} current: not {want}", follower, every=0.005)

    async def answers(self, name: str, node: Node, messages: int, within: float = 60.0) -> None:
        """Polls a node that starts until its STREAM.INFO has so many messages."""

        async def asked() -> bool:
            with contextlib.suppress(ClientError, OSError, TimeoutError):
                async with await Client.connect(node.url, within=2.0) as client:
                    info = await client.api(f"STREAM.INFO.{name}", within=2.0)
                    return bool(info["state"]["messages"] == messages)
            return False

        await eventually(asked, within, f"no STREAM.INFO of {name}", node, every=0.002)

    async def resting(self, seconds: float) -> float:
        """The mean share of a core of the nodes while nobody asks them anything, in per cent."""
        self.watch(self.nodes[0])
        before, start = self.spent(), asyncio.get_running_loop().time()
        await asyncio.sleep(seconds)
        elapsed = asyncio.get_running_loop().time() - start
        return 100 * (self.spent() - before) / elapsed / len(self.pids)
