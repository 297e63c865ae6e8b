"""The meta group's replica: persistence, leadership, snapshots (cluster/meta_replica.py)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from jetcluster.cluster.meta_replica import STATE_KEY
from jetcluster.mesh.api import MeshError
from jetcluster.raft.api import NotLeaderError, RaftError
from jetcluster.raft.membership import Config, Members
from jetcluster.replica.proposals import OutcomeUnknownError
from tests.unit.cluster.nodes import ACCOUNT, Cluster
from tests.unit.cluster.virtual_loop import virtual_time
from tests.unit.store.shipping import steps


@virtual_time
async def test_the_state_comes_back_from_the_store_and_the_rest_from_the_log() -> None:
    async with Cluster() as cluster:
        await cluster.create("OLD", 1, subjects=["old"])
        for node in cluster:
            await node.js.flusher.flush()
        await cluster.create("NEW", 1, subjects=["new"])
        digest = cluster["A"].js.meta.machine.digest
        for name in "ABC":
            cluster.crash(name)
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
        with pytest.raises(OutcomeUnknownError):
            await other.js.meta.barrier()
        with pytest.raises(NotLeaderError):
            await other.js.meta.propose(b"{}")
        cluster.isolate(leader.name)
        with pytest.raises(OutcomeUnknownError):
            await leader.js.meta.barrier()


@virtual_time
async def test_a_leader_that_cannot_say_lets_nobody_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        leader = cluster.meta_leader()
        assert leader is not None
        meta = leader.js.meta
        monkeypatch.setattr(meta.group, "read_index", lambda callback: None)
        async with asyncio.timeout(60):
            with pytest.raises(OutcomeUnknownError):
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
    """Who was fenced off, and how often: in what is given, and in what the receiver writes down."""
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
        for _ in steps(old.giver, taker, meta.context.kv):
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
