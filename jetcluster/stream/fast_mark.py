"""`FastMark`: what the reply subject of a message says about its place in a fast-ingest batch (ADR-50).

    <prefix>.<id>.<flow>.<ok or fail>.<sequence>.<operation>.$FI

The subject belongs to the publisher, who is told there how far the stream has come. It never names anything of the
server's: a batch is known to the one stream that took its first message.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SUFFIX: Final = b".$FI"
START: Final = 0
APPEND: Final = 1
COMMIT: Final = 2
COMMIT_EOB: Final = 3
"""The batch ends, and this message is not stored."""
PING: Final = 4

DEFAULT_FLOW: Final = 10
MOST_FLOW: Final = 65_535
MAX_STEM: Final = 512
"""Ours: bytes. It is kept for every batch, in memory and beside the messages of every replica."""
_MOST_SEQ: Final = (1 << 64) - 2
_DIGITS: Final = 20
"""No number in the subject has more."""


class FastMark(NamedTuple):
    stem: bytes
    """The subject up to and with the gap mode: the same for all messages of most batches."""
    batch_id: bytes
    flow: int
    """Messages per ack at most, as the publisher wants it."""
    gap_ok: bool
    seq: int
    """1 for the first message of the batch."""
    operation: int


def parse(reply: bytes) -> FastMark | None:
    """The mark of a reply subject that ends with SUFFIX; None when it is malformed (10206)."""
    tokens = reply[: -len(SUFFIX)].rsplit(b".", 5)
    if len(tokens) != 6:
        return None
    _, batch_id, flow, gap, seq_text, operation_text = tokens
    operation, seq = _number(operation_text), _number(seq_text)
    if not batch_id or not START <= operation <= PING or not 1 <= seq <= _MOST_SEQ or gap not in (b"ok", b"fail"):
        return None
    if operation == START and seq != 1:
        return None
    if operation in (APPEND, COMMIT_EOB) and seq == 1:
        return None
    stem = reply[: -len(SUFFIX) - len(seq_text) - len(operation_text) - 2]
    if len(stem) > MAX_STEM:
        return None
    return FastMark(stem, batch_id, _flow(flow), gap == b"ok", seq, operation)


def _flow(text: bytes) -> int:
    if len(text) > _DIGITS and text.isdigit():
        return MOST_FLOW
    wanted = _number(text)
    return min(wanted, MOST_FLOW) if wanted > 0 else DEFAULT_FLOW


def _number(text: bytes) -> int:
    """-1 for what is no decimal number."""
    return int(text) if text.isdigit() and len(text) <= _DIGITS else -1
