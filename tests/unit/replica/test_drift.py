"""Replicas that differ are found and rebuilt (replica/drift.py)."""

from __future__ import annotations

import asyncio

from jetcluster.replica.drift import INTERVAL, TELL_TIMES
from tests.unit.cluster.nodes import SMALL_LOG, Cluster, Node
from tests.unit.cluster.virtual_loop import virtual_time


def corrupt(node: Node, stream: str) -> None:
    """One message more than the log says, and the hash of somebody who thinks so."""
    replica = node.replica(stream)
    replica.store.delete(2)
    replica.machine.hash = bytes(16)
    replica.store.save_machine_state(replica.machine._state)


async def rebuilt(cluster: Cluster, node: Node) -> None:
    await cluster.until(lambda: node.replica("S").divergences == 1, what="it is noticed")
    assert not node.reads("S") and not node.replica("S").sound
    await cluster.equal("S")
    await cluster.all_read("S")
    assert (await node.get(b"S", 2))[2] == b"2"
    assert node.replica("S").sound and node.replica("S").divergences == 1
    assert "replica differs from the others; it is rebuilt" in node.log.events("error")


@virtual_time
async def test_a_replica_that_differs_leaves_the_reads_is_rebuilt_and_comes_back() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        for number in range(1, 6):
            await cluster["A"].publish(b"s", b"%d" % number)
        await cluster.all_read("S")
        await asyncio.sleep(3 * INTERVAL)
        assert all(node.js.drift.compared for node in cluster.followers("S"))
        node = cluster.followers("S")[0]
        corrupt(node, "S")
        assert (await node.get(b"S", 2))[1].startswith(b"NATS/1.0 404")
        await cluster["A"].publish(b"s", b"6")  # the next command carries the difference on
        await rebuilt(cluster, node)


@virtual_time
async def test_an_idle_replica_is_compared_after_a_restart() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        for number in range(1, 6):
            await cluster["A"].publish(b"s", b"%d" % number)
        await cluster.equal("S")
        node = cluster.followers("S")[0]
        corrupt(node, "S")
        await node.js.flusher.flush()
        cluster.crash(node.name)
        node = cluster.restart(node.name)
        await rebuilt(cluster, node)


@virtual_time
async def test_a_rebuild_goes_on_when_the_leader_changes_or_the_link_breaks() -> None:
    async with Cluster(options=SMALL_LOG) as cluster:
        await cluster.create("S")
        for number in range(1, 101):
            await cluster["A"].publish(b"s", b"%d" % number)
        await cluster.equal("S")
        node = cluster.followers("S")[0]
        corrupt(node, "S")
        await cluster["A"].publish(b"s", b"101")
        await cluster.until(lambda: node.replica("S").divergences == 1, what="it is noticed")
        cluster.isolate(node.name)
        await asyncio.sleep(1)
        cluster.crash(cluster.leader("S").name)
        cluster.heal()
        leader = next(n for n in cluster if n is not node)
        await cluster.until(lambda: leader.replica("S").leading, what="the sound one leads")
        await cluster.equal("S", node.name, leader.name)
        assert (await node.publish(b"s"))["seq"] == 102
        await cluster.until(lambda: node.reads("S"), what="it answers again")
        assert (await node.get(b"S", 2))[2] == b"2"


@virtual_time
async def test_a_replica_in_doubt_never_leads() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        for number in range(1, 6):
            await cluster["A"].publish(b"s", b"%d" % number)
        await cluster.equal("S")
        node, other = cluster.followers("S")
        leader = cluster.leader("S")
        corrupt(node, "S")
        node.replica("S").diverged(5)
        cluster.crash(leader.name)  # before the rebuild has begun
        await cluster.until(lambda: other.replica("S").leading, what="the sound one leads", seconds=10)
        await cluster.equal("S", node.name, other.name)
        assert (await node.publish(b"s"))["seq"] == 6


@virtual_time
async def test_an_idle_leader_tells_a_few_times_and_again_to_whoever_comes_back() -> None:
    async with Cluster() as cluster:
        gid = (await cluster.create("S")).gid
        await asyncio.sleep((TELL_TIMES + 3) * INTERVAL)
        leader, node = cluster.leader("S"), cluster.followers("S")[0]
        before = node.js.drift.compared
        await asyncio.sleep(5 * INTERVAL)
        assert node.js.drift.compared == before > 0
        cluster.isolate(node.name)
        await asyncio.sleep(1)
        cluster.heal()
        await cluster.led("S")
        await asyncio.sleep(5 * INTERVAL)
        assert node.js.drift.compared > before or node.replica("S").leading
        await cluster.delete("S")
        await asyncio.sleep(2 * INTERVAL)
        assert all(gid not in n.js.drift._told for n in cluster) and leader.alive


@virtual_time
async def test_malformed_hashes_and_those_of_others_than_the_leader_are_ignored() -> None:
    async with Cluster() as cluster:
        gid = (await cluster.create("S")).gid
        await cluster["A"].publish(b"s")
        await cluster.equal("S")
        one, other = cluster.followers("S")
        entry = gid.to_bytes(4, "little") + one.replica("S").machine.applied_index.to_bytes(8, "little") + b"?" * 16
        one.mesh.notify(other.me, "hash", entry)
        one.mesh.notify(other.me, "hash", entry[:-1])
        await asyncio.sleep(0.5)
        assert other.replica("S").divergences == 0
        cluster.leader("S").mesh.notify(other.me, "hash", entry)
        await asyncio.sleep(0.5)
        assert other.replica("S").divergences == 0, "a majority has what it has"
        assert not other.replica("S").doubt and "replica differs from its leader" in other.log.events("warning")
