"""Starts: an empty node, a node with a million messages, a follower of as many, a follower that lacks some."""

from __future__ import annotations

import shutil
import statistics
import time

from bench import loads
from bench.result import cpu_seconds
from bench.row import LOWER, Group, Measured, Row
from bench.stand import Stand
from testkit.harness import Node, resident

MESSAGES = 1_000_000
MISSED = 300_000
COLD_STARTS = 3
MB = 1 << 20
COLD = Group("Cold start", nodes=1, text='An empty node, from exec to "Server is ready"; the median of three starts.')
R1 = Group(
    "Starts, R1", nodes=1, text="1,000,000 messages of 128 B in one stream; from exec to the answer of STREAM.INFO."
)
R3 = Group(
    "Starts, R3", nodes=3, text="The same on three nodes; from the follower's exec until its leader calls it current."
)


@COLD.measure(Row("cold start", "s to ready", LOWER), Row("memory empty node", "MB", LOWER, note="after one client"))
async def cold(stand: Stand) -> tuple[Measured, ...]:
    node, took = _starting(stand, stand.nodes[0]), []
    for _ in range(COLD_STARTS):
        await node.stop()
        shutil.rmtree(node.store, ignore_errors=True)
        await node.start()
        took.append(node.ready_seconds)
    async with await node.connect() as client:
        await client.flush()
    return Measured(statistics.median(took)), Measured(resident(node.pid) / MB)


@R1.prepares
@R3.prepares
async def prepare(stand: Stand) -> None:
    await stand.filled("S", stand.scaled(MESSAGES))


def _starting(stand: Stand, node: Node) -> Node:
    stand.watch_start(node)
    return node


async def _restart(stand: Stand) -> float:
    """Seconds until the node that has ended answers."""
    node = stand.nodes[0]
    start = time.monotonic()
    node.spawn()
    await stand.answers("S", node, stand.scaled(MESSAGES))
    return time.monotonic() - start


@R1.measure(
    Row("R1 restart 1M after SIGTERM", "s to INFO", LOWER),
    Row("R1 restart 1M after SIGTERM, CPU", "s", LOWER),
    Row("memory R1 1M after a restart", "MB", LOWER),
)
async def r1_term(stand: Stand) -> tuple[Measured, ...]:
    node = _starting(stand, stand.nodes[0])
    await node.stop()
    took = await _restart(stand)
    return Measured(took), Measured(cpu_seconds(node.pid)), Measured(resident(node.pid) / MB)


@R1.measure(Row("R1 restart 1M after SIGKILL", "s to INFO", LOWER))
async def r1_kill(stand: Stand) -> Measured:
    _starting(stand, stand.nodes[0]).kill9()
    return Measured(await _restart(stand))


async def _follower(stand: Stand) -> Node:
    """One that runs and is current."""
    leader = await stand.nodes.stream_leader("S")
    await stand.current("S")
    return _starting(stand, next(node for node in stand.nodes.nodes if node is not leader))


async def _comes_back(stand: Stand, node: Node) -> float:
    """Seconds until the node that has ended is current."""
    await stand.follower_is_current("S", node, want=False)
    start = time.monotonic()
    node.spawn()
    await stand.follower_is_current("S", node, want=True)
    return time.monotonic() - start


@R3.measure(Row("memory leader of R3 1M", "MB", LOWER))
async def r3_memory(stand: Stand) -> Measured:
    return Measured(resident(stand.leaders["S"].pid) / MB)


@R3.measure(Row("R3 follower restart 1M after SIGTERM", "s to current", LOWER))
async def r3_term(stand: Stand) -> Measured:
    node = await _follower(stand)
    await node.stop()
    return Measured(await _comes_back(stand, node))


@R3.measure(Row("R3 follower restart 1M after SIGKILL", "s to current", LOWER))
async def r3_kill(stand: Stand) -> Measured:
    node = await _follower(stand)
    node.kill9()
    return Measured(await _comes_back(stand, node))


@R3.measure(
    Row("catch-up 300000 msgs", "s to current", LOWER, note="CPU: of that follower, its start included"),
    Row("catch-up against intake", "x", note="its rate against that at which the leader took the same messages"),
    within=120,
)
async def catch_up(stand: Stand) -> tuple[Measured, ...]:
    node = await _follower(stand)
    leader, missed = await stand.nodes.stream_leader("S"), stand.scaled(MISSED)
    node.kill9()
    taken = await loads.js_publish(leader.url, "s", window=500, count=missed)
    took = await _comes_back(stand, node)
    return Measured(took, cpu_seconds(node.pid) / missed * 1e6), Measured(missed / took / taken.rate)
