"""Deviations of pysyncobj 0.3.17 from Raft cannot happen here: a test per row of docs/reference/pysyncobj.md.

`stock` tests show the defect in the package as it is, so that the test of the same row is known to be able to fail.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from jetcluster.raft import codec
from jetcluster.raft.api import EntryTooLargeError, MembershipError, NotLeaderError, Role
from jetcluster.raft.membership import Config
from testkit.twins.time import SeededRng
from tests.unit.raft import test_deviation_snapshots
from tests.unit.raft.loopback import Loopback, asked, led, running
from tests.unit.raft.stock import Stock, StockClock, stock_clock

__all__ = ["stock_clock"]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "pysyncobj.md"


def test_every_row_has_a_test_and_every_test_a_row() -> None:
    rows = set(re.findall(r"^### D(\w+)\. ", PAGE.read_text(), re.MULTILINE))
    named = [*dir(sys.modules[__name__]), *dir(test_deviation_snapshots)]
    tested = {found[1] for name in named if (found := re.match(r"test_d(\d+[a-z]?)_", name))}
    assert rows == tested
    assert len(rows) == 25


# -- D1, D2: the pipeline


def stock_pipeline() -> tuple[Stock, Stock, list[int]]:
    """Leader A pipelines 12 commands to B, B stores and acks them one by one, C is away."""
    a, b = Stock("A", "ABC"), Stock("B", "ABC")
    a.campaign("B")
    for message in a.wire.take("B"):
        b.receive("A", message)
    for message in b.wire.take("A"):
        a.receive("B", message)
    a.doTick(0)
    a.wire.out.clear()
    done: list[int] = []
    for k in range(12):
        a.propose(b"%02d" % k + b"x" * 100, lambda result, error, k=k: done.append(k))
        a.flush()
    for message in a.wire.take("B"):
        b.receive("A", message)
    acks = b.wire.take("A")
    a.receive("B", acks[0])
    a.flush()
    for message in acks[1:]:
        a.receive("B", message)
    a.doTick(0)
    return a, b, done


def test_stock_d1_and_d2_lose_acked_commands_on_a_healthy_link(stock_clock: StockClock) -> None:
    a, b, done = stock_pipeline()
    assert len(done) == 12
    b.receive("A", a.wire.take("B")[0])
    assert a.raftCommitIndex - b.log_end() >= 5, "acked entries that no other replica holds any more"


def test_d1_an_ack_does_not_rewind_the_pipeline() -> None:
    net, leader = led(after=0.1)
    sent: list[codec.Append] = []

    def watch(source: str, target: str, gid: int, frame: bytes) -> bool:
        if gid and (source, target) == ("A", "B") and frame[1] == codec.APPEND:
            message = codec.decode(frame)
            assert isinstance(message, codec.Append)
            sent.append(message)
        return True

    net.filter = watch
    for _ in range(40):
        net.crowd(leader, 3, after=0.0003)
    net.run(0.2)
    indexes = [entry[1] for message in sent for entry in message.entries]
    assert len(indexes) == 120
    assert indexes == sorted(set(indexes)), "an entry was sent twice"


def test_d2_a_batch_sent_again_truncates_nothing() -> None:
    net, leader = led(commands=12, after=0.1)
    follower = net["B"].group()
    log = follower.log
    before = (log.last_index, log.gseq)
    entries = [(log.command(i), i, log.term_at(i) or 0, log.kind_at(i)) for i in range(3, 6)]
    follower.receiver.on_message("A", codec.Append(leader.term, 2, log.term_at(2) or 0, 5, 0, entries))
    assert (log.last_index, log.gseq) == before


def test_d2_losing_the_leader_at_any_step_of_a_pipeline_loses_no_acked_command() -> None:
    for step in range(0, 60, 2):
        net, leader = led(latency=0.0003, after=0.05)
        net.isolate("C")
        net.crowd(leader, 20, 100)
        for i in range(step):
            net.run(0.0002)
            if i % 5 == 0 and leader.role is Role.LEADER:
                net.crowd(leader, 2, 100)
        acked = net["A"].machine().commands()
        net.crash("A")
        net.connect("B", "C")
        net.until(lambda net=net: net.leader() is not None)
        net.run(0.2)
        second = net.led_by()
        assert net[second.me].machine().commands()[: len(acked)] == acked, f"step {step}"


# -- D3, D16: messages that carry no log position


def test_stock_d3_commits_its_own_divergent_tail(stock_clock: StockClock) -> None:
    a = Stock("A", "ABC")
    a.campaign("B")
    answers: list[int] = []
    a.propose(b"replicated nowhere", lambda result, error: answers.append(error))
    a.flush()
    a.receive("B", {"type": "append_entries", "term": 5, "commit_index": 100, "serialized": None})
    a.doTick(0)
    assert answers == [0], "the client got a success"


def test_d3_only_verified_entries_are_committed() -> None:
    net, leader = led(after=0.1)
    net.isolate("A")
    net.crowd(leader, 5, after=0.01)
    committed = leader.commit_index
    end = leader.last_index
    net["A"].group().receiver.on_message("B", codec.SnapOffer(5, 100, 5, Config(("A", "B", "C"))))
    leader.work()
    assert leader.commit_index == committed
    # Nor does an append that says nothing about the tail.
    leader.receiver.on_message("B", codec.Append(5, 1, 1, 100, 0, []))
    leader.work()
    assert leader.commit_index == committed < end


def test_d4_a_commit_index_beyond_the_recovered_log_is_not_believed() -> None:
    net = running(commands=10, after=0.1)
    log = net["A"].journal.groups[1]
    log.commit_hint = log.last_index + 90
    log.set_commit_hint(log.last_index + 90)
    net.run(0.1)
    end = log.last_index
    net.crash("A")
    restarted = net.restart("A")
    group = restarted.create(1, ("A", "B", "C"))
    assert group.commit_index <= end
    net.run(0.05)
    assert group.commit_index <= end


# -- D5, D13: membership


def test_stock_d5_accepts_several_changes_at_once(stock_clock: StockClock) -> None:
    from pysyncobj.node import Node

    a = Stock("A", "ABC", dynamic=True)
    a.campaign("B")
    a._SyncObj__raftLastApplied = a._SyncObj__raftCommitIndex = a._SyncObj__noopIDx
    for peer in "DEFG":
        a.addNodeToCluster(Node(peer))
    a.doTick(0)
    assert len(a.otherNodes) == 6
    assert a.raftCommitIndex < a.log_end()


def test_d5_one_change_at_a_time_and_only_after_the_noop() -> None:
    net, leader = led("ABCDE", peers="ABC")
    net.isolate("A")
    leader.add_peer("D")
    with pytest.raises(MembershipError):
        leader.add_peer("E")
    with pytest.raises(MembershipError):
        leader.remove_peer("B")
    assert leader.log.config == Config(("A", "B", "C"), ("D",))


def test_d5_a_new_leader_changes_nothing_before_its_noop_is_applied() -> None:
    net = Loopback("AB")
    for name in "AB":
        net[name].create(1, ("A", "B"), campaign=name == "A")
    group = net["A"].group()
    net.until(lambda: group.role is Role.LEADER, step=0.0001)
    assert not group.ready
    with pytest.raises(MembershipError):
        group.add_peer("C")


def test_d6_an_entry_of_any_size_up_to_the_limit_is_delivered() -> None:
    net, leader = led()
    sizes = [0, 1, 255, 65_535, 65_536, 65_537, 2 * 65_536 - 54, 2 * 65_536, 262_144, 1 << 20, net.config.max_entry]
    for size in sizes:
        leader.propose(b"z" * size)
        net.run(0.05)
    assert [len(c) for c in net["C"].machine().commands()] == sizes
    with pytest.raises(EntryTooLargeError, match="limit"):
        leader.propose(b"z" * (net.config.max_entry + 1))


# -- D7, D8, D9, D21: stale and foreign messages


def test_stock_d7_believes_an_ack_of_another_term(stock_clock: StockClock) -> None:
    from pysyncobj.node import Node

    a = Stock("A", "ABC")
    a.campaign("B")
    a.receive("C", {"type": "next_node_idx", "next_node_idx": 50, "reset": False, "success": True})
    assert a._SyncObj__raftMatchIndex[Node("C")] == 49


def test_d7_an_ack_of_another_term_does_not_count() -> None:
    net, leader = led(after=0.1)
    net.isolate("A")
    index = leader.propose(b"x")
    leader.receiver.on_message("C", codec.Ack(leader.term - 1, index, 0, False))
    net.run(0.05)
    assert leader.engine.matches.get("C", 0) < index
    assert leader.commit_index < index
    leader.receiver.on_message("C", codec.Ack(leader.term, index + 40, 0, False))
    assert leader.engine.matches.get("C", 0) < index, "an ack beyond the log is refused"
    leader.receiver.on_message("C", codec.Ack(leader.term + 3, index, 0, False))
    assert leader.role is Role.FOLLOWER
    assert leader.term >= 4


def test_d8_a_stale_leader_is_answered() -> None:
    net, old = led(after=0.1)
    net.isolate("A")
    net.until(lambda: any(net[n].group().ready for n in "BC"))
    assert old.role is Role.LEADER
    began = net.time.monotonic()
    net.connect("A", "B")
    net.until(lambda: old.role is not Role.LEADER, step=0.0005)
    assert net.time.monotonic() - began < 0.01
    with pytest.raises(NotLeaderError):
        old.propose(b"x")


def test_stock_d9_counts_a_vote_twice(stock_clock: StockClock) -> None:
    a = Stock("A", "ABCDE")
    a.campaign("BB")
    assert a._isLeader()


def test_d9_a_vote_counts_once_and_only_from_a_member() -> None:
    net = Loopback("ABCDE")
    net.filter = lambda source, target, gid, frame: False
    group = net["A"].create(1, tuple("ABCDE"), campaign=True)
    net.run(0.001)
    assert group.role is Role.CANDIDATE
    for voter in ("B", "B", "B", "X", "Y"):
        group.receiver.on_message(voter, codec.VoteReply(group.term, True))
    assert group.role is Role.CANDIDATE
    group.receiver.on_message("C", codec.VoteReply(group.term, True))
    assert group.role is Role.LEADER


def test_d10_a_vote_leaves_only_when_it_is_on_disk_and_survives_a_restart(net: Loopback) -> None:
    group = net["B"].create(1, ("A", "B", "C"))
    net.run(0.01)
    votes: list[str] = []

    def watch(source: str, target: str, gid: int, frame: bytes) -> bool:
        if gid and frame[1] == codec.VOTE_REPLY and frame[-1]:
            assert group.log.durable_gseq >= group.log.term_gseq
            votes.append(target)
        return False

    net.filter = watch
    group.receiver.on_message("A", codec.Vote(7, 0, 0))
    assert votes == []
    net.run(0.01)
    assert votes == ["A"]
    net.crash("B")
    again = net.restart("B").create(1, ("A", "B", "C"))
    assert (again.term, again.log.voted_for) == (7, "A")
    net.connect_all()
    again.receiver.on_message("C", codec.Vote(7, 9, 6))
    net.run(0.01)
    assert votes == ["A"]


def test_d11_a_returning_node_does_not_depose_a_healthy_leader() -> None:
    net, leader = led(after=0.1)
    term = leader.term
    for _ in range(5):
        net.isolate("C")
        net.crowd(leader, 2, after=1.5)
        net.connect_all()
        net.run(0.3)
    assert leader.role is Role.LEADER
    assert leader.term == term
    assert net["C"].machine().commands() == net["A"].machine().commands()


# -- D12: durability


def test_d12_nothing_is_committed_that_a_majority_has_not_on_disk() -> None:
    net, leader = led(after=0.1)
    stuck = {"A", "B"}
    for name in stuck:
        net[name].writer.hold()  # a sync that takes for ever
    index = net.propose(leader, b"x", after=0.3)
    assert net["C"].group().log.durable_index == index
    assert net["B"].group().last_index == index
    assert leader.commit_index < index
    net["B"].writer.release()
    net.run(0.05)
    assert leader.commit_index == index, "two of three disks hold it"
    assert net["A"].machine().commands() == [], "but it is applied only where it is on disk"


def test_d12_a_truncation_takes_back_what_was_vouched_for(net: Loopback) -> None:
    group = net["B"].create(1, ("A", "B", "C"))
    entries = [(b"old", i, 1, codec.REGULAR) for i in range(1, 6)]
    group.receiver.on_message("A", codec.Append(1, 0, 0, 0, 0, entries))
    net.run(0.01)
    assert group.log.durable_index == 5
    group.receiver.on_message("C", codec.Append(2, 2, 1, 0, 0, [(b"new", 3, 2, codec.REGULAR)]))
    assert group.log.durable_index == 2
    net.run(0.01)
    assert group.log.durable_index == 3


def test_d13_the_configuration_comes_from_the_log_at_start() -> None:
    net, leader = led("ABCD", peers="ABC", after=0.1)
    net["D"].create(1, leader.peers)
    leader.add_peer("D")
    net.until(lambda: leader.peers == ("A", "B", "C", "D"))
    net.run(0.2)
    leader.remove_peer("B")
    net.run(0.2)
    for name in "ACD":
        net.crash(name)
    for name in "ACD":
        restarted = net.restart(name).create(1, ("A", "B", "C"))
        assert restarted.peers == ("A", "C", "D")


def test_d14_no_pickle_comes_near_the_wire_or_the_log() -> None:
    import pickle

    net = running()
    evil = pickle.dumps({"type": "apply_command", "command": b"x"})
    node = net["B"].node
    before = node.counters.refused_frames
    node.on_frame("A", 1, evil)
    node.on_frame("A", 0, evil)
    assert node.counters.refused_frames == before + 2
    assert not net["B"].group().stopped


def test_d15_a_command_that_raises_is_not_applied_again_and_stops_only_its_group() -> None:
    net, leader = led()
    other = net.start(2)
    net["B"].machine(1).fail_on = b"bad"
    leader.propose(b"good")
    leader.propose(b"bad")
    leader.propose(b"more")
    net.propose(other, b"fine", after=0.1)
    assert net["B"].machine(1).commands() == [b"good"]
    assert "bad command" in net["B"].group(1).status().stopped
    assert net["B"].machine(2).commands() == [b"fine"]
    assert net["A"].machine(1).commands() == [b"good", b"bad", b"more"]


def test_d15_a_leader_that_stops_hands_the_group_to_others() -> None:
    net, leader = led()
    net["A"].machine().fail_on = b"bad"
    leader.propose(b"bad")
    net.until(lambda: net.leader() is not None and net.leader() is not leader)


# -- the rest


def test_d17_a_read_is_served_only_by_a_proven_leader() -> None:
    net, old = led(after=0.1)
    answers = asked(old)
    assert answers == []
    net.run(0.01)
    assert answers == [True]
    net.isolate("A")
    net.until(lambda: any(net[n].group().ready for n in "BC"))
    assert old.role is Role.LEADER, "it does not know yet"
    old.read_index(answers.append)
    net.run(2.0)
    assert answers == [True, False]


def test_d18_a_long_divergence_is_repaired_at_once() -> None:
    net, old = led(after=0.1)
    net.isolate("A")
    net.crowd(old, 300)
    net.until(lambda: any(net[n].group().ready for n in "BC"))
    leader = next(net[n].group() for n in "BC" if net[n].group().ready)
    net.crowd(leader, 300, after=0.1)
    frames: list[bytes] = []

    def watch(source: str, target: str, gid: int, frame: bytes) -> bool:
        if gid and target == "A":
            frames.append(frame)
        return True

    net.filter = watch
    net.connect_all()
    net.run(0.03)
    assert net["A"].group().last_index == leader.last_index
    assert len(frames) < 30, "no message storm"


def test_d19_what_is_under_way_is_bounded_and_dropped_proposals_are_answered() -> None:
    net, leader = led(config=None, after=0.1)
    sent: list[int] = []

    def swallow(source: str, target: str, gid: int, frame: bytes) -> bool:
        if gid and source == "A":
            sent.append(len(frame))
            return False
        return True

    net.filter = swallow
    first = leader.propose(b"." * 100_000)
    for _ in range(300):
        leader.propose(b"." * 100_000)
        net.run(0.0005)
    limit = leader.config.window_bytes + leader.config.frame_bytes
    assert leader.replicator.flows["B"].bytes_out <= limit
    net.isolate("A")
    net.run(2.0)
    assert net["A"].machine().dropped == [first]


def test_d20_a_proposal_of_a_follower_is_refused_and_never_carried_out_later() -> None:
    net = running(after=0.1)
    with pytest.raises(NotLeaderError):
        net["B"].group().propose(b"late")
    with pytest.raises(AssertionError):
        net["B"].group().engine._applyCommand(b"late", None)
    net.run(0.5)
    assert all(b"late" not in net[n].machine().commands() for n in "ABC")


def test_d21_a_message_of_a_stranger_is_harmless() -> None:
    leader = led(after=0.1)[1]
    for message in (
        codec.Ack(leader.term, 1, 0, False),
        codec.Reject(leader.term, 1, 1, 0, False),
        codec.VoteReply(leader.term, True),
        codec.PreVoteReply(leader.term, leader.term + 1, True),
        codec.SnapRequest(leader.term),
        codec.TimeoutNow(leader.term),
        codec.RejoinReply(leader.term, 1, 5),
    ):
        leader.receiver.on_message("Z", message)
    assert leader.role is Role.LEADER
    assert leader.status().stopped == ""


def test_d22_reads_lean_on_no_clock() -> None:
    """ReadIndex, not a lease: a leader whose clock stood still (suspend) serves nothing on the strength of it."""
    net, old = led(after=0.1)
    net.isolate("A")
    answers = asked(old)
    old.tick_engine()
    old.work()
    assert answers == []


def test_d23_a_learner_receives_but_does_not_count() -> None:
    net, leader = led("ABCD", peers="ABC", after=0.1)
    net["D"].create(1, leader.peers)
    leader.log.append(codec.CONFIG, leader.term, _learner_config())
    leader.follow_config()
    leader.changes.on_progress = lambda flow: None  # type: ignore[method-assign]
    net.run(0.1)
    assert net["D"].group().last_index == leader.last_index
    for name in "BC":
        net.isolate(name)
    index = net.propose(leader, b"x", after=0.3)
    assert net["D"].group().last_index == index
    assert leader.commit_index < index
    assert not net["D"].group().may_campaign()


def _learner_config() -> bytes:
    from jetcluster.raft.membership import encode_config

    return encode_config(Config(("A", "B", "C"), ("D",)))


def test_healthy_pipelines_never_truncate_but_stock_does(stock_clock: StockClock) -> None:
    """Random pacing and no faults at all."""
    rng = SeededRng(3)
    nodes = {n: Stock(n, "ABC") for n in "ABC"}
    nodes["A"].campaign("B")
    for i in range(400):
        nodes["A"].propose(b"%d" % i + b"x" * 100)
        nodes["A"].flush()
        for name, node in nodes.items():
            for peer in nodes:
                if rng.random() < 0.7:
                    for message in node.wire.take(peer):
                        nodes[peer].receive(name, message)
        stock_clock.now += 0.01
        for node in nodes.values():
            node.doTick(0)
    assert nodes["B"].truncated + nodes["C"].truncated > 0

    net, leader = led()
    truncations: list[int] = []
    for name in "BC":
        log = net[name].journal.groups[1]
        assert log.last_index >= 0
    for i in range(400):
        leader.propose(b"%d" % i + b"x" * 100)
        net.run(rng.uniform(0, 0.001))
    net.run(0.2)
    for name in "BC":
        from jetcluster.raft.journal import records
        from jetcluster.raft.journal.recovery import scan

        assert scan(net[name].disk).damage == []
        for number in net[name].disk.segments():
            data = net[name].disk.load(number)
            head = records.read_segment_head(data, number)
            if head is None:
                continue
            found = records.salvage(data, 0, len(data), records.salt(number, head.nonce))
            truncations += [r.log_index for r in found if r.kind == records.TRUNCATE]
    assert truncations == []
