"""Order per key at the owner: by hand, and in random histories with a judge."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from jetcluster.consumer.info import num_pending
from jetcluster.consumer.owner import key_order
from jetcluster.consumer.owner.key_order import key_reader
from jetcluster.consumer.state.pending import HELD
from jetcluster.consumer.state.turn import ACK, DELIVER, DELIVER_SOME, EXHAUSTED, FIRST, GONE, RELEASE, TERM
from jetcluster.model.order_per_key import KeyWish
from jetcluster.stream.log import commands
from tests.unit.consumer.rig import SECOND, Frame, Rig

ONE = {"max_ack_pending_per_subject": 1}


def rig(**config: Any) -> Rig:
    return Rig(**{**ONE, **config})


def update(rig: Rig, **config: Any) -> None:
    assert isinstance(rig.node.create(**config), int)
    rig.owner.configured()
    rig.woken = True
    rig.settle()


def test_the_next_of_a_subject_comes_when_the_one_before_is_acked() -> None:
    r = rig()
    r.publish(b"s.a", b"s.a", b"s.b", b"s.a", b"s.c")
    inbox = r.next(batch=10, expires=60 * SECOND)
    assert inbox.seqs == [1, 3, 5]
    assert [frame.numbers for frame in inbox] == [(1, 1, 1, 4), (1, 3, 2, 3), (1, 5, 3, 2)]
    r.ack(inbox[1])
    assert inbox.seqs == [1, 3, 5]
    r.ack(inbox[0])
    assert inbox.seqs == [1, 3, 5, 2] and inbox[3].numbers == (1, 2, 4, 1)
    r.ack(inbox[3])
    assert inbox[4].numbers == (1, 4, 5, 0)
    assert tuple(r.state.view()) == (5, 5, 2, 3, 2, 0)
    r.ack(inbox[2])
    assert tuple(r.state.view()) == (5, 5, 4, 3, 1, 0)
    r.ack(inbox[4])
    assert tuple(r.state.view()) == (5, 5, 5, 5, 0, 0)


def test_what_waits_is_pending_and_not_waiting_for_an_ack() -> None:
    r = rig()
    r.publish(b"s.a", b"s.a", b"s.a", b"s.b", b"s.b")
    r.next(batch=10, expires=60 * SECOND)
    assert num_pending(r.state, r.node.store) == 3 and len(r.state.unacked) == 2
    assert [seq for seq, entry in r.state.pending.items() if entry is HELD] == [2, 3, 5]
    assert (DELIVER_SOME, ([1, 4], [2, 3, 5])) in r.log


def test_a_consumer_whose_messages_wait_for_each_other_is_not_stuck() -> None:
    r = rig()
    r.publish(b"s.a", b"s.a")
    inbox = r.next(batch=10, expires=60 * SECOND)
    assert not r.unserved or not r.unserved[-1]
    assert r.owner.withheld(r.now) == "keys"
    r.ack(inbox[0])
    assert r.owner.withheld(r.now) == ""


def test_a_consumer_whose_keys_never_wait_has_plain_deliveries_in_the_log() -> None:
    r = rig()
    r.publish(b"s.a", b"s.b", b"s.c")
    r.next(batch=3)
    assert (DELIVER, [1, 2, 3]) in r.log and not r.state.by_key


def test_other_keys_go_on_while_one_waits_for_its_redelivery() -> None:
    r = rig(ack_wait=5 * SECOND)
    r.publish(b"s.a", b"s.a")
    inbox = r.next(batch=20, expires=600 * SECOND)
    r.ack(inbox[0], b'-NAK {"delay": 2000000000}')
    r.publish(*[b"s.%d" % i for i in range(5)])
    assert inbox.seqs == [1, 3, 4, 5, 6, 7]
    r.advance(2.1)
    assert inbox.seqs[6:] == [1]
    r.advance(1)
    for frame in inbox[1:6]:
        r.ack(frame)
    r.advance(4.1)
    assert inbox.seqs[7:] == [1], "its ack wait is over: it comes again, and the next still waits"
    r.ack(inbox[7])
    assert inbox.seqs[8:] == [2]


def test_a_message_that_is_naked_comes_before_the_next_of_its_key() -> None:
    r = rig()
    r.publish(b"s.a", b"s.a")
    inbox = r.next(batch=1)
    r.ack(inbox[0], b"-NAK")
    assert r.next(batch=2, expires=SECOND).seqs == [1, 1]
    r.ack(inbox[1], b"+WPI")
    r.ack(inbox[1], b"+TERM")
    assert inbox.seqs == [1, 1, 2]


def test_a_key_is_free_when_its_message_is_given_up() -> None:
    r = rig(ack_wait=SECOND, max_deliver=2)
    r.publish(b"s.a", b"s.a")
    inbox = r.next(batch=10, expires=60 * SECOND)
    r.advance(1.5)
    assert inbox.seqs == [1, 1]
    r.advance(1)
    assert inbox.seqs == [1, 1, 2] and EXHAUSTED in r.kinds()


def test_backoff_counts_for_each() -> None:
    r = rig(backoff=[SECOND, 5 * SECOND])
    r.publish(b"s.a", b"s.a")
    inbox = r.next(batch=10, expires=60 * SECOND)
    r.advance(4.9)
    assert inbox.seqs == [1, 1]
    r.advance(1.2)
    assert inbox.seqs == [1, 1, 1]
    r.ack(inbox[2])
    r.advance(1.1)
    assert inbox.seqs[3:] == [2, 2]


@pytest.mark.parametrize(
    ("remove", "then"),
    [
        (lambda r: commands.encode_delete_msg(r.now, 1), [2]),
        (lambda r: commands.encode_purge(r.now, seq=2), [2]),
        (lambda r: commands.encode_purge(r.now, seq=3), [3]),
        (lambda r: commands.encode_purge(r.now, filter=b"s.a"), []),
    ],
)
def test_a_key_is_free_when_its_message_is_removed(remove: Callable[[Rig], bytes], then: list[int]) -> None:
    r = rig()
    r.publish(b"s.a", b"s.a", b"s.a")
    inbox = r.next(batch=10, expires=60 * SECOND)
    gone = len(r.state.pending)
    r.node.apply(remove(r))
    r.owner.freed([seq for seq in (1, 2, 3) if seq not in r.state.pending])
    r.woken = True
    r.settle()
    assert inbox.seqs == [1, *then] and gone == 3
    assert num_pending(r.state, r.node.store) == sum(seq in r.state.pending for seq in (2, 3)) - len(then)


@pytest.mark.parametrize("limit", [{"max_msgs_per_subject": 1}, {"max_msgs": 1}])
def test_a_limit_of_the_stream_that_removes_what_is_out_frees_its_key(limit: dict[str, int]) -> None:
    """docs/consumers.md says so: its client may still work on it."""
    r = rig(stream=limit)
    r.publish(b"s.a")
    inbox = r.next(batch=10, expires=60 * SECOND)
    pending = set(r.state.pending)
    r.publish(b"s.a")
    r.owner.freed([seq for seq in pending if seq not in r.state.pending])
    r.woken = True
    r.settle()
    assert inbox.seqs == [1, 2] and r.node.stored() == [2]


def test_a_key_may_move_to_another_client_after_each_message() -> None:
    r = rig()
    r.publish(*[b"s.a"] * 4)
    boxes = [r.bus.listen(name) for name in (b"one", b"two")]
    for turn in range(4):
        r.next((b"one", b"two")[turn % 2], batch=1, expires=60 * SECOND)
        r.ack(boxes[turn % 2][-1])
    assert [box.seqs for box in boxes] == [[1, 3], [2, 4]]


def test_what_is_deleted_while_it_waits_is_left_out() -> None:
    r = rig()
    r.publish(b"s.a", b"s.a", b"s.a")
    inbox = r.next(batch=10, expires=60 * SECOND)
    r.node.apply(commands.encode_delete_msg(r.now, 2))
    r.owner.freed([2])
    assert num_pending(r.state, r.node.store) == 1
    r.ack(inbox[0])
    assert inbox.seqs == [1, 3]


def test_what_is_removed_before_its_delivery_is_applied_frees_its_key() -> None:
    r = rig()
    r.publish(b"s.a", b"s.a", b"s.a")
    r.hold = True
    inbox = r.next(batch=10, expires=60 * SECOND)
    r.node.apply(commands.encode_purge(r.now, seq=3))
    r.release()
    assert inbox.seqs[-1] == 3


def test_two_of_a_key_may_be_out() -> None:
    r = rig(max_ack_pending_per_subject=2)
    r.publish(*[b"s.a"] * 5)
    inbox = r.next(batch=10, expires=60 * SECOND)
    assert inbox.seqs == [1, 2]
    r.ack(inbox[1])
    assert inbox.seqs == [1, 2, 3]


@pytest.mark.parametrize(
    ("key", "first"),
    [("token:2", [1, 3, 5]), ("token:1", [1, 5]), ("subject", [1, 2, 3, 5])],
)
def test_a_token_of_the_subject_can_be_the_key(key: str, first: list[int]) -> None:
    r = rig(key=key)
    r.publish(b"s.a.x", b"s.a.y", b"s.b.x", b"s.b.x", b"t")
    assert r.next(batch=10, expires=60 * SECOND).seqs == first


def test_the_metadata_of_a_stock_client_say_the_same() -> None:
    r = Rig(metadata={"jetcluster.max_ack_pending_per_subject": "1", "jetcluster.key": "token:2"})
    r.publish(b"s.a.x", b"s.a.y", b"s.b.x")
    assert r.next(batch=10, expires=60 * SECOND).seqs == [1, 3]


def test_keys_are_read_from_subjects_and_headers() -> None:
    block = b"NATS/1.0\r\nId: 7\r\n\r\n"
    by_id = key_reader(KeyWish(1, header=b"Id"))
    assert by_id(b"a", block) == by_id(b"b", block) != 0 == by_id(b"a", b"")
    by_token = key_reader(KeyWish(1, token=2))
    assert by_token(b"a.b", b"") == by_token(b"c.b.d", b"") != by_token(b"c.c", b"")
    assert by_token(b"a", b"") == 0 == key_reader(None)(b"a", block)
    assert key_reader(KeyWish(1))(b"a", b"") == key_reader(KeyWish(9))(b"a", block) != 0


def test_a_new_owner_goes_on_where_the_log_stands() -> None:
    r = rig()
    r.publish(b"s.a", b"s.a", b"s.b", b"s.b", b"s.a")
    inbox = r.next(batch=10, expires=60 * SECOND)
    assert inbox.seqs == [1, 3]
    r.crash()
    r.next(batch=10, expires=60 * SECOND)
    assert inbox.seqs == [1, 3]
    r.publish(b"s.c", b"s.b")
    assert inbox.seqs == [1, 3, 6]
    r.ack(inbox[1])
    r.ack(inbox[0])
    assert inbox.seqs == [1, 3, 6, 4, 2]


def test_what_was_selected_and_got_lost_is_selected_again() -> None:
    r = rig()
    r.publish(b"s.a", b"s.a", b"s.b")
    r.hold = True
    inbox = r.next(batch=10, expires=60 * SECOND)
    r.lose()
    r.release()
    assert inbox.seqs == [1, 3]
    r.hold = True
    r.ack(inbox[0])
    r.lose()
    r.release()
    assert inbox.seqs == [1, 3, 2]


def test_the_limit_may_be_changed_while_messages_wait() -> None:
    r = rig()
    r.publish(*[b"s.a"] * 6)
    inbox = r.next(batch=10, expires=60 * SECOND)
    update(r, max_ack_pending_per_subject=3)
    assert inbox.seqs == [1, 2, 3]
    update(r, **ONE)
    r.ack(inbox[0])
    r.ack(inbox[1])
    assert inbox.seqs == [1, 2, 3]
    r.ack(inbox[2])
    assert inbox.seqs == [1, 2, 3, 4]
    update(r)
    assert inbox.seqs == [1, 2, 3, 4, 5, 6]
    r.publish(b"s.a", b"s.a")
    assert inbox.seqs[6:] == [7, 8] and r.owner.selection.keys is None and not r.state.unacked.held
    update(r, **ONE)
    r.publish(b"s.a", b"s.b")
    for frame in list(inbox)[3:8]:
        r.ack(frame)
        assert inbox.seqs[8:] == ([10, 9] if frame.seq == 8 else [10])


def test_the_key_may_be_changed_while_messages_wait_and_are_in_flight() -> None:
    r = rig()
    r.publish(b"s.a.x", b"s.a.x", b"s.b.y")
    r.hold = True
    inbox = r.next(batch=10, expires=60 * SECOND)
    assert isinstance(r.node.create(**ONE, key="token:1"), int)
    r.owner.configured()
    r.release()
    assert inbox.seqs == [1, 3]
    r.publish(b"t")
    r.ack(inbox[0])
    assert inbox.seqs == [1, 3, 4]
    r.ack(inbox[1])
    assert inbox.seqs == [1, 3, 4, 2]


def test_a_pull_that_does_not_wait_ends_when_all_keys_are_out() -> None:
    r = rig()
    r.publish(b"s.a", b"s.a")
    inbox = r.next(batch=5, no_wait=True)
    assert inbox.seqs == [1] and inbox.statuses == [b"404 No Messages"]


def test_max_ack_pending_counts_what_is_out_only() -> None:
    r = rig(max_ack_pending=2)
    r.publish(b"s.a", b"s.a", b"s.a", b"s.b", b"s.c")
    inbox = r.next(batch=10, expires=60 * SECOND)
    assert inbox.seqs == [1, 4]
    r.ack(inbox[0])
    assert inbox.seqs == [1, 4, 2]
    assert not r.unserved[-1] or r.owner.withheld(r.now) == "acks"


def test_the_cursor_stops_when_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_order, "MAX_WAITING_MESSAGES", 4)
    r = rig()
    r.publish(*[b"s.a"] * 6, b"s.b")
    inbox = r.next(batch=10, expires=60 * SECOND)
    assert inbox.seqs == [1] and r.state.unacked.held == 4 and r.state.delivered_sseq == 5
    assert r.unserved[-1] and r.owner.withheld(r.now) == "keys", "it waits for acks: it is not stuck"
    r.ack(inbox[0])
    assert inbox.seqs == [1, 2] and r.state.delivered_sseq == 6
    r.ack(inbox[1])
    assert inbox.seqs == [1, 2, 3, 7]


def test_a_message_that_no_request_takes_is_the_next_of_its_key() -> None:
    r = rig()
    r.publish(b"s.a", payload=b"x" * 10)
    r.publish(b"s.a", b"s.b", payload=b"x" * 5000)
    inbox = r.next(batch=10, max_bytes=1000, expires=60 * SECOND)
    assert inbox.seqs == [1] and b"409 Message Size Exceeds MaxBytes" in inbox.statuses
    r.ack(inbox[0])
    assert r.next(batch=10, expires=60 * SECOND).seqs == [1, 2, 3]


def test_a_paused_consumer_releases_when_it_goes_on() -> None:
    r = rig(pause_until_ns=0)
    r.publish(b"s.a", b"s.a")
    inbox = r.next(batch=10, expires=600 * SECOND)
    until = r.now + 10 * SECOND
    r.node.extended(commands.CONSUMER_PAUSE, {"name": "C", "pause_until": until})
    r.owner.configured()
    r.ack(inbox[0])
    r.advance(5)
    assert inbox.seqs == [1]
    r.advance(6)
    assert inbox.seqs == [1, 2]


def test_a_reset_begins_anew() -> None:
    r = rig()
    r.publish(b"s.a", b"s.a", b"s.b")
    inbox = r.next(batch=10, expires=60 * SECOND)
    assert r.node.extended(commands.CONSUMER_RESET, {"name": "C", "seq": 0}) == 1
    r.owner.reset()
    r.settle()
    assert inbox.seqs == [1, 3, 1, 3] and r.state.unacked.held == 1


def test_a_work_queue_frees_its_messages_one_by_one() -> None:
    r = rig(stream={"retention": "workqueue"})
    r.publish(b"s.a", b"s.a", b"s.b")
    inbox = r.next(batch=10, expires=60 * SECOND)
    assert r.node.stored() == [1, 2, 3]
    r.ack(inbox[0])
    assert inbox.seqs == [1, 3, 2] and r.node.stored() == [2, 3]


def test_with_interest_what_waits_is_kept() -> None:
    r = rig(stream={"retention": "interest"})
    assert isinstance(r.node.create("D"), int)
    r.publish(b"s.a", b"s.a", b"s.b")
    r.node.deliver(1, 2, 3, name="D")
    r.node.ack(1, 2, 3, name="D")
    inbox = r.next(batch=10, expires=60 * SECOND)
    assert r.node.stored() == [1, 2, 3]
    for frame in list(inbox):
        r.ack(frame)
    assert r.node.stored() == [2]
    r.ack(inbox[2])
    assert r.node.stored() == [] and inbox.seqs == [1, 3, 2]


def test_only_the_newest_of_a_subject_may_come_and_one_at_a_time() -> None:
    r = rig()
    assert r.node.delete() == 1
    r.publish(b"s.a", b"s.a", b"s.b")
    assert isinstance(r.node.create(**ONE, deliver_policy="last_per_subject", filter_subject="s.*"), int)
    r.crash()
    r.publish(b"s.a")
    inbox = r.next(batch=10, expires=60 * SECOND)
    assert inbox.seqs == [2, 3]
    r.ack(inbox[0])
    assert inbox.seqs == [2, 3, 4]


def test_an_overflow_gets_the_messages_of_a_key_one_by_one_too() -> None:
    r = rig(priority_groups=["g"], priority_policy="overflow")
    r.publish(b"s.a", b"s.a", b"s.a")
    low = r.next(b"low", batch=10, group="g", min_pending=3, expires=60 * SECOND)
    assert low.seqs == [1]
    r.ack(low[0])
    assert low.seqs == [1], "two are left, below its mark"
    assert r.next(b"high", batch=10, group="g", expires=60 * SECOND).seqs == [2]
    r.next(b"busy", batch=10, group="g", min_ack_pending=2, expires=60 * SECOND)
    r.publish(b"s.b")
    assert r.bus.listen(b"busy").seqs == [], "one is out: what waits does not count"


def test_nothing_is_delivered_while_a_server_is_too_old() -> None:
    r = rig()
    r.owner.may_order_by_key = lambda: False
    r.publish(b"s.a")
    inbox = r.next(batch=10, expires=60 * SECOND)
    r.advance(3)
    assert not inbox
    r.owner.may_order_by_key = lambda: True
    r.advance(1)
    assert inbox.seqs == [1]


def test_a_pull_that_does_not_wait_gets_what_is_ready_after_a_change_of_owner() -> None:
    r = rig()
    r.publish(b"s.a", b"s.a")
    inbox = r.next(batch=2, no_wait=True)
    assert r.state.unacked.held == 1
    r.ack(inbox[0])
    r.crash()
    inbox = r.next(b"poller", batch=1, no_wait=True)
    assert inbox.seqs == [2] and not inbox.statuses
    r.crash()
    assert r.next(b"poller", batch=1, no_wait=True).statuses == [b"404 No Messages"]


def test_a_redelivery_of_a_new_owner_counts_what_waits() -> None:
    r = rig(ack_wait=SECOND)
    r.publish(b"s.a", b"s.a", b"s.a")
    r.next(batch=1)
    r.next(b"other", batch=1, no_wait=True)
    assert r.state.unacked.held == 2
    r.crash()
    r.advance(2)
    inbox = r.next(b"again", batch=1, no_wait=True)
    assert inbox[0].numbers == (2, 1, 2, 2)


def test_a_pull_that_does_not_wait_ends_while_a_server_is_too_old() -> None:
    r = rig()
    r.owner.may_order_by_key = lambda: False
    r.publish(b"s.a")
    inbox = r.next(batch=1, no_wait=True)
    assert not inbox.seqs and inbox.statuses == [b"404 No Messages"]


def test_a_server_that_is_too_old_may_join_at_any_time() -> None:
    r = rig()
    r.publish(b"s.a", b"s.a")
    inbox = r.next(batch=10, expires=60 * SECOND)
    r.owner.may_order_by_key = lambda: False
    r.ack(inbox[0])
    r.publish(b"s.a", b"s.b")
    assert inbox.seqs == [1] and RELEASE not in r.kinds()
    r.owner.may_order_by_key = lambda: True
    r.advance(1.1)
    assert inbox.seqs == [1, 2, 4]


def test_a_key_is_free_when_its_message_turns_out_to_be_gone() -> None:
    r = rig(ack_wait=SECOND)
    r.publish(b"s.a", b"s.a")
    inbox = r.next(batch=10, expires=60 * SECOND)
    read = r.node.store.read_columns
    r.node.store.read_columns = lambda seqs: read([seq for seq in seqs if seq != 1])  # type: ignore[method-assign]
    r.advance(1.1)
    assert (GONE, [1]) in r.log and inbox.seqs == [1, 2]


def test_max_ack_pending_has_room_when_a_message_turns_out_to_be_gone() -> None:
    r = Rig(ack_wait=SECOND, max_ack_pending=1)
    r.publish(b"s.a", b"s.b")
    inbox = r.next(batch=10, expires=60 * SECOND)
    read = r.node.store.read_columns
    r.node.store.read_columns = lambda seqs: read([seq for seq in seqs if seq != 1])  # type: ignore[method-assign]
    r.advance(1.1)
    assert (GONE, [1]) in r.log and inbox.seqs == [1, 2]


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


class Judge:
    """What the log says of deliveries and acks, and whether that is in order."""

    def __init__(self, rig: Rig, limit: int, key: Callable[[bytes], bytes]) -> None:
        self.rig = rig
        self.limit = limit
        self.key = key
        self.subjects: dict[int, bytes] = {}
        self.out: dict[int, None] = {}
        self.settled: set[int] = set()
        self._read = 0

    def follow(self) -> None:
        """Reads on in the log."""
        log, self._read = self.rig.log[self._read :], len(self.rig.log)
        for kind, value in log:
            if kind in FIRST:
                for seq in value[0] if kind == DELIVER_SOME else value:  # type: ignore[index,union-attr]
                    self._delivered(seq)
            elif kind in (ACK, TERM, GONE):
                for seq in value:  # type: ignore[union-attr]
                    if seq in self.out:
                        self._settle(seq)

    def removed(self) -> None:
        """Forgets what is not stored any more: right after a removal."""
        for seq in self.subjects.keys() - self.settled:
            if not self.rig.node.store.contains(seq):
                self._settle(seq)

    def _delivered(self, seq: int) -> None:
        if seq in self.settled:
            return  # removed before this was applied
        mine = self.key(self.subjects[seq])
        alike = [s for s, of in self.subjects.items() if self.key(of) == mine and s not in self.settled]
        others = [s for s in alike if s in self.out]
        assert seq not in self.out, (seq, "is delivered twice as if for the first time")
        assert len(others) < self.limit, (seq, others, "too many are out")
        assert all(s in self.out for s in alike if s < seq), (seq, "came before an earlier one")
        self.out[seq] = None

    def _settle(self, seq: int) -> None:
        self.out.pop(seq, None)
        self.settled.add(seq)


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("retention", ["limits", "workqueue"])
@pytest.mark.parametrize("seed", range(8))
def test_in_random_histories_all_come_in_order_and_nothing_is_held_for_ever(
    retention: str, seed: int, limit: int
) -> None:
    rng = Random(seed)
    by_token = seed % 2 == 1
    config: dict[str, Any] = {"max_ack_pending_per_subject": limit, "ack_wait": 5 * SECOND}
    config |= {"key": "token:2"} if by_token else {}
    config |= {"max_ack_pending": 4} if seed % 3 == 0 else {}
    r = Rig(stream={"retention": retention}, **config)
    judge = Judge(r, limit, (lambda s: s.split(b".")[1]) if by_token else (lambda s: s))
    boxes = [r.bus.listen(b"box%d" % i) for i in range(3)]
    seen: dict[int, Frame] = {}
    kinds = ["publish", "pull", "pull", "ack", "ack", "ack", "nak", "term", "wait", "crash", "lose", "hold", "remove"]
    for _ in range(300):
        pending = set(r.state.pending)
        seen = {seq: frame for seq, frame in seen.items() if seq in pending}
        seen |= {frame.seq: frame for box in boxes for frame in box.take() if frame.reply}
        match rng.choice(kinds):
            case "publish":
                names = [b"s.%d.%d" % (rng.randrange(4), rng.randrange(2)) for _ in range(rng.randint(1, 6))]
                judge.subjects.update(enumerate(names, r.node.store.last_seq + 1))
                r.publish(*names)
            case "pull":
                r.next(b"box%d" % rng.randrange(3), batch=rng.randint(1, 4), expires=rng.choice([1, 8]) * SECOND)
            case "ack" | "nak" | "term" as word if seen:
                r.ack(rng.choice(list(seen.values())), {"ack": b"", "term": b"+TERM", "nak": b"-NAK"}[word])
            case "wait":
                r.advance(rng.choice([0.5, 6]))
            case "crash":
                r.release()
                r.crash()
            case "lose":
                r.lose()
                r.settle()
            case "hold":
                r.hold = not r.hold
                r.settle()
            case "remove" if rng.random() < 0.4:
                last = r.node.store.last_seq
                one = commands.encode_delete_msg(r.now, rng.randint(1, last + 1))
                r.node.apply(one if rng.random() < 0.8 else commands.encode_purge(r.now, seq=max(1, last - 5)))
                judge.removed()
                r.owner.freed([seq for seq in pending if seq not in r.state.pending])
                r.woken = True
                r.settle()
        judge.follow()
    r.release()
    for _ in range(len(judge.subjects)):
        for box in range(3):
            r.next(b"box%d" % box, batch=3, expires=60 * SECOND)
        for frame in [frame for box in boxes for frame in box.take() if frame.reply]:
            r.ack(frame)
        judge.follow()
        r.advance(1)
    assert judge.settled == judge.subjects.keys(), "some were never delivered"
    assert not r.state.pending and r.state.unacked.held == 0
    assert tuple(r.state.view())[2:] == (r.state.delivered_cseq, r.node.store.last_seq, 0, 0)
    assert num_pending(r.state, r.node.store) == 0
    keys = r.owner.selection.keys
    assert keys is not None and keys.queues.waiting == keys.queues.blocked == 0
    assert RELEASE in r.kinds() or limit > 1
