"""Messages on their way to requests: sizes, numbers, and whose they are."""

from __future__ import annotations

import pytest

from jetcluster.consumer.owner.ack_subject import Renderer, prefix
from jetcluster.consumer.owner.pull_request import PullRequest
from jetcluster.consumer.owner.shipment import Part, Shipment, inbox_of, pinned
from jetcluster.consumer.state.turn import SentMessages
from jetcluster.protocol.bus import Outgoing
from jetcluster.store.api import Columns

COLUMNS = Columns([5, 3, 9], [50, 30, 90], [b"a", b"b", b"c"], [b"", b"", b""], [b"1", b"22", b"333"])
JAVA = b"_INBOX.v6llSXvXI4QD4NA4gS3KrI"
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


Sent = list[tuple[bytes, list[bytes | None]]]


def sent(*parts: Part, lost: int | None = None) -> Sent:
    """(reply subject, payloads) in the order of sending; b"id" before those with a pinned id."""
    made = Shipment(COLUMNS, [4, 4, 4], list(parts))
    messages: list[Outgoing | None] = list(made.first(RENDERER, 1))
    if lost is not None:
        messages[lost] = None
    return [(reply, [None if one is None else (b"id" if one[2] else b"") + one[3] for one in found])
            for reply, found in made.by_reply(messages)]  # fmt: skip


def test_messages_of_one_reply_subject_in_order() -> None:
    a, again, b = PullRequest(b"r"), PullRequest(b"r"), PullRequest(b"s")
    assert sent((a, [0, 1, 2], b"")) == [(b"r", [b"1", b"22", b"333"])]
    assert sent((a, [0, 2], b""), (again, [1], b"")) == [(b"r", [b"1", b"22", b"333"])]
    assert sent((a, [0, 2], b""), (b, [1], b"")) == [(b"r", [b"1", b"333"]), (b"s", [b"22"])]
    assert sent((a, [0, 1, 2], b"id"), lost=1) == [(b"r", [b"id1", None, b"id333"])]
    assert sent((a, [0, 2], b"id"), (again, [1], b"")) == [(b"r", [b"id1"]), (b"r", [b"22"]), (b"r", [b"id333"])]


def test_messages_of_one_inbox_in_order_where_each_request_has_a_token_of_its_own() -> None:
    one, two = PullRequest(JAVA + b".1"), PullRequest(JAVA + b".2")
    assert sent((one, [0, 2], b""), (two, [1], b"")) == [
        (JAVA + b".1", [b"1"]),
        (JAVA + b".2", [b"22"]),
        (JAVA + b".1", [b"333"]),
    ]
    other = PullRequest(b"_INBOX.v6llSXvXI4QD4NA4gS3KpV")
    assert sent((other, [0, 2], b""), (two, [1], b"")) == [(other.reply, [b"1", b"333"]), (JAVA + b".2", [b"22"])]


@pytest.mark.parametrize(
    ("reply", "inbox"),
    [
        (JAVA + b".17", JAVA),
        (JAVA, JAVA),
        (b"r", b"r"),
        (b"my.box.17", b"my.box"),
        (JAVA + b".v6llSXvXI4QD4NA4gS3KpV", JAVA + b".v6llSXvXI4QD4NA4gS3KpV"),
    ],
)
def test_an_inbox_is_the_reply_subject_without_the_token_of_a_request(reply: bytes, inbox: bytes) -> None:
    assert inbox_of(reply) == inbox
