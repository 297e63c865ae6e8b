"""Bounds of members of a shared consumer: turns end, slow ones stop nobody, and those that went leave nothing."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.consumer.owner import key_order, member_dispatch
from jetcluster.consumer.owner.member_dispatch import MemberDispatch
from jetcluster.store.batch import Batch
from tests.unit.consumer.key_rig import rig
from tests.unit.consumer.members_rig import A, B, C, ask, keys_of, messages, sharing, subjects
from tests.unit.consumer.rig import SECOND
from tests.unit.consumer.test_members import inbox


def test_a_turn_ends_when_many_requests_were_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_dispatch, "MAX_LOOKS", 10)
    r = rig()
    a, b = ask(r, A, B)
    ask(r, *[inbox("a")] * 30, batch=1)
    r.publish(*subjects(60))
    assert sorted(a.seqs + b.seqs) == list(range(1, 61))


def test_no_turn_looks_at_more_requests_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """New messages, redeliveries, and messages for a thousand requests of clients that went."""
    monkeypatch.setattr(member_dispatch, "MAX_LOOKS", 200)
    r = rig(max_ack_pending=10_000, max_waiting=10_000)
    names = [inbox(f"m{number}") for number in range(20)]
    for _ in range(100):
        ask(r, *names, batch=1)
    looks: list[int] = []
    backlog, begin = r.bus.backlog, MemberDispatch.begin

    def counted(subject: bytes) -> int:
        looks[-1] += 1
        return backlog(subject)

    def begun(self: MemberDispatch, keys: Any, now: int) -> bool:
        looks.append(0)
        return begin(self, keys, now)

    monkeypatch.setattr(r.bus, "backlog", counted)
    monkeypatch.setattr(MemberDispatch, "begin", begun)
    r.publish(*subjects(500))
    boxes = [r.bus.inboxes[name] for name in names]
    first = [frame for box in boxes for frame in messages(box)]
    for frame in first:
        r.ack(frame, b"-NAK")
    assert len(first) == 500 and sum(len(box.seqs) for box in boxes) == 1000
    r.bus.inboxes.clear()
    r.publish(*[b"t.%d" % number for number in range(500)])
    r.advance(31)
    assert r.pull.queue.size < 100 and max(looks) == 200 and sum(looks) > 1900


def test_due_messages_of_many_members_are_read_one_by_one_from_their_block(monkeypatch: pytest.MonkeyPatch) -> None:
    r = rig(max_ack_pending=10_000, ack_wait=5 * SECOND)
    boxes = ask(r, *[inbox(f"m{number}") for number in range(20)], batch=100)
    r.publish(*subjects(1000))
    ask(r, *[inbox(f"m{number}") for number in range(20)], batch=100)
    cut: list[int] = []
    columns = Batch.columns

    def noted(self: Batch, low: int, high: int) -> Any:
        cut.append(high - low)
        return columns(self, low, high)

    monkeypatch.setattr(Batch, "columns", noted)
    r.advance(5.1)
    assert sum(len(box.seqs) for box in boxes) == 2000 and sum(cut) < 4000, "not the whole block for each"


@pytest.mark.parametrize("again", [False, True])
def test_what_waited_for_a_member_is_read_some_at_a_time(monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    r = rig(max_ack_pending=1000)
    (a,), _ = ask(r, A, batch=1000 if again else 1), ask(r, B, batch=1000)
    r.publish(*subjects(400))
    if again:
        for frame in messages(a):
            r.ack(frame, b"-NAK " + b'{"delay": 1000000}')
    ask(r, A, batch=1) if again else None
    waits = len(a.seqs) if again else r.state.unacked.held
    assert waits > 100
    monkeypatch.setattr("jetcluster.consumer.owner.selection.TARGET_BATCH_BYTES", 1000)
    read: list[int] = []
    columns = r.node.store.read_columns

    def noted(seqs: Any) -> Any:
        read.append(len(seqs))
        return columns(seqs)

    monkeypatch.setattr(r.node.store, "read_columns", noted)
    if again:
        r.advance(0.1)
    else:
        ask(r, A, batch=1000)
    assert sum(read) >= waits and max(read) < 50


def test_a_slow_member_does_not_stop_the_others_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_order, "MAX_WAITING_MESSAGES", 40)
    r = rig(max_ack_pending=1000)
    (a,), (b,) = ask(r, A, batch=1), ask(r, B, batch=10_000)
    acked = 0
    for _ in range(20):
        r.publish(*subjects(20))
        for frame in messages(b)[acked:]:
            acked += 1
            r.ack(frame)
    slow = r.node.store.read_columns(a.seqs).subjects[0]
    per_key = {seq % 20 for seq in b.seqs[-30:]}
    assert len(per_key) >= 18, "all keys go on but those that A has, which never acks"
    assert slow not in keys_of(b, r) and b.seqs[-1] >= 360


@pytest.mark.parametrize("limit", [2, 3])
def test_near_the_bound_no_key_comes_to_two_members(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(key_order, "MAX_WAITING_MESSAGES", 40)
    r = rig(max_ack_pending=1000, max_ack_pending_per_subject=limit)
    boxes = ask(r, A, B, C, batch=3)
    out: dict[int, int] = {}
    seen = [0, 0, 0]
    for turn in range(60):
        r.publish(*[b"s.%d" % ((7 * turn + number) % 20) for number in range(10)])
        for which, box in enumerate(boxes):
            for frame in messages(box)[seen[which] :]:
                out[frame.seq] = which
            seen[which] = len(messages(box))
        holders: dict[bytes, set[int]] = {}
        for seq, which in out.items():
            holders.setdefault(r.node.store.read_columns([seq]).subjects[0], set()).add(which)
        assert all(len(found) == 1 for found in holders.values()), holders
        slow = turn % 3
        for which, box in enumerate(boxes):
            if which != slow:
                for frame in [frame for frame in messages(box) if out.get(frame.seq) == which][:4]:
                    del out[frame.seq]
                    r.ack(frame)
                    for mine, other in enumerate(boxes):
                        for new in messages(other)[seen[mine] :]:
                            out[new.seq] = mine
                        seen[mine] = len(messages(other))
                ask(r, (A, B, C)[which], batch=3)
    assert sharing(r).spilled > 0


@pytest.mark.parametrize("listens", [False, True])
def test_one_that_gave_a_message_back_for_later_does_not_hold_its_keys_for_it(listens: bool) -> None:
    r = rig(ack_wait=30 * SECOND)
    (a,), (b,) = ask(r, A, batch=1), ask(r, B, batch=1000)
    r.publish(*subjects(40))
    assert r.state.unacked.held > 5
    r.ack(a[0], b'-NAK {"delay": 3600000000000}')
    if not listens:
        del r.bus.inboxes[A]
    r.advance(2)
    assert r.owner.key_sharing.members == 1 and not r.state.unacked.held
    assert sorted([*b.seqs, a.seqs[0]]) == list(range(1, 41)), "its key alone waits"
    r.publish(r.node.store.read_columns(a.seqs).subjects[0])
    for frame in messages(b):
        r.ack(frame)
    assert 41 not in b.seqs
    r.advance(3600)
    ask(r, B)
    assert b.seqs[-1] == a.seqs[0]
    r.ack(b[-1])
    assert b.seqs[-1] == 41
    r.ack(b[-1])
    assert not r.state.pending and not r.owner.selection.keys.queues.busy  # type: ignore[union-attr]


def test_members_that_went_leave_nothing_behind() -> None:
    r = rig(max_ack_pending=1000)
    ask(r, A, batch=10_000)
    for number in range(5):
        (box,) = ask(r, inbox(f"shot{number}"), batch=1)
        r.publish(*subjects(40))
        r.ack(box[0])
        del r.bus.inboxes[inbox(f"shot{number}")]
        ask(r, B, batch=10_000)
        r.advance(1.7)
        stocks = r.owner.selection.keys.queues.stocks  # type: ignore[union-attr]
        assert stocks is not None and set(stocks.members()) <= set(sharing(r).members.here)
    assert r.owner.key_sharing.members == 2


def test_many_members_that_fell_silent_go_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    r = rig(ack_wait=5 * SECOND)
    names = [inbox(f"m{number}") for number in range(20)]
    ask(r, A)
    ask(r, *names, batch=3)
    for _ in range(10):
        r.advance(0.3)
    r.publish(*subjects(500))
    assert r.owner.key_sharing.members == 21
    dropped: list[int] = []
    members = sharing(r).members
    drop, begin = type(members).drop, MemberDispatch.begin

    def counted(self: Any, member: Any) -> list[int]:
        dropped[-1] += 1
        return drop(self, member)

    def begun(self: MemberDispatch, keys: Any, now: int) -> bool:
        dropped.append(0)
        return begin(self, keys, now)

    monkeypatch.setattr(type(members), "drop", counted)
    monkeypatch.setattr(MemberDispatch, "begin", begun)
    for _ in range(20):
        r.advance(0.5)
    ask(r, A, batch=1000)
    for _ in range(20):
        r.advance(0.5)
    assert sum(dropped) == 20 and max(dropped) <= 8 and r.owner.key_sharing.members == 1


def test_many_members_that_come_at_once_all_have_keys_soon() -> None:
    r = rig()
    names = [inbox(f"m{number}") for number in range(30)]
    for name in names:
        r.pull.request(name, b'{"batch": 100, "expires": 600000000000}')
    r.settle()
    assert len(sharing(r).members.here) == 30


def test_due_messages_behind_many_of_a_busy_member_are_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_dispatch, "MAX_ROUTED", 5)
    r = rig()
    (a,), (b,) = ask(r, A, batch=8), ask(r, B)
    r.publish(*subjects(40))
    due = [*a.seqs, b.seqs[0]]
    r.owner.again(due)
    r.woken = True
    r.settle()
    assert len(due) == 9 and b.seqs.count(due[-1]) == 2
