"""Order per key at the owner: nothing that waits costs more than its bound."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.consumer.owner import key_order
from jetcluster.stream.log import commands
from tests.unit.consumer.key_rig import ONE, rig, update
from tests.unit.consumer.rig import SECOND


def test_many_waiting_messages_are_looked_at_once() -> None:
    r = rig(max_ack_pending=100_000)
    reads = 0
    read = r.node.store.read_columns

    def counted(seqs: Any) -> Any:
        nonlocal reads
        seqs = list(seqs)
        reads += len(seqs)
        return read(seqs)

    r.node.store.read_columns = counted  # type: ignore[method-assign]
    r.publish(*[b"s.a"] * 3000, *[b"s.%d" % i for i in range(1000)])
    inbox = r.next(batch=1, expires=600 * SECOND)
    for _ in range(1000):
        r.next(batch=1, expires=600 * SECOND)
    assert len(inbox.seqs) == 1001
    assert reads < 3 * 4000, "looked at again and again"


def test_a_turn_reads_no_more_of_a_hot_key_than_some_megabytes() -> None:
    r = rig()
    body = b"x" * (64 << 10)
    for _ in range(12):
        r.publish(*[b"s.a"] * 16, payload=body)
    r.publish(b"s.b")
    read, sizes = r.node.store.read_columns, []

    def counted(seqs: Any) -> Any:
        columns = read(seqs)
        sizes.append(sum(map(len, columns.payloads)))
        return columns

    r.node.store.read_columns = counted  # type: ignore[method-assign]
    r.hold = True
    inbox = r.bus.listen(b"in")
    r.bus.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch": 10, "expires": 60000000000}', b"in")
    turns = []
    while r.woken:
        r.woken = False
        sizes.clear()
        r.owner.run()
        turns.append(sum(sizes))
    assert sum(turns) == 192 * len(body) + 1, "looked at more than once"
    first = 64 * len(body)
    """A batch before the size of messages is known."""
    assert len(turns) > 3 and max(turns) <= first + (1 << 20) and max(turns[1:]) <= 4 << 20
    r.release()
    assert inbox.seqs == [1, 193]


def test_a_selection_looks_at_about_a_megabyte() -> None:
    r = rig()
    r.publish(*[b"s.a"] * 30, payload=b"x" * (200 << 10))
    keys, selection = r.owner.selection.keys, r.owner.selection
    assert keys is not None
    while not keys.loaded:
        selection.load_keys(keys)
    assert selection.take_by_key(keys, 1)[1].seqs == [1]
    assert selection.take_by_key(keys, 1)[1].seqs == [] and 1 << 20 <= keys.looked_bytes <= 2 << 20


def test_a_new_owner_reads_the_keys_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_order, "KEYS_PER_STEP", 7)
    r = rig(max_ack_pending=1000)
    names = [b"s.%d" % (i % 40) for i in range(400)]
    r.publish(*names)
    inbox = r.next(batch=500, expires=600 * SECOND)
    assert len(inbox.seqs) == 40 and r.state.unacked.held == 360
    for frame in list(inbox)[:20]:
        r.ack(frame)
    assert len(inbox.seqs) == 60
    update(r, max_ack_pending=1000, max_ack_pending_per_subject=2)
    update(r, max_ack_pending=1000, **ONE)
    r.crash()
    steps = 0
    load = r.owner.selection.load_keys

    def counted(keys: Any) -> bool:
        nonlocal steps
        steps += 1
        return load(keys)

    monkeypatch.setattr(type(r.owner.selection), "load_keys", lambda _, keys: counted(keys))
    r.next(batch=500, expires=600 * SECOND)
    assert steps > 5
    acked = 0
    while acked < 400:
        frames = [frame for frame in inbox if frame.reply]
        assert len(frames) > acked, "nothing comes any more"
        for frame in frames[acked:]:
            r.ack(frame)
        acked = len(frames)
    assert sorted(inbox.seqs) == list(range(1, 401))
    by_subject = [[seq for seq in inbox.seqs if names[seq - 1] == name] for name in set(names)]
    assert all(seqs == sorted(seqs) for seqs in by_subject)


def test_a_purge_of_very_many_reads_the_keys_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetcluster.consumer.owner.key_order.MAX_SETTLED_AT_ONCE", 3)
    r = rig()
    r.publish(*[b"s.a"] * 10)
    inbox = r.next(batch=20, expires=600 * SECOND)
    r.node.apply(commands.encode_purge(r.now, seq=8))
    before = r.owner.selection.keys
    r.owner.freed(list(range(1, 8)))
    r.woken = True
    r.settle()
    assert r.owner.selection.keys is not before
    assert inbox.seqs == [1, 8]


def test_what_is_removed_while_it_waits_does_not_accumulate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their places stayed until the message before them was settled, beside the bound and all walked in one step."""
    monkeypatch.setattr(key_order, "MAX_WAITING_MESSAGES", 1500)
    r = rig(max_ack_pending=10_000)
    r.publish(b"s.a")
    inbox = r.next(batch=100, expires=600 * SECOND)
    most = 0
    for _ in range(30):
        first = r.node.store.last_seq + 1
        r.publish(*[b"s.a"] * 200)
        for seq in range(first, first + 200):
            r.node.apply(commands.encode_delete_msg(r.now, seq))
        r.owner.freed(range(first, first + 200))
        r.woken = True
        r.settle()
        keys = r.owner.selection.keys
        assert keys is not None
        most = max(most, keys.queues.left + keys.queues.waiting)
    assert 1000 <= most <= 1500 and r.state.unacked.held == 0
    r.publish(b"s.a", b"s.b")
    r.ack(inbox[0])
    assert inbox.seqs == [1, 6003, 6002]


def test_the_bound_counts_what_left_while_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_order, "MAX_WAITING_MESSAGES", 4)
    r = rig()
    r.publish(*[b"s.a"] * 3)
    inbox = r.next(batch=10, expires=60 * SECOND)
    for seq in (2, 3):
        r.node.apply(commands.encode_delete_msg(r.now, seq))
    r.owner.freed([2, 3])
    r.publish(*[b"s.a"] * 3, b"s.b")
    assert r.state.delivered_sseq == 5 and r.state.unacked.held == 2 and inbox.seqs == [1]
    r.ack(inbox[0])
    assert inbox.seqs == [1, 4, 7]
