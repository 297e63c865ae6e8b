"""Steps towards the wanted members of a group (replica/members.py); whole clusters are in test_jetstream.py.

Also consumers whose owner is gone, on whole nodes of one process.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.raft.api import GroupStatus, MembershipError, PeerStatus, Role
from jetcluster.raft.membership import Config
from jetcluster.raft.node_state import Levels
from jetcluster.replica.members import carried_without, follow_assignment, level_of, may_go, may_retire
from jetcluster.stream.log.levels import RETENTION_GUARD_LEVEL
from jetcluster.stream.rules import StreamRules
from testkit.sim.nodes import ACCOUNT, Cluster
from testkit.sim.shared import virtual_time
from tests.unit.cluster.consumers import (
    SECOND,
    Puller,
    ask,
    consumer,
    filled,
    host,
    owned_by,
    owned_by_a_follower,
    owner,
    state,
)


class FakeGroup:
    """A leader "A" with `voters`; records the changes asked for."""

    last_index = 1000

    def __init__(
        self,
        voters: str,
        *,
        outgoing: str = "",
        learners: str = "",
        able: str = "",
        up: str = "",
        behind: str = "",
        recovering: str = "",
        silent: str = "",
    ) -> None:
        self.config = Config(tuple(voters), tuple(learners), outgoing=tuple(outgoing))
        self._able, self._up, self._behind, self._recovering = able, up, behind, recovering
        self._silent = silent
        self.asked: list[tuple[str, str]] = []

    def members_at(self, index: int) -> Config:
        return self.config

    def status(self) -> GroupStatus:
        peers = [
            PeerStatus(
                p,
                100 if p in self._behind else 1000,
                0.0,
                p in self._up,
                self.config.has_vote(p),
                p in self._recovering,
                p in self._silent,
                p in self._able,
            )
            for p in self.config.others("A")
        ]
        return GroupStatus(2, Role.LEADER, 1, "A", 1, 1000, 1000, 1000, 1000, peers)

    def add_peer(self, peer: str) -> int:
        self.asked.append(("add", peer))
        return 1

    def remove_peer(self, peer: str) -> int:
        self.asked.append(("remove", peer))
        return 1

    def change_voters(self, voters: tuple[str, ...]) -> int:
        self.asked.append(("change", "".join(voters)))
        return 1


def steps(group: FakeGroup, wanted: str, online: str, *, needed: int = 0) -> list[tuple[str, str]]:
    """`needed`: the level of the stream's consumers; all peers have level 4."""
    others = dict.fromkeys(p for p in online if p != "A")
    raft = SimpleNamespace(levels=Levels("A", 4, lambda peer: 4))
    context: Any = SimpleNamespace(me="A", mesh=SimpleNamespace(peers=others), raft=raft)
    follow_assignment(context, group, tuple(wanted), needed)  # type: ignore[arg-type]
    return group.asked


def test_nothing_to_do() -> None:
    assert steps(FakeGroup("ABC", up="BC"), "CAB", "ABC") == []


def test_the_lost_peer_goes_in_one_step_with_the_coming_of_its_successor() -> None:
    assert steps(FakeGroup("ABC", up="B"), "ABD", "ABD") == [("add", "D")]
    assert steps(FakeGroup("ABC", learners="D", up="BD"), "ABD", "ABD") == []
    assert steps(FakeGroup("ABC", learners="D", up="BD", able="D"), "ABD", "ABD") == [("change", "ABD")]


def test_a_group_grows_and_shrinks_in_one_step() -> None:
    """Steps from one to three, back, and from one server to another, without a stage of two voters."""
    assert steps(FakeGroup("A", learners="B", up="B", able="B"), "ABC", "ABC") == [("add", "C")]
    assert steps(FakeGroup("A", learners="BC", up="BC", able="B"), "ABC", "ABC") == []
    assert steps(FakeGroup("A", learners="BC", up="BC", able="BC"), "ABC", "ABC") == [("change", "ABC")]
    assert steps(FakeGroup("ABC", up="BC"), "A", "ABC") == [("change", "A")]
    assert steps(FakeGroup("ABC", up="BC"), "B", "ABC") == [("change", "B")]
    assert steps(FakeGroup("A", learners="B", up="B", able="B"), "B", "AB") == [("change", "B")]


def test_who_is_there_takes_the_place_of_who_is_gone_before_all_are() -> None:
    assert steps(FakeGroup("ABC", learners="DE", up="BD", able="D"), "ADE", "ABD") == [("change", "ABD")]
    assert steps(FakeGroup("ABC", learners="D", up="BCD", able="D"), "ADE", "ABCD") == [], "nobody is gone"


def test_a_change_is_led_to_its_end_first() -> None:
    assert steps(FakeGroup("ABD", outgoing="ABC", up="BCD"), "ABE", "ABCDE") == []
    assert carried_without(FakeGroup("ABD", outgoing="ABC", up="BD"), "B") == (["A", "C"], ["A"])  # type: ignore[arg-type]


def test_a_peer_that_would_stop_at_the_ops_of_consumers_has_to_wait() -> None:
    assert steps(FakeGroup("ABC", up="B"), "ABD", "ABD", needed=4) == [("add", "D")]
    assert steps(FakeGroup("ABC", up="B"), "ABD", "ABD", needed=5) == []
    assert steps(FakeGroup("ABC", up="BC"), "AB", "ABC", needed=5) == [("change", "AB")], "others may go"


def test_a_member_of_a_guarded_stream_must_heed_the_guard() -> None:
    """A snapshot has the guard, and no command stops a server there that does not know it."""
    config = {"retention_guard": {"consumer": "c", "max_bytes": 1}}
    for consumers in (0, 5, 7):
        table: Any = SimpleNamespace(level=consumers)
        assert level_of(table, StreamRules.from_config({})) == consumers
        assert level_of(table, StreamRules.from_config(config)) == max(consumers, RETENTION_GUARD_LEVEL)


def test_a_lost_learner_goes_first() -> None:
    assert steps(FakeGroup("AB", learners="D", up="B"), "ABE", "ABE") == [("remove", "D")]


def test_a_lost_peer_stays_while_the_others_do_not_carry_the_group() -> None:
    assert steps(FakeGroup("ABC", up=""), "ABD", "AD") == [("add", "D")]
    assert steps(FakeGroup("ABC", up=""), "AB", "A") == []
    assert not may_go(FakeGroup("ABC", up=""), "C")  # type: ignore[arg-type]
    assert not may_go(FakeGroup("ABC", up="B", behind="B"), "C")  # type: ignore[arg-type]
    assert may_go(FakeGroup("ABC", up="B"), "C")  # type: ignore[arg-type]


def test_an_absent_successor_is_not_added() -> None:
    assert steps(FakeGroup("AB", up="B"), "ABD", "AB") == []


def test_a_change_under_way_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    group = FakeGroup("AB", up="B")

    def busy(peer: str) -> int:
        raise MembershipError("another change is under way")

    monkeypatch.setattr(group, "add_peer", busy)
    assert steps(group, "ABD", "ABD") == []


def test_a_voter_with_a_damaged_journal_does_not_carry_the_group() -> None:
    group = FakeGroup("ABC", up="BC", recovering="C")
    assert not may_go(group, "B")  # type: ignore[arg-type]
    assert may_go(group, "C")  # type: ignore[arg-type]
    assert steps(group, "AC", "ABC") == []


def test_a_voter_that_says_nothing_does_not_carry_the_group_while_its_link_lasts() -> None:
    """Its machine may be gone for good; without B the group would be it and A."""
    group = FakeGroup("ABC", up="BC", silent="C")
    assert not may_go(group, "B")  # type: ignore[arg-type]
    assert may_go(group, "C")  # type: ignore[arg-type]
    assert steps(group, "AC", "ABC") == []
    assert steps(group, "AB", "ABC") == [("change", "AB")]


def test_a_replica_retires_only_when_nothing_that_may_be_in_force_names_it() -> None:
    answer = {"voters": ["B", "C"], "outgoing": [], "learners": [], "members": ["B", "C"], "commit": 20}
    assert may_retire("A", answer, ("B", "C"), 20)
    assert not may_retire("A", answer, ("B", "C"), 21), "what its log says last is not decided"
    assert not may_retire("A", answer, ("B", "D"), 20), "its successor is not there yet"
    assert not may_retire("A", answer | {"members": ["A", "B", "C"]}, ("B", "C"), 20), (
        "it is a learner again, uncommitted"
    )
    assert not may_retire("A", answer | {"outgoing": ["A", "B", "C"]}, ("B", "C"), 20)


@virtual_time
async def test_an_owner_that_crashes_is_replaced_and_who_waits_is_answered() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 10)
        leader, home = await owned_by_a_follower(cluster)
        client = Puller(leader, "S", "c")
        got = await client.fetch(6)
        for message in got[:3]:
            await client.ack(message)
        client.pull(10, expires=30.0)
        await cluster.until(lambda: len(client.got) == 10, what="the rest")
        before = cluster.loop.time()
        cluster.crash(home.name)
        await cluster.until(lambda: b"409 Leadership Change" in client.statuses, what="the client is answered")
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
