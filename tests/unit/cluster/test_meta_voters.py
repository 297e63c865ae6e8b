"""Who votes in the meta group: the rules of cluster/meta_voters.py."""

from __future__ import annotations

import pytest

from jetcluster.cluster import meta_voters
from jetcluster.cluster.meta_voters import MAX_VOTERS, has_place, replaced
from jetcluster.errors import ApiError
from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time


def machine(peer: str) -> str:
    """`a0`, `a1`: workers of machine a; a name without a number is no worker."""
    return peer[0].upper() if peer[-1].isdigit() else peer


def test_a_machine_has_one_vote() -> None:
    assert has_place("b1", ["a0"], machine)
    assert not has_place("a1", ["a0"], machine)


def test_five_workers_vote() -> None:
    assert has_place("e0", ["a0", "b0", "c0", "d0"], machine)
    assert not has_place("f0", ["a0", "b0", "c0", "d0", "e0"], machine)


def test_every_node_that_is_no_worker_votes() -> None:
    assert has_place("plain", ["a0", "b0", "c0", "d0", "e0", "other"], machine)


def test_a_worker_takes_the_vote_of_one_that_is_away() -> None:
    assert replaced(["a0", "b0", "c0"], {"b0"}, ["d0"], machine) == ("a0", "c0", "d0")


def test_no_machine_gets_a_second_vote_by_that() -> None:
    assert replaced(["a0", "b0", "c0"], {"b0"}, ["a1", "c1"], machine) is None
    assert replaced(["a0", "b0", "c0"], {"b0", "c0"}, ["d0", "d1"], machine) == ("a0", "d0", "c0")


def test_another_worker_of_the_same_machine_may_take_it() -> None:
    assert replaced(["a0", "b0", "c0"], {"b0"}, ["b1", "d0"], machine) == ("a0", "c0", "b1")


def test_as_many_vote_as_before() -> None:
    voters = replaced(["a0", "b0", "c0", "d0", "e0"], {"a0", "b0"}, ["f0", "g0", "h0"], machine)
    assert voters == ("c0", "d0", "e0", "f0", "g0")


def voters(cluster: Cluster) -> set[str]:
    """Names of the meta group's voters; empty while they change."""
    leader = cluster.meta_leader()
    assert leader is not None and leader.js.meta.group is not None
    config = leader.js.meta.group.members_at(leader.js.meta.group.last_index)
    return set() if config.outgoing else {node.name for node in cluster.nodes.values() if node.me in config.voters}


@virtual_time
async def test_a_cluster_of_workers_loses_more_machines_than_its_voters_could_spare_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meta_voters, "REPLACE_SECONDS", 2.0)
    async with Cluster("ABCDEFG", workers=2) as cluster:
        assert len(voters(cluster)) == MAX_VOTERS
        assert all(name[1] == "0" for name in voters(cluster)), "another worker has founded the cluster"
        streams = [f"S{number}" for number in range(10)]
        for name in streams:
            found = await cluster.create(name, ask="B1")
            machines = {node.name[0] for node in cluster if node.me in found.peers}
            assert len(machines) == 3, "two replicas are on one machine"
        lost: set[str] = set()
        for _ in range(2):
            gone = {name[0] for name in sorted(voters(cluster))[:2]}
            lost |= gone
            cluster.crash([node.name for node in cluster if node.name[0] in gone])
            await cluster.until(lambda: cluster.meta_leader() is not None, what="a meta leader")
            whole = 7 - len(lost)
            await cluster.until(
                lambda whole=whole, lost=lost: len({name[0] for name in voters(cluster)} - lost) == min(whole, 5),  # type: ignore[misc]
                10,
                "votes on other machines",
            )
        assert len(lost) == 4, "it shows nothing"
        back = [name for name in cluster.nodes if name[0] in lost]
        cluster.restart(back)
        members = {node.me for node in cluster}
        leader = cluster.meta_leader()
        assert leader is not None and leader.js.meta.group is not None
        await cluster.until(lambda: leader.js.meta.group.members == members, 30, "all are members again")  # type: ignore[union-attr]
        for name in streams:
            await cluster.led(name)
        assert len({name[0] for name in voters(cluster)}) == len(voters(cluster)), "a machine has two votes"


@virtual_time
async def test_on_one_machine_the_first_worker_alone_decides() -> None:
    async with Cluster("A", workers=3) as cluster:
        await cluster.until(lambda: len(cluster.meta_leader().js.meta.group.members) == 3, what="members")  # type: ignore[union-attr]
        assert voters(cluster) == {"A0"}
        with pytest.raises(ApiError, match="no suitable peers for placement, server tag not unique"):
            await cluster.create("S", 2)
        for number in range(3):
            await cluster.create(f"S{number}", 1, ask="A2")
        assert {cluster.leader(f"S{number}").name for number in range(3)} == {"A0", "A1", "A2"}


@virtual_time
async def test_a_worker_that_lost_its_vote_while_it_was_cut_off_follows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_voters, "REPLACE_SECONDS", 2.0)
    async with Cluster("ABCDEF", workers=1) as cluster:
        leader = cluster.meta_leader()
        assert leader is not None
        away = sorted(voters(cluster) - {leader.name})[0]
        cluster.isolate(away)
        await cluster.until(
            lambda: len(voters(cluster)) == MAX_VOTERS and away not in voters(cluster), 10, "a vote less"
        )
        cluster.heal()
        group = leader.js.meta.group
        assert group is not None
        await cluster.until(lambda: cluster[away].me in group.members, 10, "a member again")
        own = cluster[away].js.meta.group
        assert own is not None
        await cluster.until(
            lambda: own.leader == leader.me and own.applied_index == group.applied_index, 10, "it follows"
        )
        assert away not in voters(cluster)
        found = await cluster.create("S", 3, ask=away)
        assert len(found.peers) == 3
