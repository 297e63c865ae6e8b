"""PubAcks as bytes, for whole commands at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count

from jetcluster.errors import ApiError
from jetcluster.stream.results import Counted, Duplicate, PublishResult, Verdict


class PubAcks:
    """The acks of one stream: `{"stream":"S","seq":12}`, with a domain `{"stream":"S","domain":"D","seq":12}`."""

    def __init__(self, stream: str, domain: str | None = None) -> None:
        name = b'"stream":' + _quoted(stream)
        start = b"{" + name
        if domain:
            start += b',"domain":' + _quoted(domain)
        start = start.replace(b"%", b"%%") + b',"seq":%d'
        self._stored = start + b"}"
        self._batch = start + b',"batch":%b,"count":%d}'
        self._batch_duplicate = start + b',"duplicate": true,"batch":%b,"count":%d}'
        self._counted = start + b',"val":"%b"}'
        self._duplicate = start + b',"duplicate": true}'  # with the blank, as nats-server has it
        self._error_end = b"," + name + b',"seq":0}'

    def render(self, result: PublishResult, replies: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """(reply subject, ack) of every message that has a reply subject; `replies[i]` belongs to message `i`."""
        assert len(replies) == result.count, (len(replies), result.count)
        stored = self._stored
        if result.verdicts is None:
            return [
                (reply, stored % seq) for reply, seq in zip(replies, count(result.first_seq), strict=False) if reply
            ]
        pairs = zip(replies, result.verdicts, strict=True)
        return [(reply, self.ack(verdict)) for reply, verdict in pairs if reply]

    def ack(self, verdict: Verdict) -> bytes:
        if isinstance(verdict, int):
            return self._stored % verdict
        if isinstance(verdict, Duplicate):
            return self._duplicate % verdict.seq
        if isinstance(verdict, Counted):
            return self._counted % verdict
        return self.error(verdict)

    def batch(self, last_seq: int, batch_id: bytes, size: int) -> bytes:
        """PubAck of an atomic batch: `{"stream":"S","seq":12,"batch":"id","count":3}`."""
        return self._batch % (last_seq, _quoted(batch_id.decode("utf-8", "replace")), size)

    def batch_duplicate(self, seq: int, batch_id: bytes, size: int) -> bytes:
        """PubAck of a fast-ingest batch that is nothing but one message, which is stored already."""
        return self._batch_duplicate % (seq, _quoted(batch_id.decode("utf-8", "replace")), size)

    def error(self, error: ApiError) -> bytes:
        """`{"error":{...},"stream":"S","seq":0}`; never a domain, as upstream."""
        text = json.dumps(error.to_dict(), separators=(",", ":"), ensure_ascii=False)
        return b'{"error":' + text.encode("utf-8", "replace") + self._error_end


def flow_ack(seq: int, messages: int) -> bytes:
    """To the publisher of a fast-ingest batch: all up to `seq` is settled, the next ack comes after so many more."""
    return b'{"type":"ack","seq":%d,"msgs":%d}' % (seq, messages)


def flow_gap(first: int, seq: int) -> bytes:
    """`first` to `seq - 1` are missing."""
    return b'{"type":"gap","last_seq":%d,"seq":%d}' % (first, seq)


def flow_error(seq: int, error: ApiError) -> bytes:
    """Message `seq` was refused."""
    text = json.dumps(error.to_dict(), separators=(",", ":"), ensure_ascii=False)
    return b'{"type":"err","seq":%d,"error":%b}' % (seq, text.encode("utf-8", "replace"))


def _quoted(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()
