"""The connections that the wiring makes (cluster/wiring.py)."""

from __future__ import annotations

import asyncio

from jetcluster.cluster.wiring import journal_synced
from jetcluster.raft.config import JournalOptions
from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time


@virtual_time
async def test_the_mesh_the_raft_and_the_members_of_a_node_know_each_other() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        for node in cluster:
            others = {other.me for other in cluster} - {node.me}
            members = node.mesh.members
            assert all(members.is_member(peer) and members.knows(peer) and members.is_voter(peer) for peer in others)
            assert not any(check("NOBODY00") for check in (members.is_member, members.knows, members.is_voter))
            assert all(members.key_of(peer) for peer in others) and not members.key_of("NOBODY00")
            assert node.mesh.raft.on_frame == node.raft.on_frame
            assert all(node.raft.levels.recorded(peer) == node.raft.levels.own for peer in others)
            assert node.raft.levels.recorded("NOBODY00") == 0
            assert node.raft.health.time.others() == others


@virtual_time
async def test_the_journal_is_synced_on_return() -> None:
    async with Cluster("A", clustered=False, options=JournalOptions(sync_interval=3600.0)) as cluster:
        await cluster.create("S", 1)
        node = cluster["A"]
        await node.publish(b"s")
        written = node.journal.open_seq
        assert node.journal.synced < written
        async with asyncio.timeout(1):
            await journal_synced(node.journal)
        assert node.journal.synced >= written
