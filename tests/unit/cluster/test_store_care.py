"""Renewal of a damaged data store, and when a node may begin it (cluster/store_care.py)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from jetcluster.cluster.store_care import PAUSE_SECONDS, REFUSED_SECONDS, WAIT_SECONDS
from jetcluster.errors import ApiError
from jetcluster.store.api import DamagedError
from jetcluster.store.block_store import BlockStore
from jetcluster.store.kv import KvDamagedError, KvError
from testkit.sim.nodes import Cluster, Node
from testkit.sim.shared import virtual_time

DAMAGE = "000007.sst has 5 bytes, 10 were written"


def watched(node: Node) -> list[str]:
    """Reasons for which the node asks to have its store renewed, as they come."""
    asked: list[str] = []
    node.js.parts.store_care._renew = asked.append
    return asked


@virtual_time
async def test_it_is_asked_for_once_and_only_while_the_others_can_do_without_the_node() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await asyncio.sleep(10)
        asked = watched(cluster["B"])
        cluster.crash("C")
        await cluster.led("S")
        cluster["B"].kv.damage = DAMAGE
        await asyncio.sleep(20)
        assert asked == []
        assert cluster["B"].log.events("error").count("the files of the data store are damaged") == 1
        cluster.restart("C")
        await cluster.until(lambda: asked == [DAMAGE], what="it is asked for")
        await asyncio.sleep(20)
        assert asked == [DAMAGE]


@virtual_time
async def test_a_group_of_two_pauses_for_it_if_the_other_one_is_there() -> None:
    """It can never do without one of its nodes."""
    async with Cluster("ABCD") as cluster:
        await cluster.create("S", 2)
        await asyncio.sleep(10)
        node, other = (node for node in cluster if node.has("S"))
        asked = watched(node)
        cluster.isolate(other.name)
        node.kv.damage = DAMAGE
        await asyncio.sleep(2 * PAUSE_SECONDS)
        assert asked == []
        cluster.heal()
        await cluster.until(lambda: asked == [DAMAGE], what="it is asked for")


def forget(node: Node, stream: str) -> None:
    """The log of its replica does not go back to the first entry any more."""
    log = node.raft.journal.groups[node.replica(stream).assignment.gid]
    log.compactable = log.last_index
    log.compact(log.last_index)


@virtual_time
async def test_a_stream_that_only_this_node_has_is_not_put_aside() -> None:
    async with Cluster() as cluster:
        await cluster.create("ONE", 1)
        node = await cluster.led("ONE")
        await asyncio.sleep(10)
        forget(node, "ONE")
        asked = watched(node)
        error = DamagedError(1, 5)
        error.__cause__ = KvDamagedError("Corruption: block checksum mismatch")
        node.replica("ONE").report_damage(error)
        assert node.replica("ONE").repair.in_store
        node.kv.damage = "Corruption: block checksum mismatch"
        await asyncio.sleep(20)
        assert asked == []


@virtual_time
async def test_a_stream_that_has_not_moved_here_alone_yet_is_fetched_from_where_it_was() -> None:
    """Seed 30152 of the simulation of complete nodes: the group waits for this node, and this node is not to wait for a
    leader of the group."""
    async with Cluster("ABCD") as cluster:
        await cluster.create("S", 2)
        await asyncio.sleep(10)
        node = next(node for node in cluster if node.has("S"))
        asked = watched(node)
        replica = node.replica("S")
        replica.assignment = replace(replica.assignment, peers=(node.me,))
        replica.group.fail(KvDamagedError(DAMAGE))
        node.kv.damage = DAMAGE
        await cluster.until(lambda: asked == [DAMAGE], what="it is asked for")


@virtual_time
async def test_a_stream_that_never_began_here_keeps_no_store_from_its_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 50400 of the simulation of complete nodes: it was placed on the damaged node."""
    async with Cluster() as cluster:
        await asyncio.sleep(10)

        def unreadable(start: bytes, end: bytes) -> None:
            raise KvDamagedError(DAMAGE)

        asked = {node: watched(node) for node in cluster}
        for node in cluster:
            monkeypatch.setattr(node.kv, "chunks", unreadable)
        with pytest.raises(ApiError):
            await cluster.create("ONE", 1)
        monkeypatch.undo()
        (node,) = (node for node in cluster if node.js.broken)
        await cluster.until(lambda: asked[node] == [DAMAGE], what="it is asked for")
        assert node.raft.health.reasons == [f"data: {DAMAGE}"], "nothing else is to begin there"


@pytest.mark.parametrize("why", ["it is the only voter", "nobody knows who votes"])
@virtual_time
async def test_a_stream_that_damage_has_stopped_is_not_put_aside_where_nobody_else_has_it(why: str) -> None:
    async with Cluster() as cluster:
        await cluster.create("ONE", 1 if why == "it is the only voter" else 3)
        node = await cluster.led("ONE")
        await asyncio.sleep(10)
        asked = watched(node)
        replica = node.replica("ONE")
        replica.assignment = replace(replica.assignment, peers=(node.me,))
        replica.group.fail(KvDamagedError(DAMAGE))
        forget(node, "ONE")
        if why == "nobody knows who votes":
            node.raft.journal.groups[replica.assignment.gid].damaged = True
        node.kv.damage = DAMAGE
        await asyncio.sleep(20)
        assert asked == []


@virtual_time
async def test_a_stream_whose_log_is_whole_from_its_first_entry_is_made_again_from_it() -> None:
    """Seed 710046 of the simulation of complete nodes: it was scaled to this node right before its store rotted."""
    async with Cluster() as cluster:
        await cluster.create("ONE", 1)
        node = await cluster.led("ONE")
        for number in range(5):
            await node.publish(b"one", b"%d" % number)
        await asyncio.sleep(10)
        asked = watched(node)
        gid = node.replica("ONE").assignment.gid
        node.replica("ONE").group.fail(KvDamagedError(DAMAGE))
        node.kv.damage = DAMAGE
        await cluster.until(lambda: asked == [DAMAGE], what="it is asked for")
        cluster.crash(node.name)
        renewed = node.kv = node.kv.crashed()
        BlockStore(renewed, gid, memory=False).remove()  # as `data_renewal` leaves a stream behind that is not whole
        renewed.commit()
        renewed.flush_now()
        again = cluster.restart(node.name)
        await cluster.led("ONE")
        assert [(await again.get(b"ONE", seq))[2] for seq in range(1, 6)] == [b"%d" % number for number in range(5)]


@virtual_time
async def test_a_node_whose_data_store_is_damaged_gets_no_new_replicas_while_others_are_well() -> None:
    async with Cluster() as cluster:
        await asyncio.sleep(10)
        node = cluster["B"]
        watched(node)
        node.kv.damage = DAMAGE
        await asyncio.sleep(1)
        assert any("data: " in reason for reason in node.raft.health.reasons)
        assert cluster.meta_leader() is not node, "it leads nothing that others can lead"
        for number in range(6):
            await cluster.create(f"ONE{number}", 1)
        assert not node.js.replicas
        node.kv.damage = ""
        await asyncio.sleep(3)
        for number in range(6, 12):
            await cluster.create(f"ONE{number}", 1)
        assert node.js.replicas


@virtual_time
async def test_a_server_that_stands_alone_keeps_its_store() -> None:
    async with Cluster("A", clustered=False) as cluster:
        await cluster.create("S", 1)
        asked = watched(cluster["A"])
        cluster["A"].kv.damage = DAMAGE
        await asyncio.sleep(30)
        assert asked == []
        assert "the files of the data store are damaged" in cluster["A"].log.events("error")


FAILED = KvError("IO error: While fdatasync: Input/output error")


def starts(node: Node) -> list[str]:
    """Reasons for which the node asks to be started again, as they come."""
    asked: list[str] = []
    node.js.parts.store_care._start_again = asked.append
    return asked


def refuse(node: Node) -> None:
    """Makes the store take no writes any more, as RocksDB does after one failure, whatever the disk says."""
    node.kv.error, node.kv.broken = FAILED, True


@virtual_time
@pytest.mark.parametrize("clustered", [True, False])
async def test_a_store_that_takes_no_writes_any_more_is_opened_anew_when_the_disk_is_well(clustered: bool) -> None:
    async with Cluster("ABC" if clustered else "A", clustered=clustered) as cluster:
        await cluster.create("S", 3 if clustered else 1)
        await asyncio.sleep(10)
        node = cluster["A"]
        asked = starts(node)
        refuse(node)
        node.kv.sick = True
        await asyncio.sleep(REFUSED_SECONDS + 20)
        assert asked == []
        node.kv.sick = False
        await cluster.until(lambda: asked != [], what="it is asked for")
        assert "Input/output" in asked[0]


@virtual_time
async def test_a_store_that_heals_by_itself_is_left_alone() -> None:
    async with Cluster("A", clustered=False) as cluster:
        await cluster.create("S", 1)
        await asyncio.sleep(10)
        node = cluster["A"]
        asked = starts(node)
        for _ in range(4):
            refuse(node)
            await asyncio.sleep(REFUSED_SECONDS - 3)
            node.kv.broken = False
            await node.publish(b"s")
            await asyncio.sleep(2)
        assert asked == []


@virtual_time
async def test_the_others_are_waited_for_but_not_for_ever() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await asyncio.sleep(10)
        node = cluster["A"]
        asked = starts(node)
        cluster.crash("C")
        await cluster.led("S")
        refuse(node)
        await cluster["B"].publish_again(b"s")
        await asyncio.sleep(WAIT_SECONDS - 10)
        assert asked == []
        await cluster.until(lambda: asked != [], what="it is asked for")


@virtual_time
async def test_a_replica_that_a_failing_disk_stopped_comes_back_with_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster.led("S")
        await asyncio.sleep(10)
        node = cluster.followers("S")[0]
        asked = starts(node)

        def fails(*_: object) -> None:
            raise FAILED

        monkeypatch.setattr(node.replica("S"), "apply", fails)
        await cluster["A"].publish_again(b"s")
        await cluster.until(lambda: node.replica("S").failed != "", what="it stopped")
        await cluster.until(lambda: asked != [], what="a start is asked for")
        cluster.crash(node.name)
        cluster.restart(node.name)
        await cluster.equal("S")


@virtual_time
async def test_a_stream_that_could_not_be_read_is_started_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await asyncio.sleep(1)
        cluster.crash("B")

        def fails(*_: object, **__: object) -> None:
            raise FAILED

        with monkeypatch.context() as patch:
            patch.setattr("jetcluster.cluster.local_streams.StreamReplica", fails)
            asked = starts(cluster.restart("B"))
            await asyncio.sleep(1)
            assert not cluster["B"].has("S")
        await cluster.until(lambda: asked != [], what="a start is asked for")
