"""The verdicts that the parts of a group draw from its state.

What a group tells its owner, and what becomes of it when the owner raises.

Voters that differ in what they wait for before they acknowledge.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from jetcluster.raft import codec
from jetcluster.raft.api import Role
from jetcluster.raft.core.group import Group
from jetcluster.raft.core.group_state import GroupState, Owner, PersistBeforeSend
from jetcluster.raft.journal.log import ALL_ON_CREDIT
from jetcluster.raft.membership import Config
from tests.unit.raft.journal_rig import Rig, fill, filled
from tests.unit.raft.loopback import SMALL, Loopback, Recorder, led, running


def states() -> tuple[Loopback, GroupState, GroupState]:
    """A leader, and a follower of it."""
    net, leader = led()
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


def owner() -> tuple[GroupState, Recorder, list[BaseException | str], Owner]:
    group = Loopback("A").start()
    machine, failures = Recorder(), list[BaseException | str]()
    return group, machine, failures, Owner(group, machine, failures.append)


def test_a_role_is_reported_once() -> None:
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


def test_members_are_reported_when_they_are_others_and_after_a_snapshot() -> None:
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


def test_frames_leave_in_order_once_they_are_true(rig: Rig) -> None:
    log = rig.log()
    fill(log, 5)
    held = PersistBeforeSend()
    held.add(1, 3, 0, "B", b"three")
    held.add(1, 5, 0, "B", b"five")
    assert list(held.release(log, 1)) == []
    rig.settle()
    fill(log, 1)
    held.add(1, 6, 0, "C", b"six")
    assert list(held.release(log, 1)) == [("B", b"three"), ("B", b"five")]
    assert len(held.frames) == 1


def test_a_frame_may_wait_for_a_record_instead_of_an_entry(rig: Rig) -> None:
    log = rig.log()
    log.set_term(2, "B")
    held = PersistBeforeSend()
    held.add(2, 0, log.term_gseq, "B", b"vote")
    assert list(held.release(log, 2)) == []
    rig.settle()
    assert list(held.release(log, 2)) == [("B", b"vote")]


def test_what_was_true_in_another_term_or_for_another_connection_never_leaves() -> None:
    log = filled(1)[1]
    held = PersistBeforeSend()
    held.add(1, 1, 0, "B", b"old term")
    assert list(held.release(log, 2)) == []
    held.add(2, 9, 0, "B", b"x")
    held.add(2, 9, 0, "C", b"y")
    held.drop_peer("B")
    assert len(held.frames) == 1
    held.keep_term(3)
    assert len(held.frames) == 0
    held.add(3, 9, 0, "C", b"z")
    held.clear()
    assert len(held.frames) == 0


RELAXED = replace(SMALL, sync_interval=3600.0)


def mixed(strict: str = "A", names: str = "ABC") -> Loopback:
    """Started without an interval; then all but `strict` got one, in turns."""
    net = running(names, after=1.1)
    for name in names:
        if name not in strict:
            again(net, name, relaxed=True)
    lead(net)
    return net


def again(net: Loopback, name: str, *, relaxed: bool, lose: bool = False) -> Group:
    """`name` is started again."""
    net.crash(name, lose=lose)
    net.journal_options = RELAXED if relaxed else SMALL
    applied = net[name].machine().applied
    member = net.restart(name)
    index = applied[-1][0] if applied and not lose else 0
    if index:
        member.machines[1] = Recorder(applied)
    group = member.create(1, tuple(net.members), applied_index=index, applied_term=1 if index else 0)
    net.connect_all()
    net.run(1.0)
    return group


def lead(net: Loopback) -> Group:
    """A leads."""
    net.until(lambda: net.leader() is not None)
    for _ in range(20):
        if net["A"].group().ready:
            break
        leader = net.led_by()
        leader.transfer("A")
        net.run(0.5)
    assert net["A"].group().ready
    return net["A"].group()


def credits(net: Loopback) -> list[int]:
    return [member.group().log.credit for member in net.members.values()]


def test_nothing_is_on_credit_where_all_wait_for_their_disks() -> None:
    net = running(commands=5, after=2.0)
    assert credits(net) == [0, 0, 0]


def test_one_voter_that_does_not_wait_puts_the_log_of_all_on_credit() -> None:
    net = mixed("AB")
    assert credits(net) == [ALL_ON_CREDIT, ALL_ON_CREDIT, ALL_ON_CREDIT]
    assert [member.group().log.relaxed for member in net.members.values()] == [False, False, True]


def test_a_restart_does_not_forget_it_while_the_others_are_away() -> None:
    net = mixed()
    net.crash("A", lose=False)
    net.journal_options = SMALL
    group = net.restart("A").create(1, ("A", "B", "C"))
    assert group.log.credit == ALL_ON_CREDIT


def test_it_ends_with_the_first_entry_that_is_committed_when_all_wait() -> None:
    net = mixed()
    net.crowd(net["A"].group(), 5, after=0.2)
    again(net, "B", relaxed=False)
    assert credits(net) == [ALL_ON_CREDIT, ALL_ON_CREDIT, ALL_ON_CREDIT], "C still does not wait"
    again(net, "C", relaxed=False)
    leader = lead(net)
    net.run(1.1)
    net.crowd(leader, 1, after=2.1)
    assert credits(net) == [0, 0, 0]
    net.crash("A", lose=False)
    assert net.restart("A").create(1, ("A", "B", "C")).log.credit == 0


def test_what_is_there_when_the_last_one_begins_to_wait_stays_on_credit_until_then() -> None:
    net = mixed()
    net.crowd(net["A"].group(), 5, after=0.2)
    for name in "BC":
        again(net, name, relaxed=False)
    group = net["A"].group()
    end = group.log.last_index
    group.log.credit = ALL_ON_CREDIT
    net.filter = lambda source, target, gid, frame: not gid  # nothing is committed meanwhile
    group.look_at_credit()
    assert group.log.credit == end >= group.commit_index
    assert group.log.may_lose(group.commit_index)
    assert not group.log.may_lose(end + 1)


def test_of_a_voter_that_says_nothing_nothing_follows() -> None:
    net, leader = led()
    net.cut("A", "C")
    net["A"].node.peer_up("C")
    assert leader.log.credit == 0
    leader.log.set_credit(ALL_ON_CREDIT)
    leader.look_at_credit()
    assert leader.log.credit == ALL_ON_CREDIT


@pytest.mark.parametrize("restarts", [False, True])
def test_who_waits_and_kept_more_than_the_others_takes_their_state(restarts: bool) -> None:
    """A, which waits for its disk, and B, which does not, commit; B loses its power, and goes on with C."""
    net = mixed()
    leader = net["A"].group()
    net.isolate("C")
    net.crowd(leader, 3, after=0.05)
    lost = leader.commit_index
    assert lost == leader.last_index > net["C"].group().last_index
    net.isolate("A")
    for name in "BC":
        net[name].disk.lose_unsynced()
        net.crash(name)
        net.restart(name).create(1, ("A", "B", "C"))
    net.connect("B", "C")
    net.until(lambda: any(net[name].group().ready for name in "BC"))
    if restarts:
        again(net, "A", relaxed=False)
    net.connect_all()
    group = net["A"].group()
    net.until(lambda: group.contradicted or bool(net["A"].machine().snapshots))
    assert not group.refused


def test_who_refuses_says_so_and_costs_no_other_group_anything() -> None:
    net = running(commands=5, after=0.2)
    group = net["B"].group()
    net.isolate("B")
    net.run(2.0)
    forged = codec.Append(group.term + 1, 2, 1, 9, 0, [(b"\0other", 3, group.term + 1, 0)])
    net.connect_all()
    group.engine.forget_leader()
    frame = codec.encode_append(forged.term, 2, 1, 9, 0, [(b"\0other", forged.term, 0)])
    assert net["B"].node.on_frame("C", 1, frame) == "", "the link stays"
    assert "contradicts committed entry 3" in group.refused
    net.run(2.0)
    assert not group.refused, "it follows another one"


@pytest.mark.parametrize("credit", [0, ALL_ON_CREDIT])
def test_whose_log_begins_behind_the_end_of_its_leaders(credit: int) -> None:
    """A majority has lost what it had acknowledged: where all wait for their disks, somebody has to hear it."""
    net, leader = led(commands=30, after=0.2)
    group = net["C"].group()
    group.log.set_credit(credit)
    group.log.compactable = group.machine_index
    group.log.compact(group.machine_index)
    base = group.log.base_index
    group.matched_term = -1
    asked: list[codec.Message] = []
    net.filter = lambda source, target, gid, frame: not gid or bool(asked.append(codec.decode(frame)))
    for end in (base, base - 1):
        assert not (group.refused or group.contradicted)
        group.receiver.on_message("A", codec.Append(leader.term, 3, 1, 3, 0, []))
        contexts = [message.context for message in asked if isinstance(message, codec.Rejoin)]
        group.receiver.on_message("A", codec.RejoinReply(leader.term, contexts[-1], end))
        group.rejoin.at = None
    assert bool(group.refused) != group.contradicted == bool(credit)
    if not credit:
        assert "it has lost entries" in group.refused and net["C"].reports[-1] == (1, group.refused)


def test_between_two_sets_of_voters_all_of_both_count() -> None:
    net, leader = led()
    net["A"].node.peers.states["C"].waits = False
    log = leader.log
    log.configs[-1] = (log.config_index, Config(("A", "B"), outgoing=("A", "B", "C")))
    leader.look_at_credit()
    assert log.credit == ALL_ON_CREDIT
