"""`Answers` renders and sends the answers to publishers; `PubAcks` makes the acks of a whole command at once.

`Backlog` bounds the proposals of a stream's leader that are not applied yet. A publisher's ack waits for all proposals
before it, so time bounds them, not size: the window is the amount applied within `TARGET_SECONDS`, learned from the
duration of recent proposals. While it is full the valve is closed, and publishers wait (`protocol.bus`). The time that
a proposal takes with almost nothing before it (a slow disk, a far majority) does not count.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, Protocol

from jetcluster import errors, native
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
        self.stream = start + b","
        """The beginning of each of them, by which `protocol.bus.Bus.told` knows the stream."""
        self._head = start + b',"seq":'
        start = start.replace(b"%", b"%%") + b',"seq":%d'
        self._stored = start + b"}"
        self._batch = start + b',"batch":%b,"count":%d}'
        self._batch_duplicate = start + b',"duplicate": true,"batch":%b,"count":%d}'
        self._counted = start + b',"val":"%b"}'
        self._duplicate = start + b',"duplicate": true}'  # with the blank, as in nats-server
        self._error_end = b"," + name + b',"seq":0}'

    def render(self, result: PublishResult, replies: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """(reply subject, ack) of every message with a reply subject; `replies[i]` belongs to message `i`."""
        assert len(replies) == result.count, (len(replies), result.count)
        stored = self._stored
        if result.verdicts is None:
            if native.stored_acks is not None and isinstance(replies, list):
                return native.stored_acks(self._head, result.first_seq, replies)
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
        """PubAck of a fast-ingest batch of one message that is a duplicate."""
        return self._batch_duplicate % (seq, _quoted(batch_id.decode("utf-8", "replace")), size)

    def error(self, error: ApiError) -> bytes:
        """`{"error":{...},"stream":"S","seq":0}`, without the domain, as in nats-server."""
        text = json.dumps(error.to_dict(), separators=(",", ":"), ensure_ascii=False)
        return b'{"error":' + text.encode("utf-8", "replace") + self._error_end


def flow_ack(seq: int, messages: int) -> bytes:
    """Says that a fast-ingest batch is settled up to `seq`, and that the next ack follows after `messages` more."""
    return b'{"type":"ack","seq":%d,"msgs":%d}' % (seq, messages)


def flow_gap(first: int, seq: int) -> bytes:
    """Says that messages `first` to `seq - 1` are missing."""
    return b'{"type":"gap","last_seq":%d,"seq":%d}' % (first, seq)


def flow_error(seq: int, error: ApiError) -> bytes:
    """Says that message `seq` was refused."""
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
"""Reply subjects of deliveries: an empty message there would acknowledge a delivery that came here as a publish."""


class RefusedError(RaftError):
    """There is no room for the command to propose; the publisher gets `error`."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error
        self.blame, self.retriable = error.blame, error.retriable


class Publisher(Protocol):
    """The part of a `Bus` that answers publishers."""

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int: ...

    def publish_many(self, messages: Sequence[tuple[bytes, bytes]]) -> None: ...


class Answers:
    """Sends the answers of one stream."""

    def __init__(self, bus: Publisher, acks: PubAcks, *, no_ack: bool = False) -> None:
        self.bus = bus
        self.acks = acks
        self.no_ack = no_ack
        """`no_ack` of the stream's configuration; set it when that changes."""
        self.refused = 0
        """Messages refused since the start, for monitoring."""

    def note(self, reply: bytes) -> None:
        """Sends the empty answer to a message of an incomplete atomic batch."""
        if reply and not self.no_ack and not reply.startswith(_ACKS):
            self.bus.publish(reply)

    def refuse(self, replies: Sequence[bytes], error: ApiError) -> None:
        self._refuse(replies, self.acks.error(error), b"")

    def too_many(self, replies: Sequence[bytes]) -> None:
        self._refuse(replies, self.acks.error(_TOO_MANY), TOO_MANY_REQUESTS)

    def not_proposed(self, replies: Sequence[bytes], error: RaftError) -> None:
        """Answers messages that could not be proposed; `ingest` has the answers by reason."""
        if isinstance(error, LeavingError):
            self._refuse(replies, b"", NO_RESPONDERS)
        elif isinstance(error, NotLeaderError):
            # No answer: the publisher's node may have sent the message to the next leader, too.
            self.refused += len(replies)
        elif isinstance(error, BackpressureError):
            self.too_many(replies)
        else:
            self.refuse(replies, self.error_of(error) or _FAILED)

    @staticmethod
    def error_of(error: RaftError) -> ApiError | None:
        """The error that a publisher gets; None when it gets no error text."""
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


MAX_PENDING_BYTES: Final = 128 << 20
MAX_PENDING_MESSAGES: Final = 100_000
"""Limits of unapplied proposals: nats-server's max_buffered_size and max_buffered_msgs."""

TARGET_SECONDS: Final = 0.1
"""Time that a proposal may wait for those before it."""
MESSAGE_WEIGHT: Final = 512
"""Weight of a message besides its bytes."""
FIRST_WINDOW_BYTES: Final = 1 << 20
MIN_WINDOW_BYTES: Final = 512 << 10
MAX_WINDOW_BYTES: Final = 4 << 20
"""The first window, and its limits: the bytes in the window also delay heartbeats and `Valve` notices on the links."""
NEAR_SECONDS: Final = 0.02
"""`Backlog._base` up to which MAX_WINDOW_BYTES holds; above (a far majority, a slow disk) it grows in proportion."""
MAX_BASE_SECONDS: Final = 1.0


class Backlog:
    """Proposals that are not applied yet."""

    def __init__(
        self, max_messages: int = MAX_PENDING_MESSAGES, max_bytes: int = MAX_PENDING_BYTES,
        valve_changed: Callable[[bool], None] | None = None,
    ) -> None:  # fmt: skip
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.messages = 0
        self.bytes = 0
        self.window = FIRST_WINDOW_BYTES
        self.valve = Valve(valve_changed)
        self._base = 0.0
        """Seconds that a proposal takes with almost nothing before it."""
        self.full = False
        """The limits are reached."""

    @property
    def weight(self) -> int:
        return self.bytes + self.messages * MESSAGE_WEIGHT

    def add(self, messages: int, size: int) -> int:
        """Adds a proposal; returns the weight of all that wait."""
        self.messages += messages
        self.bytes += size
        self.full = self.messages >= self.max_messages or self.bytes >= self.max_bytes
        weight = self.bytes + self.messages * MESSAGE_WEIGHT
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
        """Removes a proposal applied `seconds` after it was made, at the `weight` that `add` returned."""
        if weight >= self.window >> 1:
            queued = seconds - self._base
            if queued > TARGET_SECONDS:
                self.window = max(MIN_WINDOW_BYTES, int(weight * TARGET_SECONDS / queued))
            else:
                most = (
                    MAX_WINDOW_BYTES
                    if self._base <= NEAR_SECONDS
                    else int(MAX_WINDOW_BYTES * self._base / NEAR_SECONDS)
                )
                self.window = min(most, self.window + (size >> 4))
        elif weight < MIN_WINDOW_BYTES:
            news = min(seconds, MAX_BASE_SECONDS) - self._base
            self._base += news / 2 if news < 0 else news / 64
        self.messages -= messages
        self.bytes -= size
        if self.full or self.valve.closed:
            self.remove(0, 0)
