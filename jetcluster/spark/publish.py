"""Publishing many messages with acks under way, over the first server of the list that answers.

A message is done when its PubAck has come. After a lost connection, a change of leaders (503) or silence, everything
that has no ack is sent again, in the order in which it was sent first. With a message id that adds nothing as long as
the stream remembers ids; without one it may.
"""

from __future__ import annotations

import json
import time
from typing import Any, Final, NamedTuple

from jetcluster.errors import JetclusterError
from jetcluster.spark.connection import Connection
from jetcluster.spark.options import ServerOptions
from jetcluster.spark.reply import ConnectionLostError, Reply, RequestTimeoutError, api_error

ACK_SECONDS: Final = 5.0
"""Without any answer the server is taken for dead, and another one is asked."""
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
MAX_UNACKED_BYTES: Final = 16 << 20


class PublishError(JetclusterError):
    """The stream refused a message, or did not answer for too long."""


class Message(NamedTuple):
    subject: bytes
    headers: bytes
    """The block, b"" for none."""
    payload: bytes


class PubAck(NamedTuple):
    seq: int
    duplicate: bool
    error: str
    """Empty when it is stored."""
    err_code: int
    try_again: bool
    stream: str = ""


class ServerLink:
    """A connection to one of the servers, made when it is needed; `lost` leaves it, and the next use takes the next
    server."""

    def __init__(self, server: ServerOptions, first: int = 0) -> None:
        """`first`: number of the server to begin with."""
        self._server = server
        self._next = first
        self._connection: Connection | None = None
        self._others: tuple[str, ...] = ()
        """Servers that those we know told us of."""

    @property
    def connection(self) -> Connection:
        """Raises ConnectionLostError when no server answers, and what else `Connection` raises."""
        if self._connection is None:
            self._connection = self._server.connect(self._next, self._others)
            scheme = "tls" if self._connection.url.startswith("tls") else "nats"
            told = self._connection.info.get("connect_urls") or ()
            self._others = tuple(f"{scheme}://{address}" for address in told)
        return self._connection

    def lost(self) -> None:
        """Not with this server any more."""
        self._next += 1
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Patience:
    """A limit of time for something that fails: `pause` sleeps a little longer each time and raises at the end. The
    time begins with the first failure, as rows may be long in coming while nothing fails."""

    def __init__(self, seconds: float, what: str) -> None:
        self._seconds = seconds
        self._what = what
        self.rest()

    def rest(self) -> None:
        """Something worked."""
        self._deadline: float | None = None
        self._next = FIRST_PAUSE

    def pause(self, why: object) -> None:
        """Raises PublishError when the time is over."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        if now + self._next > self._deadline:
            raise PublishError(f"{self._what}: no success for {self._seconds:g} s: {why}")
        time.sleep(self._next)
        self._next = min(self._next * 2, LONGEST_PAUSE)


def read_ack(reply: Reply) -> PubAck:
    """The ack in a reply to a publish; a reply that is no PubAck is an error that may pass."""
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
    """Raises PublishError when the server would not take the message with this header block."""
    if len(headers) + len(message.payload) > limit:
        added = f" ({len(headers) - len(message.headers)} of them the sink's own)" if headers != message.headers else ""
        raise PublishError(
            f"{message.subject.decode(errors='replace')}: a payload of {len(message.payload)} bytes with "
            f"{len(headers)} of headers{added}; the server takes {limit} together (max_payload)"
        )


class _Sent(NamedTuple):
    message: Message
    at: float
    """When it was sent first, monotonic seconds."""


class WindowedPublisher:
    """Publishes to one stream with up to `window` messages without an ack. Not for several threads."""

    def __init__(
        self, link: ServerLink, stream: str, *, window: int, retry_seconds: float, safe_seconds: float | None = None
    ) -> None:
        """`safe_seconds`: a message may be sent once more up to that long after the first time (its id is known no
        longer then); None: always."""
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
        """Number -> message, in the order of sending."""
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
        """Takes acks until at most `down_to` messages wait for theirs; everything that failed is sent again first."""
        try:
            trouble = self._take(down_to)
            if trouble:  # the others first: what is sent again must not overtake them a second time
                self._take(0)
        except (ConnectionLostError, RequestTimeoutError) as error:
            trouble = str(error)
            self._link.lost()
        if trouble:
            self._recover(trouble)

    def _take(self, down_to: int) -> str:
        """Settles the acks that come; the last error that may pass, "" for none. Raises PublishError for others."""
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
        """Sends everything again that has no ack. Raises PublishError when that may add it a second time."""
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
