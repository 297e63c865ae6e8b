"""The loads of `jetcluster bench`, on the blocking client of the wheel: each runs for a time and returns a
`LoadResult`.

One thread writes and reads, so a rate is bounded by this client too (about 5 us per publish); the pages of figures are
measured with the client of the repository's `bench/`. What is refused, or not stored, ends a load with LoadError.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from jetcluster.cli.bench_result import CpuWatch, LoadResult
from jetcluster.errors import JetclusterError
from jetcluster.spark.connection import Connection
from jetcluster.spark.reply import Reply, make_reply

STALL = 30.0
"""Seconds without one answer after which a load gives up."""
AHEAD = 1 << 20
"""Bytes of core messages that are published and not yet received."""
STRIDE = 7919
"""A prime: reads are spread over a stream instead of walking one block."""
ATOMIC_BATCH = 1000
FLOW = 500
"""Messages per ack that a fast batch asks for."""
ACKS_AHEAD = 2
"""Acks of a fast batch that may be missing while it sends."""


class LoadError(JetclusterError):
    """A server answered with an error, or does not have what it acked."""


class _Window:
    """At most `size` requests without their answer on one connection, `limit` in all. `send` sends one of them and
    returns the number that `Connection.acks` knows it by."""

    def __init__(self, connection: Connection, size: int, send: Callable[[int], int], limit: float) -> None:
        self.latencies_ms: list[float] = []
        self.sent = 0
        self._connection = connection
        self._size = size
        self._send = send
        self._limit = limit
        self._begun: dict[int, float] = {}

    @property
    def is_full(self) -> bool:
        return self.sent >= self._limit

    def fill(self) -> None:
        now = time.perf_counter()
        while len(self._begun) < self._size and not self.is_full:
            self._begun[self._send(self.sent)] = now
            self.sent += 1

    def take(self, down_to: int) -> None:
        """Waits until no more than `down_to` answers are missing. Raises LoadError."""
        for number, reply in self._connection.acks(down_to, STALL):
            _check(reply)
            self.latencies_ms.append((time.perf_counter() - self._begun.pop(number)) * 1e3)

    def take_some(self) -> None:
        self.take(max(0, len(self._begun) - 1))


def _check(reply: Reply) -> None:
    if reply.status >= 400 or reply.data.startswith(b'{"error"') or b',"error":{' in reply.data:
        raise LoadError(f"error answer: {reply.status or ''} {reply.description or reply.data[:300].decode()}")


def payload_of(size: int) -> bytes:
    return os.urandom(size // 2 + 1).hex().encode()[:size]


def run_windows(
    name: str, windows: Sequence[_Window], seconds: float, pids: dict[str, int], messages_each: int = 1
) -> LoadResult:
    """Keeps all of them full for `seconds`, or until their limit. Raises LoadError, RequestTimeoutError."""
    cpu = CpuWatch(pids)
    start = time.perf_counter()
    while time.perf_counter() < start + seconds and not all(window.is_full for window in windows):
        for window in windows:
            window.fill()
            window.take_some()
    for window in windows:
        window.take(0)
    latencies = [ms for window in windows for ms in window.latencies_ms]
    return LoadResult(name, len(latencies) * messages_each, time.perf_counter() - start, latencies, cpu.read())


def publish(
    connection: Connection, subject: str, size: int, window: int, seconds: float, pids: dict[str, int],
    limit: float = float("inf"),
) -> LoadResult:  # fmt: skip
    """`window` messages without their ack at any time; 1 is a synchronous publisher. `limit`: messages in all."""
    encoded, body = subject.encode(), payload_of(size)
    load = _Window(connection, window, lambda _: connection.publish_acked(encoded, body), limit)
    return run_windows(f"js-pub window={window}", [load], seconds, pids)


def direct_get(
    connections: Sequence[Connection], stream: str, last: int, window: int, seconds: float, pids: dict[str, int]
) -> LoadResult:
    """Direct Gets of the messages 1 to `last`, `window` of them in flight in all, spread over the connections."""
    subject = b"$JS.API.DIRECT.GET.%b" % stream.encode()

    def load(at: int, connection: Connection) -> _Window:
        def send(n: int) -> int:
            return connection.publish_acked(subject, b'{"seq":%d}' % (1 + (n * STRIDE + at) % last))

        share = window // len(connections) + (at < window % len(connections))
        return _Window(connection, share, send, float("inf") if share else 0)

    loads = [load(at, connection) for at, connection in enumerate(connections)]
    return run_windows(f"direct-get window={window}", loads, seconds, pids)


def atomic_publish(
    connection: Connection, subject: str, size: int, seconds: float, pids: dict[str, int], window: int = 4
) -> LoadResult:
    """Atomic batches (ADR-50), `window` commits without their ack; latencies are those of whole batches."""
    encoded, body = subject.encode(), payload_of(size)

    def send(n: int) -> int:
        head = b"NATS/1.0\r\nNats-Batch-Id: %d\r\nNats-Batch-Sequence: " % n
        for sequence in range(1, ATOMIC_BATCH):
            connection.publish(encoded, body, b"%b%d\r\n\r\n" % (head, sequence))
        return connection.publish_acked(encoded, body, b"%b%d\r\nNats-Batch-Commit: 1\r\n\r\n" % (head, ATOMIC_BATCH))

    load = _Window(connection, window, send, float("inf"))
    return run_windows(f"js-batch {ATOMIC_BATCH} window={window}", [load], seconds, pids, ATOMIC_BATCH)


class _FastBatch:
    """One fast batch (ADR-50) without gaps. `sent` is its last message, `acked` the last acknowledged one."""

    def __init__(self, connection: Connection, subject: str, body: bytes) -> None:
        self.sent = self.acked = self.per_ack = self.stored = 0
        self.latencies_ms: list[float] = []
        self._connection = connection
        self._subject = subject.encode()
        self._body = body
        self._stem = f"_INBOX.{os.urandom(8).hex()}.{FLOW}.fail"
        self._answers = connection.subscribe(f"{self._stem}.>", STALL)
        self._begun: list[tuple[int, float]] = []
        """(last message, when) of what was sent together and is not acknowledged."""

    @property
    def room(self) -> int:
        """Messages that may be sent now; the first one asks how many."""
        return self.acked + self.per_ack * ACKS_AHEAD - self.sent if self.sent else 1

    def send(self, count: int) -> None:
        for _ in range(count):
            self.sent += 1
            self._put(self.sent, 0 if self.sent == 1 else 1, self._body)
        self._begun.append((self.sent, time.perf_counter()))

    def finish(self) -> None:
        """Ends the batch. Raises LoadError when not all of it is stored."""
        self._put(self.sent + 1, 3, b"")
        while not self.stored:
            self.take()
        if self.stored != self.sent:
            raise LoadError(f"fast batch: {self.stored} of {self.sent} messages are stored")

    def take(self) -> None:
        """Waits for answers and takes them. Raises LoadError."""
        if not self._answers.heads:
            self._connection.read_more(time.monotonic() + STALL)
        for head, data in self._answers.frames():
            reply = make_reply(head, data)
            answer = {} if reply.status else reply.json()
            if answer.get("type") == "ack":
                self.acked, self.per_ack = answer["seq"], answer["msgs"]
                while self._begun and self._begun[0][0] <= self.acked:
                    self.latencies_ms.append((time.perf_counter() - self._begun.pop(0)[1]) * 1e3)
            elif "batch" in answer:
                self.stored = answer["count"]
            else:
                raise LoadError(f"fast batch: {data.decode(errors='replace') or f'status {reply.status}'}")

    def _put(self, sequence: int, operation: int, body: bytes) -> None:
        reply = f"{self._stem}.{sequence}.{operation}.$FI".encode()
        self._connection.publish(self._subject, body, reply=reply)


def fast_publish(connection: Connection, subject: str, size: int, seconds: float, pids: dict[str, int]) -> LoadResult:
    """One fast batch, as fast as the stream lets it; latencies are those of what was sent together."""
    batch = _FastBatch(connection, subject, payload_of(size))
    cpu = CpuWatch(pids)
    start = time.perf_counter()
    while time.perf_counter() < start + seconds:
        if batch.room > 0:
            batch.send(batch.room)
        else:
            batch.take()
    batch.finish()
    return LoadResult(f"js-fast flow={FLOW}", batch.sent, time.perf_counter() - start, batch.latencies_ms, cpu.read())


def core(
    publisher: Connection, subscriber: Connection, subject: str, size: int, count: int, pids: dict[str, int]
) -> LoadResult:
    """`count` core messages from the one to the other, `AHEAD` bytes between them at most."""
    body = payload_of(size)
    feed = subscriber.subscribe(subject, STALL)
    subscriber.flush()
    time.sleep(0.1)  # interest has to cross the routes when they are on two nodes
    ahead = max(1, AHEAD // size)
    cpu = CpuWatch(pids)
    start = time.perf_counter()
    sent = received = 0
    while received < count:
        for _ in range(min(ahead - (sent - received), count - sent)):
            publisher.publish(subject, body)
            sent += 1
        if sent == count:
            publisher.flush()
        if not feed.heads:
            subscriber.read_more(time.monotonic() + STALL)
        received += len(feed.frames())
    return LoadResult("core pub/sub", count, time.perf_counter() - start, [], cpu.read())


def create_streams(connection: Connection, names: Sequence[str], replicas: int) -> LoadResult:
    """Creates them one after the other, as an application does; leaves them there."""
    latencies = []
    cpu = CpuWatch({})
    start = time.perf_counter()
    for name in names:
        one = time.perf_counter()
        create_stream(connection, name, name.lower(), replicas)
        latencies.append((time.perf_counter() - one) * 1e3)
    return LoadResult(f"create R{replicas}", len(names), time.perf_counter() - start, latencies, cpu.read())


def create_stream(
    connection: Connection, name: str, subject: str, replicas: int, storage: str = "file", **more: object
) -> None:
    """Raises ApiError. `more` are further fields of its configuration."""
    config = {"name": name, "subjects": [subject], "num_replicas": replicas, "storage": storage, "allow_direct": True,
              "retention": "limits", "discard": "old", **more}  # fmt: skip
    connection.api(f"STREAM.CREATE.{name}", config)
