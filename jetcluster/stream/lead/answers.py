"""`Answers` renders and sends what a publisher is told.

PubAcks as bytes, for whole commands at once.

`Backlog`: what a stream's leader has proposed and not yet applied, and how much of that is enough.

A client that publishes a message and waits for its ack waits for all that was proposed before it. So the amount is
bounded by time, not by size: the window is what was lately applied within `TARGET` seconds, learned from how long
proposals take. While it is full the valve is closed, and publishers wait (`protocol.bus`). How long a proposal takes
with hardly anything in front of it (a slow disk, a far majority) is not held against those in front.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Final, Protocol

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.protocol.bus import Valve
from jetcluster.raft.api import (
    BackpressureError,
    EntryTooLargeError,
    LeavingError,
    NotLeaderError,
    RaftError,
    StorageFullError,
)
from jetcluster.stream.ports import Counted, Duplicate, PublishResult, Verdict


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


NO_RESPONDERS: Final = b"NATS/1.0 503\r\n\r\n"
TOO_MANY_REQUESTS: Final = b"NATS/1.0 429 Too Many Requests\r\n\r\n"

_TOO_MANY: Final = errors.by_code(10167)
_FULL: Final = errors.by_code(10077, err="no space left on device")
_TOO_LARGE: Final = errors.by_code(errors.MESSAGE_TOO_LARGE)
_FAILED: Final = errors.by_code(10008)

_ACKS: Final = b"$JS.ACK."
"""An empty message there is an acknowledgement, which this stream has no right to give: the reply subject is that of a
delivery that came here."""


class RefusedError(RaftError):
    """There is no room for what is to be proposed: `error` is what the publisher is told."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error
        self.blame, self.retriable = error.blame, error.retriable


class Publisher(Protocol):
    """The part of a `Bus` that tells publishers something."""

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int: ...

    def publish_many(self, messages: Sequence[tuple[bytes, bytes]]) -> None: ...


class Answers:
    def __init__(self, bus: Publisher, acks: PubAcks, *, no_ack: bool = False) -> None:
        self.bus = bus
        self.acks = acks
        self.no_ack = no_ack
        """`no_ack` of the stream's configuration; set it when that changes."""
        self.refused = 0
        """Messages refused since the start (monitoring)."""

    def note(self, reply: bytes) -> None:
        """The empty answer to a message of an atomic batch that is not complete."""
        if reply and not self.no_ack and not reply.startswith(_ACKS):
            self.bus.publish(reply)

    def refuse(self, replies: Sequence[bytes], error: ApiError) -> None:
        self._refuse(replies, self.acks.error(error), b"")

    def too_many(self, replies: Sequence[bytes]) -> None:
        self._refuse(replies, self.acks.error(_TOO_MANY), TOO_MANY_REQUESTS)

    def not_proposed(self, replies: Sequence[bytes], error: RaftError) -> None:
        """Answers for what could not be proposed, and so was not stored here: `ingest` says what each reason is told
        as."""
        if isinstance(error, LeavingError):
            self._refuse(replies, b"", NO_RESPONDERS)
        elif isinstance(error, NotLeaderError):
            # Not a word, it would be a lie: the publisher's node may know of the next leader, too, which has taken the
            # same message.
            self.refused += len(replies)
        elif isinstance(error, BackpressureError):
            self.too_many(replies)
        else:
            self.refuse(replies, self.error_of(error) or _FAILED)

    @staticmethod
    def error_of(error: RaftError) -> ApiError | None:
        """Error that a publisher is told; None when it is not to be told in words."""
        if isinstance(error, LeavingError | NotLeaderError):
            return None
        if isinstance(error, BackpressureError):
            return _TOO_MANY
        if isinstance(error, RefusedError):
            return error.error
        if isinstance(error, EntryTooLargeError):
            return _TOO_LARGE
        return _FULL if isinstance(error, StorageFullError) else _FAILED

    def _refuse(self, replies: Sequence[bytes], body: bytes, headers: bytes) -> None:
        self.refused += len(replies)
        if self.no_ack:
            return
        for reply in replies:
            if reply and (body or not reply.startswith(_ACKS)):
                self.bus.publish(reply, body, b"", headers)


PENDING_BYTES: Final = 128 << 20
PENDING_MESSAGES: Final = 100_000
"""nats-server's max_buffered_size and max_buffered_msgs: more may not wait for being applied."""

TARGET: Final = 0.1
"""Seconds that a proposal may wait for those in front of it."""
PER_MESSAGE: Final = 512
"""Bytes that a message weighs besides its own."""
FIRST: Final = 1 << 20
LEAST: Final = 512 << 10
MOST: Final = 4 << 20
"""Bytes: the window at the beginning, and its limits. What is in front of a publisher in the window is in front of
heartbeats and of `Valve` notices on the links as well."""
NEAR: Final = 0.02
"""Seconds of `_base` up to which MOST is the limit; of a far majority, or a slow disk, it is more in proportion."""
MOST_BASE: Final = 1.0


class Backlog:
    def __init__(self, max_messages: int = PENDING_MESSAGES, max_bytes: int = PENDING_BYTES) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.messages = 0
        self.bytes = 0
        self.window = FIRST
        self.valve = Valve()
        self._base = 0.0
        """Seconds that a proposal takes with hardly anything in front of it."""
        self.full = False
        """Nothing more may wait."""

    @property
    def weight(self) -> int:
        return self.bytes + self.messages * PER_MESSAGE

    def add(self, messages: int, size: int) -> int:
        """Returns the weight of all that waits."""
        self.messages += messages
        self.bytes += size
        self.full = self.messages >= self.max_messages or self.bytes >= self.max_bytes
        weight = self.bytes + self.messages * PER_MESSAGE
        if weight >= self.window:
            self.valve.close()
        return weight

    def remove(self, messages: int, size: int) -> None:
        self.messages -= messages
        self.bytes -= size
        self.full = self.messages >= self.max_messages or self.bytes >= self.max_bytes
        if self.valve.closed and self.weight <= self.window // 2:
            self.valve.open()

    def applied(self, messages: int, size: int, weight: int, seconds: float) -> None:
        """A proposal was applied `seconds` after it was made, when `weight` waited with it."""
        if weight >= self.window >> 1:
            queued = seconds - self._base
            if queued > TARGET:
                self.window = max(LEAST, int(weight * TARGET / queued))
            else:
                most = MOST if self._base <= NEAR else int(MOST * self._base / NEAR)
                self.window = min(most, self.window + (size >> 4))
        elif weight < LEAST:
            news = min(seconds, MOST_BASE) - self._base
            self._base += news / 2 if news < 0 else news / 64
        self.messages -= messages
        self.bytes -= size
        if self.full or self.valve.closed:
            self.remove(0, 0)
