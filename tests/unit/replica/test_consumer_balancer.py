"""Consumers whose owner is gone, on whole nodes of one process."""

from __future__ import annotations

import asyncio

from tests.unit.cluster.consumers import (
    SECOND,
    Puller,
    ask,
    consumer,
    filled,
    host,
    owned_by,
    owner,
    state,
)
from tests.unit.cluster.nodes import ACCOUNT, Cluster
from tests.unit.cluster.virtual_loop import virtual_time


@virtual_time
async def test_an_owner_that_crashes_is_replaced_and_who_waits_is_told() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 10)
        leader = await cluster.led("S")
        await consumer(leader, "c")
        home = cluster.followers("S")[0]
        await owned_by(cluster, "c", home)
        client = Puller(leader, "S", "c")
        got = await client.fetch(6)
        for message in got[:3]:
            await client.ack(message)
        client.pull(10, expires=30.0)
        await cluster.until(lambda: len(client.got) == 10, what="the rest")
        before = cluster.loop.time()
        cluster.crash(home.name)
        await cluster.until(lambda: b"409 Leadership Change" in client.statuses, what="the client is told")
        assert cluster.loop.time() - before < 0.5
        assert owner(cluster) is not home
        info = await ask(leader, "S", "consumer_info", name="c")
        assert info["ack_floor"]["stream_seq"] == 3 and info["num_ack_pending"] == 7
        for message in client.got[3:]:
            await client.ack(message)
        client.pull(10)
        await asyncio.sleep(31.0)
        assert len(client.got) == 10, "nothing acknowledged comes again"


@virtual_time
async def test_a_leader_that_crashes_and_owned_the_consumer_too() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 10)
        leader = await cluster.led("S")
        await consumer(leader, "c", ack_wait=2 * SECOND)
        await owned_by(cluster, "c", leader)
        other = cluster.followers("S")[0]
        client = Puller(other, "S", "c")
        got = await client.fetch(4)
        for message in got[:2]:
            await client.ack(message)
        before = cluster.loop.time()
        cluster.crash(leader.name)
        await cluster.until(lambda: client.pull(10, expires=10.0) > 0, what="a successor")
        assert cluster.loop.time() - before < 2.0
        await cluster.until(lambda: len(client.got) >= 12, what="the rest, and what was not acknowledged")
        assert sorted(int(payload) for _, _, payload in client.got[4:]) == [2, 3, 4, 5, 6, 7, 8, 9]


@virtual_time
async def test_consumers_follow_their_stream_to_other_nodes() -> None:
    async with Cluster("ABCD") as cluster:
        await filled(cluster, 5)
        (outside,) = [node for node in cluster if not node.has("S")]
        for number in range(4):
            await consumer(cluster["A"], f"c{number}")
        assignment = cluster["A"].js.assignment(ACCOUNT, "S")
        assert assignment is not None
        client = Puller(outside, "S", "c0")
        await client.fetch(2)
        await cluster.update("S", 1)
        await cluster.until(lambda: sum(node.has("S") for node in cluster) == 1, 30.0, "one replica")
        (left,) = [node for node in cluster if node.has("S")]
        await cluster.until(lambda: host(left).owns == 4 and host(left).hosted == 4, what="it owns all")
        assert len(await client.fetch(3)) == 3
        await cluster.update("S", 3)
        await cluster.until(lambda: sum(node.has("S") for node in cluster) == 3, 30.0, "three replicas")
        await cluster.equal("S")
        assert state(left, "c0").delivered_sseq == 5
