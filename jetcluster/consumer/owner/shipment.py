"""`Shipment`: messages on their way to pull requests, from their selection to their clients."""

from __future__ import annotations

from collections.abc import Sequence

from jetcluster.consumer.owner.ack_subject import Renderer
from jetcluster.consumer.owner.pull_request import PullRequest
from jetcluster.consumer.state.turn import SentMessages
from jetcluster.protocol import headers
from jetcluster.protocol.bus import Outgoing
from jetcluster.store.api import Columns

Part = tuple[PullRequest, list[int], bytes]
"""(request, indices of its messages, pinned id or b"")"""


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

    def by_reply(self) -> dict[bytes, list[Part]]:
        """Return the parts by reply subject; a client may have several open requests with one."""
        found: dict[bytes, list[Part]] = {}
        for part in self.parts:
            found.setdefault(part[0].reply, []).append(part)
        return found

    def pick(self, parts: Sequence[Part], messages: Sequence[Outgoing | None]) -> list[Outgoing | None]:
        """Return the messages of `parts` in order, with the pinned id if any. `messages` has one per index."""
        placed = [(i, pin) for _, indices, pin in parts for i in indices]
        if len(parts) > 1:
            placed.sort()
        found = ((messages[i], pin) for i, pin in placed)
        return [pinned(message, pin) if pin and message else message for message, pin in found]

    def size_of(self, indices: Sequence[int]) -> int:
        return sum(self.sizes[i] for i in indices) if self.sizes else 0


def pinned(message: Outgoing, pin: bytes) -> Outgoing:
    """Return the message with the id that the client must send from now on (ADR-42)."""
    subject, reply, block, payload = message
    return subject, reply, headers.set_header(block, b"Nats-Pin-Id", pin), payload
