"""Which messages go; figures of the larger cases seen on nats-server."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.consumer.state import retention, turn
from jetcluster.store.batch import Batch
from jetcluster.stream.apply.jobs import Jobs
from jetcluster.stream.log import commands
from jetcluster.stream.log.bodies import Run, encode_runs
from testkit.twins.memory import held
from tests.unit.consumer.replica_rig import Node, subjects


def interest(**config: Any) -> Node:
    return Node({"retention": "interest", **config})


def test_limits_streams_keep_what_is_acked(n: Node) -> None:
    n.create()
    n.publish(b"a", b"a")
    n.deliver(1, 2)
    n.ack(1)
    n.op(turn.TERM, [2])
    n.delete()
    assert n.stored() == [1, 2]


# -- work queue


def test_a_work_queue_keeps_what_is_neither_acked_nor_termed() -> None:
    n = Node({"retention": "workqueue"})
    n.publish(*[b"a"] * 8)
    n.create(max_deliver=1)
    n.deliver(*range(1, 9))
    n.ack(4, 1)
    n.op(turn.TERM, [2])
    n.op(turn.NAK, [(3, 0)])
    n.op(turn.EXHAUSTED, [5])
    n.op(turn.GONE, [6])
    assert n.stored() == [3, 5, 6, 7, 8]
    n.delete()
    assert n.stored() == [3, 5, 6, 7, 8]
    n.create("next")
    assert n.deliver(3, 5, name="next").seqs == [3, 5]


def test_a_skip_takes_nothing_from_a_work_queue() -> None:
    n = Node({"retention": "workqueue"})
    n.publish(b"a", b"b", b"a")
    n.create(filter_subject="a")
    assert n.op(turn.SKIP, 2) == 1
    assert n.stored() == [1, 2, 3]


def test_a_reset_forward_gives_up_what_lies_before() -> None:
    n = Node({"retention": "interest"})
    n.create()
    n.create("B", filter_subject="b")
    n.publish(b"a", b"a", b"b", b"a", b"a")
    n.deliver(1, 2)
    assert n.extended(commands.CONSUMER_RESET, {"name": "C", "seq": 5}) == 5
    assert n.stored() == [3, 5]


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_a_reset_that_says_what_is_done_acknowledges_it(retention: str) -> None:
    for done, left in ((False, [1, 2, 3, 4] if retention == "workqueue" else [3, 4]), (True, [3, 4])):
        n = Node({"retention": retention})
        n.create()
        n.publish(b"a", b"a", b"a", b"a")
        n.deliver(1, 2, 3)
        assert n.extended(commands.CONSUMER_RESET, {"name": "C", "seq": 3, "done": done}) == 3
        assert n.stored() == left
        assert n.deliver(3, 4).seqs == [3, 4]


def test_a_consumer_of_a_mirror_takes_from_a_work_queue() -> None:
    n = Node({"retention": "workqueue"})
    n.publish(b"a", b"b", b"a", b"a")
    n.create("M", direct=True, ack_policy="none", filter_subject="a")
    n.op(turn.ADVANCE, (3, 2), "M")
    assert n.stored() == [2, 4]


# -- interest


def test_what_nobody_wants_is_not_kept_but_has_its_sequence() -> None:
    n = interest()
    assert n.publish(b"a", b"b").first_seq == 1  # type: ignore[union-attr]
    assert n.stored() == [] and (n.store.first_seq, n.store.last_seq) == (3, 2)
    n.create("A", filter_subject="s.*")
    n.create("B", filter_subject="t")
    n.publish(b"a", b"s.x", b"t", b"s.x.y", b"s.z")
    assert n.stored() == [4, 5, 7]
    n.create("C")
    n.publish(b"other")
    assert n.stored() == [4, 5, 7, 8]


def test_a_consumer_that_begins_later_is_no_reason_to_keep() -> None:
    n = interest()
    n.create(deliver_policy="by_start_sequence", opt_start_seq=3)
    n.publish(b"a", b"a", b"a", b"a")
    assert n.stored() == [3, 4]


@pytest.mark.parametrize("others", [0, retention.MAX_CONSUMERS_ASKED + 3])
def test_a_message_goes_with_the_last_ack(others: int) -> None:
    n = interest()
    for number in range(others):
        n.create(f"other{number}", filter_subject=f"other.{number}")
    n.create("A", filter_subject="s.>")
    n.create("B", filter_subject="s.b")
    n.publish(b"s.a", b"s.b", b"s.b", b"s.a")
    n.deliver(1, 2, 3, 4, name="A")
    n.ack(1, 2, name="A")
    assert n.stored() == [2, 3, 4]
    n.deliver(2, 3, name="B")
    n.ack(3, name="B")
    assert n.stored() == [2, 3, 4]
    n.op(turn.TERM, [2], "B")
    assert n.stored() == [3, 4]
    n.ack(3, name="A")
    assert n.stored() == [4]


def test_ack_all_and_ack_none() -> None:
    n = interest()
    n.create("all", ack_policy="all")
    n.create("none", ack_policy="none")
    n.publish(*[b"a"] * 6)
    n.deliver(1, 2, 3, 4, name="all")
    n.ack(3, name="all")
    assert n.stored() == [1, 2, 3, 4, 5, 6]
    n.op(turn.ADVANCE, (5, 5), "none")
    assert n.stored() == [4, 5, 6]
    n.op(turn.SKIP, 6, "none")
    n.ack(4, name="all")
    assert n.stored() == [5, 6]


def test_exhausted_messages_stay_whatever_the_others_do() -> None:
    n = interest()
    n.create("A", ack_policy="all")
    n.create("B", max_deliver=1)
    n.publish(*[b"a"] * 4)
    n.deliver(1, 2, 3, 4, name="B")
    n.op(turn.EXHAUSTED, [1, 2, 3, 4], "B")
    n.deliver(1, 2, 3, 4, name="A")
    n.ack(2, name="A")
    n.restart()
    n.ack(3, name="A")
    assert n.stored() == [1, 2, 3, 4]
    n.delete("B")
    assert n.stored() == [4]


def test_exhausted_messages_that_are_gone_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MAX_EXHAUSTED_GONE", 5)
    n = interest(max_msgs=2)
    n.create(max_deliver=1)
    for seq in range(1, 50):
        n.publish(b"a")
        n.deliver(seq)
        n.op(turn.EXHAUSTED, [seq])
    kept = n.state().exhausted.keys
    assert 48 in kept and 49 in kept and len(kept) <= 2 * 2 + 5 + 1


def test_deleting_a_consumer_frees_what_it_alone_held() -> None:
    n = interest()
    n.create("A", filter_subject="s.a")
    n.create("B", filter_subject="s.*")
    n.publish(*[b"s.a"] * 3, *[b"s.b"] * 3, b"s.c.d")
    assert n.stored() == [1, 2, 3, 4, 5, 6]
    n.create("B", filter_subject="s.a")
    assert n.stored() == [1, 2, 3]
    n.delete("A")
    assert n.stored() == [1, 2, 3]
    n.delete("B")
    assert n.stored() == [] and n.store.first_seq == 8


def test_deleting_a_consumer_looks_at_everything_it_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MESSAGES_PER_STEP", 3)
    n = interest()
    n.create("A", filter_subject="s.*")
    n.create("B", filter_subject="s.1")
    n.publish(*subjects("s", [1, 2] * 10))
    n.deliver(*range(1, 10), name="A")
    n.ack(3, 4, name="A")
    assert n.stored() == [1, 2, 3, *range(5, 21)]
    n.delete("A")
    assert n.stored() == list(range(1, 21, 2))


def test_deleting_a_consumer_does_not_look_at_what_another_wants_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    n = interest()
    n.create("A")
    n.create("B", filter_subject="b")
    n.publish(*[b"b"] * 100)
    n.deliver(1, 2, name="A")
    n.ack(1, 2, name="A")
    looked: list[tuple[int, int]] = []
    sift = Jobs.sift
    monkeypatch.setattr(Jobs, "sift", lambda self, *args: (looked.append((args[2], args[3])), sift(self, *args))[1])
    n.delete("B")
    assert looked == [(1, 2)]
    assert n.stored() == list(range(3, 101))


def test_a_new_consumer_holds_what_is_still_there() -> None:
    n = interest()
    n.create("A")
    n.publish(b"a", b"a", b"a")
    n.deliver(1, 2, 3, name="A")
    n.ack(1, name="A")
    n.create("B")
    n.ack(2, 3, name="A")
    assert n.stored() == [2, 3]
    n.delete("B")
    assert n.stored() == []


def test_messages_that_last_per_subject_leaves_out_go_when_it_passes_them() -> None:
    n = interest()
    n.create("A")
    n.publish(b"a", b"a", b"b", b"b", b"c")
    n.create("L", deliver_policy="last_per_subject", filter_subject=">")
    n.deliver(*range(1, 6), name="A")
    n.ack(*range(1, 6), name="A")
    assert n.stored() == [2, 3, 4, 5]
    n.deliver(2, 4, name="L")
    assert n.stored() == [2, 4, 5]
    n.ack(2, name="L")
    assert n.stored() == [4, 5]


def test_what_is_not_kept_pushes_nothing_out() -> None:
    n = interest(max_msgs=2)
    n.create(filter_subject="a")
    n.publish(b"a", b"a")
    n.publish(b"b", b"b", b"b")
    assert n.stored() == [1, 2]
    n.publish(b"b", b"a", b"b")
    assert n.stored() == [2, 7]


def test_limits_apply_as_well() -> None:
    n = interest(max_msgs=3)
    n.create()
    n.publish(*[b"a"] * 5)
    assert n.stored() == [3, 4, 5]
    full = Node({"retention": "workqueue", "max_msgs": 2, "discard": "new"})
    full.create()
    full.publish(b"a", b"a")
    assert full.publish(b"a").verdicts[0].err_code == 10077  # type: ignore[union-attr, index]
    full.deliver(1)
    full.ack(1)
    assert full.publish(b"a").verdicts is None  # type: ignore[union-attr]
    assert full.stored() == [2, 3]


def test_when_retention_becomes_interest_what_is_not_wanted_goes(n: Node) -> None:
    n.create(filter_subject="a")
    n.publish(b"a", b"a", b"a", b"b", b"a")
    n.deliver(1, 2, 3)
    n.ack(1, 3)
    n.configure({"retention": "interest"})
    assert n.stored() == [2, 5]
    n.configure({"retention": "limits"})
    n.ack(2)
    n.publish(b"b")
    assert n.stored() == [2, 5, 6]
    n.configure({"retention": "interest"})
    assert n.stored() == [5]


def test_when_retention_becomes_interest_without_consumers_nothing_stays(n: Node) -> None:
    n.publish(b"a", b"a")
    n.configure({"retention": "interest"})
    assert n.stored() == [] and n.store.first_seq == 3


def test_what_comes_out_of_an_archive_is_kept() -> None:
    n = Node({"retention": "interest", "restoring": True})
    n.publish(b"a")
    assert n.stored() == []  # a stream that is being restored takes nothing
    runs = encode_runs([Run(1, n.now, Batch.decode(Batch.encode([b"a", b"b"], [], [b"", b""])))])
    n.apply(commands.encode_restore(n.now, runs))
    n.apply(commands.encode_restore_end(n.now, 2, n.now + 1))
    n.configure({"retention": "interest"})
    assert n.stored() == [1, 2]
    n.create()
    n.deliver(1, 2)
    n.ack(1)
    assert n.stored() == [2]


def test_takers_of_many_subjects_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MAX_CACHED_SUBJECTS", 4)
    n = interest()
    n.create("A", filter_subject="s.*")
    n.create("B", filter_subject="s.7")
    n.publish(*subjects("s", range(20)), *subjects("t", range(20)))
    assert n.stored() == list(range(1, 21))
    before = held(n.table, n.store)
    n.publish(*subjects("t", range(20, 500)))
    assert held(n.table, n.store) < before + 100


def test_restarting_changes_nothing() -> None:
    n = interest()
    n.create()
    n.publish(b"a", b"a")
    n.deliver(1, 2)
    before = n.everything()
    n.restart()
    assert n.everything() == before and n.stored() == [1, 2]
    n.ack(1)
    assert n.stored() == [2]
