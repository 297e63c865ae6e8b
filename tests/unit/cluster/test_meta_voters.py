"""The voters of the meta group among workers and other nodes (cluster/meta_voters.py)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.cluster import meta_voters
from jetcluster.cluster.meta_voters import MAX_VOTERS, REPLACE_SECONDS, MetaVoters, has_place, replaced
from jetcluster.config.options import WorkerOptions
from jetcluster.errors import ApiError
from jetcluster.mesh.api import NodeInfo
from jetcluster.meta.state import Node
from jetcluster.model.machines import tags_of
from jetcluster.raft.api import RaftGroup
from jetcluster.raft.membership import Config
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


class Meta:
    """A leader and what it knows: workers `a0` to `e0` vote, and whoever `follows` has caught up."""

    def __init__(self, voters: str, follows: str) -> None:
        self.votes = tuple(voters.split())
        self.changed: list[tuple[str, ...]] = []
        self.last_index = 1
        self._follows = follows.split()
        self.nodes = {peer: Node(peer, peer, self._tags(peer)) for peer in (*self.votes, *self._follows)}
        self.removed: dict[str, str] = {}
        self.peers: dict[str, NodeInfo] = {}
        self.me = SimpleNamespace(peer_id=self.votes[0], tags=self._tags(self.votes[0]))

    def _tags(self, peer: str) -> tuple[str, ...]:
        return tuple(tags_of(peer[0], int(peer[1:]))) if peer[-1].isdigit() else ()

    def members_at(self, index: int) -> Config:
        return Config(self.votes, tuple(self._follows))

    def status(self) -> Any:
        return SimpleNamespace(peers=[SimpleNamespace(peer=peer, caught_up=True) for peer in self._follows])

    def change_voters(self, voters: tuple[str, ...]) -> int:
        self.changed.append(voters)
        return 2

    def chooser(self) -> MetaVoters:
        return MetaVoters(self, self)  # type: ignore[arg-type]

    def leave(self, how: str, peer: str) -> None:
        if how == "removed":
            self.removed[peer] = ""
        else:
            self.nodes[peer] = replace(self.nodes[peer], draining=True)

    def lose(self, *gone: str) -> list[tuple[str, ...]]:
        self.chooser().replace(self, lambda peer: REPLACE_SECONDS if peer in gone else 0.0)  # type: ignore[arg-type]
        return self.changed


def test_the_vote_of_a_node_that_is_no_worker_stays_its_own() -> None:
    assert Meta("a0 p q", "b0 c0").lose("p") == []
    assert Meta("a0 p d0", "b0 c0").lose("p", "d0") == [("a0", "p", "b0")]


def test_a_node_that_is_no_worker_takes_no_other_vote() -> None:
    assert Meta("a0 b0 c0", "p").lose("b0") == []


@pytest.mark.parametrize("how", ["removed", "draining"])
def test_a_node_that_leaves_gets_no_vote(how: str) -> None:
    meta = Meta("a0 b0 c0", "d0 e0 p")
    for peer in ("d0", "p"):
        assert meta.chooser().may_vote(peer, meta.votes)
        meta.leave(how, peer)
        assert not meta.chooser().may_vote(peer, meta.votes)
    assert meta.lose("b0") == [("a0", "c0", "e0")]


def meta_group(cluster: Cluster) -> RaftGroup:
    """The leader's."""
    leader = cluster.meta_leader()
    assert leader is not None and leader.js.meta.group is not None
    return leader.js.meta.group


def voters(cluster: Cluster) -> set[str]:
    """Names of the meta group's voters; empty while they change."""
    group = meta_group(cluster)
    config = group.members_at(group.commit_index)
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


@virtual_time
async def test_nodes_that_are_no_workers_restart_slowly_and_no_more_vote_than_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They keep their votes while they are away: nobody would ever give up the vote that took the place of one."""
    monkeypatch.setattr(meta_voters, "REPLACE_SECONDS", 2.0)
    async with Cluster("PQRST") as cluster:
        for machine in "AB":
            cluster.places[f"{machine}0"] = WorkerOptions(0, 1, machine, (), "", {}, secret="")
            cluster.add(f"{machine}0")
        members = {node.me for node in cluster}
        await cluster.until(lambda: {*meta_group(cluster).members} == members, what="the workers are members")
        before = voters(cluster)
        away = next(name for name in "PQ" if not cluster[name].js.meta.leading)
        cluster.crash([away])
        await cluster.never(lambda: voters(cluster) not in (set(), before), 5.0, "another vote")
        cluster.restart([away])
        await cluster.until(lambda: cluster[away].js.meta.group.leader is not None, what="it is back")  # type: ignore[union-attr]
        assert voters(cluster) == before == set("PQRST")
