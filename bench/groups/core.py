"""Core messages: no stream, a publisher and a subscriber."""

from __future__ import annotations

from bench import loads
from bench.row import Group, Measured, Row
from bench.stand import Stand

ONE = Group("Core, one node", nodes=1, text="A publisher and a subscriber without a stream, on one node.")
TWO = Group("Core, two nodes", nodes=2, text="The publisher at one node, the subscriber at the other one.")


async def _core(stand: Stand, size: int) -> Measured:
    stand.watch(stand.nodes[0])
    urls = stand.nodes.urls[0], stand.nodes.urls[-1]
    await loads.core_pubsub(*urls, "core.load", size=size, seconds=0.2)
    return Measured.rate(
        await loads.core_pubsub(*urls, "core.load", size=size, seconds=stand.seconds, pids=stand.pids)
    )  # fmt: skip


@ONE.measure(Row("core 16B 1 node", "msgs/s"))
async def one_small(stand: Stand) -> Measured:
    return await _core(stand, 16)


@ONE.measure(Row("core 128B 1 node", "msgs/s"))
async def one_medium(stand: Stand) -> Measured:
    return await _core(stand, 128)


@TWO.measure(Row("core 16B 2 nodes", "msgs/s"))
async def two_small(stand: Stand) -> Measured:
    return await _core(stand, 16)


@TWO.measure(Row("core 128B 2 nodes", "msgs/s"))
async def two_medium(stand: Stand) -> Measured:
    return await _core(stand, 128)
