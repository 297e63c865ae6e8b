"""Reply subjects of deliveries, and the messages that carry them.

$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<message time ns>.<pending>            v1
$JS.ACK.<domain|_>.<account hash>.<stream>.<consumer>.<same five>[.<random>]                         v2

Both are accepted (ADR-15). Deliveries have v2 where the configuration says so (`feature_flags: {js_ack_fc_v2: true}`).
"""

from __future__ import annotations

from collections.abc import Sequence

from jetcluster import native
from jetcluster.model.account_hash import account_hash
from jetcluster.protocol import headers
from jetcluster.protocol.bus import Outgoing
from jetcluster.store.api import Columns

NUMBERS = b"*.*.*.*.*"
"""The five numbers, in the subject of a subscription."""
NUMBERS_AND_MORE = b"*.*.*.*.>"
"""The same for v2, which may have more tokens."""
_NO_HEADERS = b"NATS/1.0\r\n\r\n"


def prefix(stream: bytes, consumer: bytes) -> bytes:
    """Return the beginning of subjects of version 1, including the dot."""
    return b"$JS.ACK.%b.%b." % (stream, consumer)


def prefix_v2(domain: bytes, account: str, stream: bytes, consumer: bytes) -> bytes:
    """Return the beginning of subjects of version 2, including the dot."""
    return b"$JS.ACK.%b.%b.%b.%b." % (domain or b"_", account_hash(account).encode(), stream, consumer)


def of_flow_control(prefix: bytes) -> bytes:
    """Return the beginning of the subjects of flow control, for a `prefix` of acks of either version."""
    return prefix.replace(b"$JS.ACK.", b"$JS.FC.", 1)


class Renderer:
    """Makes deliveries of one consumer. This is the data path, so it works in bulk."""

    __slots__ = ("_prefix", "headers_only", "prefix")

    def __init__(self, prefix: bytes, *, headers_only: bool = False) -> None:
        """`prefix`: the beginning of the reply subjects, of either version."""
        self.prefix = prefix
        self._prefix = self.prefix.replace(b"%", b"%%")
        self.headers_only = headers_only

    def first(self, columns: Columns, cseqs: Sequence[int], pending: Sequence[int]) -> list[Outgoing]:
        """Return first deliveries; `cseqs` and `pending` (messages left after each) are parallel to the columns."""
        if native.ack_subjects is not None:
            replies = native.ack_subjects(self.prefix, columns.seqs, cseqs, columns.times, pending)
        else:
            form = self._prefix + b"1.%d.%d.%d.%d"
            replies = [form % four for four in zip(columns.seqs, cseqs, columns.times, pending, strict=True)]
        return self._outgoing(columns, replies)

    def again(self, columns: Columns, cseqs: Sequence[int], deliveries: Sequence[int], pending: int) -> list[Outgoing]:
        form = self._prefix + b"%d.%d.%d.%d." + b"%d" % pending
        replies = [form % four for four in zip(deliveries, columns.seqs, cseqs, columns.times, strict=True)]
        return self._outgoing(columns, replies)

    def _outgoing(self, columns: Columns, replies: list[bytes]) -> list[Outgoing]:
        _, _, subjects, blocks, payloads = columns
        if self.headers_only:
            blocks = [sized(block, payload) for block, payload in zip(blocks, payloads, strict=True)]
            payloads = [b""] * len(blocks)
        return list(zip(subjects, replies, blocks, payloads, strict=True))


def sized(block: bytes, payload: bytes) -> bytes:
    """Return the header block of a message sent without its payload (headers_only)."""
    return headers.set_header(block or _NO_HEADERS, b"Nats-Msg-Size", b"%d" % len(payload))
