"""Leases: reads at a leader without a round trip, and what its voters owe it meanwhile."""

from __future__ import annotations

import dataclasses

import pytest

from jetcluster.raft import codec
from jetcluster.raft.api import Role
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.core.group import Group
from jetcluster.raft.core.lease import use_of
from jetcluster.raft.node_state import LEASES_LEVEL
from tests.unit.raft.loopback import Loopback, Untimely, frames, leased, led, read_enough

CONFIG = RaftConfig()
USE = use_of(CONFIG)
LEASES = (codec.LeaseRequest, codec.LeaseGrant, codec.LeaseReleased)


def reading(net: Loopback, leader: Group, seconds: float, each: float = 0.01) -> float:
    """Reads until the lease is over, at most `seconds`; returns for how long it held."""
    began = net.time.monotonic()
    while net.time.monotonic() - began < seconds and leader.reads_now():
        net.run(each)
    return net.time.monotonic() - began


def test_the_part_of_a_promise_that_is_used_covers_two_clocks_that_are_wrong() -> None:
    config = RaftConfig(lease=0.4, clock_drift=0.2)
    slowest, fastest = 1 - config.clock_drift, 1 + config.clock_drift
    assert use_of(config) / slowest == pytest.approx(config.lease / fastest)
    assert use_of(RaftConfig(clock_drift=0.0)) == RaftConfig().lease
    assert CONFIG.lease <= CONFIG.longest_lease


def test_reads_under_a_lease_send_nothing_but_its_renewals() -> None:
    net, leader = leased()
    seen = frames(net, codec.Append, codec.Ack, *LEASES)
    answers: list[bool] = []
    for _ in range(100):
        answers.append(leader.reads_now())
        net.run(0.01)
    assert answers == [True] * 100
    kinds = {type(message) for _, _, message in seen}
    assert kinds == {codec.LeaseRequest, codec.LeaseGrant}
    asked = [message for _, target, message in seen if isinstance(message, codec.LeaseRequest) and target == "B"]
    assert len(asked) <= 1.0 / (USE / 2) + 1, "two per lease"


def test_a_proof_asks_a_majority_also_under_a_lease() -> None:
    """A change needs the majority that is to carry it out."""
    net, leader = leased()
    net.isolate("A")
    answers: list[bool] = []
    leader.read_index(answers.append)
    net.run(USE / 2)
    assert leader.reads_now() and answers == []
    net.run(2.0)
    assert answers == [False]


def test_a_group_that_is_hardly_read_has_no_lease() -> None:
    net, leader = led(after=1.0)
    seen = frames(net, *LEASES)
    for _ in range(5):
        for _ in range(CONFIG.lease_reads - 1):
            assert not leader.reads_now()
        net.run(USE * 1.1)
    assert seen == [], "reads that are that rare would hold up an election for nothing"


def test_reads_a_little_apart_keep_the_lease() -> None:
    net, leader = leased()
    answers: list[bool] = []
    for _ in range(30):
        net.run(USE / (CONFIG.lease_reads + 1))
        answers.append(leader.reads_now())
    assert all(answers)


def test_a_lease_ends_by_the_leaders_clock_after_the_request_was_sent() -> None:
    net, leader = leased()
    net.isolate("A")
    assert reading(net, leader, 2.0, each=0.001) == pytest.approx(USE - 0.01, abs=0.002)
    assert leader.role is Role.LEADER, "check-quorum is slower"


def test_nobody_else_is_elected_while_the_lease_holds() -> None:
    net, leader = leased()
    net.isolate("A")
    while leader.reads_now():
        assert not any(net[name].group().role is Role.LEADER for name in "BC")
        net.run(0.001)
    net.until(lambda: any(net[name].group().ready for name in "BC"), seconds=1.0)


def test_an_election_without_a_lease_does_not_wait() -> None:
    net, _ = led(after=1.0)
    net.isolate("A")
    net.run(CONFIG.link_loss_jitter[1] + 0.02)
    assert any(net[name].group().ready for name in "BC")


def test_a_group_of_one_needs_neither_a_lease_nor_a_wait() -> None:
    net, leader = led("A", after=0.1)
    assert leader.reads_now()
    net.crash("A")
    again = net.restart("A").create(1, ("A",))
    net.run(0.01)
    assert again.ready
    assert again.reads_now()


def test_nothing_is_read_before_what_is_committed_is_applied() -> None:
    _net, leader = leased()
    leader.applied_index -= 1
    assert not leader.reads_now()
    leader.applied_index += 1
    assert leader.reads_now()


def test_a_leader_that_steps_down_reads_no_more() -> None:
    _net, leader = leased()
    leader.receiver.on_message("B", codec.VoteReply(leader.term + 1, granted=False))
    assert leader.role is Role.FOLLOWER
    assert not leader.reads_now()


def test_a_resignation_frees_the_voters() -> None:
    net, leader = leased()
    leader.resign()
    assert not leader.reads_now()
    net.run(CONFIG.link_loss_jitter[1] + 0.02)
    assert net.leader() is not None


def test_a_transfer_does_not_wait_for_the_lease() -> None:
    net, leader = leased()
    assert leader.transfer("B")
    net.run(0.02)
    assert not leader.reads_now()
    assert net["B"].group().ready


def test_a_transfer_does_not_wait_where_the_old_leaders_word_comes_late() -> None:
    """The successor repeats it to the others."""
    net, leader = leased("ABCDE")
    net.filter = lambda source, target, gid, frame: not (source == "A" and gid and target in "CDE")
    assert leader.transfer("B")
    net.run(0.02)
    assert net["B"].group().ready


def test_a_late_timeout_now_frees_nobody_from_a_newer_promise() -> None:
    net, leader = leased()
    late: list[bytes] = []

    def hold(source: str, target: str, gid: int, frame: bytes) -> bool:
        if gid and source == "A" and target == "B" and isinstance(codec.decode(frame), codec.TimeoutNow):
            late.append(frame)
            return False
        return True

    net.filter = hold
    assert leader.transfer("B")
    net.run(CONFIG.transfer_timeout + 0.1)
    net.filter = None
    read_enough(net, leader)
    assert leader.reads_now(), "the transfer has failed, and there is a new lease"
    net["B"].group().receiver.on_message("A", codec.TimeoutNow(leader.term))
    net["C"].group().receiver.on_message("B", codec.LeaseReleased(leader.term, 1))
    assert net["C"].group().promise.binds
    net.run(0.02)
    assert leader.role is Role.LEADER
    assert len(late) == 1


def test_no_lease_is_asked_for_while_the_leadership_is_handed_over() -> None:
    net, leader = leased()
    net.filter = lambda source, target, gid, frame: not gid or not isinstance(codec.decode(frame), codec.TimeoutNow)
    assert leader.transfer("B")
    net.run(0.01)
    seen = frames(net, codec.LeaseRequest)
    for _ in range(50):
        assert not leader.reads_now()
        net.run(0.01)
    assert seen == []


def test_an_answer_to_a_released_request_gives_no_lease() -> None:
    _net, leader = leased()
    leader.lease.release()
    assert not leader.reads_now()
    leader.lease.on_grant("B", 1)
    assert not leader.reads_now()


def test_a_leader_whose_clock_is_in_doubt_uses_no_lease() -> None:
    _net, leader = leased()
    leader.node.health = Untimely()  # type: ignore[assignment]
    assert not leader.reads_now()


def test_a_leader_whose_machine_was_suspended_has_no_lease() -> None:
    net, leader = leased()
    net.suspended["A"] = USE
    assert not leader.reads_now()


def test_a_peer_of_an_older_version_is_not_asked() -> None:
    net, leader = led("ABC", after=1.0)
    net["A"].node.peers.states["B"].level = LEASES_LEVEL - 1
    assert net["A"].node.peers.knows_leases("C")
    seen = frames(net, *LEASES)
    read_enough(net, leader)
    assert {target for source, target, _ in seen if source == "A"} == {"C"}


def test_leases_can_be_off() -> None:
    net, leader = led(config=RaftConfig(lease=0.0), after=1.0)
    seen = frames(net, *LEASES)
    for _ in range(50):
        assert not leader.reads_now()
        net.run(0.01)
    assert seen == []


def test_a_change_of_voters_counts_the_promises_again() -> None:
    """B and C promised. Voters A, D and E would elect without them."""
    net, leader = led("ABCDE", peers="ABC", after=1.0, promotes=False)
    for name in "DE":
        net[name].create(1, ("A", "B", "C"), promotes=False)
        leader.add_peer(name)
        net.run(0.5)
    read_enough(net, leader)
    assert leader.reads_now()
    net.filter = lambda source, target, gid, frame: not gid or target not in "DE"
    leader.change_voters(("A", "D", "E"))
    assert not leader.reads_now()


def test_a_leader_that_will_be_no_voter_has_no_lease() -> None:
    net, leader = led("ABC", after=1.0)
    leader.log.set_members(dataclasses.replace(leader.log.config, voters=("B", "C"), outgoing=("A", "B", "C")))
    leader.follow_config()
    for peer in "BC":
        leader.lease.asked.append((1, int(net["A"].clock.uptime() * 1e9)))
        leader.lease.on_grant(peer, 1)
    assert not leader.reads_now()


def test_a_peer_that_left_and_came_back_has_promised_nothing() -> None:
    _net, leader = leased()
    config = leader.log.config
    for members in (dataclasses.replace(config, voters=("A", "B")), config):
        leader.log.set_members(members)
        leader.follow_config()
    assert list(leader.lease.promised) == ["B"]
    leader.lease.on_grant("D", 1)
    assert list(leader.lease.promised) == ["B"]


def test_a_group_that_shrinks_to_its_leader_reads_without_a_lease() -> None:
    net, leader = led("AB", after=1.0)
    leader.remove_peer("B")
    net.run(0.2)
    assert leader.peers == ("A",)
    assert leader.lease.until == float("inf")


def test_reads_of_a_new_leader_wait_for_its_own_lease() -> None:
    net, leader = leased()
    leader.transfer("B")
    net.run(0.1)
    new = net["B"].group()
    assert new.ready
    read_enough(net, new)
    assert new.reads_now()
