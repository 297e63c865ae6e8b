"""Order per key at the owner, by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jetcluster.consumer.info import num_pending
from jetcluster.consumer.owner import key_order
from jetcluster.consumer.owner.key_order import key_reader
from jetcluster.consumer.state.pending import HELD
from jetcluster.consumer.state.turn import DELIVER, DELIVER_SOME, EXHAUSTED, GONE, RELEASE
from jetcluster.model.order_per_key import KeyWish
from jetcluster.stream.log import commands
from tests.unit.consumer.key_rig import ONE, rig, update
from tests.unit.consumer.rig import SECOND, Rig


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
    assert r.owner.withheld() == "keys"
    r.ack(inbox[0])
    assert r.owner.withheld() == ""


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
    assert not r.unserved[-1] or r.owner.withheld() == "acks"


def test_the_cursor_stops_when_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_order, "MAX_WAITING_MESSAGES", 4)
    r = rig()
    r.publish(*[b"s.a"] * 6, b"s.b")
    inbox = r.next(batch=10, expires=60 * SECOND)
    assert inbox.seqs == [1] and r.state.unacked.held == 4 and r.state.delivered_sseq == 5
    assert r.unserved[-1] and r.owner.withheld() == "keys", "it waits for acks: it is not stuck"
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
