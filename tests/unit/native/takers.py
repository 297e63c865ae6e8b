"""The effects of messages that come together: acks at a consumer's owner, answers at two clients."""

from __future__ import annotations

from functools import partial
from unittest.mock import Mock

from jetcluster.consumer.owner.acks import V1, V2, Acks
from jetcluster.protocol.bus import Outgoing
from testkit.server_rig import ServerRig
from testkit.twins.bus import FakeOrigin

DELIVERED = 20
"""The last sequence that the consumer of `acks_taken` has delivered."""


def acks_taken(messages: list[Outgoing], *, together: bool, v2: bool = False) -> object:
    """Everything that became of the acks."""
    owner = Mock()
    owner.state.delivered_sseq, owner.sent_sseq = DELIVERED, DELIVERED + 3
    owner.state.unacked.entries = owner.state.pending = dict.fromkeys(range(1, DELIVERED))
    owner.state.rules.sample, owner.state.rules.letters = 0, None
    asked: list[tuple[bytes, bytes]] = []
    one = Acks(owner, lambda reply, body: asked.append((reply, body)), lambda seqs: None)
    place = V2 if v2 else V1
    many, single = partial(one.received_many, place=place), partial(one.received, place=place)
    while messages:
        if together:
            count = many(messages, FakeOrigin())
        else:
            single(*messages[0], FakeOrigin())
            count = 1
        messages = messages[count:]
    early = list(one.early)
    one.flush()
    logged = [(batch.kind, batch.value, batch.replies, batch.details) for batch in one.in_flight]
    answers = owner.bus.publish.call_args_list, owner.bus.publish_many.call_args_list
    return logged, answers, early, asked, owner.run_soon.called


def answers_taken(answers: list[tuple[bytes, bytes]]) -> object:
    """Output and counters of two clients after answers to an inbox of one and to subjects of the other."""
    rig = ServerRig()
    inbox, other = rig.client(b"SUB _INBOX.a.* 1"), rig.client(b"SUB plain.> 1", b"SUB _INBOX.b.* 2")
    rig.router.publish(b"_INBOX.a.0", b"first")  # caches the routes
    rig.router.publish_many(answers)
    counts = [(one.connection.out_msgs, one.connection.out_bytes, one.connection.pending) for one in (inbox, other)]
    return inbox.read(), other.read(), counts
