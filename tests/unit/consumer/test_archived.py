from __future__ import annotations

import json
from typing import Any

import pytest

from jetcluster.consumer.owner import key_order
from jetcluster.consumer.state import archived, ops
from jetcluster.consumer.state.turn import DELIVER_SOME, NAK, REDELIVER, RELEASE
from jetcluster.stream.log import commands
from tests.unit.consumer.replica_rig import SECOND, Node, consumer


def some_way(node: Node) -> None:
    node.publish(*[b"s.%d" % i for i in range(10)])
    node.create(max_deliver=3)
    node.deliver(1, 2, 3, 4, 5)
    node.ack(1, 2, 4)
    node.op(REDELIVER, [3])
    node.op(NAK, [(5, 900 * SECOND)])


def restored(node: Node, found: dict[str, Any], **config: Any) -> None:
    node.publish(*[b"s.%d" % i for i in range(10)])
    body = {
        "name": "C",
        "config": consumer("C", **(config or {"max_deliver": 3})),
        "action": "create",
        "created": node.now,
        "request": "",
    }
    extended = {**body, "owner": "OWNERone", "restored": archived.decode(json.loads(json.dumps(found)))}
    assert node.extended(commands.CONSUMER_CREATE, extended) == 1


def test_a_consumer_comes_back_as_it_was() -> None:
    before, after = Node(), Node()
    some_way(before)
    restored(after, archived.encode(before.state()))
    assert after.floors() == before.floors() == (6, 5, 2, 2)
    assert after.state().pending == before.state().pending
    assert after.state().view() == before.state().view()
    after.restart()
    assert after.state().pending == before.state().pending
    after.ack(3, 5)
    assert after.floors() == (6, 5, 6, 5)


def test_what_waits_for_others_of_its_key_is_in_the_archive_and_nats_server_begins_at_the_floor() -> None:
    before, after = Node(), Node()
    before.publish(*[b"s.%d" % i for i in range(10)])
    before.create(max_ack_pending_per_subject=1)
    before.op(DELIVER_SOME, ([1, 3, 6], [2, 4, 5]))
    before.op(RELEASE, [4])
    before.op(REDELIVER, [3])
    before.ack(1)
    found = archived.encode(before.state())
    assert found["delivered"] == found["ack_floor"] == {"consumer_seq": 1, "stream_seq": 1} and "pending" not in found
    restored(after, found, max_ack_pending_per_subject=1)
    assert after.floors() == before.floors() == (5, 6, 1, 1)
    assert after.state().pending == before.state().pending
    assert after.state().unacked.held == 2 and after.state().by_key
    after.restart()
    assert after.state().pending == before.state().pending and after.state().unacked.held == 2
    assert list(after.state().pending) == [2, 3, 4, 5, 6]
    for node in (before, after):
        node.ack(3, 6)
        assert node.op(RELEASE, [2, 5]).cseq == 6
        node.ack(2, 5)
    assert after.floors() == before.floors() == (7, 6, 3, 3)


def test_a_message_that_an_archive_has_twice_is_restored_once() -> None:
    """The counts of what is held and pending would differ from what is there, which stops the stream."""
    node = Node()
    own: dict[str, Any] = {
        "delivered": {"consumer_seq": 4, "stream_seq": 8},
        "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
    }
    pending = {"1": 1, "01": 2, "2": 3, "5": 4}
    own["pending"] = {seq: {"Sequence": number, "Timestamp": 5} for seq, number in pending.items()}
    found = archived.decode({"jetcluster": {**own, "held": [5, 3, 3, 2, 4]}})
    assert found["held"] == [3, 4] and [one[:2] for one in found["pending"]] == [[1, 1], [2, 3], [5, 4]]
    restored(node, {"jetcluster": {**own, "held": [5, 3, 3, 2, 4]}}, max_ack_pending_per_subject=1)
    unacked = node.state().unacked
    assert list(unacked.entries) == [1, 2, 3, 4, 5] and unacked.held == 2
    node.state().check()
    node.restart()
    assert list(node.state().pending) == [1, 2, 3, 4, 5] and node.state().unacked.held == 2


def test_a_log_that_has_a_message_twice_restores_it_once() -> None:
    node = Node()
    node.publish(*[b"s.a"] * 5)
    found = {"delivered": [2, 4], "floor": [0, 0], "pending": [[1, 1, 5, 1], [2, 2, 5, 1], [2, 2, 5, 1]]}
    body = {"name": "C", "config": consumer("C"), "action": "create", "created": node.now, "request": ""}
    held = {"owner": "OWNERone", "restored": {**found, "held": [2, 3, 3]}}
    assert node.extended(commands.CONSUMER_CREATE, body | held) == 1
    node.state().check()
    assert list(node.state().pending) == [1, 2, 3] and node.state().unacked.held == 1


def test_an_archive_has_that_deliveries_were_not_in_the_order_of_the_stream() -> None:
    before, after = Node(), Node()
    before.publish(*[b"s.%d" % i for i in range(10)])
    before.create(max_ack_pending_per_subject=1)
    before.op(DELIVER_SOME, ([1, 3], [2]))
    before.op(RELEASE, [2])
    found = archived.encode(before.state())
    assert found["delivered"] == {"consumer_seq": 3, "stream_seq": 3} and len(found["pending"]) == 3
    restored(after, found, max_ack_pending_per_subject=1)
    assert after.state().by_key
    for node in (before, after):
        node.ack(1)
        node.ack(3)
    assert after.floors() == before.floors() == (3, 3, 2, 1)


def test_as_many_may_wait_as_an_owner_lets_beside_what_is_pending() -> None:
    most = key_order.MAX_WAITING_MESSAGES
    own: dict[str, Any] = {"delivered": {"consumer_seq": 1000, "stream_seq": 99_999}}
    own |= {"ack_floor": {"consumer_seq": 0, "stream_seq": 0}}
    own["pending"] = {str(seq): {"Sequence": seq, "Timestamp": 5} for seq in range(1, 20_001)}
    found = archived.decode({"jetcluster": {**own, "held": list(range(20_001, 20_001 + most))}})
    assert len(found["held"]) == most and len(found["pending"]) == 20_000
    too_many = {**own, "held": range(archived.MAX_HELD_MESSAGES + 1)}
    steps = archived.decoding({"jetcluster": too_many})
    with pytest.raises(StopIteration) as stop:
        next(steps)
    assert stop.value.value == {"delivered": [0, 0], "floor": [0, 0], "pending": [], "by_key": True}


def test_what_is_not_in_the_stream_any_more_is_not_pending() -> None:
    node = Node()
    state = {"delivered": {"consumer_seq": 9, "stream_seq": 90}, "ack_floor": {"consumer_seq": 0, "stream_seq": 0}}
    pending = {str(seq): {"Sequence": seq, "Timestamp": 5} for seq in (2, 11, 90)}
    restored(node, {**state, "pending": pending})
    assert list(node.state().pending) == [2]
    assert node.state().delivered_sseq == 10


def test_one_with_too_much_pending_begins_at_its_floor() -> None:
    state = {"delivered": {"consumer_seq": 99_999, "stream_seq": 99_999}}
    floor = {"ack_floor": {"consumer_seq": 7, "stream_seq": 8}}
    pending = {str(seq): {"Sequence": seq, "Timestamp": 5} for seq in range(9, 99_999)}
    found = archived.decode({**state, **floor, "pending": pending})
    assert found == {"delivered": [7, 8], "floor": [7, 8], "pending": []}


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"delivered": 5, "ack_floor": {}},
        {"delivered": {"consumer_seq": -1, "stream_seq": 1}, "ack_floor": {"consumer_seq": 0, "stream_seq": 0}},
        {
            "delivered": {"consumer_seq": 1, "stream_seq": 1},
            "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
            "pending": {"x": {"Sequence": 1, "Timestamp": 1}},
        },
    ],
)
def test_anything_else_is_refused(found: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        archived.decode(found)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({}, "the state of a consumer has no delivered"),
        ({"delivered": {"consumer_seq": 1}}, "the state of a consumer has no stream_seq"),
        ({"delivered": 5, "ack_floor": {}}, "the state of a consumer is malformed"),
        ([5], "the state of a consumer is malformed"),
    ],
)
def test_a_refusal_is_a_sentence(found: Any, text: str) -> None:
    """The client of a restore is shown it."""
    with pytest.raises(ValueError, match=f"^{text}$"):
        archived.decode(found)


def test_deliveries_that_no_page_can_hold_are_cut() -> None:
    """They would raise when the page is written, on all replicas alike."""
    node = Node()
    state = {"delivered": {"consumer_seq": 9, "stream_seq": 9}, "ack_floor": {"consumer_seq": 0, "stream_seq": 0}}
    pending = {"2": {"Sequence": 2, "Timestamp": 5}, "3": {"Sequence": (1 << 63) - 1, "Timestamp": (1 << 63) - 1}}
    restored(node, {**state, "pending": pending, "redelivered": {"2": (1 << 32) - 1, "3": (1 << 63) - 1}})
    node.restart()
    assert [entry.deliveries for entry in node.state().pending.values()] == [archived.MAX_DELIVERIES] * 2


def test_a_floor_above_what_was_delivered_and_what_is_below_it_are_no_state() -> None:
    node = Node()
    state = {"delivered": {"consumer_seq": 4, "stream_seq": 6}, "ack_floor": {"consumer_seq": 9, "stream_seq": 3}}
    restored(node, {**state, "pending": {str(seq): {"Sequence": seq, "Timestamp": 5} for seq in (2, 5)}})
    node.state().check()
    assert list(node.state().pending) == [5]
    assert node.floors() == (4, 6, 4, 3)


def test_a_consumer_without_acks_has_nothing_pending_whatever_the_archive_says() -> None:
    """Its floor follows what is delivered: a pending message would be below it, which stops the stream."""
    node = Node()
    state = {"delivered": {"consumer_seq": 5, "stream_seq": 5}, "ack_floor": {"consumer_seq": 0, "stream_seq": 0}}
    restored(node, {**state, "pending": {"3": {"Sequence": 3, "Timestamp": 5}}}, ack_policy="none")
    assert not node.state().pending
    node.deliver(6, 7, 8)
    node.state().check()


def test_numbers_that_do_not_ascend_take_no_floor_back_or_beyond_what_was_delivered() -> None:
    """nats-server gives a pending message the number of its last delivery; an archive may say anything."""
    node = Node()
    state = {"delivered": {"consumer_seq": 9, "stream_seq": 9}, "ack_floor": {"consumer_seq": 0, "stream_seq": 0}}
    numbers = {2: 1, 3: 6, 4: 3, 5: 1 << 60}
    restored(node, {**state, "pending": {str(seq): {"Sequence": n, "Timestamp": 5} for seq, n in numbers.items()}})
    floors = []
    for seq in (2, 3, 4):
        ops.ack_up_to(node.state(), [seq], 7)
        node.state().check()
        floors.append((node.state().floor_cseq, node.state().floor_sseq))
    assert floors == [(5, 2), (5, 3), (8, 4)]
