"""A node that is not well, in its groups: `raft.node`, groups and elections ask `health.node_health`."""

from __future__ import annotations

import dataclasses
import struct

import pytest

from jetcluster.health.node_health import Aspect
from jetcluster.raft import codec
from jetcluster.raft.api import RaftError, Role
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.core.group import Group
from tests.unit.raft.journal_rig import forget
from tests.unit.raft.loopback import SMALL, Loopback, asked, led, running

CONFIG = RaftConfig()


def hang(net: Loopback, name: str) -> None:
    """The journal's next write does not return."""
    net[name].writer.hold()


def ail(net: Loopback, name: str, aspect: Aspect = Aspect.MEMORY) -> list[str]:
    """The node is not well for as long as the list holds something."""
    reason = ["hardly any is left"]
    net[name].node.health.watch(aspect, lambda: "".join(reason))
    return reason


def test_a_leader_whose_disk_hangs_is_replaced_in_time() -> None:
    net, leader = led(after=0.5)
    hang(net, "A")
    index = leader.propose(b"under way")
    start = net.time.monotonic()
    net.until(lambda: (found := net.leader()) is not None and found.me != "A", seconds=3.0)
    assert net.time.monotonic() - start < CONFIG.journal_hangs + CONFIG.second_opinion + 0.5
    new = net.led_by()
    assert leader.role is Role.FOLLOWER
    assert net["A"].node.health.troubles.keys() == {Aspect.JOURNAL}
    second = net.propose(new, b"later", after=0.1)
    assert new.applied_index == second
    assert new.machine is net[new.me].machine()
    assert (index, b"under way") in net[new.me].machine().applied, "two of three had it"
    answers = asked(leader)
    net.run(1.0)
    assert answers == [False]


def test_a_disk_that_is_only_slow_changes_nothing() -> None:
    net, leader = led(after=0.5)
    writer = net["A"].writer
    submit = writer.submit
    writer.submit = lambda job, done: net.time.call_later(0.7, submit, job, done)  # type: ignore[method-assign,assignment]
    for _ in range(20):
        net.propose(leader, b"x", after=0.3)
    assert leader.role is Role.LEADER
    assert net["A"].node.health.well


def test_a_disk_that_comes_back_makes_the_node_well_again() -> None:
    net, leader = led(after=0.5)
    hang(net, "A")
    net.propose(leader, b"under way", after=10.0)
    new = net.led_by()
    assert new.me != "A"
    assert not net["A"].node.health.well
    net["A"].writer.release()
    net.run(3.0)
    assert net["A"].node.health.well
    assert leader.applied_index == new.applied_index
    assert net.leader() is new, "it does not take the leadership back"


def test_a_node_whose_disk_hangs_gives_no_votes() -> None:
    net = running(after=0.5)
    hang(net, "B")
    group = net["B"].group()
    group.log.set_term(group.term, None)
    net.run(CONFIG.journal_hangs + 0.3)
    sent: list[codec.Message] = []
    net.filter = lambda s, t, gid, frame: not gid or s != "B" or sent.append(codec.decode(frame)) is None
    for message in (codec.PreVote(group.term + 1, 10_000, group.term), codec.Vote(group.term + 1, 10_000, group.term)):
        group.receiver.on_message("C", message)
    net.run(0.1)
    assert [m for m in sent if isinstance(m, codec.PreVoteReply | codec.VoteReply) and m.granted] == []


def test_leaderships_go_to_a_voter_that_is_well() -> None:
    net = running(after=0.5)
    ail(net, "B")
    net.run(0.5)
    ail(net, "A")
    net.run(1.0)
    assert net.led_by().me == "C"


def test_where_nobody_is_well_the_leader_stays() -> None:
    net, leader = led(after=0.5)
    for name in "ABC":  # at the same moment: each of them believes for a while that the others are well
        ail(net, name)
    net.run(10.0)
    assert net.leader() is leader
    index = net.propose(leader, b"x", after=0.1)
    assert leader.applied_index == index


def test_a_node_that_is_not_well_does_not_campaign_while_another_may() -> None:
    net = running(after=0.5)
    ail(net, "B")
    net.run(0.5)
    for _ in range(4):
        net.crash("A")
        found = net.elected(5.0)
        assert found.me == "C"
        net.restart("A").create(1, ("A", "B", "C"))
        net.connect_all()
        net.until(lambda: net["A"].group().leader == "C")
        found.transfer("A")
        net.until(lambda: net["A"].group().ready)


def test_the_last_ones_elect_a_leader_even_if_they_are_not_well() -> None:
    net = running(after=0.5)
    for name in "BC":
        ail(net, name)
    net.run(0.5)
    net.crash("A")
    net.until(lambda: net.leader() is not None, seconds=5.0)


def test_it_resigns_when_nobody_takes_over() -> None:
    """B and C hear of the leader and would be well, but the one that is asked to campaign does not."""
    net, leader = led(after=0.5)
    net.filter = lambda s, t, gid, frame: not gid or not isinstance(codec.decode(frame), codec.TimeoutNow)
    ail(net, "A")
    start = net.time.monotonic()
    net.until(lambda: leader.role is not Role.LEADER, seconds=3.0)
    assert net.time.monotonic() - start < 1.0, "within a second of the verdict"
    net.until(lambda: net.leader() is not None, seconds=3.0)


def test_a_group_of_one_goes_on() -> None:
    net, leader = led("A")
    ail(net, "A")
    net.run(3.0)
    assert leader.role is Role.LEADER


@pytest.mark.parametrize("ahead", [7200.0, -7200.0])
def test_a_leader_with_a_wrong_clock_is_replaced_and_stamps_nothing_wrong(ahead: float) -> None:
    net = running(after=0.5)
    net.ahead["A"] = ahead
    time = net["A"].node.health.time
    assert abs(time.time_ns() - net.time.time_ns()) < 1e6, "at once"
    net.run(1.0)
    found = net.led_by()
    assert found.me != "A"
    assert Aspect.CLOCK in net["A"].node.health.troubles
    net.ahead["A"] = 0.0
    net.run(2.0)
    assert net["A"].node.health.well


@pytest.mark.parametrize("ahead", [7200.0, -7200.0])
def test_nobody_leads_before_a_majority_of_the_clocks_agrees(ahead: float) -> None:
    net = Loopback("ABC")
    for name in "ABC":
        net.crash(name)
    net.ahead["A"] = ahead
    for name in "AB":
        net.restart(name).create(1, ("A", "B", "C"), campaign=name == "A")
    net.connect_all()
    net.run(40.0)
    assert net.leader() is None
    assert net["A"].node.health.reasons == net["B"].node.health.reasons != []
    net.restart("C").create(1, ("A", "B", "C"))
    net.connect_all()
    net.until(lambda: net.leader() is not None, seconds=2.0)
    net.run(2.0)
    found = net.led_by()
    assert found.me != "A"
    assert [Aspect.CLOCK in net[name].node.health.troubles for name in "ABC"] == [True, False, False]
    assert abs(net["A"].node.health.time.time_ns() - net.time.time_ns()) < 1e6


def test_a_replica_without_the_time_does_not_take_a_leadership_over() -> None:
    net, leader = led(after=0.5)
    net["B"].node.health.time.established = False
    net["B"].node.health.time.others = lambda: None
    net.filter = lambda s, t, gid, frame: gid != 0
    for _ in range(3):
        net["B"].node.health.time.forget("A")
        net["B"].node.health.time.forget("C")
        leader.transfer("B")
        net.run(0.3)
        assert net["B"].group().role is Role.FOLLOWER


@pytest.mark.parametrize("ahead", [7200.0, -7200.0])
def test_a_group_of_one_waits_for_the_time_of_the_others(ahead: float) -> None:
    net = running()
    net["A"].create(2, ("A",))
    net.run(1.0)
    assert net["A"].group(2).ready
    net.crash("A")
    net.ahead["A"] = ahead
    net.restart("A").create(1, ("A", "B", "C"))
    group = net["A"].create(2, ("A",))
    net.run(CONFIG.clock_wait - 0.5)
    assert not group.ready, "there are others, and none was heard"
    net.connect_all()
    net.until(lambda: group.ready, seconds=1.0)
    assert abs(net["A"].node.health.time.time_ns() - net.time.time_ns()) < 1e6


def test_a_group_of_one_goes_on_when_there_is_nobody_to_ask() -> None:
    net = running()
    net["A"].create(2, ("A",))
    net.run(1.0)
    net.crash("A")
    net.restart("A").create(1, ("A", "B", "C"))
    group = net["A"].create(2, ("A",))
    net.run(CONFIG.clock_wait + 0.5)
    assert group.ready


def test_a_full_disk_lets_another_one_lead() -> None:
    net = running(options=dataclasses.replace(SMALL, reserve_bytes=1 << 20), after=0.5)
    net["A"].disk.reported_free = 1000
    net["A"].journal.housekeep()
    net.run(1.0)
    assert net.led_by().me != "A"


@pytest.mark.parametrize("idle", [False, True])
def test_a_leader_whose_journal_was_deleted_is_replaced_and_gives_no_vote(idle: bool) -> None:
    net, leader = led(after=0.5)
    net["A"].disk.vanish()
    if not idle:
        leader.propose(b"under way")
    net.until(lambda: (found := net.leader()) is not None and found.me != "A", seconds=4.0)
    health = net["A"].node.health
    assert health.troubles.keys() == {Aspect.DELETED}, "it is not called full, or slow"
    assert not health.may_vote and not health.may_answer and not net["A"].node.full
    new = net.led_by()
    second = net.propose(new, b"later", after=0.2)
    assert new.applied_index == second, "the other two go on"
    assert leader.log.durable_index < second
    net.crash("BC".replace(new.me, ""))
    net.run(10.0)
    assert net.leader() is None or net.led_by().commit_index == second, "it is in no majority"
    assert leader.role is not Role.LEADER


def test_with_all_journals_deleted_nobody_leads_or_acknowledges() -> None:
    net, leader = led(after=0.5)
    for name in "ABC":
        net[name].disk.vanish()
    net.run(2.0)
    commits = {name: net[name].group().commit_index for name in "ABC"}
    with pytest.raises(RaftError):
        leader.propose(b"x")
    net.run(30.0)
    for name in "ABC":
        group = net[name].group()
        assert group.role is not Role.LEADER and group.commit_index == commits[name]


def test_a_group_of_one_whose_journal_was_deleted_leads_nothing_until_its_restart() -> None:
    net, leader = led("A", after=0.5)
    net["A"].disk.vanish()
    net.run(2.0)
    assert leader.role is not Role.LEADER
    with pytest.raises(RaftError):
        leader.propose(b"x")
    net.run(60.0)
    assert leader.role is not Role.LEADER and net["A"].node.health.reasons == [
        "deleted: /wal: deleted, or another one is in its place"
    ]


def test_a_loop_that_stands_still_for_most_of_the_time() -> None:
    net = running(after=0.5)
    node = net["A"].node
    beat = node._beat
    for _ in range(8):
        node._beat_handle.cancel()
        net.run(0.7)
        beat()
    assert "stood still" in node.health.reasons[0]
    net.run(20.0)
    assert node.health.well


@pytest.mark.parametrize(("late", "times"), [(0.15, 200), (10.0, 1), (60.0, 1)])
def test_a_busy_machine_and_a_pause_that_is_over_make_no_node_ill(late: float, times: int) -> None:
    """A scheduler that comes round late delays everybody; who was suspended for a minute works again."""
    net = running(after=0.5)
    node = net["A"].node
    for _ in range(times):
        node._beat_handle.cancel()
        net.run(node.config.heartbeat + late)
        node._beat()
        assert node.health.well


def lagging(net: Loopback, name: str) -> list[bool]:
    """`name` gets no entries for as long as the list says so."""
    drop = [True]

    def passes(source: str, target: str, gid: int, frame: bytes) -> bool:
        if not gid or target != name or not drop[0]:
            return True
        message = codec.decode(frame)
        return not (isinstance(message, codec.Append) and message.entries)

    net.filter = passes
    return drop


def test_a_leader_stays_while_the_only_voter_that_is_well_lags() -> None:
    """C has the whole log and is not well either. If A resigned, B could not win and the two others would not stand."""
    net, leader = led(after=1.0)
    drop = lagging(net, "B")
    index = net.propose(leader, b"acknowledged by A and C", after=0.3)
    ail(net, "C")
    net.run(0.3)
    ail(net, "A")
    for _ in range(30):
        net.run(0.1)
        assert leader.role is Role.LEADER
    leader.propose(b"taken meanwhile")
    drop[0] = False
    net.until(lambda: (found := net.leader()) is not None and found.me == "B", seconds=5.0)
    assert net["B"].group().last_index > index


def b_needs_a_state(*ailing: str) -> tuple[Loopback, Group]:
    net, leader = led(after=1.0)
    net.isolate("B")
    net.crowd(leader, 20, form=b"%d", after=1.0)
    for name in "AC":
        group = net[name].group()
        forget(group.log, group.applied_index)
    for name in ailing:
        ail(net, name)
    net.connect("A", "B")
    net.run(1.0)
    assert net["B"].machine().snapshots
    return net, leader


def test_a_leader_stays_while_the_only_voter_that_is_well_fetches_its_state() -> None:
    net, leader = b_needs_a_state()
    ail(net, "A")
    ail(net, "C")
    for _ in range(30):
        net.run(0.1)
        assert leader.role is Role.LEADER


def test_a_leader_without_a_state_hands_over_to_a_voter_that_its_log_reaches() -> None:
    """B is well and needs a state, which A has not got: C is not well, but has all that A would give."""
    net, leader = b_needs_a_state("C")
    leader.suspend()
    net.until(lambda: (found := net.leader()) is not None and found.me == "C", seconds=5.0)


def test_those_that_are_not_well_elect_one_of_them_where_the_one_that_is_cannot_win() -> None:
    net, leader = led(after=1.0)
    drop = lagging(net, "B")
    net.propose(leader, b"acknowledged by A and C", after=0.3)
    ail(net, "A")
    ail(net, "C")
    net.run(0.1)
    leader.resign()
    drop[0] = False
    net.until(lambda: (found := net.leader()) is not None and found.me == "B", seconds=10.0)
    assert net["B"].group().last_index == net["A"].group().last_index


def test_a_term_that_leaps_is_refused() -> None:
    net, leader = led(after=0.5)
    term = leader.term
    refused = net["A"].node.counters.refused_frames
    for far in (CONFIG.max_term_leap + term + 1, codec.MAX_NUMBER):
        for frame in (
            codec.encode(codec.Vote(far, 10, 1)),
            codec.encode(codec.PreVote(far, 10, 1)),
            codec.encode_ack(far, 1, 0, False),
            codec.encode_append(far, 0, 0, 0, 0, []),
        ):
            net["A"].node.on_frame("B", 1, frame)
    net["A"].node.on_frame("B", 1, bytes((codec.VERSION, 2)) + struct.pack("<Q", (1 << 64) - 1) + bytes(13))
    net.run(0.5)
    assert leader.term == term
    assert leader.role is Role.LEADER
    assert net["A"].node.counters.refused_frames == refused + 9
    net["A"].node.on_frame("B", 1, codec.encode_ack(term + 1000, 1, 0, False))
    assert leader.term == term + 1000, "somebody may have held elections while this node was away"


def test_groups_that_cannot_move_keep_no_other_from_moving() -> None:
    """More groups with one replica, which stay, than are handed over at a time; they come first."""
    net = Loopback(config=RaftConfig(hand_overs=2))
    for gid in (2, 3, 4):
        net["A"].create(gid, ("A",))
    net.run(0.5)
    for gid in (5, 6, 7):
        net.start(gid, leader="A")
    net.run(0.5)
    ail(net, "A")
    net.run(3.0)
    for gid in (5, 6, 7):
        leader = net.leader(gid)
        assert leader is not None and leader.me != "A"
    assert all(net["A"].group(gid).role is Role.LEADER for gid in (2, 3, 4))


def test_a_node_whose_disk_hangs_does_not_depose_the_leader_that_names_it() -> None:
    """It could not vote for itself, and its higher term would end the leader's."""
    net, leader = led(after=0.5)
    group = net["B"].group()
    hang(net, "B")
    group.log.set_term(group.term, None)
    net.run(CONFIG.journal_hangs + 0.3)
    term = group.term
    group.receiver.on_message("A", codec.TimeoutNow(term))
    net.run(0.5)
    assert (group.term, group.role) == (term, Role.FOLLOWER)
    assert leader.role is Role.LEADER


def test_a_leadership_is_not_handed_to_a_named_voter_that_is_not_well() -> None:
    net, leader = led(after=0.5)
    reason = ail(net, "B")
    net.run(0.3)
    assert not leader.transfer("B")
    assert leader.transfer("C")
    net.until(lambda: (found := net.leader()) is not None and found.me == "C")
    reason.clear()
    net.run(2.0)
    assert net["C"].group().transfer("B")


def test_where_nobody_is_well_a_leadership_may_be_handed_to_a_named_voter() -> None:
    net, leader = led(after=0.5)
    for name in "ABC":
        ail(net, name)
    net.run(0.3)
    assert leader.transfer("B")


def test_a_node_whose_disk_hangs_does_not_hold_the_first_election(net: Loopback) -> None:
    hang(net, "A")
    net["A"].journal.in_flight = 1
    net.run(CONFIG.journal_hangs + 0.3)
    group = net["A"].create(1, ("A", "B", "C"), campaign=True)
    assert (group.role, group.term) == (Role.FOLLOWER, 0)
