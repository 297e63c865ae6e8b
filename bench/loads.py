"""The loads without consumers: publishes, Direct Gets and MSG.GETs, core messages, creation of streams.

Each one runs for a time or a count and returns a `LoadResult`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence

from bench.result import CLIENT, CpuWatch, LoadResult
from bench.window import Window, cycle, open_wires, run_windows
from bench.wire import READ_SIZE, Wire
from testkit.client import Client, ClientError, create_stream, render_publish

MARK = b"~END"
"""Every benched payload ends with it."""
SIGN = MARK[:1]
"""A byte that nothing else of a message has: counting it counts messages in a read, wherever that is cut, and one byte
is counted at the speed of memory."""
ACK = b'"seq":'
PIECE = 1 << 16
"""Bytes per write of a core publisher."""
_RENDERED = 10_000
"""Requests that are rendered before a load begins."""
_STRIDE = 7919
"""A prime: spreads reads over a stream instead of walking one block."""


def payload_of(size: int) -> bytes:
    return os.urandom(size // 2).hex().encode()[: max(0, size - len(MARK))].ljust(max(0, size - len(MARK)), b"x") + MARK


async def js_publish(
    url: str, subject: str, *, size: int = 128, window: int = 500, seconds: float = 3.0, count: int | None = None,
    pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """One publisher, `window` messages without their ack at any time (1 = synchronous). Every ack is counted."""
    return await publishers([(url, subject)], size=size, window=window, seconds=seconds, count=count, pids=pids)


async def publishers(
    targets: Sequence[tuple[str, str]], *, size: int = 128, window: int = 500, seconds: float = 3.0,
    count: int | None = None, pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """One publisher for each URL and subject, all at once, `window` in flight and `count` messages for each."""
    body = payload_of(size)
    wires = await open_wires([url for url, _ in targets])
    windows = []
    for wire, (_, subject) in zip(wires, targets, strict=True):
        frame = render_publish(subject, body, wire.inbox + b".a")
        windows.append(Window(wire, window, ACK, cycle([frame]), count))
    return await run_windows(
        f"js-pub window={window}", windows, seconds=seconds if count is None else None, pids=pids
    )  # fmt: skip


async def direct_get(
    urls: Sequence[str], stream: str, first: int, last: int, *, window: int = 1, seconds: float = 3.0,
    pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """Direct Get by sequence in `first..last`, `window` requests in flight in all, spread evenly over `urls`.

    The stream's payloads must end with `MARK` (what `js_publish` writes does).
    """
    span = last - first + 1
    bodies = [b'{"seq":%d}' % (first + n * _STRIDE % span) for n in range(_RENDERED)]
    return await _gets("direct-get", urls, f"$JS.API.DIRECT.GET.{stream}", bodies, window, seconds, pids)


async def direct_get_last(
    urls: Sequence[str], stream: str, subjects: Sequence[str], *, window: int = 1, seconds: float = 3.0,
    pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """Direct Get of the last message of each subject in turn, otherwise as `direct_get`."""
    bodies = [b'{"last_by_subj":"%b"}' % subjects[n * _STRIDE % len(subjects)].encode() for n in range(_RENDERED)]
    return await _gets("direct-get last", urls, f"$JS.API.DIRECT.GET.{stream}", bodies, window, seconds, pids)


async def msg_get(
    url: str, stream: str, last: int, *, window: int = 1, seconds: float = 3.0, pids: dict[str, int] | None = None
) -> LoadResult:
    """STREAM.MSG.GET by sequence in 1..`last`, `window` requests in flight."""
    bodies = [b'{"seq":%d}' % (1 + n * _STRIDE % last) for n in range(_RENDERED)]
    subject = f"$JS.API.STREAM.MSG.GET.{stream}"
    return await _gets("msg-get", [url], subject, bodies, window, seconds, pids, b'"message":')


async def _gets(
    name: str, urls: Sequence[str], subject: str, bodies: Sequence[bytes], window: int, seconds: float,
    pids: dict[str, int] | None, mark: bytes = SIGN,
) -> LoadResult:  # fmt: skip
    windows = []
    wires = await open_wires(urls[:window])
    for at, wire in enumerate(wires):
        share = window // len(wires) + (at < window % len(wires))
        frames = [render_publish(subject, body, wire.inbox + b".a") for body in bodies[at:]]
        windows.append(Window(wire, share, mark, cycle(frames)))
    return await run_windows(f"{name} window={window}", windows, seconds=seconds, pids=pids)


async def core_pubsub(
    pub_url: str, sub_url: str, subject: str, *, size: int = 128, count: int | None = None, seconds: float = 3.0,
    pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """One core publisher, one subscriber, a thread for each; ends when the subscriber has all of `count` messages
    (None: of what was published in `seconds`). Raises ClientError."""
    return await asyncio.to_thread(_core, pub_url, sub_url, subject, size, count, seconds, pids or {})


def _core(
    pub_url: str, sub_url: str, subject: str, size: int, count: int | None, seconds: float, pids: dict[str, int]
) -> LoadResult:
    with Wire(pub_url) as pub, Wire(sub_url) as sub:
        sub.send(b"SUB %b 2\r\n" % subject.encode())
        sub.flush()
        time.sleep(0.3)  # interest has to cross the routes when the URLs are two nodes
        frame = b"PUB %b %d\r\n%b\r\n" % (subject.encode(), size, payload_of(size))
        each = len(b"MSG %b 2 %d\r\n" % (subject.encode(), size)) + size + 2
        reader = _Reader(sub, each)
        cpu = CpuWatch(pids)
        start = time.perf_counter()
        reader.start()
        sent, block = 0, max(1, PIECE // len(frame))
        piece = frame * block
        while sent < count if count is not None else time.perf_counter() - start < seconds:
            some = block if count is None else min(block, count - sent)
            pub.send(piece if some == block else frame * some)
            sent += some
        pub.flush()  # all of it has left for the subscriber's node
        reader.wait(sent)
        result = LoadResult("core pub/sub", sent, time.perf_counter() - start, [], cpu.read())
        result.cpu[CLIENT] = max(result.cpu[CLIENT], reader.used)
        return result


class _Reader(threading.Thread):
    """Counts the bytes that a subscriber is sent: all messages have one length."""

    def __init__(self, wire: Wire, each: int) -> None:
        super().__init__(daemon=True)
        self._socket = wire.socket
        self._each = each
        self._got = 0
        self._expected: int | None = None
        self._error = ""
        self.used = 0.0
        """CPU seconds of this thread."""

    def run(self) -> None:
        buffer = bytearray(4 * READ_SIZE)
        try:
            while self._expected is None or self._got < self._expected:
                if not (some := self._socket.recv_into(buffer)):
                    self._error = "connection lost"
                    return
                self._got += some
                self.used = time.thread_time()
        except OSError as error:
            self._error = str(error)

    def wait(self, messages: int) -> None:
        """Returns when so many have come. Raises ClientError."""
        self._expected = messages * self._each
        if self._got >= self._expected:
            return  # its thread may wait for bytes that never come
        self.join()
        if self._error:
            raise ClientError(f"{self._got // self._each} of {messages} messages came: {self._error}")


async def create_streams(
    url: str, count: int, replicas: int, prefix: str = "BENCH_C", *, pids: dict[str, int] | None = None
) -> LoadResult:
    """Creates `count` streams one after the other (the way an application does); leaves them there."""
    async with await Client.connect(url) as client:
        latencies = []
        cpu = CpuWatch(pids or {})
        start = time.perf_counter()
        for n in range(count):
            one = time.perf_counter()
            await create_stream(client, f"{prefix}{n}", [f"{prefix.lower()}.{n}"], replicas)
            latencies.append((time.perf_counter() - one) * 1e3)
        return LoadResult(f"create R{replicas}", count, time.perf_counter() - start, latencies, cpu.read())
