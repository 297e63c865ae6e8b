"""Removal in pieces of messages that no consumer wants any more: the same on every replica, wherever one restarts or
takes the state over; nothing goes that somebody wants, and nothing stays that nobody wants."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.store.slices import Step
from jetcluster.stream.apply import jobs
from jetcluster.stream.log import commands
from jetcluster.stream.ports import JobStep
from tests.unit.consumer.replica_rig import T0, Node

pytestmark = pytest.mark.thorough

SMALL = Step(subjects=2, messages=3, looked=4, blocks=2, size=400, cut=3, cut_blocks=2, rest=1)
SUBJECTS = [b"a.x", b"a.y", b"b.x", b"c"]
FILTERS = [[], [">"], ["a.>"], ["*.x"], ["c"], ["a.x", "c"], ["b.*"]]


class Small(Node):
    """Its pieces are small."""

    def open(self) -> None:
        super().open()
        self.store.slices.step = SMALL

    def step_on(self) -> Any:
        return self.apply(commands.encode_continue(self.now))

    def finish(self) -> int:
        count = 0
        while self.machine.jobs:
            self.step_on()
            count += 1
            assert count < 10_000
        return count

    def by_seq(self) -> dict[int, bytes]:
        return {message.seq: message.subject for message in self.store.queries.scan(b">", 1)}


def held(count: int) -> Small:
    """Two consumers, of which A alone holds the messages on a.x."""
    n = Small({"retention": "interest"})
    n.create("A")
    n.create("B", filter_subject="c")
    for _ in range(count):
        n.publish(b"a.x", b"c")
    return n


@pytest.mark.parametrize("guard", [None, {"consumer": "C", "max_bytes": 1 << 40}], ids=["alone", "with a guard"])
@pytest.mark.parametrize("restarts", [False, True])
def test_the_jobs_of_one_command_are_done_in_one_order_also_after_a_restart(
    guard: dict[str, Any] | None, restarts: bool
) -> None:
    """First what nobody wants, or limits would count it, and remove what somebody does."""
    n, other = Small({"retention_guard": guard}), Small({"retention_guard": guard})
    for replica in (n, other):
        replica.create(filter_subject="c")
        for _ in range(20):
            replica.publish(b"c", b"a.x")
        replica.configure({"retention": "interest", "max_msgs": 20})
    assert n.machine.jobs == 2
    if restarts:
        other.restart()
    else:
        other.install(n)
        other.store.slices.step = SMALL
    for replica in (n, other):
        replica.finish()
    assert n.everything() == other.everything()
    assert set(n.by_seq().values()) == {b"c"} and n.store.messages == 20


def test_deleting_updating_and_resetting_leave_the_rest_to_a_job() -> None:
    for change in ("delete", "update", "reset"):
        n = held(20)
        if change == "delete":
            assert n.delete("A") == 1
        elif change == "update":
            n.create("A", filter_subject="b.x")
        else:
            assert n.extended(commands.CONSUMER_RESET, {"name": "A", "seq": 41}) == 41
        assert n.machine.jobs == 1 and len(n.stored()) > 30, change
        assert n.finish() > 5
        assert n.stored() == list(range(2, 41, 2)), change


def test_becoming_interest_leaves_the_rest_to_a_job_and_new_messages_count_at_once() -> None:
    n = Small()
    n.create("B", filter_subject="c")
    for _ in range(20):
        n.publish(b"a.x", b"c")
    n.configure({"retention": "interest"})
    assert n.machine.jobs == 1
    n.publish(b"a.x", b"c")
    assert 41 not in n.stored() and 42 in n.stored()
    n.finish()
    assert n.stored() == list(range(2, 43, 2))


def test_a_job_ends_when_the_stream_is_for_nobody_in_particular_again() -> None:
    n = Small()
    n.create("B", filter_subject="c")
    n.publish(*[b"a.x"] * 20)
    n.configure({"retention": "interest"})
    n.configure({"retention": "limits"})
    left = n.stored()
    n.finish()
    assert n.stored() == left and len(left) > 10


def test_a_consumer_that_comes_under_way_holds_what_is_still_there() -> None:
    n = held(20)
    n.delete("A")
    n.create("N")
    there = n.stored()
    n.finish()
    assert n.stored() == there
    n.delete("N")
    n.finish()
    assert n.stored() == list(range(2, 41, 2))


def test_a_purge_waits_for_nothing_and_pending_marks_are_left_alone() -> None:
    n = held(20)
    n.deliver(2, 4, name="B")
    n.delete("A")
    assert n.finish() > 5
    assert n.floors("B") == (2, 4, 0, 0) and list(n.state("B").pending) == [2, 4]
    assert n.state("B").purged_sseq == 0


def test_many_deletions_share_a_job_or_are_done_at_once_and_none_is_refused() -> None:
    n = Small({"retention": "interest"})
    n.create("keep", filter_subject="c")
    for number in range(jobs.MAX_JOBS + 10):
        n.create(f"A{number}", filter_subject=f"s.{number}")
        n.create(f"B{number}", filter_subject="t")
    for _ in range(4):
        n.publish(*[f"s.{number}".encode() for number in range(jobs.MAX_JOBS + 10)], b"c", b"t")
    for number in range(jobs.MAX_JOBS + 10):
        assert n.delete(f"A{number}") == 1
        assert n.machine.jobs <= jobs.MAX_JOBS
    before = n.machine.jobs
    for number in range(jobs.MAX_JOBS + 10):
        assert n.delete(f"B{number}") == 1
    assert n.machine.jobs <= before + 1
    n.finish()
    assert set(n.by_seq().values()) == {b"c"}


def test_no_command_looks_at_more_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: messages asked for and removed, per command; a block holds two."""
    n = held(200)
    asked = [0]
    wanted = n.table.wanted
    monkeypatch.setattr(
        n.table, "wanted", lambda seq, subject: (asked.__setitem__(0, asked[0] + 1), wanted(seq, subject))[1]
    )
    worst = removed = pieces = 0
    for action in (lambda: n.delete("A"), lambda: n.create("B", filter_subject="b.x")):
        todo = [action]
        while todo or n.machine.jobs:
            before, asked[0] = n.store.messages, 0
            (todo.pop() if todo else n.step_on)()
            worst, removed = max(worst, asked[0]), max(removed, before - n.store.messages)
            pieces += 1
    assert n.store.messages == 0
    assert pieces > 100
    assert 0 < worst <= SMALL.looked + 2
    assert 0 < removed <= SMALL.messages


Line = tuple[str, tuple[Any, ...]]
names = st.sampled_from(["A", "B", "C"])
lines = st.one_of(
    st.tuples(st.just("publish"), st.tuples(st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=6))),
    st.tuples(st.just("publish"), st.tuples(st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=6))),
    st.tuples(st.just("create"), st.tuples(names, st.sampled_from(FILTERS))),
    st.tuples(st.just("delete"), st.tuples(names)),
    st.tuples(st.just("deliver"), st.tuples(names, st.integers(1, 4))),
    st.tuples(st.just("ack"), st.tuples(names, st.integers(0, 3))),
    st.tuples(st.just("reset"), st.tuples(names, st.integers(1, 60))),
    st.tuples(st.just("retention"), st.tuples(st.sampled_from(["limits", "interest"]))),
    st.tuples(st.sampled_from(["continue", "continue", "restart", "install"]), st.just(())),
)


def carry_out(n: Small, kind: str, args: tuple[Any, ...]) -> None:
    if kind == "publish":
        n.publish(*args[0])
    elif kind == "create":
        n.create(args[0], filter_subjects=args[1])
    elif kind == "retention":
        n.configure({"retention": args[0]})
    elif kind == "continue":
        n.step_on()
    elif args and args[0] in n.table.by_name:
        state = n.state(args[0])
        if kind == "delete":
            n.delete(args[0])
        elif kind == "reset":
            n.extended(commands.CONSUMER_RESET, {"name": args[0], "seq": args[1]})
        elif kind == "deliver":
            seqs = n.store.next_seqs(state.rules.filters, state.delivered_sseq + 1, args[1])
            if seqs:
                n.deliver(*seqs, name=args[0])
        elif list(state.pending)[args[1] :]:
            n.ack(list(state.pending)[args[1]], name=args[0])


@settings(max_examples=300, deadline=None)
@given(st.lists(lines, min_size=5, max_size=40))
def test_nothing_goes_that_is_wanted_and_nothing_stays_that_is_not(script: list[Line]) -> None:
    steady, restless = Small(), Small()
    for node in (steady, restless):
        node.create("A")
    for kind, args in [*script, ("retention", ("interest",)), *[("continue", ())] * 80]:
        if kind == "restart":
            restless.restart()
            continue
        if kind == "install":
            steady.kv.commit()
            restless.install(steady)
            restless.store.slices.step = SMALL
            continue
        before = steady.by_seq()
        carry_out(steady, kind, args)
        carry_out(restless, kind, args)
        after = steady.by_seq()
        lost = [seq for seq in before if seq not in after and steady.table.wanted(seq, before[seq])]
        assert not lost, (kind, args)
        if steady.machine.rules.retention == "interest" and not steady.machine.jobs:
            assert all(steady.table.wanted(seq, subject) for seq, subject in after.items())
        assert steady.everything() == restless.everything()
    assert steady.machine.jobs == 0
    assert steady.now >= T0


def test_a_step_of_such_a_job_tells_how_far_it_has_come() -> None:
    n = held(20)
    index = n.index + 1
    n.delete("A")
    step = n.step_on()
    assert isinstance(step, JobStep) and step.job == index and step.removed > 0 and not step.done
