"""Nodes in which nothing happens, creation of streams, the loss of a leader, very many subjects."""

from __future__ import annotations

import asyncio
import signal
import statistics
import time

from bench import loads, reads
from bench.groups.starting import MB
from bench.result import LoadResult
from bench.row import LOWER, Group, Measured, Row
from bench.stand import Stand
from testkit.client import ClientError
from testkit.harness import Node, resident

STREAMS = 200
SUBJECTS = 1_000_000
GROUPS = 2000
"""The subjects of the large stream are `s.<group>.<n>`: 500 in each group."""
QUIET = 8.0
CLUSTER = Group("Cluster", nodes=3, text="Three nodes; at rest for 8 s. 100 is one core; the mean of the nodes.")
MANY = Group(
    "A million subjects, R1", nodes=1, text="One stream with 1,000,000 messages of 32 B, each on its own subject."
)


def _quiet(stand: Stand) -> float:
    return QUIET * min(1.0, stand.seconds)


@CLUSTER.measure(Row("idle empty cluster", "% of a core, mean", LOWER))
async def idle_empty(stand: Stand) -> Measured:
    await asyncio.sleep(_quiet(stand) / 2)
    return Measured(await stand.resting(_quiet(stand)))


async def _create(stand: Stand) -> LoadResult | None:
    """The streams, unless they are there."""
    if "streams" in stand.made:
        return None
    stand.made.add("streams")
    count = STREAMS if stand.seconds >= 1 else STREAMS // 10
    return await loads.create_streams(stand.nodes[0].url, count, 3, pids=stand.pids)


@CLUSTER.measure(Row("create 200 R3 streams", "streams/s", durable=True, note="one after the other"))
async def create(stand: Stand) -> Measured:
    stand.watch(stand.nodes[0])
    made = await _create(stand)
    assert made is not None
    return Measured.rate(made)


@CLUSTER.measure(
    Row("idle with 200 R3 streams", "% of a core, mean", LOWER),
    Row("memory idle with 200 R3 streams", "MB", LOWER, note="the largest node"),
)
async def idle_streams(stand: Stand) -> tuple[Measured, ...]:
    await _create(stand)
    await asyncio.sleep(_quiet(stand) / 2)
    share = await stand.resting(_quiet(stand))
    return Measured(share), Measured(max(resident(pid) for pid in stand.pids.values()) / MB)


@CLUSTER.measure(Row("failover kill -9 leader", "s to next ack", LOWER), within=90)
async def failover(stand: Stand) -> Measured:
    leader = await stand.stream("X")
    return Measured(await _failover_seconds(stand.follower("X"), leader))


async def _failover_seconds(survivor: Node, leader: Node) -> float:
    """From the leader's SIGKILL under load to the first ack of a message that was sent after it."""
    async with await survivor.connect() as client:
        for n in range(200):
            await client.request("x", b"before-%d" % n)
        start = time.monotonic()  # before the kill: reaping the process takes longer than some elections
        leader.signal(signal.SIGKILL)
        while time.monotonic() - start < 30:
            try:
                reply = await client.request("x", b"after", within=0.02)
            except TimeoutError:
                continue
            if reply.data.startswith(b'{"stream"'):
                took = time.monotonic() - start
                assert not leader.alive
                return took
            await asyncio.sleep(0.01)
    raise ClientError("no ack within 30 s of the kill")


@MANY.prepares
async def prepare(stand: Stand) -> None:
    leader = await stand.stream("S", ["s.>"])
    await reads.publish_many(leader.url, lambda n: b"s.%d.%d" % (n % GROUPS, n), stand.scaled(SUBJECTS), size=32)


@MANY.measure(Row("memory 1M subjects", "MB", LOWER))
async def subjects_memory(stand: Stand) -> Measured:
    return Measured(resident(stand.leaders["S"].pid) / MB)


@MANY.measure(Row("multi_last 500 of 1M subjects", "ms, p50", LOWER))
async def subjects_last(stand: Stand) -> Measured:
    each = stand.scaled(SUBJECTS) // GROUPS
    found = await reads.multi_last(
        [stand.leader("S").url], "S", lambda n: b"s.%d.*" % (n % GROUPS), each, window=1, seconds=stand.seconds
    )
    return Measured(statistics.median(found.latencies_ms))


@MANY.measure(Row("restart 1M subjects", "s to INFO", LOWER, note="after SIGTERM"))
async def subjects_restart(stand: Stand) -> Measured:
    node = stand.leaders["S"]
    stand.watch_start(node)
    await node.stop()
    start = time.monotonic()
    node.spawn()
    await stand.answers("S", node, stand.scaled(SUBJECTS))
    return Measured(time.monotonic() - start)
