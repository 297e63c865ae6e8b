"""Nodes that lost their store, and those that take their places."""

from __future__ import annotations

import asyncio

import pytest

from jetcluster.raft.api import Role
from testkit.sim.nodes import ACCOUNT, Cluster, Node, NoRespondersError
from testkit.sim.shared import virtual_time
from tests.unit.cluster.transfers import whole


@virtual_time
async def test_a_wiped_node_is_a_new_peer_that_takes_the_old_ones_place() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster["A"].publish(b"s", b"kept")
        for _ in range(3):
            old = cluster["C"].me
            cluster.crash("C")
            wiped = cluster.add("C")
            assert wiped.me != old
            await whole(cluster, "S")
            assert wiped.replica("S").store.state.messages == 1
        # The new replica counts: with it and A alone the stream goes on.
        cluster.crash("B")
        await cluster.led("S")
        await cluster.until(lambda: cluster.meta_leader() is not None, what="a meta leader")
        assert (await cluster["C"].publish(b"s"))["seq"] == 2
        assert (await cluster["C"].get(b"S", 1))[2] == b"kept"


@virtual_time
async def test_two_nodes_wiped_at_once_are_not_taken_for_a_majority() -> None:
    """One of three is left: nobody decides anything, and what it holds stays."""
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster["A"].publish(b"s", b"kept")
        await cluster.equal("S")
        leader = cluster.meta_leader()
        left = next(node for node in cluster if node is not leader)
        group = left.js.meta.group
        assert group is not None
        before = group.peers
        wiped = [name for name in "ABC" if name != left.name]
        cluster.crash(wiped)
        for name in wiped:
            cluster.add(name)
        await cluster.never(lambda: cluster.meta_leader() is not None, 20, "a meta leader")
        assert group.peers == before
        assert left.replica("S").store.state.messages == 1
        assert not any(cluster[name].has("S") for name in wiped)


@virtual_time
async def test_a_replaced_node_that_comes_back_with_its_store_is_taken_in_again() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        first = cluster["C"]
        cluster.crash("C")
        second = cluster.add("C")
        await cluster.until(lambda: second.me in cluster["A"].replica("S").group.peers, what="S has the new C")
        await cluster["A"].publish(b"s", b"while away")
        cluster.crash("C")
        cluster.nodes["C"] = first
        back = cluster.restart("C")
        assert back.me == first.me
        await whole(cluster, "S")


@virtual_time
async def test_a_stream_with_one_replica_keeps_its_lost_peer() -> None:
    async with Cluster() as cluster:
        for number in range(3):
            await cluster.create(f"R{number}", 1, subjects=[f"r{number}"])
        old = cluster["C"].me
        lost = next(f"R{n}" for n in range(3) if cluster.leader(f"R{n}").name == "C")
        cluster.crash("C")
        wiped = cluster.add("C")
        nodes = cluster["A"].js.meta.machine.nodes
        await cluster.until(lambda: wiped.me in nodes and old not in nodes, what="C is replaced")
        assignment = cluster["A"].js.assignment(ACCOUNT, lost)
        assert assignment is not None and assignment.peers == (old,)
        assert not wiped.has(lost)
        with pytest.raises(NoRespondersError):
            await cluster["A"].publish(lost.lower().encode())
        await cluster.delete(lost)
        await cluster.create(lost, 1, subjects=[lost.lower()])


@virtual_time
async def test_all_nodes_keep_the_clusters_id_and_strangers_stay_out() -> None:
    async with Cluster("AB") as cluster:
        late = cluster.add("C")
        await cluster.until(lambda: all(node.identity.member for node in cluster), what="all are members")
        ids = {node.identity.cluster for node in cluster}
        assert len(ids) == 1 and ids == {cluster["A"].js.meta.machine.cluster_id} == {late.mesh.me.cluster_id}
        cluster.crash("C")
        cluster.add("X", "another")
        await asyncio.sleep(2)
        assert cluster["X"].mesh.peers == {}
        assert cluster["X"].me not in {p for node in "AB" for p in cluster[node].mesh.peers}
        restarted = cluster.restart("C")
        assert restarted.mesh.me.cluster_id in ids
        await cluster.until(lambda: len(restarted.mesh.peers) == 2, what="links of the restarted C")


@virtual_time
async def test_a_node_with_an_empty_store_campaigns_for_nothing_before_it_knows_the_streams() -> None:
    """It starts with all others, none of which leads yet, and votes once it has what they have."""
    async with Cluster("ABCD") as cluster:
        for number in range(5):
            await cluster.create(f"S{number}")
        for fresh in "DA":
            rest = "".join(sorted(set("ABCD") - {fresh}))
            cluster.crash("ABCD")
            cluster.restart(rest)
            node = cluster.add(fresh)

            def votes(node: Node = node) -> bool:
                group, streams = node.js.meta.group, len(node.js.meta.machine.all_assignments())
                if group is not None and group.role in (Role.CANDIDATE, Role.LEADER):
                    assert streams == 5, group.role
                return group is not None and node.me in group.peers and streams == 5

            await cluster.until(votes, 60, "it votes")
            assert cluster.meta_leader() is not None
