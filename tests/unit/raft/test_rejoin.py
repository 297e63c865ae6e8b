from __future__ import annotations

import dataclasses

import pytest

from jetcluster.raft import codec
from jetcluster.raft.api import MembershipError, Role
from jetcluster.raft.core.group import Group
from jetcluster.raft.journal import records
from jetcluster.raft.membership import Members
from testkit.twins.journal import JournalDisk, MemoryMark
from tests.unit.raft.journal_rig import batches, forget, spoil
from tests.unit.raft.loopback import SMALL, Loopback, Recorder, led


def damaged_c(net: Loopback) -> None:
    """C was down and comes back with a journal that lost something in its middle."""
    leader = net.start()
    net.crowd(leader, 30, form=b"%d", each=0.002, after=1.2)
    net.crash("C")
    spoil(net["C"].disk, -12, b"\xff\xff\xff", records.BATCH_HEAD_BYTES + 10)
    net.restart("C").create(1, ("A", "B", "C"))


def test_a_damaged_replica_comes_back_through_the_leader(net: Loopback) -> None:
    damaged_c(net)
    assert net["C"].group().status().damaged
    net.connect_all()
    net.until(lambda: not net["C"].group().status().damaged)
    assert ("repaired" in net["C"].reports[-1][1]) is True
    net.run(0.2)
    net.crash("B")
    leader = net.led_by()
    index = net.propose(leader, b"with C again", after=0.1)
    assert leader.commit_index == index


def test_it_does_not_vote_campaign_or_count_meanwhile(net: Loopback) -> None:
    damaged_c(net)
    net.crash("B")
    net.connect("A", "C")
    leader = net["A"].group()
    net.run(0.2)
    if leader.role is Role.LEADER:
        index = net.propose(leader, b"no majority", after=0.2)
        assert leader.commit_index < index
    net.run(2.0)
    assert net["C"].group().status().damaged, "nobody else can vouch for it"
    assert not net["A"].group().ready
    group = net["C"].group()
    term = group.term
    group.receiver.on_message("A", codec.Vote(term + 5, 10_000, term + 4))
    net.run(0.1)
    assert group.log.voted_for is None
    assert group.term == term + 5
    assert not group.may_campaign()
    net.restart("B").create(1, ("A", "B", "C"))
    net.connect_all()
    net.until(lambda: not net["C"].group().status().damaged, seconds=5.0)


def alone(applied: int, cut: int = -4) -> tuple[Loopback, Group]:
    """A group of one with 11 entries in as many batches, one of which rots; its state is of index `applied`."""
    net, leader = led("A")
    net.crowd(leader, 10, form=b"%d", each=0.002)
    state = [e for e in net["A"].machine().applied if e[0] <= applied]
    net.crash("A")
    spoil(net["A"].disk, cut, b"\xff\xff\xff", records.BATCH_HEAD_BYTES + 10)
    member = net.restart("A")
    member.machines[1] = Recorder(state)
    group = member.create(1, ("A",), applied_index=applied, applied_term=1 if applied else 0, sole=True)
    net.run(0.1)
    assert not group.status().damaged
    assert group.ready, "nobody else's promise can be broken: it goes on"
    return net, group


def test_a_group_of_one_is_cut_at_the_damage_and_goes_on() -> None:
    net, group = alone(applied=0)
    kept = net["A"].machine().commands()
    assert kept == [b"%d" % i for i in range(len(kept))]
    assert 3 < len(kept) < 9
    assert "are lost" in net["A"].reports[0][1]
    assert "are lost" in net["A"].node.losses[0]
    net.propose(group, b"new", after=0.1)
    net.crash("A")
    again = net.restart("A").create(1, ("A",))
    net.run(0.1)
    assert net["A"].machine().commands() == [*kept, b"new"]
    assert again.ready
    assert net["A"].node.losses == []


def test_a_group_of_one_whose_state_has_what_its_log_lost_loses_nothing() -> None:
    net, _ = alone(applied=9)
    assert net["A"].machine().commands() == [b"%d" % i for i in range(10)]
    assert "nothing is lost" in net["A"].reports[0][1]


def test_a_group_of_one_keeps_a_state_above_the_cut() -> None:
    net, group = alone(applied=11, cut=-2)
    assert group.applied_index >= 11
    net.propose(group, b"new", after=0.1)
    assert net["A"].machine().commands() == [*(b"%d" % i for i in range(10)), b"new"]


def test_other_groups_of_a_damaged_journal_that_are_alone_are_not_stopped() -> None:
    net = Loopback("A")
    for gid in (1, 2):
        net.start(gid)
        net["A"].group(gid).propose(b"x")
        net.run(0.01)
    for i in range(5):
        net["A"].group(2).propose(b"%d" % i)
        net.run(0.002)
    net.crash("A")
    spoil(net["A"].disk, -3, b"\xff", records.BATCH_HEAD_BYTES + 10)
    net.restart("A")
    for gid in (1, 2):
        net["A"].create(gid, ("A",), sole=True)
    net.run(0.1)
    assert net["A"].group(1).ready
    assert net["A"].machine(1).commands() == [b"x"]
    assert net["A"].group(2).ready


def test_a_store_ahead_of_its_log_means_that_the_log_lost_something() -> None:
    net, leader = led()
    net.propose(leader, b"x", after=0.1)
    net.crash("C")
    group = net.restart("C").create(1, ("A", "B", "C"), applied_index=500, applied_term=1)
    assert group.status().damaged
    assert group.last_index == 500


def test_a_crash_between_a_fetched_state_and_its_install_is_no_damage() -> None:
    net, leader = led()
    net.propose(leader, b"x", after=0.1)
    group = net["C"].group()
    group.receiver.on_message("A", codec.SnapOffer(leader.term, 500, 1, leader.log.config))
    assert net["C"].machine().snapshots == [("A", 500, 1)]
    net.run(0.1)
    net.crash("C")
    net.kept_members["C", 1] = Members(500, leader.log.config)  # flushed with the state
    again = net.restart("C").create(1, ("A", "B", "C"), applied_index=500, applied_term=1)
    assert not again.status().damaged
    assert (again.last_index, again.applied_index) == (500, 500)


def changed_while_away(net: Loopback) -> Group:
    """The group A, B, F becomes A, F, D while F is away and B out of touch; F comes back and is offered the state."""
    for name in "ABF":
        net[name].create(1, ("A", "B", "F"), campaign=name == "A", promotes=False)
    net.until(lambda: net.leader() is not None)
    leader = net["A"].group()
    net.propose(leader, b"x", after=0.3)
    net.crash("F")
    net["D"].create(1, ("A", "B", "F"))
    leader.add_peer("D")
    net.until(lambda: leader.changes.has_caught_up("D"))
    leader.change_voters(("A", "F", "D"))
    net.until(lambda: leader.peers == ("A", "F", "D"))
    net.isolate("B")
    for _ in range(20):
        leader.propose(b"y")
    net.run(0.3)
    forget(leader.log, leader.applied_index)
    net.restart("F").create(1, ("A", "B", "F"), applied_index=2, applied_term=1)
    for other in "AD":
        net.connect(other, "F")
    net.until(lambda: bool(net["F"].machine().snapshots))
    net.run(0.1)
    return leader


def test_a_fetched_state_comes_with_its_members() -> None:
    """The store was flushed, the journal has not heard of it: the replica goes on as a member of the new group."""
    net = Loopback("ABDF")
    leader = changed_while_away(net)
    net.crash("F")
    net.kept_members["F", 1] = Members(leader.applied_index, leader.log.config)
    state = (leader.applied_index, leader.term)
    group = net.restart("F").create(1, ("A", "B", "F"), applied_index=state[0], applied_term=state[1])
    assert set(group.peers) == {"A", "D", "F"}
    assert not group.log.damaged


def test_a_fetched_state_whose_members_are_not_known_leads_to_no_second_majority() -> None:
    net = Loopback("ABDF")
    leader = changed_while_away(net)
    net.crash("F")
    state = (leader.applied_index, leader.term)
    group = net.restart("F").create(1, ("A", "B", "F"), applied_index=state[0], applied_term=state[1])
    for far in "AD":
        for near in "BF":
            net.cut(far, near)
    net.connect("B", "F")
    net.run(5.0)
    assert group.role is Role.FOLLOWER
    assert net["B"].group().role is Role.FOLLOWER
    assert group.status().damaged
    index = net.propose(leader, b"acknowledged", after=0.1)
    assert leader.applied_index == index, "A and D are the majority"
    net.connect_all()
    net.run(3.0)
    assert net["F"].machine().snapshots[-1][0] == "A", "it fetches the state again, with its members"
    at, term = leader.applied_index, leader.log.term_at(leader.applied_index)
    assert term is not None
    group.install(at, term, leader.members_at(at))
    net.until(lambda: not group.status().damaged)
    assert set(group.peers) == {"A", "D", "F"}


def heals_late(net: Loopback) -> Group:
    """C's journal was damaged; it has all entries again, but does not hear that it may count. Returns the leader."""
    damaged_c(net)
    net.filter = lambda source, target, gid, frame: not gid or not isinstance(codec.decode(frame), codec.RejoinReply)
    net.connect_all()
    net.run(1.0)
    assert net["C"].group().log.damaged
    return net.led_by()


def test_nobody_is_removed_that_a_damaged_voter_cannot_replace(net: Loopback) -> None:
    """A and C alone need C, and C needs a majority without it to count again: they would be stuck for ever."""
    leader = heals_late(net)
    assert [p.peer for p in leader.status().peers if p.recovering] == ["C"]
    with pytest.raises(MembershipError, match="C is away, or its journal damaged"):
        leader.remove_peer("B")
    net.filter = None
    net.until(lambda: not net["C"].group().log.damaged)
    net.run(0.1)
    leader.remove_peer("B")
    net.run(0.1)
    index = net.propose(leader, b"two", after=0.1)
    assert leader.commit_index == index


def test_the_damaged_voter_itself_may_be_removed(net: Loopback) -> None:
    leader = heals_late(net)
    leader.remove_peer("C")
    index = net.propose(leader, b"two", after=0.1)
    assert leader.commit_index >= index
    assert leader.peers == ("A", "B")


def test_a_voter_that_has_not_said_yet_how_its_journal_is_carries_nothing() -> None:
    net, leader = led(after=0.1)
    net.cut("A", "C")
    net.filter = lambda source, target, gid, frame: not gid or source != "C"
    net.connect("A", "C")
    net.run(0.05)
    assert leader.role is Role.LEADER
    with pytest.raises(MembershipError):
        leader.remove_peer("B")
    net.filter = None
    net.propose(leader, b"something to answer", after=3.0)
    leader.remove_peer("B")


def test_an_idle_group_asks_again_for_an_answer_that_did_not_come(net: Loopback) -> None:
    leader = heals_late(net)
    net.filter = None
    end = leader.last_index
    net.until(lambda: not net["C"].group().log.damaged, seconds=1.0)
    assert leader.last_index == end


@pytest.mark.parametrize(("sync_interval", "durable"), [(None, True), (120.0, True), (None, False)])
def test_a_log_that_is_new_beside_a_state_has_forgotten_its_votes(sync_interval: float | None, durable: bool) -> None:
    """Votes are on the disk whatever the interval and the kind of stream: this is no power failure, the journal is
    gone, and a second vote in the same term would be possible."""
    net, leader = led(options=dataclasses.replace(SMALL, sync_interval=sync_interval), durable=durable)
    net.propose(leader, b"x", after=0.2)
    net.crash("C")
    net["C"].disk = JournalDisk()
    net.marks["C"] = MemoryMark()
    group = net.restart("C").create(1, ("A", "B", "C"), applied_index=2, applied_term=1, durable=durable)
    assert group.log.damaged
    net.connect_all()
    net.until(lambda: not group.log.damaged)


def joining_d() -> Loopback:
    """D is being added, and was down before it had caught up."""
    net, leader = led("ABCD", peers="ABC")
    net.crowd(leader, 30, form=b"%d", each=0.002)
    net.filter = lambda source, target, gid, frame: not gid or not isinstance(codec.decode(frame), codec.RejoinReply)
    group = net["D"].create(1, leader.peers)
    leader.add_peer("D")
    net.run(1.2)
    assert group.log.damaged
    net.crash("D")
    net.filter = None
    return net


def test_after_a_restart_a_replica_that_joins_is_not_taken_for_a_damaged_one() -> None:
    net = joining_d()
    group = net.restart("D").create(1, ("A", "B", "C"))
    assert group.log.damaged
    assert not group.status().damaged
    net.connect_all()
    net.until(lambda: "D" in net["A"].group().peers)
    assert net["D"].reports == []
    net.crash("D")
    assert not net.restart("D").journal.groups[1].joining


def test_a_replica_that_joins_and_whose_journal_is_damaged_says_so() -> None:
    net = joining_d()
    spoil(net["D"].disk, -4, b"\xff\xff\xff", records.BATCH_HEAD_BYTES + 10)
    group = net.restart("D").create(1, ("A", "B", "C"))
    assert group.status().damaged


def damaged_b(names: str) -> Loopback:
    """B was down for a moment and comes back with a journal that lost something in its middle, and A still leads."""
    net, leader = led(names)
    net.crowd(leader, 30, form=b"%d", each=0.002, after=1.2)
    net.crash("B")
    spoil(net["B"].disk, -12, b"\xff\xff\xff", records.BATCH_HEAD_BYTES + 10)
    net.restart("B").create(1, tuple(names))
    assert net["B"].group().status().damaged
    return net


def test_one_of_two_is_healed_by_the_other() -> None:
    """Every quorum that it was part of had the other one in it, too."""
    net = damaged_b("AB")
    net.connect_all()
    net.until(lambda: not net["B"].group().log.damaged, seconds=1.0)
    index = net["A"].group().propose(b"with B")
    net.run(0.1)
    assert net["A"].group().commit_index == index


@pytest.mark.parametrize(("names", "gone", "heals"), [("ABCD", "D", True), ("ABCDE", "DE", False)])
def test_half_of_an_even_number_of_voters_vouches_for_another(names: str, gone: str, heals: bool) -> None:
    net = damaged_b(names)
    for name in gone:
        net.crash(name)
    net.connect_all()
    net.run(0.8)
    assert net["B"].group().log.damaged is not heals


def test_a_read_that_waits_for_the_damaged_peer_does_not_keep_it_from_being_healed() -> None:
    net = damaged_b("AB")
    answers: list[bool] = []
    net["A"].group().read_index(answers.append)
    net.run(0.1)
    assert not answers, "nobody else has confirmed the leader"
    net.connect_all()
    net.until(lambda: not net["B"].group().log.damaged, seconds=1.0)
    net.until(lambda: answers == [True], seconds=1.0)


@pytest.mark.parametrize("longer", [False, True])
def test_one_of_two_leads_and_heals_the_other(longer: bool) -> None:
    """A stepped down while B was away. It was part of every decision, so B may vote for it, whatever it has forgotten.
    `longer`: B has more than A, of which nothing was ever decided."""
    net, leader = led("AB", leader="B" if longer else "A")
    net.crowd(leader, 30, form=b"%d", each=0.002, after=1.2)
    if longer:
        net.isolate("A")
        net.crowd(leader, 100, form=b"only at B %d", each=0.002)
    net.run(1.2)
    net.crash("B")
    found = batches(net["B"].disk)
    number, start, _ = found[-20] if longer else found[-12]
    net["B"].disk.corrupt(number, start + records.BATCH_HEAD_BYTES + 10, b"\xff\xff\xff")
    net.run(3.0)
    assert net["A"].group().role is Role.FOLLOWER
    b = net.restart("B").create(1, ("A", "B"))
    assert b.log.damaged
    net.connect_all()
    net.until(lambda: net["A"].group().ready and not b.log.damaged, seconds=5.0)
    net["A"].group().propose(b"with both")
    net.run(0.1)
    assert (
        net["A"].machine().commands()
        == net["B"].machine().commands()
        == [b"%d" % i for i in range(30)] + [b"with both"]
    )


def test_a_damaged_replica_keeps_the_one_vote_that_it_gives() -> None:
    net = damaged_b("AB")
    net.run(net.config.longest_lease)  # it may have promised something before
    group = net["B"].group()
    term = group.term
    for decisive in (False, True):
        term += 1
        group.receiver.on_message("A", codec.Vote(term, 1, 1, decisive))
        assert (group.term, group.log.voted_for) == (term, "A" if decisive else None)
    group.receiver.on_message("A", codec.Vote(term, 1, 1, True))
    net.run(0.1)
    net.crash("B")
    again = net.restart("B").create(1, ("A", "B"))
    assert (again.term, again.log.voted_for) == (term, "A")
    again.receiver.on_message("A", codec.Vote(term - 1, 1, 1, True))
    assert (again.term, again.log.voted_for) == (term, "A")


def test_a_leader_without_whom_others_may_have_decided_gets_no_vote_of_a_damaged_one() -> None:
    """B led A and B to A, B and C, which A does not know to be committed, and has answered clients so with C."""
    net = Loopback("ABC")
    for name in "AB":
        net[name].create(1, ("A", "B"), campaign=name == "B")
    net.until(lambda: net.leader() is not None)
    leader = net["B"].group()
    net["C"].create(1, ("A", "B"))
    assert net["A"].group().decisive
    net.filter = lambda source, target, gid, frame: target != "A" or not net["A"].group().log.config.outgoing
    leader.add_peer("C")  # A has the joint configuration in the end, and nothing behind it
    net.until(lambda: leader.peers == ("A", "B", "C") and not leader.log.config.outgoing)
    net.isolate("A")
    net.filter = None
    index = net.propose(leader, b"acknowledged by B and C", after=0.1)
    assert leader.applied_index >= index
    assert not net["A"].group().decisive
    net.crash("C")
    net.run(1.2)
    net.crash("B")
    spoil(net["B"].disk, 1, b"\xff\xff\xff", records.BATCH_HEAD_BYTES + 10)
    assert net.restart("B").create(1, ("A", "B")).log.damaged
    net.connect("A", "B")
    net.run(10.0)
    assert net["A"].group().role is Role.FOLLOWER
    assert net["B"].group().log.damaged
    net.restart("C").create(1, ("A", "B"))
    net.connect_all()
    net.until(lambda: net["C"].group().ready and not net["B"].group().log.damaged, seconds=9.0)


def test_who_is_healed_in_a_term_votes_for_nobody_else_in_it(net: Loopback) -> None:
    """It may have voted for the leader that heals it, whose election then rests on a vote that nobody remembers."""
    damaged_c(net)
    log = net["C"].group().log
    log.set_term(log.term, None)  # the vote was lost with the rest
    net.connect_all()
    net.until(lambda: not log.damaged)
    leader = net.led_by()
    assert (log.term, log.voted_for) == (leader.term, leader.me)
    net.run(0.2)
    net.crash("C")
    found = net.restart("C").create(1, ("A", "B", "C")).log
    assert (found.term, found.voted_for) == (leader.term, leader.me)


def test_one_that_is_healed_when_its_leader_is_gone_looks_for_another(
    net: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk was slow: the leader has confirmed itself, and goes before the last entry is safe here."""
    damaged_c(net)
    group = net["C"].group()
    safe = group.rejoin.check
    monkeypatch.setattr(group.rejoin, "check", lambda: None)
    net.connect_all()
    net.run(0.5)
    assert group.log.damaged and group.leader is not None
    for name in ("A", "B"):
        net.crash(name)
    net.run(0.5)
    assert group.leader is None and not group.may_campaign()
    monkeypatch.setattr(group.rejoin, "check", safe)
    group.on_durable()
    assert not group.log.damaged
    group.work()
    assert group.election.at is not None
