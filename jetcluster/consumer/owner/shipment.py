"""`Shipment`: messages on their way to pull requests, from their selection to their clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Final

from jetcluster.consumer.owner.ack_subject import Renderer
from jetcluster.consumer.owner.pull_request import PullRequest
from jetcluster.consumer.state.turn import SentMessages
from jetcluster.protocol import headers
from jetcluster.protocol.bus import Outgoing
from jetcluster.store.api import Columns

Part = tuple[PullRequest, list[int], bytes]
"""(request, indices of its messages, pinned id or b"")"""
Sent = tuple[bytes, Sequence[Outgoing | None]]
"""(reply subject, messages that are sent to it at a time; None: not sent)"""

UNIQUE_CHARS: Final = 22
"""Length of the unique token in an inbox, which all official clients make in one way (NUID)."""


class Shipment:
    """Messages selected for some pull requests: the token of one DELIVER or REDELIVER op."""

    __slots__ = ("columns", "left", "parts", "size", "sizes")

    def __init__(self, columns: Columns, left: Sequence[int], parts: list[Part], sizes: Sequence[int] = ()) -> None:
        self.columns = columns
        self.left = left
        """Parallel to the columns: number of messages left after each, for the ack subject."""
        self.parts = parts
        """The parts of all requests; together they have every index once."""
        self.sizes = sizes
        """Parallel to the columns: bytes that each took of its request's max_bytes; empty when no request has one."""
        self.size = sum(map(len, columns.payloads)) + sum(map(len, columns.headers))

    def first(self, renderer: Renderer, cseq: int) -> list[Outgoing]:
        """Return all as first deliveries, numbered from `cseq`."""
        count = len(self.columns.seqs)
        return renderer.first(self.columns, range(cseq, cseq + count), self.left)

    def again(self, renderer: Renderer, sent: SentMessages) -> list[Outgoing | None]:
        """Return one redelivery per index; None for messages no longer pending."""
        assert sent.deliveries is not None
        count = len(sent.seqs)
        cseqs = range(sent.cseq, sent.cseq + count)
        left = self.left[0]
        if count == len(self.columns.seqs):
            return list(renderer.again(self.columns, cseqs, sent.deliveries, left))
        at = {seq: i for i, seq in enumerate(self.columns.seqs)}
        indices = [at[seq] for seq in sent.seqs]
        found: list[Outgoing | None] = [None] * len(self.columns.seqs)
        for i, message in zip(
            indices, renderer.again(self.columns.pick(indices), cseqs, sent.deliveries, left), strict=True
        ):
            found[i] = message
        return found

    def by_reply(self, messages: Sequence[Outgoing | None]) -> Iterable[Sent]:
        """Return (reply subject, its messages) as they are to be sent. `messages` has one per index; those with a
        pinned id get it.

        A client may have several open requests, with one reply subject or, as nats.java has it, with one for each
        behind a common inbox. It gets its messages in order all the same, as by nats-server, which sends one by one."""
        parts = self.parts
        if len(parts) == 1 and not parts[0][2]:
            return ((parts[0][0].reply, messages),)
        return self._by_inbox(messages)

    def _by_inbox(self, messages: Sequence[Outgoing | None]) -> Iterator[Sent]:
        by_inbox: dict[bytes, list[Part]] = {}
        for part in self.parts:
            by_inbox.setdefault(inbox_of(part[0].reply), []).append(part)
        for alike in by_inbox.values():
            if len(alike) == 1:
                request, indices, pin = alike[0]
                yield request.reply, _pinned([messages[i] for i in indices], pin)
            else:
                yield from _in_order(alike, messages)

    def size_of(self, indices: Sequence[int]) -> int:
        return sum(self.sizes[i] for i in indices) if self.sizes else 0


def inbox_of(reply: bytes) -> bytes:
    """Return a reply subject without a last token by which a client may tell its requests apart: one that is shorter
    than unique tokens are."""
    inbox, _, token = reply.rpartition(b".")
    return inbox if len(token) < UNIQUE_CHARS and b"." in inbox else reply


def _in_order(parts: Sequence[Part], messages: Sequence[Outgoing | None]) -> Iterator[Sent]:
    """Yield (reply subject, messages) for each run of messages that go to the same one."""
    (reply, pin), *others = {(request.reply, pin) for request, _, pin in parts}
    if not others:
        yield reply, _pinned([messages[i] for i in sorted(chain.from_iterable(part[1] for part in parts))], pin)
        return
    placed = sorted((i, request.reply, pin) for request, indices, pin in parts for i in indices)
    for (reply, pin), run in groupby(placed, key=itemgetter(1, 2)):
        yield reply, _pinned([messages[i] for i, _, _ in run], pin)


def _pinned(messages: list[Outgoing | None], pin: bytes) -> list[Outgoing | None]:
    return [pinned(message, pin) if message else None for message in messages] if pin else messages


def pinned(message: Outgoing, pin: bytes) -> Outgoing:
    """Return the message with the id that the client must send from now on (ADR-42)."""
    subject, reply, block, payload = message
    return subject, reply, headers.set_header(block, b"Nats-Pin-Id", pin), payload
