"""The verdicts that the parts of a group draw from its state."""

from __future__ import annotations

from jetcluster.raft.group_state import GroupState
from tests.unit.raft.loopback import Loopback


def states() -> tuple[Loopback, GroupState, GroupState]:
    """A leader, and a follower of it."""
    net = Loopback()
    leader = net.start(leader="A")
    return net, leader, net["B"].group()


def test_a_snapshot_is_needed_where_the_log_begins_behind_the_state_or_is_not_to_be_built_upon() -> None:
    _, _, follower = states()
    assert not follower.needs_snapshot
    follower.snapshot_wanted = True
    assert follower.needs_snapshot
    follower.snapshot_wanted = False
    follower.log.base_index = follower.applied_index + 1
    assert follower.needs_snapshot


def test_the_log_is_known_to_be_equal_to_that_of_the_present_leader_only() -> None:
    _, _, follower = states()
    follower.matched_term, follower.matched_index = follower.term, 7
    assert follower.equal == 7
    follower.matched_term = follower.term - 1
    assert follower.equal == 0


def test_a_follower_campaigns_a_leader_a_stranger_and_a_damaged_log_do_not() -> None:
    net, leader, follower = states()
    assert follower.may_campaign()
    assert not leader.may_campaign()
    follower.log.damaged = True
    assert not follower.may_campaign()
    net["C"].group().stop("for the test")
    assert not net["C"].group().may_campaign()


def test_strangers_are_heard_where_no_living_leader_is_known() -> None:
    net, leader, follower = states()
    assert follower.has_live_leader()
    assert not follower.hears("X")
    assert follower.hears("A"), "its leader"
    assert not leader.hears("X")
    net.isolate("B")
    assert not follower.has_live_leader()
    assert follower.hears("X")
