"""`WAYS`: the requests whose ways are counted, and how long each may be."""

from __future__ import annotations

from typing import Final, NamedTuple


class Way(NamedTuple):
    """One request, and the bounds of what runs because of it."""

    key: str
    title: str
    calls: int
    files: int
    told: str
    """A paragraph of the page: what is sent, to which place, and what ends the way."""


WAYS: Final = (
    Way(
        "publish-r1",
        "Publish to a stream with one replica",
        68,
        31,
        "A client publishes one message with a reply subject. The PubAck leaves once the entry is on the disk.",
    ),
    Way(
        "publish-r3",
        "Publish to a stream with three replicas",
        234,
        34,
        "One message, published on the leader's node. All three nodes are counted, until all have applied it.",
    ),
    Way(
        "batch-r1",
        "Atomic batch of two",
        116,
        34,
        "Two messages of a batch, the second of which commits it: one PubAck for both.",
    ),
    Way(
        "ack-r1",
        "Double ack",
        108,
        36,
        "A client acks a message of a pull consumer and asks for a confirmation, which leaves once the ack is on disk.",
    ),
    Way(
        "pull-r1",
        "Pull of the next message",
        169,
        47,
        "A pull for one message, and the message. That it was delivered is in the log before it leaves.",
    ),
    Way(
        "direct-get",
        "Direct Get",
        36,
        16,
        "A client reads a message by its sequence.",
    ),
)
