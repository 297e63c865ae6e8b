from __future__ import annotations

import json
from typing import Any

import pytest

from jetcluster.consumer.owner.pull_request import BadRequestError, Priority, PullRequest
from jetcluster.consumer.state.turn import PIN
from jetcluster.protocol import headers
from tests.unit.consumer.rig import SECOND, Frame, Rig


@pytest.mark.parametrize(
    ("body", "left"),
    [(b"", 1), (b" 7\n", 7), (b"+3", 3), (b"-3", 1), (b"0", 1), (b"1.5", 1), (b"x", 1), (b"[5]", 1), (b"9" * 30, 1)],
)
def test_bodies_that_are_no_object(body: bytes, left: int) -> None:
    assert PullRequest.decode(b"r", body).left == left


def test_an_object() -> None:
    body = (
        b'{"batch":5,"max_bytes":10,"expires":9,"idle_heartbeat":4,"no_wait":true,"min_pending":1,"min_ack_pending":2,'
        b'"group":"g","id":"p","priority":3,"other":[]}'
    )
    request = PullRequest.decode(b"r", body)
    assert (request.left, request.max_bytes, request.left_bytes, request.timeout, request.heartbeat) == (
        5,
        10,
        10,
        9,
        4,
    )
    assert (request.no_wait, request.min_pending, request.min_ack_pending) == (True, 1, 2)
    assert (request.group, request.pin, request.priority) == (b"g", b"p", 3)


def test_absent_null_and_negative() -> None:
    request = PullRequest.decode(b"r", b'{"batch":-1,"max_bytes":-5,"expires":null,"idle_heartbeat":-1}')
    assert (request.left, request.max_bytes, request.timeout, request.heartbeat) == (1, 0, 0, 0)
    assert PullRequest.decode(b"r", b"{}").left == 1


@pytest.mark.parametrize(
    "body",
    [b"{", b'{"batch":1}x', b'{"batch":"1"}', b'{"batch":true}', b'{"no_wait":1}', b'{"group":7}', b'{"batch":NaN}',
     b'{"batch":1e3}', b'{"batch":99999999999999999999}', b'{"a":' + b"[" * 100_000],
)  # fmt: skip
def test_bad_objects(body: bytes) -> None:
    with pytest.raises(BadRequestError):
        PullRequest.decode(b"r", body)


def test_a_heartbeat_is_at_most_half_of_expires() -> None:
    PullRequest.decode(b"r", b'{"expires":10,"idle_heartbeat":5}')
    with pytest.raises(BadRequestError, match="heartbeat value too large"):
        PullRequest.decode(b"r", b'{"expires":9,"idle_heartbeat":5}')


@pytest.mark.parametrize("number", ["1.5", "99999999999999999999"])
def test_a_number_that_does_not_fit_is_named(number: str) -> None:
    with pytest.raises(BadRequestError, match=f"cannot unmarshal number {number} into Go struct field"):
        PullRequest.decode(b"r", b'{"batch":%b}' % number.encode())


def pin_of(frame: Frame) -> bytes | None:
    return headers.get(frame.headers, b"Nats-Pin-Id")


def pinned_rig(**config: object) -> Rig:
    return Rig(
        priority_policy="pinned_client",
        priority_groups=["g"],
        priority_timeout=120 * SECOND,
        **config,  # type: ignore[arg-type]
    )


def test_requests_have_to_fit_the_policy() -> None:
    rig = pinned_rig()
    refused = [
        rig.next(b"a", body=b"").statuses,
        rig.next(b"b", batch=1).statuses,
        rig.next(b"c", group="x").statuses,
        rig.next(b"d", group="g", min_pending=1).statuses,
    ]
    assert refused == [
        [b"400 Bad Request - Priority Group missing"],
        [b"400 Bad Request - Priority Group missing"],
        [b"400 Bad Request - Invalid Priority Group"],
        [b"400 Bad Request - Not a Overflow Priority consumer"],
    ]
    plain = Rig()
    assert plain.next(b"e", id="x").statuses == [b"400 Bad Request - Not a Pinned Client Priority consumer"]
    assert plain.next(b"g", priority=10).statuses == [b"400 Bad Request - Priority must be between 0 and 9"]
    prioritized = Rig(priority_policy="prioritized", priority_groups=["g"])
    assert prioritized.next(b"f", group="g", priority=10).statuses == [
        b"400 Bad Request - Priority must be between 0 and 9"
    ]


def test_overflow_wants_much_to_be_pending() -> None:
    rig = Rig(priority_policy="overflow", priority_groups=["g"])
    rig.publish(*[b"s"] * 3)
    much = rig.next(b"much", batch=5, group="g", min_pending=4)
    assert much.seqs == []
    rig.publish(b"s", b"s")
    assert much.seqs == [1, 2]  # 5, then 4 there are
    rest = rig.next(b"rest", batch=5, group="g")
    assert rest.seqs == [3, 4, 5] and much.seqs == [1, 2]


def test_overflow_wants_much_to_be_unacknowledged() -> None:
    rig = Rig(priority_policy="overflow", priority_groups=["g"])
    rig.publish(*[b"s"] * 6)
    late = rig.next(b"late", batch=5, group="g", min_ack_pending=2)
    assert late.seqs == []
    assert rig.next(b"a", batch=2, group="g").seqs == [1, 2]
    assert late.seqs == [3, 4, 5, 6]


def asked_by_20_messages(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of requests that are asked; `taker` gets all messages, and had got one before."""
    asked = 0
    verdict = Priority.verdict

    def counted(*args: Any) -> int:
        nonlocal asked
        asked += 1
        return verdict(*args)

    monkeypatch.setattr(Priority, "verdict", counted)
    for _ in range(20):
        rig.publish(b"s")
    assert rig.bus.inboxes[b"taker"].seqs == list(range(1, 22))
    return asked


def test_a_message_asks_one_request_of_those_that_wait_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(priority_policy="overflow", priority_groups=["g"], max_waiting=10_000)
    for number in range(500):
        rig.next(b"w%d" % number, batch=1, group="g", min_pending=10**9 + number % 3)
    rig.next(b"taker", batch=50, group="g")
    rig.publish(b"s")
    assert asked_by_20_messages(rig, monkeypatch) <= 20 * 10
    assert rig.owner.delivery.num_waiting == 501


@pytest.mark.thorough
def test_a_message_asks_few_of_those_that_wait_for_different_things(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(priority_policy="overflow", priority_groups=["g"], max_waiting=0)
    for number in range(3000):
        bound = "min_ack_pending" if number % 2 else "min_pending"
        rig.next(b"w%d" % number, batch=1, group="g", **{bound: 10**9 + number})
    rig.next(b"taker", batch=50, group="g")
    rig.publish(b"s")
    assert asked_by_20_messages(rig, monkeypatch) <= 20 * 2
    rig.pull.configured()
    rig.settle()
    assert rig.owner.delivery.num_waiting == 3001


def test_whoever_wait_for_different_things_are_served_in_the_order_of_coming() -> None:
    rig = Rig(priority_policy="overflow", priority_groups=["g"])
    inboxes = [rig.next(b"%d" % bound, batch=1, group="g", min_pending=bound) for bound in (4, 2, 3)]
    rig.hold = True
    rig.publish(b"s")
    assert not any(inboxes)
    rig.hold = False
    rig.publish(b"s", b"s", b"s", b"s")
    assert [inbox.seqs for inbox in inboxes] == [[1], [2], [3]]


def test_whose_time_has_come_is_served_in_its_turn() -> None:
    rig = Rig(priority_policy="overflow", priority_groups=["g"])
    early = rig.next(b"early", batch=1, group="g", min_pending=3)
    late = rig.next(b"late", batch=1, group="g", min_pending=3)
    rig.publish(b"s")
    rig.publish(b"s")
    assert early.seqs == late.seqs == []
    plain = rig.next(b"plain", batch=1, group="g")
    assert plain.seqs == [1]
    rig.publish(b"s")
    rig.publish(b"s")
    assert (early.seqs, late.seqs) == ([2], [])
    rig.publish(b"s")
    assert late.seqs == [3]


def test_prioritized_serves_the_lowest_number_first() -> None:
    rig = Rig(priority_policy="prioritized", priority_groups=["g"])
    low = rig.next(b"low", batch=2, group="g", priority=5)
    high = rig.next(b"high", batch=2, group="g", priority=1)
    also = rig.next(b"also", batch=2, group="g", priority=1)
    rig.publish(*[b"s"] * 5)
    assert (high.seqs, also.seqs, low.seqs) == ([1, 3], [2, 4], [5])


def test_a_client_that_does_not_read_holds_up_nobody_of_another_priority() -> None:
    rig = Rig(priority_policy="prioritized", priority_groups=["g"])
    slow = rig.next(b"slow", batch=5, group="g", priority=0)
    other = rig.next(b"other", batch=5, group="g", priority=1)
    rig.bus.unread[b"slow"] = 9 << 20
    rig.publish(b"s", b"s")
    assert (slow.seqs, other.seqs) == ([], [1, 2])


def test_one_client_is_pinned_and_the_others_stand_by() -> None:
    rig = pinned_rig()
    events = rig.event("PINNED")
    one, two = rig.next(b"one", batch=2, group="g"), rig.next(b"two", batch=5, group="g")
    rig.publish(b"s", b"s", b"s")
    assert one.seqs == [1, 2] and two.seqs == []
    pin = pin_of(one[0])
    assert pin is not None and len(pin) == 22
    assert one[0].headers == b"NATS/1.0\r\nNats-Pin-Id: %b\r\n\r\n" % pin and pin_of(one[1]) == pin
    event = json.loads(events[0].payload)
    assert (event["type"], event["group"], event["pinned_id"]) == (
        "io.nats.jetstream.advisory.v1.consumer_group_pinned",
        "g",
        pin.decode(),
    )
    assert rig.state.pins[b"g"][0] == pin
    more = rig.next(b"more", batch=5, group="g", id=pin.decode())
    assert more.seqs == [3] and two.seqs == []
    assert rig.next(b"no", batch=1, group="g", id="other").statuses == [b"423 Nats-Pin-Id mismatch"]


def test_a_pin_that_is_not_heard_of_goes() -> None:
    rig = pinned_rig()
    events = rig.event("UNPINNED")
    one = rig.next(b"one", batch=1, group="g")
    rig.publish(b"s")
    rig.ack(one[0])
    two = rig.next(b"two", batch=5, group="g")
    rig.publish(b"s")
    rig.advance(119)
    assert two.seqs == [] and not events
    rig.advance(2)
    assert two.seqs == [2]
    assert json.loads(events[0].payload)["reason"] == "timeout"
    assert pin_of(two[0]) not in (None, pin_of(one[0]))
    stale = pin_of(one[0])
    assert stale is not None
    assert rig.next(b"one", batch=1, group="g", id=stale.decode()).statuses[-1] == b"423 Nats-Pin-Id mismatch"


def test_requests_keep_the_pin() -> None:
    rig = pinned_rig()
    one = rig.next(b"one", batch=1, group="g")
    rig.publish(b"s")
    pin = pin_of(one[0])
    assert pin is not None
    for _ in range(3):
        rig.advance(100)
        rig.next(b"one", batch=1, group="g", id=pin.decode())
    assert rig.state.pins[b"g"][0] == pin


def test_unpinned_by_an_administrator() -> None:
    rig = pinned_rig()
    events = rig.event("UNPINNED")
    one = rig.next(b"one", batch=5, group="g")
    rig.publish(b"s")
    two = rig.next(b"two", batch=5, group="g")
    assert rig.owner.unpin(b"g")
    rig.settle()
    assert json.loads(events[0].payload)["reason"] == "admin"
    assert not rig.state.pins
    rig.publish(b"s")
    assert two.seqs == [2]
    assert one.statuses == [b"423 Nats-Wrong-Pin-Id"]
    assert b"Nats-Pending-Messages: 4\r\n" in one[-1].headers
    assert not rig.owner.unpin(b"x")


def test_a_new_owner_knows_the_pin() -> None:
    rig = pinned_rig()
    one = rig.next(b"one", batch=1, group="g")
    rig.publish(b"s")
    pin = pin_of(one[0])
    assert pin is not None
    rig.crash()
    two = rig.next(b"two", batch=1, group="g")
    rig.publish(b"s")
    assert two.seqs == []
    assert rig.next(b"one", batch=1, group="g", id=pin.decode()).seqs[-1:] == [2]
    rig.advance(121)
    assert rig.kinds().count(PIN) >= 2


def test_a_lost_pin_is_given_again() -> None:
    rig = pinned_rig()
    rig.hold = True
    one = rig.next(b"one", batch=2, group="g")
    rig.publish(b"s")
    rig.lose()
    rig.release()
    assert one.seqs == [1]
    rig.publish(b"s")
    assert one.seqs == [1, 2] and pin_of(one[0]) == pin_of(one[1]) == rig.state.pins[b"g"][0]
