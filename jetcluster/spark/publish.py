"""Publishing of many messages with acks in flight, over the first server of the list that answers.

A message is done when its PubAck has arrived. After a lost connection, a change of leader (503) or a timeout, every
message without an ack is sent again, in the original order. With a message id that stores no duplicate as long as the
stream remembers the id; without one it may.
"""

from __future__ import annotations

import json
import time
from typing import Any, Final, NamedTuple

from jetcluster.client.connection import Connection
from jetcluster.client.reply import ConnectionLostError, Reply, RequestTimeoutError, api_error
from jetcluster.client.servers import ServerOptions
from jetcluster.errors import JetclusterError

ACK_SECONDS: Final = 5.0
"""After this time without any answer the server counts as dead, and another one is used."""
FIRST_PAUSE_SECONDS: Final = 0.05
MAX_PAUSE_SECONDS: Final = 1.0
MAX_UNACKED_BYTES: Final = 16 << 20


class PublishError(JetclusterError):
    """The stream refused a message, or did not answer for too long."""


class Message(NamedTuple):
    """A message to publish."""

    subject: bytes
    headers: bytes
    """The header block, b"" for none."""
    payload: bytes


class PubAck(NamedTuple):
    """A parsed reply to a publish, errors included."""

    seq: int
    duplicate: bool
    error: str
    """Empty when the message is stored."""
    err_code: int
    try_again: bool
    stream: str = ""


class ServerLink:
    """A connection to one of the servers, opened on use; after `lost`, the next use opens one to the next server."""

    def __init__(self, server: ServerOptions, first: int = 0) -> None:
        """`first` is the index of the server to begin with."""
        self._server = server
        self._next = first
        self._connection: Connection | None = None
        self._others: tuple[str, ...] = ()
        """Servers learnt from `connect_urls`."""

    @property
    def connection(self) -> Connection:
        """Raises what `Connection` raises."""
        if self._connection is None:
            self._connection = self._server.connect(self._next, self._others)
            scheme = "tls" if self._connection.url.startswith("tls") else "nats"
            told = self._connection.info.get("connect_urls") or ()
            self._others = tuple(f"{scheme}://{address}" for address in told)
        return self._connection

    def lost(self) -> None:
        """Closes the connection; the next one is to the next server."""
        self._next += 1
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Patience:
    """A time limit for retries: `pause` sleeps a little longer each time and raises when the time is over. The time
    begins with the first failure, not before, as the next row may take long to arrive."""

    def __init__(self, seconds: float, what: str) -> None:
        self._seconds = seconds
        self._what = what
        self.rest()

    def rest(self) -> None:
        """Resets the limit after a success."""
        self._deadline: float | None = None
        self._next = FIRST_PAUSE_SECONDS

    def pause(self, why: object) -> None:
        """Sleeps before the next attempt. Raises PublishError when the time is over."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        if now + self._next > self._deadline:
            raise PublishError(f"{self._what}: no success for {self._seconds:g} s: {why}")
        time.sleep(self._next)
        self._next = min(self._next * 2, MAX_PAUSE_SECONDS)


def read_ack(reply: Reply) -> PubAck:
    """Returns the ack in a reply to a publish. A status or an empty reply is an error that may be retried."""
    if reply.status or not reply.data:
        return PubAck(0, False, f"{reply.status} {reply.description}".strip() or "no PubAck", 0, True)
    try:
        found: dict[str, Any] = json.loads(reply.data)
    except ValueError:
        return PubAck(0, False, f"no PubAck: {reply.data[:80]!r}", 0, False)
    if found.get("error"):
        error = api_error(found["error"])
        return PubAck(0, False, str(error), error.err_code, error.retriable)
    return PubAck(int(found["seq"]), bool(found.get("duplicate")), "", 0, False, str(found["stream"]))


def check_size(message: Message, headers: bytes, limit: int) -> None:
    """Raises PublishError when the message with this header block exceeds the server's max_payload (`limit`, bytes)."""
    if len(headers) + len(message.payload) > limit:
        added = f" ({len(headers) - len(message.headers)} of them the sink's own)" if headers != message.headers else ""
        raise PublishError(
            f"{message.subject.decode(errors='replace')}: a payload of {len(message.payload)} bytes with "
            f"{len(headers)} of headers{added}; the server takes {limit} together (max_payload)"
        )


class _Sent(NamedTuple):
    message: Message
    at: float
    """When it was first sent, monotonic seconds."""


class WindowedPublisher:
    """Publishes to one stream with up to `window` messages without an ack. Not thread-safe."""

    def __init__(
        self, link: ServerLink, stream: str, *, window: int, retry_seconds: float, safe_seconds: float | None = None
    ) -> None:
        """A message may be sent again within `safe_seconds`, until the stream may forget its id; None: always."""
        self.stored = 0
        self.duplicates = 0
        self.sent_again = 0
        self.last_seq = 0
        self._link = link
        self._stream = stream
        self._window = window
        self._safe_seconds = safe_seconds
        self._patience = Patience(retry_seconds, f"publishing to {stream}")
        self._pending: dict[int, _Sent] = {}
        """Number of the publish -> message, in the order of sending."""
        self._pending_bytes = 0

    def publish(self, message: Message) -> None:
        """Raises PublishError, ServerError."""
        size = sum(map(len, message))
        try:
            connection = self._link.connection
            check_size(message, message.headers, connection.max_payload)
            number = connection.publish_acked(message.subject, message.payload, message.headers)
        except ConnectionLostError as error:
            self._link.lost()
            self._recover(error)
            return self.publish(message)
        self._pending[number] = _Sent(message, time.monotonic())
        self._pending_bytes += size
        if len(self._pending) >= self._window or self._pending_bytes >= MAX_UNACKED_BYTES:
            self._collect(len(self._pending) // 2)
        return None

    def finish(self) -> None:
        """Returns when every message has its ack. Raises as `publish`."""
        while self._pending:
            self._collect(0)

    def _collect(self, down_to: int) -> None:
        """Takes acks until at most `down_to` are missing. After a failure it sends all unacked messages again."""
        try:
            trouble = self._take(down_to)
            if trouble:  # collect the other acks first: messages sent again must not overtake theirs a second time
                self._take(0)
        except (ConnectionLostError, RequestTimeoutError) as error:
            trouble = str(error)
            self._link.lost()
        if trouble:
            self._recover(trouble)

    def _take(self, down_to: int) -> str:
        """Settles acks and returns the last retriable error, "" for none. Raises PublishError for other errors."""
        trouble = ""
        for number, reply in self._link.connection.acks(down_to, ACK_SECONDS):
            ack = read_ack(reply)
            if ack.try_again:
                trouble = ack.error
                continue
            sent = self._pending.pop(number)
            self._pending_bytes -= sum(map(len, sent.message))
            if ack.error:
                raise PublishError(f"{self._stream} refused a message on {sent.message.subject.decode()}: {ack.error}")
            if ack.stream != self._stream:
                raise PublishError(f"{sent.message.subject.decode()} went to stream {ack.stream}, not {self._stream}")
            self._patience.rest()
            self.stored += not ack.duplicate
            self.duplicates += ack.duplicate
            self.last_seq = max(self.last_seq, ack.seq)
        return trouble

    def _recover(self, why: object) -> None:
        """Sends every message without an ack again. Raises PublishError when that could store one twice."""
        while True:
            self._patience.pause(why)
            waiting = list(self._pending.values())
            now = time.monotonic()
            if self._safe_seconds is not None and waiting and now - waiting[0].at > self._safe_seconds:
                raise PublishError(
                    f"{self._stream}: no ack for {now - waiting[0].at:.0f} s, and the stream remembers message ids for "
                    f"{self._safe_seconds:g} s: sending again could store it twice ({why})"
                )
            try:
                connection = self._link.connection
                numbers = [
                    connection.publish_acked(one.message.subject, one.message.payload, one.message.headers)
                    for one in waiting
                ]
            except ConnectionLostError as error:
                self._link.lost()
                why = error
                continue
            self.sent_again += len(waiting)
            self._pending = dict(zip(numbers, waiting, strict=True))
            return
