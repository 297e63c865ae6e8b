"""`Ingest`: collects what is published to a stream during one turn of the event loop into one command.

The router calls `on_message` for every message of a read; the first one of a turn schedules the flush for the end of
it. So batching adapts by itself: with one message in flight the command holds one message and leaves at once, under
load it holds whatever the sockets brought. Several commands may be in flight.

A message is acknowledged when its command was applied, never before. What could not be proposed is refused at once:

- not the leader (any more): the bare `503` of a subject without subscribers, which is what clients see of a stream
  without leader and what they retry on by themselves (streams.md 4.1);
- too much waiting, here or in the log: headers `NATS/1.0 429 Too Many Requests`, error 429/10167 (4.4);
- no space to log it: 503/10077, the code of a failed store, with the reason.

A command whose outcome is unknown (leadership lost in between) gets no answer: it may still be committed by the next
leader, so a refusal could be a lie and an ack as well. The client times out and retries, with Nats-Msg-Id safely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from jetcluster import errors
from jetcluster.clock import Clock
from jetcluster.errors import ApiError
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.bus import Bus, Origin
from jetcluster.raft.api import BackpressureError, NotLeaderError, RaftError, StorageFullError
from jetcluster.store.batch import Batch
from jetcluster.stream.acks import PubAcks
from jetcluster.stream.commands import encode_publish
from jetcluster.stream.results import PublishResult

BATCH_BYTES: Final = 256 << 10
BATCH_MESSAGES: Final = 4096
"""A command is proposed when either is reached, before the end of the turn."""
PENDING_BYTES: Final = 128 << 20
PENDING_MESSAGES: Final = 100_000
"""nats-server's max_buffered_size and max_buffered_msgs: more may not wait for being applied."""

NO_RESPONDERS: Final = b"NATS/1.0 503\r\n\r\n"
TOO_MANY_REQUESTS: Final = b"NATS/1.0 429 Too Many Requests\r\n\r\n"

_TOO_MANY: Final = errors.by_code(10167)
_FULL: Final = errors.by_code(10077, err="no space left on device")
_FAILED: Final = errors.by_code(10008)


class Ingest:
    """One per stream whose leader is here. `propose` is `RaftGroup.propose`, `call_soon` the loop's."""

    __slots__ = (
        "_acks",
        "_bus",
        "_call_soon",
        "_clock",
        "_early",
        "_headers",
        "_max_pending_bytes",
        "_max_pending_messages",
        "_open_bytes",
        "_payloads",
        "_pending",
        "_propose",
        "_replies",
        "_scheduled",
        "_subjects",
        "no_ack",
        "pending_bytes",
        "pending_messages",
        "refused",
    )

    def __init__(
        self,
        stream: str,
        propose: Callable[[bytes], int],
        bus: Bus,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], Any],
        *,
        domain: str | None = None,
        no_ack: bool = False,
        max_pending_bytes: int = PENDING_BYTES,
        max_pending_messages: int = PENDING_MESSAGES,
    ) -> None:
        self._propose = propose
        self._bus = bus
        self._clock = clock
        self._call_soon = call_soon
        self._acks = PubAcks(stream, domain)
        self._max_pending_bytes = max_pending_bytes
        self._max_pending_messages = max_pending_messages
        self._scheduled = False
        self._subjects: list[bytes] = []
        self._headers: list[bytes] = []
        """Empty as long as no message of the open batch has headers."""
        self._payloads: list[bytes] = []
        self._replies: list[bytes] = []
        self._open_bytes = 0
        self._pending: dict[int, tuple[list[bytes], int]] = {}
        """Log index -> reply subjects (b"" for none), bytes."""
        self._early: dict[int, PublishResult] = {}
        """A group of one without fsync may apply a command before `propose` has returned its index: the last
        result that nobody waited for."""
        self.no_ack = no_ack
        """Of the stream's configuration; set it when that changes."""
        self.pending_messages = 0
        self.pending_bytes = 0
        self.refused = 0
        """Messages refused since the start (monitoring)."""

    def on_message(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        """A published message: the `Callback` of the stream's subscriptions. Never blocks, never raises."""
        subjects = self._subjects
        if not subjects and not self._open():
            self.refused += 1
            self._refuse((reply,), _TOO_MANY, TOO_MANY_REQUESTS)
            return
        if headers or self._headers:
            self._add_headers(headers)
        subjects.append(subject)
        self._payloads.append(payload)
        self._replies.append(reply)
        self._open_bytes = size = self._open_bytes + len(subject) + len(headers) + len(payload)
        if size >= BATCH_BYTES or len(subjects) >= BATCH_MESSAGES:
            self.flush()

    def flush(self) -> None:
        """Proposes the open batch, if any."""
        replies = self._replies
        if not replies:
            return
        command = encode_publish(self._clock.time_ns(), Batch.encode(self._subjects, self._headers, self._payloads))
        self._subjects, self._headers, self._payloads, self._replies = [], [], [], []
        self._open_bytes = 0
        self._early.clear()
        try:
            index = self._propose(command)
        except RaftError as error:
            self.refused += len(replies)
            self._refuse_batch(replies, error)
            return
        self._pending[index] = (replies, len(command))
        self.pending_messages += len(replies)
        self.pending_bytes += len(command)
        early = self._early.pop(index, None)
        if early is not None:
            self.on_applied(index, early)

    def on_applied(self, index: int, result: PublishResult) -> None:
        """The PUBLISH command at `index` was applied here; acks it if this Ingest proposed it."""
        waiting = self._pending.pop(index, None)
        if waiting is None:
            self._early.clear()
            self._early[index] = result
            return
        replies, size = waiting
        self.pending_messages -= len(replies)
        self.pending_bytes -= size
        if not self.no_ack and any(replies):
            self._bus.publish_many(self._acks.render(result, replies))

    def on_dropped(self, first_index: int) -> None:
        """Leadership was lost: what was proposed at `first_index` and above stays without an answer."""
        for index in [index for index in self._pending if index >= first_index]:
            replies, size = self._pending.pop(index)
            self.pending_messages -= len(replies)
            self.pending_bytes -= size

    def _open(self) -> bool:
        """First message of a batch: is there room, and is the flush scheduled? Bounds are looked at per batch."""
        if self.pending_messages >= self._max_pending_messages or self.pending_bytes >= self._max_pending_bytes:
            return False
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._end_of_turn)
        return True

    def _end_of_turn(self) -> None:
        self._scheduled = False
        self.flush()

    def _add_headers(self, headers: bytes) -> None:
        """Stored header blocks have no status text and no Nats-Request-Info (streams.md 4.2)."""
        if headers:
            if not headers.startswith(b"NATS/1.0\r\n"):
                headers = header_block.without_status(headers)
            if b"\nNats-Request-Info:" in headers:
                headers = header_block.remove(headers, b"Nats-Request-Info")
        missing = len(self._subjects) - len(self._headers)
        if missing:
            self._headers += [b""] * missing
        self._headers.append(headers)

    def _refuse_batch(self, replies: Sequence[bytes], error: RaftError) -> None:
        if isinstance(error, NotLeaderError):
            self._refuse(replies, None, NO_RESPONDERS)
        elif isinstance(error, BackpressureError):
            self._refuse(replies, _TOO_MANY, TOO_MANY_REQUESTS)
        elif isinstance(error, StorageFullError):
            self._refuse(replies, _FULL, b"")
        else:
            self._refuse(replies, _FAILED, b"")

    def _refuse(self, replies: Sequence[bytes], error: ApiError | None, headers: bytes) -> None:
        if self.no_ack:
            return
        body = self._acks.error(error) if error is not None else b""
        for reply in replies:
            if reply:
                self._bus.publish(reply, body, b"", headers)
