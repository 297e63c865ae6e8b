"""`Shipment`: messages selected for some pull requests, on their way: the token of one DELIVER or REDELIVER op."""

from __future__ import annotations

from collections.abc import Sequence

from jetcluster.consumer.ack_subject import Renderer
from jetcluster.consumer.pull_request import PullRequest
from jetcluster.consumer.selection import pick
from jetcluster.consumer.turn import SentMessages
from jetcluster.protocol import headers
from jetcluster.protocol.bus import Outgoing
from jetcluster.store.api import Columns

Part = tuple[PullRequest, list[int], bytes]
"""(request, indices of its messages, pinned id or b"")"""


class Shipment:
    __slots__ = ("columns", "left", "parts", "size", "sizes")

    def __init__(self, columns: Columns, left: Sequence[int], parts: list[Part], sizes: Sequence[int] = ()) -> None:
        self.columns = columns
        self.left = left
        """Parallel to the columns: messages left after each, as the ack subject tells."""
        self.parts = parts
        """Together they have every index once."""
        self.sizes = sizes
        """Parallel to the columns, what each took of its request's max_bytes; empty when no request has one."""
        self.size = sum(map(len, columns.payloads)) + sum(map(len, columns.headers))

    def first(self, renderer: Renderer, cseq: int) -> list[Outgoing]:
        """All for the first time, numbered from `cseq` on."""
        count = len(self.columns.seqs)
        return renderer.first(self.columns, range(cseq, cseq + count), self.left)

    def again(self, renderer: Renderer, sent: SentMessages) -> list[Outgoing | None]:
        """One per index; None for those that are no longer pending."""
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
            indices, renderer.again(pick(self.columns, indices), cseqs, sent.deliveries, left), strict=True
        ):
            found[i] = message
        return found

    def by_reply(self) -> dict[bytes, list[Part]]:
        """The parts of each reply subject; a client may have several requests open with one."""
        found: dict[bytes, list[Part]] = {}
        for part in self.parts:
            found.setdefault(part[0].reply, []).append(part)
        return found

    def pick(self, parts: Sequence[Part], messages: Sequence[Outgoing | None]) -> list[Outgoing | None]:
        """Those of `messages`, which has one per index, that belong to some of the parts, in order; with the pinned id
        where there is one."""
        placed = [(i, pin) for _, indices, pin in parts for i in indices]
        if len(parts) > 1:
            placed.sort()
        found = ((messages[i], pin) for i, pin in placed)
        return [pinned(message, pin) if pin and message else message for message, pin in found]

    def size_of(self, indices: Sequence[int]) -> int:
        return sum(self.sizes[i] for i in indices) if self.sizes else 0


def pinned(message: Outgoing, pin: bytes) -> Outgoing:
    """With the id that the client has to send from now on (ADR-42)."""
    subject, reply, block, payload = message
    return subject, reply, headers.set_header(block, b"Nats-Pin-Id", pin), payload
