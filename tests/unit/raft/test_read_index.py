from __future__ import annotations

from jetcluster.raft import codec
from jetcluster.raft.api import Role
from tests.unit.raft.loopback import Loopback, asked, led, running


def test_all_reads_of_a_turn_share_one_round() -> None:
    net, leader = led(after=0.1)
    frames: list[str] = []
    net.filter = lambda source, target, gid, frame: not gid or frames.append(source + target) is None
    answers: list[bool] = []
    for _ in range(100):
        leader.read_index(answers.append)
    net.run(0.02)
    assert answers == [True] * 100
    assert sorted(frames) == ["AB", "AC", "BA", "CA"]


def test_a_read_waits_until_what_was_committed_is_applied() -> None:
    net, leader = led(after=0.1)
    seen: list[int] = []
    net.crowd(leader, 20, form=b"%d")
    net.until(lambda: leader.commit_index > 1 or leader.last_index > 20, step=0.0001)
    committed = leader.commit_index
    leader.read_index(lambda ok: seen.append(leader.applied_index if ok else -1))
    net.run(0.05)
    assert seen[0] >= committed


def test_a_new_leader_answers_after_its_noop() -> None:
    net = Loopback("AB")
    for name in "AB":
        net[name].create(1, ("A", "B"), campaign=name == "A")
    group = net["A"].group()
    net.until(lambda: group.role is Role.LEADER, step=0.0001)
    answers: list[bool] = []
    group.read_index(lambda ok: answers.append(ok and group.ready))
    net.run(0.05)
    assert answers == [True]


def test_a_follower_says_no() -> None:
    net = running(after=0.1)
    answers: list[bool] = []
    net["B"].group().read_index(answers.append)
    assert answers == []
    net.run(0.0)
    assert answers == [False]


def test_a_group_of_one_answers_in_the_next_turn() -> None:
    net, leader = led("A")
    answers = asked(leader)
    net.run(0.0)
    assert answers == [True]


def test_one_excluded_voter_does_not_count() -> None:
    net, leader = led(after=0.1)
    net.isolate("C")
    answers: list[tuple[str, bool]] = []
    leader.reads.add(lambda ok: answers.append(("without B", ok)), exclude="B")
    leader.reads.add(lambda ok: answers.append(("plain", ok)))
    net.run(0.1)
    assert answers == [("plain", True)], "A and B are a majority; who is not to count for the other one is B"
    net.connect_all()
    net.run(0.2)
    assert answers == [("plain", True), ("without B", True)]


def test_a_slow_disk_does_not_delay_reads() -> None:
    net, leader = led(after=0.1)
    for name in "BC":
        net[name].writer.hold()
    net.propose(leader, b"not durable there", after=0.01)
    answers = asked(leader)
    net.run(0.01)
    assert answers == [True]


def test_a_confirmed_read_waits_for_a_leader_that_has_not_applied_what_is_committed() -> None:
    """Two followers have it on disk, so it is committed; the leader's own disk is slower, so it is not applied here."""
    net, leader = led(after=0.1)
    net["A"].writer.hold()
    index = leader.propose(b"acknowledged by the other two")
    net.until(lambda: leader.commit_index >= index, seconds=0.1, step=0.0001)
    assert leader.applied_index < index
    applied: list[int] = []
    leader.read_index(lambda ok: applied.append(leader.applied_index if ok else -1))
    net.run(0.01)
    assert [opened.confirmed for opened in leader.reads._rounds] == [True]
    assert applied == []
    net["A"].writer.release()
    net.run(0.01)
    assert applied == [index]


def test_what_a_callback_raises_stops_only_this_group() -> None:
    net, leader = led()
    other = net.start(2)

    def broken(ok: bool) -> None:
        raise RuntimeError("callback")

    leader.read_index(broken)
    net.run(0.05)
    assert "callback" in leader.status().stopped
    assert other.role is Role.LEADER


def test_a_delayed_refusal_confirms_no_read(net: Loopback) -> None:
    """C refuses a commit push of A, and that answer is under way while B and C elect a leader and acknowledge a write.
    A must not take it for a confirmation of a read that it is asked for later."""
    under_way: list[bytes] = []
    delayed = cut_off = False

    def passes(source: str, target: str, gid: int, frame: bytes) -> bool:
        if delayed and (source, target) == ("C", "A"):
            if gid:
                under_way.append(frame)
            return False
        return not (cut_off and "A" in (source, target))

    net.filter = passes
    leader = net.start()
    net.run(0.2)
    net.cut("A", "C")
    for _ in range(5):
        leader.propose(b"old")
    net.run(0.2)
    delayed = True
    net.connect("A", "C")
    net.run(0.001)
    net.propose(leader, b"pushed beside the probe", after=0.02)
    refusals = [message for frame in under_way if isinstance(message := codec.decode(frame), codec.Reject)]
    assert len(refusals) > 1
    cut_off = True
    net.until(lambda: net["B"].group().ready or net["C"].group().ready, seconds=3.0)
    new = net["B"].group() if net["B"].group().ready else net["C"].group()
    index = new.propose(b"acknowledged")
    net.until(lambda: new.applied_index >= index)
    assert leader.role is Role.LEADER, "it has not heard of the new term"
    answers = asked(leader)
    net.run(0.005)
    for frame in under_way:
        if codec.decode(frame).term == leader.term:
            net["A"].node.on_frame("C", 1, frame)
            net["A"].node.end_of_batch()
    assert True not in answers


def test_contexts_never_begin_anew_within_a_term() -> None:
    net, leader = led(after=0.1)
    leader.reads._context = codec.NO_REPLY - 2  # four billion rounds later
    term = leader.term
    answers = asked(leader)
    net.run(0.5)
    leader.read_index(answers.append)
    net.until(lambda: len(answers) == 2 and net.leader() is not None)
    found = net.led_by()
    assert found.term > term
    again: list[bool] = []
    found.read_index(again.append)
    net.until(lambda: again == [True])


def test_an_answer_to_a_round_that_was_never_sent_counts_for_nothing() -> None:
    net, leader = led(after=0.1)
    net.filter = lambda source, target, gid, frame: not gid or target != "A"
    answers = asked(leader)
    net.run(0.005)
    leader.reads.on_answer("B", 1 << 31)
    assert answers == []
