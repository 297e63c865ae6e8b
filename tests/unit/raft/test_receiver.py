from __future__ import annotations

import dataclasses
import errno

from jetcluster import faults
from jetcluster.raft import codec
from jetcluster.raft.api import Role
from jetcluster.raft.codec import REGULAR, Append, Entry
from jetcluster.raft.core.group import Group
from jetcluster.raft.core.receiver import Diverged, Held, New, Rejected, plan
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.journal.log import GroupLog
from jetcluster.raft.membership import Config
from testkit.twins.journal import InlineWriter, JournalDisk
from testkit.twins.time import ManualTime, SeededRng
from tests.unit.raft.loopback import SMALL, Loopback, led, running


def test_a_follower_with_a_full_disk_takes_nothing_and_catches_up_later() -> None:
    net, leader = led(options=dataclasses.replace(SMALL, reserve_bytes=10_000), after=0.1)
    follower = net["C"].group()
    net["C"].disk.reported_free = 0
    net["C"].journal.housekeep()
    end = follower.last_index
    net.crowd(leader, 10, after=0.5)
    assert follower.last_index == end
    assert leader.commit_index == leader.last_index, "the other two go on"
    assert follower.leader == "A"
    assert follower.commit_index <= end < follower.told_index <= leader.last_index
    net["C"].disk.reported_free = None
    net.run(3.0)
    assert follower.told_index == follower.commit_index == leader.told_index
    assert net["C"].machine().commands() == net["A"].machine().commands()


def test_what_was_reported_as_committed_stays_committed() -> None:
    """A new leader does not know at first how far its predecessor had committed; clients do."""
    net, leader = led(commands=5, after=0.2)
    follower = net["C"].group()
    told = follower.told_index
    assert told == leader.commit_index
    follower.receiver.on_message("B", codec.Append(leader.term + 1, told, leader.term, told - 3, 0, []))
    assert (follower.term, follower.told_index, follower.receiver.told) == (leader.term + 1, told, told)


def test_what_a_leader_of_an_older_term_committed_is_heard() -> None:
    """It answered a client of this node on the same link. This replica campaigns meanwhile, or leads without having
    committed that entry again."""
    net, leader = led(commands=5, after=0.2)
    follower, told = net["C"].group(), leader.commit_index
    net.filter = lambda source, target, gid, frame: not gid
    entries: list[codec.Entry] = [(b"\0late", told + 1, leader.term, 0)]
    follower.receiver.on_message("A", codec.Append(leader.term, told, leader.term, told, 0, entries))
    net.run(0.05)
    assert (follower.last_index, follower.told_index) == (told + 1, told)
    follower.engine.step_down(leader.term + 1)
    follower.receiver.on_message("A", codec.Append(leader.term, told + 1, leader.term, told + 1, 0, []))
    assert (follower.term, follower.commit_index, follower.told_index) == (leader.term + 1, told, told + 1)
    follower.engine.campaign()
    follower.engine.receive_vote("B", follower.engine.term)
    assert follower.engine.leading
    assert (follower.commit_index, follower.told_index) == (told, told + 1)


def behind(net: Loopback, name: str = "C") -> Group:
    """A follower that stands for election, and whose log ends where it knows everything to be committed."""
    net.crowd(net["A"].group(), 5, after=0.2)
    follower = net[name].group()
    net.filter = lambda source, target, gid, frame: not gid
    follower.engine.step_down(follower.term + 1)
    follower.sync()
    assert follower.last_index == follower.commit_index == follower.told_index
    return follower


def test_entries_of_an_older_term_that_are_not_taken_may_be_acknowledged() -> None:
    net, leader = led()
    follower = behind(net)
    told = follower.told_index
    entries: list[codec.Entry] = [(b"\0late", told + i, leader.term, 0) for i in (1, 2)]
    follower.receiver.on_message("A", codec.Append(leader.term, told, leader.term, told, 0, entries))
    assert (follower.last_index, follower.told_index) == (told, told + 2)
    follower.receiver.on_message("B", codec.Append(follower.term, told, leader.term, told, 0, []))
    assert follower.told_index == told, "they were not committed, or the next leader would have them"


def test_an_offer_of_an_older_term_and_one_to_a_leader_say_what_is_committed() -> None:
    net, leader = led()
    follower = behind(net)
    told = follower.told_index
    offer = codec.SnapOffer(leader.term, told + 3, leader.term, leader.log.config)
    follower.receiver.on_message("A", offer)
    assert (follower.leader, follower.told_index) == (None, told + 3)
    follower.engine.campaign()
    follower.engine.receive_vote("B", follower.engine.term)
    assert follower.told_index == follower.last_index == told + 1, "its own first entry; what it lacks is not committed"
    follower.sync()
    follower.propose(b"x")
    assert follower.told_index == follower.last_index == told + 2


def test_a_list_of_led_groups_says_what_is_committed() -> None:
    net, leader = led()
    follower = behind(net)
    told = follower.told_index
    net["C"].node.on_frame("A", 0, codec.encode_digest([(1, leader.term, told + 2)]))
    assert (follower.leader, follower.told_index) == (None, told + 2)


def test_who_knows_no_leader_takes_the_word_of_one_that_it_does_not_follow() -> None:
    net, leader = led()
    follower = behind(net)
    told, term = follower.told_index, follower.term
    contradiction = codec.Append(term + 1, 2, 1, told + 1, 0, [(b"\0other", 3, term + 1, 0)])
    follower.receiver.on_message("B", contradiction)
    assert "contradicts" in follower.refused
    assert (follower.leader, follower.term, follower.told_index) == (None, term, told + 1)
    follower.receiver.on_message("A", codec.Append(term, told, leader.term, told, 0, []))
    assert (follower.leader, follower.told_index) == ("A", told)
    follower.receiver.on_message("B", contradiction)
    assert (follower.told_index, follower.refused) == (told, "")


def test_nobody_waits_for_what_a_later_leader_has_lost() -> None:
    """Two of three lost it with their power, and had not waited for their disks. This replica heard of it, no more."""
    net, leader = led()
    follower = behind(net)
    told, term = follower.told_index, leader.term
    follower.receiver.on_message("A", codec.Append(term, told, term, told + 9, 0, []))
    follower.receiver.on_message("B", codec.Append(term + 1, told, term, told, 0, []))
    assert follower.told_index == told + 9, "the new leader has not committed anything, and may know of less at first"
    noop: list[codec.Entry] = [(b"", told + 1, term + 1, codec.NOOP)]
    follower.receiver.on_message("B", codec.Append(term + 1, told, term, told, 0, noop))
    assert follower.told_index == told + 9
    follower.receiver.on_message("B", codec.Append(term + 1, told + 1, term + 1, told + 1, 0, []))
    assert follower.told_index == told + 1


def test_a_leader_whose_disk_is_full_refuses_and_loses_nothing() -> None:
    net = running(commands=5)
    with faults.armed("journal.write", faults.fail(errno.ENOSPC)):
        net.run(0.3)
        assert net["A"].machine().commands() == []
    net.run(1.0)
    assert len(net["C"].machine().commands()) == 5


def test_an_ack_in_a_new_term_waits_until_that_term_is_on_disk() -> None:
    """Also when all entries are: it would come back without the term, and could vote for another log."""
    net, leader = led(commands=5, after=0.2)
    follower, writer = net["C"].group(), net["C"].writer
    end, term = follower.last_index, leader.term + 1
    acks: list[int] = []

    def note(source: str, target: str, gid: int, frame: bytes) -> bool:
        if gid and (source, target) == ("C", "B") and isinstance(message := codec.decode(frame), codec.Ack):
            acks.append(message.term)
        return not gid

    net.filter = note
    writer.hold()
    net["C"].node.on_frame("B", 1, codec.encode_append(term, end, follower.log.term_at(end) or 0, end, 0, []))
    net["C"].node.end_of_batch()
    net.run(0.01)
    assert (follower.term, follower.log.durable_index, acks) == (term, end, [])
    writer.release()
    net.run(0.01)
    assert acks == [term]


def test_two_leaders_in_one_term_stop_the_replica_that_sees_it() -> None:
    leader = led(after=0.1)[1]
    leader.receiver.on_message("B", codec.Append(leader.term, 1, 1, 1, 0, []))
    assert "two leaders" in leader.status().stopped
    assert not leader.ready


def test_a_higher_term_in_any_answer_ends_a_leadership() -> None:
    for make in (
        lambda term: codec.Ack(term, 1, 0, False),
        lambda term: codec.Reject(term, 1, 1, 0, False),
        lambda term: codec.VoteReply(term, False),
        lambda term: codec.PreVoteReply(term, term, False),
    ):
        leader = led(after=0.1)[1]
        leader.receiver.on_message("B", make(leader.term + 4))
        assert leader.role is Role.FOLLOWER
        assert leader.term == 5
        assert leader.log.term == 5


def test_a_pre_vote_changes_no_term() -> None:
    leader = led(after=0.1)[1]
    leader.receiver.on_message("B", codec.PreVote(50, 1_000, 49))
    assert (leader.role, leader.term) == (Role.LEADER, 1)


def test_timeout_now_counts_only_from_the_leader() -> None:
    net, leader = led(after=0.1)
    follower = net["B"].group()
    follower.receiver.on_message("C", codec.TimeoutNow(leader.term))
    assert follower.role is Role.FOLLOWER
    follower.receiver.on_message("A", codec.TimeoutNow(leader.term))
    assert follower.role is Role.CANDIDATE


def test_a_newcomer_that_never_heard_a_leader_does_not_vote() -> None:
    net = Loopback("ABCD")
    group = net["D"].create(1, ("A", "B", "C"))
    group.receiver.on_message("A", codec.Vote(3, 0, 0))
    net.run(0.01)
    assert group.log.voted_for is None


def test_following_a_leader_counts_as_having_voted_for_it(net: Loopback) -> None:
    group = net["C"].create(1, ("A", "B", "C"))
    group.receiver.on_message("A", codec.Append(3, 0, 0, 0, 0, []))
    assert group.log.voted_for == "A"
    group.receiver.on_message("B", codec.Vote(3, 100, 3))
    assert group.log.voted_for == "A"


def log_with(*terms: int, base: int = 0, base_term: int = 0) -> GroupLog:
    time = ManualTime()
    journal = Journal(JournalDisk(), InlineWriter(time), time, SeededRng(1), SMALL)
    journal.open()
    log = journal.create(1, Config(("A", "B")), True)
    if base:
        log.install(base, base_term, Config(("A", "B")))
    for term in terms:
        log.append(REGULAR, term, b"c")
    return log


def message(prev: int, prev_term: int, *terms: int, term: int = 9) -> Append:
    entries: list[Entry] = [(b"c", prev + 1 + i, t, REGULAR) for i, t in enumerate(terms)]
    return Append(term, prev, prev_term, 100, 0, entries)


def test_new_entries_at_the_end() -> None:
    assert plan(log_with(1, 1), 0, message(2, 1, 2, 2), True) == New(
        2, 1, [(b"c", 3, 2, REGULAR), (b"c", 4, 2, REGULAR)]
    )


def test_what_is_held_is_stripped() -> None:
    assert plan(log_with(1, 1, 2), 0, message(1, 1, 1, 2, 2), True) == New(3, 2, [(b"c", 4, 2, REGULAR)])


def test_a_held_batch_truncates_nothing_behind_it() -> None:
    assert plan(log_with(1, 1, 1, 1), 0, message(1, 1, 1), True) == Held(2)
    assert plan(log_with(1, 1, 1, 1), 0, message(2, 1), True) == Held(2)


def test_a_conflict_replaces_from_there() -> None:
    assert plan(log_with(1, 1, 1), 1, message(1, 1, 2), True) == New(1, 1, [(b"c", 2, 2, REGULAR)])


def test_a_conflict_with_a_committed_entry_is_no_truncation() -> None:
    assert plan(log_with(1, 1, 1), 2, message(1, 1, 2), True) == Diverged(2)
    assert plan(log_with(1, 1, 1), 2, message(2, 2, 2), True) == Diverged(2)


def test_beyond_the_end_the_hint_is_the_end() -> None:
    assert plan(log_with(1, 1), 0, message(7, 1, 2), True) == Rejected(3)


def test_another_term_gives_the_first_index_of_that_term() -> None:
    log = log_with(1, 2, 2, 2, 2)
    assert plan(log, 1, message(5, 4, 4), True) == Rejected(2)
    assert plan(log, 3, message(5, 4, 4), True) == Rejected(4), "never below what is committed"


def test_below_the_base_only_a_matched_leader_is_believed() -> None:
    log = log_with(3, 3, base=10, base_term=2)
    assert plan(log, 10, message(5, 1, 1, 1), False) == Rejected(11)
    assert plan(log, 10, message(5, 1, 1, 1), True) == Held(7)
    assert plan(log, 10, message(8, 1, 2, 2, 3, 3, 4), True) == New(12, 3, [(b"c", 13, 4, REGULAR)])


def test_a_leader_that_contradicts_the_base() -> None:
    assert plan(log_with(base=10, base_term=2), 10, message(10, 5), False) == Diverged(10)
