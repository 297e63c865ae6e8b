from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest

from jetcluster.consumer.owner.selection import FIRST_BATCH_MESSAGES, Redelivery, Selection
from jetcluster.consumer.state.rules import ConsumerRules
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.consumer.state.turn import EXHAUSTED, GONE, SKIP
from jetcluster.store.api import Columns
from jetcluster.stream.log import commands
from testkit.twins.memory import held
from tests.unit.consumer.rig import SECOND, Rig


def rig_of(*subjects: bytes, **config: object) -> Rig:
    rig = Rig(**config)  # type: ignore[arg-type]
    rig.publish(*subjects)
    return rig


def taken(selection: Selection, want: int) -> tuple[list[int], list[int]]:
    columns, left = selection.take(want)
    return columns.seqs, list(left)


def test_takes_what_matches_and_counts_what_is_left() -> None:
    selection = rig_of(b"a", b"b", b"a", b"c", b"a", filter_subjects=["a", "c"]).owner.selection
    assert selection.left == 4
    assert taken(selection, 3) == ([1, 3, 4], [3, 2, 1])
    assert not selection.at_end
    assert taken(selection, 3) == ([5], [0])
    assert selection.at_end and selection.left == 0
    assert taken(selection, 3) == ([], [])


def test_new_messages_are_counted_when_they_come() -> None:
    rig = rig_of(b"a", b"b", filter_subject="a")
    selection = rig.owner.selection
    taken(selection, 5)
    rig.publish(b"a", b"b", b"a")
    assert not selection.at_end and selection.left == 2
    assert taken(selection, 1) == ([3], [1])


def test_messages_before_a_start_that_is_still_to_come_do_not_count() -> None:
    rig = rig_of(b"a", deliver_policy="by_start_sequence", opt_start_seq=3)
    selection = rig.owner.selection
    assert taken(selection, 1) == ([], [])
    rig.publish(b"a", b"a", b"a")
    assert selection.left == 2
    assert taken(selection, 1) == ([3], [1])


def test_giving_back() -> None:
    selection = rig_of(*[b"a"] * 5).owner.selection
    columns, _ = selection.take(4)
    selection.give_back(columns, 1)
    assert selection.left == 4
    assert taken(selection, 10) == ([2, 3, 4, 5], [3, 2, 1, 0])
    columns, _ = selection.take(4)
    selection.give_back(columns, 0)
    assert selection.at_end


def test_giving_all_back_at_the_end() -> None:
    selection = rig_of(b"a").owner.selection
    columns, _ = selection.take(4)
    assert selection.at_end
    selection.give_back(columns, 0)
    assert not selection.at_end and taken(selection, 4) == ([1], [0])


def test_removed_messages_are_no_longer_counted() -> None:
    rig = rig_of(*[b"a", b"b"] * 5, filter_subject="a")
    selection = rig.owner.selection
    assert selection.left == 5
    rig.node.apply(commands.encode_delete_msg(rig.node.now, 5))
    rig.node.apply(commands.encode_delete_msg(rig.node.now, 9))
    assert taken(selection, 2) == ([1, 3], [2, 1])
    assert taken(selection, 9) == ([7], [0])


def test_the_last_of_each_subject_and_then_everything() -> None:
    rig = rig_of(b"a", b"b", b"a", b"c", b"b")
    rig.node.create(name="L", deliver_policy="last_per_subject", filter_subject=">")
    selection = Selection(rig.node.state("L"), rig.node.store, rig.time)
    rig.publish(b"a", b"a")
    assert selection.left == 5
    assert taken(selection, 2) == ([3, 4], [4, 3])
    columns, _ = selection.take(2)
    assert columns.seqs == [5, 6]
    selection.give_back(columns, 0)
    assert taken(selection, 9) == ([5, 6, 7], [2, 1, 0])


def test_the_last_of_each_subject_as_far_as_it_is_still_there() -> None:
    rig = rig_of(b"a", b"b", b"c")
    rig.node.create(name="L", deliver_policy="last_per_subject", filter_subject=">")
    selection = Selection(rig.node.state("L"), rig.node.store, rig.time)
    rig.node.apply(commands.encode_delete_msg(rig.node.now, 2))
    found: list[int] = []
    while not selection.at_end:
        found += taken(selection, 1)[0]
    assert found == [1, 3]


def test_batches_follow_the_size_of_messages(rig: Rig) -> None:
    rig.publish(*[b"a"] * 200, payload=b"x" * 100_000)
    selection = rig.owner.selection
    first, _ = taken(selection, 1000)
    then, _ = taken(selection, 1000)
    assert len(first) == FIRST_BATCH_MESSAGES and len(then) == 10


def test_reset_goes_back_to_the_state() -> None:
    selection = rig_of(*[b"a"] * 5).owner.selection
    taken(selection, 3)
    selection.in_flight += 3
    selection.reset(again=True)
    assert selection.in_flight == 0 and taken(selection, 2) == ([1, 2], [4, 3])


def test_what_nobody_wants_is_skipped_in_the_log() -> None:
    rig = rig_of(b"a", b"b", b"b", filter_subject="a")
    rig.next(batch=5)
    rig.advance(11)
    assert rig.log[-1] == (SKIP, 3) and rig.state.delivered_sseq == 3
    rig.publish(b"b")
    rig.publish(b"b")
    rig.owner.flush()  # INFO
    rig.settle()
    assert rig.state.delivered_sseq == 5
    rig.publish(b"a")
    assert rig.bus.inboxes[b"in"].seqs == [1, 6]
    assert rig.kinds().count(SKIP) == 2


def test_nothing_is_skipped_that_is_in_flight() -> None:
    rig = rig_of(b"a", b"b", filter_subject="a")
    rig.hold = True
    rig.next(batch=5)
    rig.owner.flush()
    assert SKIP not in [kind for kind, _, _ in rig.ops]
    rig.commit()
    rig.release()
    rig.owner.flush()
    rig.settle()
    assert rig.state.delivered_sseq == 2


def test_skipping_without_acks() -> None:
    rig = rig_of(b"a", b"b", filter_subject="a", ack_policy="none")
    rig.next(batch=5)
    rig.owner.flush()
    rig.settle()
    assert (rig.state.delivered_cseq, rig.state.delivered_sseq) == (1, 2)
    rig.publish(b"b", b"a")
    rig.owner.flush()
    rig.settle()
    assert (rig.state.delivered_cseq, rig.state.delivered_sseq) == (2, 4)


def test_an_update_of_the_filters() -> None:
    rig = rig_of(b"a", b"b", b"c", filter_subject="a")
    inbox = rig.next(batch=5)
    rig.node.create(filter_subject="c")
    rig.owner.configured()
    rig.settle()
    assert inbox.seqs == [1, 3]


def test_columns_are_parallel() -> None:
    columns, _ = rig_of(b"a", b"b").owner.selection.take(5)
    assert isinstance(columns, Columns) and {len(column) for column in columns} == {2}


def test_unacknowledged_messages_come_again_in_order_before_new_ones() -> None:
    rig = Rig(ack_wait=SECOND)
    rig.publish(*[b"s"] * 4)
    one = rig.next(b"one", batch=2)
    rig.advance(0.5)
    two = rig.next(b"two", batch=1)
    rig.ack(one[0])
    three = rig.next(b"three", batch=10)
    assert three.seqs == [4]
    rig.advance(0.49)
    assert three.seqs == [4]
    rig.advance(0.02)
    assert three.seqs == [4, 2]
    rig.advance(0.5)
    assert three.seqs == [4, 2, 3, 4] and two.seqs == [3]
    assert [frame.numbers[0] for frame in three] == [1, 2, 2, 2]
    assert [frame.numbers[2] for frame in three] == [4, 5, 6, 7]


def test_backoff_replaces_ack_wait() -> None:
    rig = Rig(backoff=[SECOND // 10, SECOND], max_deliver=4)
    rig.publish(b"s")
    inbox = rig.next(batch=10)
    at = []
    for _ in range(60):
        rig.advance(0.05)
        at += [rig.now] * (len(inbox) - len(at))
    gaps = [round((b - a) / SECOND, 1) for a, b in pairwise(at)]
    assert gaps == [0.1, 1.0, 1.0]


def test_max_deliver_gives_up_at_the_deadline_and_tells_once() -> None:
    rig = Rig(ack_wait=SECOND, max_deliver=2)
    events = rig.event("MAX_DELIVERIES")
    rig.publish(b"s", b"s")
    inbox = rig.next(batch=2)
    rig.ack(inbox[1])
    rig.advance(1.1)
    assert rig.next(b"second", batch=1).seqs == [1]
    assert not events
    rig.advance(1.1)  # nobody asks for messages (at the deadline)
    (event,) = [json.loads(frame.payload) for frame in events]
    assert event["type"] == "io.nats.jetstream.advisory.v1.max_deliver"
    assert (event["stream"], event["consumer"], event["stream_seq"], event["deliveries"]) == ("S", "C", 1, 2)
    assert not rig.state.pending and rig.state.floor_sseq == 2
    rig.advance(5)
    assert len(events) == 1 and rig.kinds().count(EXHAUSTED) == 1


def test_a_nak_of_the_last_delivery_gives_up_at_once() -> None:
    rig = Rig(max_deliver=1)
    events = rig.event("MAX_DELIVERIES")
    rig.publish(b"s")
    rig.ack(rig.next(batch=1)[0], b"-NAK")
    assert len(events) == 1 and not rig.state.pending


def test_what_a_limit_took_meanwhile_is_reported() -> None:
    rig = Rig(ack_wait=SECOND)
    rig.publish(b"s", b"s", b"s")
    rig.next(batch=3)
    rig.node.store.delete(2)  # as a limit per subject does; of deletes and purges the table hears itself
    rig.advance(1.1)
    assert rig.next(b"second", batch=5).seqs == [1, 3]
    assert (GONE, [2]) in rig.log
    assert sorted(rig.state.pending) == [1, 3]


def test_a_new_owner_finds_what_is_due() -> None:
    rig = Rig(ack_wait=SECOND)
    rig.publish(b"s", b"s", b"s")
    rig.next(batch=2)
    rig.advance(0.5)
    rig.next(batch=1)
    rig.crash()
    second = rig.next(b"second", batch=5)
    assert not second
    rig.advance(0.6)
    assert second.seqs == [1, 2]
    rig.advance(0.5)
    assert second.seqs == [1, 2, 3]


def test_redeliveries_do_not_count_against_max_ack_pending() -> None:
    rig = Rig(ack_wait=SECOND, max_ack_pending=2)
    rig.publish(*[b"s"] * 4)
    rig.next(batch=2)
    rig.advance(1.1)
    assert rig.next(b"second", batch=4).seqs == [1, 2]


def test_without_ack_wait_nothing_is_due() -> None:
    rig = Rig(ack_wait=0)
    rig.publish(b"s")
    rig.next(batch=1)
    second = rig.next(b"second", batch=1)
    rig.advance(100)
    assert not second


def delivered(count: int) -> tuple[ConsumerState, Redelivery]:
    state = ConsumerState(1, ConsumerRules("C", {"ack_wait": SECOND}), 0, "o", 0)
    return state, Redelivery(state)


def deliver(state: ConsumerState, redelivery: Redelivery, seqs: list[int], due: int) -> None:
    state.unacked.add(seqs, state.delivered_cseq + 1, due)
    state.delivered_cseq += len(seqs)
    state.delivered_sseq = seqs[-1]
    redelivery.delivered(seqs)


def test_taken_and_given_back_keeps_the_order() -> None:
    state, redelivery = delivered(0)
    deliver(state, redelivery, [1, 2, 3, 4, 5], 10)
    assert redelivery.expire(9) == [] and not redelivery.order
    redelivery.expire(10)
    taken = redelivery.take(4)
    assert taken == [1, 2, 3, 4]
    redelivery.give_back(taken[1:])
    state.unacked.take([3])
    assert redelivery.take(10) == [2, 4, 5]
    assert not redelivery.take(1)


def test_an_old_time_counts_for_nothing() -> None:
    state, redelivery = delivered(0)
    deliver(state, redelivery, [1, 2], 10)
    state.unacked.change(1, 20, 1)
    redelivery.changed([1])
    redelivery.expire(10)
    assert redelivery.take(10) == [2]
    assert redelivery.next_due == 20
    redelivery.expire(20)
    state.unacked.change(1, 30, 1)  # progress while it stands in the queue
    redelivery.changed([1])
    assert redelivery.take(10) == []
    redelivery.expire(30)
    assert redelivery.take(10) == [1]


def test_settled_messages_do_not_pile_up() -> None:
    state, redelivery = delivered(0)
    for i in range(10_000):
        seqs = [3 * i + 1, 3 * i + 3]
        deliver(state, redelivery, seqs, 1_000_000 + i)
        state.unacked.take(seqs)
        state.settle_floor()
    assert held(redelivery, state) < 2_000


def test_a_hundred_thousand_pending_cost_little() -> None:
    state, redelivery = delivered(0)
    started = time.thread_time()
    for at in range(0, 100_000, 100):
        deliver(state, redelivery, list(range(at + 1, at + 101)), 1_000 + at)
    filled = time.thread_time() - started
    started = time.thread_time()
    for now in range(1_000):
        redelivery.expire(now)
    idle = time.thread_time() - started
    assert filled < 2 and idle < 0.05
    redelivery.expire(1_000_000)
    assert len(redelivery.take(200_000)) == 100_000


def test_giving_up_that_comes_too_late() -> None:
    """max_deliver was raised while the op was on its way."""
    rig = Rig(ack_wait=SECOND, max_deliver=1)
    rig.publish(b"s")
    rig.next(batch=1)
    rig.hold = True
    rig.advance(1.1)
    assert [kind for kind, _, _ in rig.ops] == [EXHAUSTED]
    rig.node.create(ack_wait=SECOND, max_deliver=2)
    rig.owner.configured()
    rig.release()
    assert list(rig.state.pending) == [1]
    second = rig.next(b"second", batch=1)
    rig.advance(0.1)
    assert second.seqs == [1]


@pytest.mark.parametrize("ahead", [-20, 20])
def test_clocks_that_differ(ahead: int) -> None:
    rig = Rig(ack_wait=SECOND)
    rig.ahead = ahead * SECOND
    if ahead > 0:
        rig.time.set_time_ns(rig.time.time_ns() + rig.ahead)
    else:
        rig.node.now -= rig.ahead
    rig.publish(b"s")
    frame = rig.next(b"first", batch=1)[0]
    second = rig.next(b"second", batch=3)
    rig.advance(0.9)
    assert not second
    rig.advance(0.2)
    assert second.seqs == [1]
    rig.ack(second[0], b"-NAK 500ms")
    rig.advance(0.4)
    assert len(second) == 1
    rig.advance(0.2)
    assert second.seqs == [1, 1]
    rig.ack(frame)
    rig.advance(3)
    assert len(second) == 2


def test_what_was_delivered_again_out_of_order_is_not_forgotten_when_older_messages_are_settled() -> None:
    state = ConsumerState(1, ConsumerRules("c", {"ack_wait": SECOND}), 0, "me", 0)
    state.unacked.add([1, 2, 3, 4], 1, 10)
    redelivery = Redelivery(state)
    for seq in (2, 1, 4, 3):  # one op, in the order of their NAKs
        state.unacked.change(seq, 20, 2)
    redelivery.changed([2, 1, 4, 3])
    state.delivered_cseq = state.delivered_sseq = 4
    state.unacked.take([1, 2, 3])
    state.settle_floor()
    for seq in range(5, 200):  # so many that those of settled messages are let go
        deliver(state, redelivery, [seq], 1_000 + seq)
    assert redelivery.expire(20) == []
    assert redelivery.take(10) == [4]
