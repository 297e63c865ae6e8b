"""Publishes to streams, one message each, and their acks."""

from __future__ import annotations

from bench import consumers, loads
from bench.result import LoadResult
from bench.row import LOWER, Group, Measured, Row
from bench.stand import Stand
from testkit.harness import Node

R1 = Group("Publish, R1", nodes=1, text="128 B, one node; wN: N messages without their ack at any time.")
R3 = Group("Publish, R3", nodes=3, text="128 B unless said, a replica on each node, publisher at the leader or not.")
KV = Group("Key-value, R3", nodes=3, text="1,000 keys in turn, a history of 1.")
FOUR = 4
WARM = 0.3
"""Seconds of the same load before a measurement."""


async def _publish(stand: Stand, at: Node, subject: str, window: int = 500, size: int = 128) -> LoadResult:
    await loads.js_publish(at.url, subject, window=window, size=size, seconds=WARM)
    return await loads.js_publish(
        at.url, subject, window=window, size=size, seconds=stand.seconds, pids=stand.pids
    )  # fmt: skip


def _latencies(result: LoadResult) -> tuple[Measured, Measured]:
    return Measured.latency(result), Measured.worst(result)


@R1.prepares
@R3.prepares
async def prepare(stand: Stand) -> None:
    await stand.stream("P")


def _at_leader(group: Group, name: str, window: int, size: int = 128) -> None:
    @group.measure(Row(f"{name} w{window}", "msgs/s", durable=True))
    async def measure(stand: Stand) -> Measured:
        return Measured.rate(await _publish(stand, stand.leader("P"), "p", window, size))


_at_leader(R1, "R1 async", 500)
_at_leader(R1, "R1 async", 1000)


@R1.measure(Row("R1 sync pub", "ms, p50", LOWER, durable=True), Row("R1 sync pub, p99", "ms", LOWER, durable=True))
async def r1_sync(stand: Stand) -> tuple[Measured, ...]:
    return _latencies(await _publish(stand, stand.leader("P"), "p", 1))


_at_leader(R3, "R3 async leader", 500)
_at_leader(R3, "R3 async leader", 1000)
_at_leader(R3, "R3 async 1KiB", 500, 1024)


@R3.measure(Row("R3 async follower w500", "msgs/s", durable=True))
async def r3_follower(stand: Stand) -> Measured:
    return Measured.rate(await _publish(stand, stand.follower("P"), "p"))


@R3.measure(
    Row("R3 sync pub leader", "ms, p50", LOWER, durable=True), Row("R3 sync pub leader, p99", "ms", LOWER, durable=True)
)
async def r3_sync(stand: Stand) -> tuple[Measured, ...]:
    return _latencies(await _publish(stand, stand.leader("P"), "p", 1))


@R3.measure(Row("R3 sync pub follower", "ms, p50", LOWER, durable=True))
async def r3_sync_follower(stand: Stand) -> Measured:
    return Measured.latency(await _publish(stand, stand.follower("P"), "p", 1))


@R3.measure(
    Row(
        "R3 async 4 streams w500", "msgs/s", durable=True,
        note="four publishers, one of them at its stream's leader, the others at other nodes",
    )
)  # fmt: skip
async def r3_four(stand: Stand) -> Measured:
    nodes = stand.nodes.nodes
    targets = []
    for number in range(FOUR):
        leader = await stand.stream(f"F{number}")
        at = nodes[(nodes.index(leader) + (0, 1, 2, 1)[number]) % len(nodes)]
        targets.append((at.url, f"f{number}"))
    stand.leader("F0")
    await loads.publishers(targets, seconds=WARM)
    return Measured.rate(await loads.publishers(targets, seconds=stand.seconds, pids=stand.pids))


@KV.prepares
async def prepare_kv(stand: Stand) -> None:
    name = f"KV_{consumers.BUCKET}"
    await consumers.create_bucket(stand.nodes[0].url, 3)
    stand.leaders[name] = leader = await stand.nodes.stream_leader(name)
    await consumers.kv_put(leader.url, seconds=WARM)
    await stand.current(name)


@KV.measure(Row("KV put R3 w500", "msgs/s", durable=True))
async def kv_put(stand: Stand) -> Measured:
    leader = stand.leader(f"KV_{consumers.BUCKET}")
    return Measured.rate(await consumers.kv_put(leader.url, seconds=stand.seconds, pids=stand.pids))


@KV.measure(Row("KV get pipe256", "msgs/s"))
async def kv_get(stand: Stand) -> Measured:
    leader = stand.leader(f"KV_{consumers.BUCKET}")
    return Measured.rate(await consumers.kv_get(leader.url, seconds=stand.seconds, pids=stand.pids))
