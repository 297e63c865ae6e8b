"""`RaftNode` end to end over virtual time: elections, replication, quiescence, failover."""

from __future__ import annotations

import dataclasses

import pytest

from jetcluster.raft.api import NotLeaderError, Role, StorageFullError
from tests.unit.raft.loopback import SMALL, Loopback, led, running


def test_commands_reach_every_replica_in_order() -> None:
    net, leader = led()
    assert leader.me == "A"
    net.crowd(leader, 50, form=b"%d", after=0.1)
    for name in "ABC":
        assert net[name].machine().commands() == [b"%d" % i for i in range(50)]


def test_a_group_of_one_commits_when_its_own_journal_is_durable() -> None:
    net, leader = led("A")
    leader.propose(b"x")
    assert net["A"].machine().commands() == []
    net.run(0.01)
    assert net["A"].machine().commands() == [b"x"]


def test_a_follower_refuses_proposals_and_names_the_leader() -> None:
    net = running(after=0.1)
    with pytest.raises(NotLeaderError) as caught:
        net["B"].group().propose(b"x")
    assert caught.value.leader == "A"


def test_the_role_is_reported_after_the_noop_is_applied() -> None:
    net, leader = led(after=0.1)
    assert net["A"].machine().roles[-1] == (Role.LEADER, leader.term, "A")
    assert net["B"].machine().roles[-1] == (Role.FOLLOWER, leader.term, "A")


def test_failover_after_a_crash_is_quick_and_loses_nothing() -> None:
    net, leader = led()
    net.crowd(leader, 20, form=b"%d", after=0.05)
    began = net.time.monotonic()
    net.crash("A")
    net.until(lambda: net.leader() is not None)
    assert net.time.monotonic() - began < 0.5
    second = net.led_by()
    net.propose(second, b"after", after=0.1)
    assert net[second.me].machine().commands() == [b"%d" % i for i in range(20)] + [b"after"]


def test_a_hung_leader_is_replaced_although_its_link_lives() -> None:
    net = running(after=0.5)
    net.filter = lambda source, target, gid, frame: "A" not in (source, target)
    began = net.time.monotonic()
    net.until(lambda: any(net[n].group().ready for n in "BC"))
    assert net.time.monotonic() - began < 1.3


def test_who_is_heard_in_part_is_not_suspected() -> None:
    """A frame that takes seconds is under way in both directions, and no heartbeat overtakes it."""
    net, leader = led(after=0.5)
    net.filter = lambda source, target, gid, frame: "A" not in (source, target)
    for _ in range(30):
        net.run(0.1)
        for one, other in ("AB", "AC", "BA", "CA"):
            assert net[one].node.heard(other)
    assert net.leader() is leader
    assert {net[name].group().leader for name in "ABC"} == {"A"}
    net.cut("A", "B")
    assert not net["A"].node.heard("B"), "its link is gone"


def test_a_leader_without_majority_steps_down_and_drops() -> None:
    net, leader = led(after=0.1)
    net.isolate("A")
    index = net.propose(leader, b"lost", after=2.0)
    assert leader.role is not Role.LEADER
    assert net["A"].machine().dropped == [index]


def test_idle_groups_exchange_only_node_heartbeats(net: Loopback) -> None:
    for gid in range(1, 21):
        net.start(gid)
    net.run(1.0)
    group_frames: list[int] = []
    all_frames: list[int] = []

    def count(source: str, target: str, gid: int, frame: bytes) -> bool:
        (group_frames if gid else all_frames).append(gid)
        return True

    net.filter = count
    net.run(10.0)
    assert group_frames == []
    assert len(all_frames) <= 3 * 2 * (10.0 / 0.1 + 10.0 / 2 + 2)
    assert all(net["A"].group(gid).ready for gid in range(1, 21))


def test_what_may_use_the_reserve_gets_in_on_a_full_disk() -> None:
    net, leader = led(options=dataclasses.replace(SMALL, reserve_bytes=1 << 20))
    for member in net.members.values():
        member.disk.reported_free = (1 << 20) + 1000
        member.journal.housekeep()
    net.run(0.01)
    with pytest.raises(StorageFullError):
        leader.propose(b"publish")
    index = leader.propose(b"purge", reserve=True)
    net.run(0.1)
    assert leader.commit_index == index, "followers go deeper than leaders"
    net["A"].journal.stuck = True
    with pytest.raises(StorageFullError):
        leader.propose(b"purge", reserve=True)


def test_a_replica_that_has_left_its_group_does_not_begin_with_a_vote() -> None:
    """It votes for nobody, even if it hears of founders: it voted once, and has forgotten for whom."""
    net, leader = led()
    net.propose(leader, b"x", after=0.1)
    net["C"].node.remove_group(1)
    net.run(0.1)
    net.crash("C")
    again = net.restart("C").create(1, ("A", "B", "C"))
    assert again.peers == ("A", "B") and not again.may_campaign()
    net["C"].create(2, ("A", "B", "C"))
    assert net["C"].group(2).may_campaign(), "this one is new"


def test_a_node_without_peers_looks_after_itself_less_often() -> None:
    """Heartbeats are for peers; each wake-up of an idle server costs."""
    net = running("A", after=1.0)
    looks = 0
    real = net["A"].node.health.look

    def look() -> None:
        nonlocal looks
        looks += 1
        real()

    net["A"].node.health.look = look  # type: ignore[method-assign]
    net.run(10.0)
    assert looks == 40
    for number in range(3):
        net["A"].node.peer_up("B")
        looks = 0
        net.run(1.0)
        assert looks in (9, 10, 11), f"link {number}"
        net["A"].node.peer_down("B")
        net.run(1.0)
