"""Messages on their way to requests: sizes, numbers, and whose they are."""

from __future__ import annotations

from jetcluster.consumer.owner.ack_subject import Renderer, prefix
from jetcluster.consumer.owner.pull_request import PullRequest
from jetcluster.consumer.owner.shipment import Shipment, pinned
from jetcluster.consumer.state.turn import SentMessages
from jetcluster.store.api import Columns

COLUMNS = Columns([5, 3, 9], [50, 30, 90], [b"a", b"b", b"c"], [b"", b"", b""], [b"1", b"22", b"333"])
RENDERER = Renderer(prefix(b"S", b"C"))


def shipment() -> Shipment:
    request = PullRequest(b"r")
    return Shipment(COLUMNS, [4, 4, 4], [(request, [0, 2], b""), (request, [1], b"")], [10, 20, 30])


def test_sizes() -> None:
    made = shipment()
    assert made.size == 6 and made.size_of([0, 2]) == 40
    assert Shipment(COLUMNS, [4, 4, 4], []).size_of([0, 2]) == 0


def test_again_in_the_order_of_the_op() -> None:
    messages = shipment().again(RENDERER, SentMessages(7, [5, 3, 9], [2, 3, 2]))
    assert [message and message[1] for message in messages] == [
        b"$JS.ACK.S.C.2.5.7.50.4",
        b"$JS.ACK.S.C.3.3.8.30.4",
        b"$JS.ACK.S.C.2.9.9.90.4",
    ]


def test_numbers_only_for_those_still_pending() -> None:
    messages = shipment().again(RENDERER, SentMessages(7, [5, 9], [2, 2]))
    assert [message and message[1] for message in messages] == [
        b"$JS.ACK.S.C.2.5.7.50.4",
        None,
        b"$JS.ACK.S.C.2.9.8.90.4",
    ]
    assert shipment().again(RENDERER, SentMessages(7, [], [])) == [None] * 3


def test_the_pin_joins_the_headers() -> None:
    assert pinned((b"a", b"r", b"", b"x"), b"id")[2] == b"NATS/1.0\r\nNats-Pin-Id: id\r\n\r\n"
    assert pinned((b"a", b"r", b"NATS/1.0\r\nX: 1\r\n\r\n", b"x"), b"id")[2] == (
        b"NATS/1.0\r\nX: 1\r\nNats-Pin-Id: id\r\n\r\n"
    )


def test_messages_of_one_reply_subject_in_order() -> None:
    made = shipment()
    messages = made.first(RENDERER, 1)
    (parts,) = made.by_reply().values()
    assert len(parts) == 2 and made.pick(parts, messages) == messages
    assert made.pick(parts[:1], messages) == [messages[0], messages[2]]
    request = PullRequest(b"r")
    both = [(request, [0, 2], b"id"), (PullRequest(b"r"), [1], b"")]
    found = made.pick(both, [messages[0], messages[1], None])
    assert [message and b"Nats-Pin-Id" in message[2] for message in found] == [True, False, None]
