"""What a group tells its owner, and what becomes of it when the owner raises."""

from __future__ import annotations

from jetcluster.raft.api import Role
from jetcluster.raft.group_state import GroupState
from jetcluster.raft.owner import Owner
from tests.unit.raft.loopback import Loopback, Recorder


def owner() -> tuple[GroupState, Recorder, list[BaseException | str], Owner]:
    group = Loopback("A").start()
    machine, failures = Recorder(), list[BaseException | str]()
    return group, machine, failures, Owner(group, machine, failures.append)


def test_a_role_is_told_once() -> None:
    state, machine, _, told = owner()
    told.tell_role(Role.LEADER, "A")
    told.tell_role(Role.LEADER, "A")
    told.tell_role(Role.FOLLOWER, None)
    assert machine.roles == [(Role.LEADER, state.term, "A"), (Role.FOLLOWER, state.term, None)]


def test_a_group_that_has_stopped_tells_no_role() -> None:
    state, machine, _, told = owner()
    state.stopped = "for the test"
    told.tell_role(Role.FOLLOWER, None)
    assert machine.roles == []


def test_members_are_told_when_they_are_others_and_after_a_snapshot() -> None:
    state, machine, _, told = owner()
    heard: list[int] = []
    machine.keep_members = lambda members: heard.append(members.state_index)
    told.tell_members()
    told.tell_members()
    assert heard == [state.applied_index]
    told.restored(state.applied_index)
    assert heard == [state.applied_index] * 2


def test_what_the_owner_raises_stops_the_group_and_goes_no_further() -> None:
    _, _, failures, told = owner()
    error = ValueError("of the owner")

    def broken() -> None:
        raise error

    told.call(broken)
    assert failures == [error]
