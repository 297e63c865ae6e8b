"""Mirrors and sources under anything: publishes, deletes, purges, leaders that change, nodes that crash. In the end the
mirror holds what the upstream holds under the same sequences, and the sourcing stream holds it once and in order."""

from __future__ import annotations

import asyncio
import random

import pytest

from jetcluster.errors import ApiError
from jetcluster.raft.api import RaftError
from jetcluster.replica.proposals import OutcomeUnknownError
from jetcluster.stream.log import commands
from testkit.sim.nodes import SMALL_LOG, Cluster, Node, NoRespondersError
from testkit.sim.shared import virtual_time
from tests.unit.replica.test_mirror_host import serve_api

pytestmark = pytest.mark.thorough

STEPS = 40


class Run:
    streams = ("UP", "M", "S")

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.apis = {node.name: serve_api(node) for node in cluster}
        self.sent = 0
        self.down = ""

    def any_node(self) -> Node:
        return self.rng.choice(list(self.cluster))

    async def publish(self) -> None:
        payloads = [b"%d" % (self.sent + n) for n in range(self.rng.randrange(1, 30))]
        self.sent += len(payloads)
        try:
            await self.any_node().requests(b"up", payloads, 0.3)
        except (TimeoutError, NoRespondersError):
            pass  # stored or not

    async def administer(self) -> None:
        leader = await self.cluster.led("UP")
        replica = leader.replica("UP")
        last = replica.store.last_seq
        now = self.cluster.loop.time_ns()
        if self.rng.random() < 0.2:
            command = commands.encode_purge(now, seq=max(2, last - self.rng.randrange(30)))
            await self.proposed(leader, command)
            return
        for seq in self.rng.sample(range(1, last + 1), min(last, 8)):
            await self.proposed(leader, commands.encode_delete_msg(now, seq))

    async def proposed(self, leader: Node, command: bytes) -> None:
        try:
            await leader.replica("UP").propose(command, 0.5)
        except (RaftError, OutcomeUnknownError, ApiError):
            pass

    async def move(self) -> None:
        leader = await self.cluster.led(self.rng.choice(self.streams))
        for stream in self.streams:
            if leader.replica(stream).leading and self.rng.random() < 0.6:
                leader.replica(stream).group.transfer()

    async def crash(self) -> None:
        if self.down:
            return
        self.down = self.any_node().name
        self.cluster.crash(self.down)
        await self.apis.pop(self.down).stop()

    async def restart(self) -> None:
        if self.down:
            name, self.down = self.down, ""
            self.apis[name] = serve_api(self.cluster.restart(name))

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.choice([0.0005, 0.003, 0.05, 0.4, 3.0]))

    async def go(self) -> None:
        steps = [self.publish] * 5 + [self.administer, self.move, self.crash, self.restart, self.restart]
        for _ in range(STEPS):
            await self.rng.choice(steps)()
            await self.pause()
        await self.restart()


def held(node: Node, stream: str) -> dict[int, tuple[int, bytes]]:
    return {m.seq: (m.ts, m.payload) for m in node.replica(stream).store.queries.scan(b">", 1)}


@virtual_time
@pytest.mark.parametrize("seed", range(8))
async def test_mirror_and_source(seed: int) -> None:
    async with Cluster(options=SMALL_LOG) as cluster:
        run = Run(cluster, seed)
        await cluster.create("UP")
        await cluster.create("M", subjects=[], mirror={"name": "UP"}, mirror_direct=True)
        await cluster.create("S", subjects=[], sources=[{"name": "UP"}])
        await run.go()
        for stream in ("UP", "M", "S"):
            await cluster.led(stream)
        leader = await cluster.led("UP")
        await cluster.until(lambda: bool(run.apis) and leader.replica("UP").leading, what="a leader that stays")
        (ack,) = [await leader.publish(b"up", b"last")]
        await cluster.until(
            lambda: all(node.has("M") and node.replica("M").store.last_seq == ack["seq"] for node in cluster), 60.0,
            "the mirror at the end",
        )  # fmt: skip
        await cluster.until(
            lambda: any(m.payload == b"last" for m in cluster["A"].replica("S").store.queries.scan(b">", 1)),
            60.0,
            "the source",
        )
        for stream in ("UP", "M", "S"):
            await cluster.equal(stream)
        upstream, mirror = held(cluster["A"], "UP"), held(cluster["B"], "M")
        assert {seq: mirror.get(seq) for seq in upstream} == upstream
        times = [ts for _, (ts, _) in sorted(mirror.items())]
        assert times == sorted(times)
        copied = [payload for _, (_, payload) in sorted(held(cluster["C"], "S").items())]
        assert len(copied) == len(set(copied)), "something came twice"
        by_seq = {payload: seq for seq, (_, payload) in {**mirror, **upstream}.items()}
        order = [by_seq[payload] for payload in copied if payload in by_seq]
        assert order == sorted(order)
        assert {payload for _, payload in upstream.values()} <= set(copied)
        for api in run.apis.values():
            await api.stop()
