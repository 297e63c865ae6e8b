"""`Replicas`: a cluster whose servers have the places of the model: replicas, mirrors, and doors without either."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.reads import publish_many
from bench.result import cpu_seconds
from bench.scaling.model import DOOR, FOLLOWER, LEADER
from testkit.client import ClientError, create_stream
from testkit.harness import Node, ProcessCluster, eventually

KEYS = 500
STREAM = "R"
"""Subjects r.0 to r.499; its mirror answers for it."""
UPSTREAM = "U"
"""Also has a mirror; U is published to, so R stays as it is."""
PLAIN = "P"
"""As U, without a mirror."""
WITHIN = 60.0


@dataclass
class Replicas:
    """`replicas` + `mirrors` + `doors` servers, each of which only has what its tag says."""

    root: Path
    replicas: int
    mirrors: int = 0
    doors: int = 0
    cluster: ProcessCluster = field(init=False)
    leaders: dict[str, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tags = ["replica"] * self.replicas + ["mirror"] * self.mirrors + ["door"] * self.doors
        self.cluster = ProcessCluster(len(tags), "jetcluster", root=self.root, config="#")
        for node, tag in zip(self.cluster.nodes, tags, strict=True):
            (node.root / "server.conf").write_text(f'server_tags: ["{tag}"]\n')

    @property
    def pids(self) -> dict[str, int]:
        return {node.name: node.pid for node in self.cluster.nodes}

    def at(self, place: str) -> Node:
        """A server of that place, of stream R."""
        nodes, leader = self.cluster.nodes, self.leaders[STREAM]
        if place == LEADER:
            return leader
        if place == FOLLOWER:
            return next(node for node in nodes[: self.replicas] if node is not leader)
        first = self.replicas + (self.mirrors if place == DOOR else 0)
        return nodes[first]

    async def make(self, name: str, *, mirrors: int) -> Node:
        """A stream on all servers with replicas, and `mirrors` mirrors of it; returns its leader."""
        async with await self.cluster[0].connect() as client:
            placed = {"tags": ["replica"]}

            async def created() -> bool:
                """A young meta group may have another leader first."""
                try:
                    await create_stream(client, name, [f"{name.lower()}.*"], self.replicas, placement=placed)
                except ClientError as error:
                    if "no suitable peers" not in str(error):
                        raise
                    return False
                return True

            await eventually(created, WITHIN, f"{name} cannot be created", every=0.2)
            for number in range(mirrors):
                placed = {"tags": ["mirror"]}
                mirror = {"name": name}
                await create_stream(
                    client, f"{name}_M{number}", [], 1, mirror=mirror, mirror_direct=True, placement=placed
                )  # fmt: skip
        self.leaders[name] = await self.cluster.stream_leader(name)
        return self.leaders[name]

    async def fill(self, messages: int) -> None:
        """Stream R, with `messages` messages of 128 B on KEYS subjects, and its mirrors."""
        leader = await self.make(STREAM, mirrors=self.mirrors)
        await publish_many(leader.url, lambda n: b"r.%d" % (n % KEYS), messages)
        if self.replicas > 1:
            await self.cluster.wait_current(STREAM, WITHIN, self.replicas - 1)
        for node in self.cluster.nodes[: self.replicas + self.mirrors]:
            await self._answers(node, messages)

    @staticmethod
    async def _answers(node: Node, messages: int) -> None:
        """Until a server answers Direct Gets of R itself, also of the last message."""
        body = b'{"seq":%d,"read_info":true}' % messages
        async with await node.connect() as client:

            async def itself() -> bool:
                answer = await client.request(f"$JS.API.DIRECT.GET.{STREAM}", body)
                return not answer.status and answer.get("Nats-Answered-By") == node.name

            await eventually(itself, WITHIN, f"{node.name} does not answer Direct Gets", node, every=0.1)

    async def weak(self, *, weak: bool) -> None:
        """Sets what R's readers get that do not ask: what the server has, or all that they were told of."""
        async with await self.cluster[0].connect() as client:
            config = (await client.api(f"STREAM.INFO.{STREAM}"))["config"]
            await client.api(f"STREAM.UPDATE.{STREAM}", {**config, "read_consistency": "weak" if weak else "default"})
        await asyncio.sleep(0.3)  # followers apply it with the next commit

    async def resting(self, seconds: float) -> float:
        """The mean share of a core of the servers while nobody asks them anything."""
        before, start = self._spent(), time.monotonic()
        await asyncio.sleep(seconds)
        return (self._spent() - before) / (time.monotonic() - start) / len(self.pids)

    def _spent(self) -> float:
        return sum(cpu_seconds(pid) for pid in self.pids.values())
