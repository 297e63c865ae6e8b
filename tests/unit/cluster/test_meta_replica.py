"""The meta group's replica: persistence, leadership, snapshots (cluster/meta_replica.py)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from jetcluster.cluster.meta_replica import LOST_KEY, MEMBERS_KEY, STATE_KEY
from jetcluster.mesh.api import MeshError
from jetcluster.node.node_jetstream import StorageError
from jetcluster.raft.api import NotLeaderError, RaftError
from jetcluster.raft.membership import Config, Members
from jetcluster.replica.proposals import OutcomeUnknownError
from testkit.sim.nodes import ACCOUNT, SMALL_LOG, Cluster, Node
from testkit.sim.shared import virtual_time
from tests.unit.store.shipping import steps


@virtual_time
async def test_the_state_comes_back_from_the_store_and_the_rest_from_the_log() -> None:
    async with Cluster() as cluster:
        await cluster.create("OLD", 1, subjects=["old"])
        await cluster.flush()
        await cluster.create("NEW", 1, subjects=["new"])
        digest = cluster["A"].js.meta.machine.digest
        cluster.crash("ABC")
        for name in "ABC":
            node = cluster.restart(name)
            assert node.js.assignment(ACCOUNT, "OLD") is not None
        await cluster.until(lambda: cluster.meta_leader() is not None, what="a meta leader")
        for node in cluster:
            await cluster.until(lambda node=node: node.js.assignment(ACCOUNT, "NEW") is not None)  # type: ignore[misc]
            assert digest in (node.js.meta.machine.digest, digest)


@virtual_time
async def test_the_state_is_written_only_when_it_changed() -> None:
    async with Cluster() as cluster:
        node = cluster["A"]
        node.js.meta.save()
        first = node.kv.get(STATE_KEY)
        assert first is not None
        node.kv.delete(STATE_KEY)
        node.js.meta.save()
        assert node.kv.get(STATE_KEY) is None
        await cluster.create("S", 1)
        await asyncio.sleep(0.1)
        node.js.meta.save()
        assert node.kv.get(STATE_KEY) not in (None, first)


@virtual_time
async def test_only_a_leader_with_a_majority_passes_the_barrier() -> None:
    async with Cluster() as cluster:
        leader = cluster.meta_leader()
        assert leader is not None
        await leader.js.meta.barrier()
        other = next(node for node in cluster if node is not leader)
        with pytest.raises(NotLeaderError):
            await other.js.meta.barrier()
        with pytest.raises(NotLeaderError):
            await other.js.meta.propose(b"{}")
        cluster.isolate(leader.name)
        with pytest.raises(NotLeaderError):
            await leader.js.meta.barrier()


@virtual_time
async def test_a_leader_that_cannot_say_lets_nobody_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        leader = cluster.meta_leader()
        assert leader is not None
        meta = leader.js.meta
        monkeypatch.setattr(meta.group, "read_index", lambda callback: None)
        async with asyncio.timeout(60):
            with pytest.raises(NotLeaderError):
                await meta.barrier()


@virtual_time
async def test_before_there_is_a_group_nothing_can_be_asked() -> None:
    cluster = Cluster("A", expected=3)
    meta = cluster["A"].js.meta
    cluster["A"].js.joining.settled = lambda: False
    await asyncio.sleep(10)
    assert meta.group is None and not meta.leading
    for attempt in (meta.propose(b"{}"), meta.barrier()):
        with pytest.raises(NotLeaderError):
            await attempt
    with pytest.raises(MeshError):
        meta.snapshot_export()
    await cluster.stop("A")


@virtual_time
async def test_a_state_comes_with_all_that_a_rescue_left_behind() -> None:
    """The servers fenced off and the number of rescues are in what is given, and in what the receiver writes down."""
    async with Cluster("AB") as cluster:
        await cluster.create("S", 1)
        await asyncio.sleep(0.1)
        meta = cluster["A"].js.meta
        rescued = replace(meta.group.members_at(meta.machine.applied_index), rescue=2, fenced=("X" * 8,))
        meta.group.install(meta.machine.applied_index, meta.applied_term, rescued)
        cut = meta.snapshot_export()
        assert cut.config == rescued
        taker = meta.snapshot_begin()
        for _ in steps(cut.giver, taker, meta._import):
            pass
        meta._keep_members(Members(0, Config(("A",))))
        await meta.snapshot_end(cut.index, cut.term, cut.config)
        assert meta._members() == Members(cut.index, rescued)
        assert meta.group.log.rescues == 2 and meta.group.fenced == {"X" * 8}


@virtual_time
async def test_an_older_snapshot_is_not_taken_over() -> None:
    async with Cluster() as cluster:
        old = cluster["A"].js.meta.snapshot_export()
        await cluster.create("S", 1)
        await asyncio.sleep(0.1)
        meta = cluster["A"].js.meta
        taker = meta.snapshot_begin()
        for _ in steps(old.giver, taker, cluster["A"].kv):
            pass
        with pytest.raises(MeshError):
            await meta.snapshot_end(old.index, old.term, old.config)
        assert cluster["A"].js.assignment(ACCOUNT, "S") is not None


@virtual_time
async def test_a_stopping_node_keeps_nobody_waiting() -> None:
    async with Cluster() as cluster:
        leader = cluster.meta_leader()
        assert leader is not None
        cluster.isolate(leader.name)
        before = cluster.loop.time()
        waiting = asyncio.get_running_loop().create_task(leader.js.meta.propose(b"{}"))
        await asyncio.sleep(0)
        await cluster.stop(leader.name)
        with pytest.raises((OutcomeUnknownError, RaftError)):
            await waiting
        assert cluster.loop.time() - before < 2


def rot(node: Node, how: str) -> None:
    """Damages what is stored of the meta group by a stopped node: it is not what was written."""
    stored = node.kv.flushed[STATE_KEY]
    if how == "checksum":
        node.kv.rotten |= {STATE_KEY, MEMBERS_KEY}
    elif how == "members":
        node.kv.flushed[MEMBERS_KEY] = b"\xff\xff"
    else:
        node.kv.flushed[STATE_KEY] = {"bits": stored[:60] + b"\xff" + stored[61:], "short": stored[:5]}[how]


@virtual_time
@pytest.mark.parametrize("how", ["checksum", "bits", "short", "members"])
@pytest.mark.parametrize("compacted", [True, False])
async def test_a_damaged_state_is_fetched_from_another_node(how: str, compacted: bool) -> None:
    async with Cluster(options=SMALL_LOG if compacted else None) as cluster:
        await cluster.create("S")
        for number in range(30 if compacted else 1):
            await cluster.create(f"X{number}", 1)
            await cluster.delete(f"X{number}")
        for _ in range(3):
            await cluster.flush()
        node = next(n for n in cluster if not n.js.meta.leading)
        assert bool(node.js.meta.group.log.base_index) == compacted  # type: ignore[union-attr]
        cluster.crash(node.name)
        rot(node, how)
        node = cluster.restart(node.name)
        assert any("damaged" in event for event in node.log.events("error"))
        assert (node.js.assignment(ACCOUNT, "S") is None) == (how != "members")
        await cluster.until(lambda: node.js.assignment(ACCOUNT, "S") is not None, what="the state")
        await cluster.equal("S")
        leader = cluster.meta_leader()
        assert leader is not None
        assert node.js.meta.machine.digest == leader.js.meta.machine.digest
        assert node.js.unassigned == () and not any("X" in str(line[2].get("stream")) for line in node.log.lines)
        await node.js.flusher.flush()
        cluster.crash(node.name)
        node = cluster.restart(node.name)
        assert node.js.assignment(ACCOUNT, "S") is not None
        assert not any("damaged" in event for event in node.log.events("error"))


@virtual_time
async def test_all_but_one_may_have_a_damaged_state() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster.flush()
        cluster.crash("ABC")
        for name in "AB":
            rot(cluster[name], "checksum")
        cluster.restart("ABC")
        for node in cluster:
            await cluster.until(lambda node=node: node.js.assignment(ACCOUNT, "S") is not None)  # type: ignore[misc]
        await cluster.led("S")
        assert (await cluster["A"].publish_again(b"s"))["seq"] == 1


@virtual_time
async def test_a_node_alone_makes_its_state_anew_or_says_that_nobody_has_it() -> None:
    async with Cluster("A", clustered=False, options=SMALL_LOG) as cluster:
        await cluster.create("S", 1)
        await cluster["A"].publish(b"s")
        await cluster["A"].js.flusher.flush()
        cluster.crash("A")
        rot(cluster["A"], "checksum")
        cluster.restart("A")
        await cluster.led("S")
        assert cluster["A"].replica("S").store.last_seq == 1
        for number in range(30):
            await cluster.create(f"X{number}", 1)
            await cluster.delete(f"X{number}")
        await cluster["A"].js.flusher.flush()
        group = cluster["A"].js.meta.group
        assert group is not None and group.log.base_index  # type: ignore[attr-defined]
        await asyncio.sleep(1.0)  # the journal has it, too
        cluster.crash("A")
        rot(cluster["A"], "short")
        with pytest.raises(StorageError, match=r"no other server has it.*backup"):
            cluster.restart("A")


@virtual_time
async def test_damaged_records_of_deleted_streams_keep_no_node_from_starting() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        gid = await cluster.delete("S")
        node = cluster["B"]
        cluster.crash("B")
        node.kv.rotten |= {b"\x00gone\x00\x00\x00" + bytes([gid])}
        node = cluster.restart("B")
        assert "records of deleted streams cannot be read" in node.log.events("error")
        await cluster.until(lambda: node.js.meta.group is not None and node.js.meta.group.leader is not None)


@virtual_time
@pytest.mark.parametrize("told", ["by the journal", "by the store"])
async def test_a_state_that_is_not_there_any_more_is_not_taken_for_one_that_never_was(told: str) -> None:
    """The log reaches back to the beginning: what it says is not carried out once more."""
    async with Cluster() as cluster:
        await cluster.create("GONE", 1)
        await cluster.delete("GONE")
        await cluster.create("S")
        if told == "by the journal":
            await cluster.flush()
            await asyncio.sleep(0.1)
        node = next(n for n in cluster if not n.js.meta.leading)
        cluster.crash(node.name)
        node.kv.flushed.clear()
        if told == "by the store":
            node.kv.flushed[LOST_KEY] = b""
        node = cluster.restart(node.name)
        assert any("lost" in event for event in node.log.events("error"))
        assert node.js.meta.machine.applied_index == 0 and node.js.assignment(ACCOUNT, "S") is None
        await cluster.until(lambda: node.js.assignment(ACCOUNT, "S") is not None, what="the state")
        await cluster.equal("S")
        assert not any("GONE" in str(line[2].get("stream")) for line in node.log.lines)
        await node.js.flusher.flush()
        assert LOST_KEY not in node.kv.flushed
        cluster.crash(node.name)
        node = cluster.restart(node.name)
        assert not node.log.events("error")


@virtual_time
async def test_a_node_that_has_never_flushed_goes_on_by_its_log() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        for name in "ABC":
            assert STATE_KEY not in cluster[name].kv.flushed
            cluster.crash(name)
        for name in "ABC":
            assert not cluster.restart(name).log.events("error")
        await cluster.led("S")
        assert (await cluster["A"].publish_again(b"s"))["seq"] == 1
