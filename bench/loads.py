"""The loads of the pages of figures: publish, Direct Get, core, create.

Each one runs for a time or a count and returns a `LoadResult`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence

from bench.result import CpuWatch, LoadResult
from testkit.client import Client, ClientError, create_stream, render_publish

MARK = b"~END"
"""Every benched payload ends with it, so that `MARK CRLF` counts whole messages in a read, wherever it is cut."""
_TROUBLE = (b'"error"', b"\r\nNATS/1.0 4", b"\r\nNATS/1.0 5", b"-ERR")
STALL = 30.0
"""Seconds without one answer after which a load gives up."""


def payload_of(size: int) -> bytes:
    return os.urandom(size // 2).hex().encode()[: max(0, size - len(MARK))].ljust(max(0, size - len(MARK)), b"x") + MARK


class _Window:
    """Keeps `window` requests in flight on one connection until `limit` or `stop_at`; counts answers in bulk."""

    def __init__(self, client: Client, window: int, mark: bytes, render: Callable[[int, int], bytes]) -> None:
        self.client = client
        self.window = window
        self.sent = 0
        self.answered = 0
        self.latencies_ms: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._mark = mark
        self._render = render
        self._samples: list[tuple[int, float]] = []
        self._sampled = 0
        self.stop_at = float("inf")
        self.limit = 1 << 62

    def start(self) -> None:
        self.client.bulk = self._take
        self._fill()

    def _fill(self) -> None:
        room = min(self.window - (self.sent - self.answered), self.limit - self.sent)
        if room <= 0:
            return
        # One timestamp per write: its last message is the sample, so a sample never flatters.
        self.client.write(self._render(self.sent, self.sent + room))
        self.sent += room
        self._samples.append((self.sent, time.perf_counter()))

    def _take(self, data: bytes) -> None:
        self.answered += data.count(self._mark)
        for sign in _TROUBLE:
            if (found := data.find(sign)) >= 0:
                self._fail(ClientError(f"error answer: {data[max(0, found - 80) : found + 220]!r}"))
                return
        now = time.perf_counter()
        samples, at = self._samples, self._sampled
        while at < len(samples) and samples[at][0] <= self.answered:
            self.latencies_ms.append((now - samples[at][1]) * 1e3)
            at += 1
        self._sampled = at
        if now < self.stop_at:
            self._fill()
        if self.answered >= self.sent:
            self._finish()

    def _finish(self) -> None:
        self.client.bulk = None
        if not self.done.done():
            self.done.set_result(None)

    def _fail(self, error: Exception) -> None:
        self.client.bulk = None
        if not self.done.done():
            self.done.set_exception(error)


async def _run_windows(windows: Sequence[_Window]) -> None:
    """Waits for all; raises ClientError when one stalls or its connection goes."""
    for window in windows:
        window.start()
    waiting = {w.done for w in windows} | {asyncio.ensure_future(w.client.closed.wait()) for w in windows}
    dones = {w.done for w in windows}
    progress = -1
    try:
        while not all(d.done() for d in dones):
            await asyncio.wait({w for w in waiting if not w.done()}, timeout=STALL, return_when="FIRST_COMPLETED")
            for window in windows:
                if window.client.closed.is_set() and not window.done.done():
                    raise window.client.error or ClientError("connection lost")
            if not any(d.done() for d in dones):
                answered = sum(w.answered for w in windows)
                if answered == progress:
                    raise ClientError(f"no answer for {STALL:.0f} s after {answered} answers")
                progress = answered
        for window in windows:
            window.done.result()
    finally:
        for extra in waiting - dones:
            extra.cancel()
        for window in windows:
            window.client.bulk = None


def _result(name: str, windows: Sequence[_Window], seconds: float, cpu: CpuWatch) -> LoadResult:
    latencies = [x for w in windows for x in w.latencies_ms]
    return LoadResult(name, sum(w.answered for w in windows), seconds, latencies, cpu.read())


async def js_publish(
    url: str, subject: str, *, size: int = 128, window: int = 500, seconds: float = 3.0, count: int | None = None,
    pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """One publisher, `window` messages without their ack at any time (1 = synchronous). Every ack is counted."""
    body = payload_of(size)
    async with await Client.connect(url) as client:
        head = b"PUB %b %b." % (subject.encode(), client.inbox)
        tail = b" %d\r\n%b\r\n" % (len(body), body)
        step = tail + head

        def render(first: int, last: int) -> bytes:
            return head + step.join([b"%d" % n for n in range(first, last)]) + tail

        load = _Window(client, window, b'"seq":', render)
        cpu = CpuWatch(pids or {})
        start = time.perf_counter()
        if count is None:
            load.stop_at = start + seconds
        else:
            load.limit = count
        await _run_windows([load])
        return _result(f"js-pub window={window}", [load], time.perf_counter() - start, cpu)


async def direct_get(
    urls: Sequence[str], stream: str, first: int, last: int, *, window: int = 1, seconds: float = 3.0,
    pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """Direct Get by sequence in `first..last`, `window` requests in flight in all, spread evenly over `urls`.

    The stream's payloads must end with `MARK` (what `js_publish` writes does).
    """
    clients = [await Client.connect(url) for url in urls]
    try:
        span = last - first + 1
        loads = []
        for at, client in enumerate(clients):
            share = window // len(clients) + (at < window % len(clients))
            if share:
                loads.append(_Window(client, share, MARK + b"\r\n", _get_renderer(client, stream, first, span, at)))
        cpu = CpuWatch(pids or {})
        start = time.perf_counter()
        for load in loads:
            load.stop_at = start + seconds
        await _run_windows(loads)
        return _result(f"direct-get window={window}", loads, time.perf_counter() - start, cpu)
    finally:
        for client in clients:
            client.close()


def _get_renderer(client: Client, stream: str, first: int, span: int, offset: int) -> Callable[[int, int], bytes]:
    head = b"PUB $JS.API.DIRECT.GET.%b %b." % (stream.encode(), client.inbox)
    stride = 7919  # a prime: spreads the reads over the stream instead of walking one block

    def render(lo: int, hi: int) -> bytes:
        parts = []
        for n in range(lo, hi):
            body = b'{"seq":%d}' % (first + (n * stride + offset) % span)
            parts.append(b"%b%d %d\r\n%b\r\n" % (head, n, len(body), body))
        return b"".join(parts)

    return render


async def core_pubsub(
    pub_url: str,
    sub_url: str,
    subject: str,
    *,
    size: int = 128,
    count: int = 200_000,
    pids: dict[str, int] | None = None,
) -> LoadResult:
    """One core publisher, one subscriber; ends when the subscriber has all of them."""
    body = payload_of(size)
    async with await Client.connect(pub_url) as pub, await Client.connect(sub_url) as sub:
        load = _Window(sub, 0, MARK + b"\r\n", lambda _lo, _hi: b"")
        sub.subscribe(subject, lambda _msg: None)
        await sub.flush()
        await asyncio.sleep(0.1)  # interest has to cross the routes when the URLs are two nodes
        one = render_publish(subject, body)
        step = 256
        load.sent = count
        cpu = CpuWatch(pids or {})
        start = time.perf_counter()

        async def send() -> None:
            for at in range(0, count, step):
                pub.write(one * min(step, count - at))
                await pub.drain()
                await asyncio.sleep(0)

        sender = asyncio.ensure_future(send())
        try:
            await _run_windows([load])
        finally:
            sender.cancel()
        return _result("core pub/sub", [load], time.perf_counter() - start, cpu)


async def create_streams(url: str, count: int, replicas: int, prefix: str = "BENCH_C") -> LoadResult:
    """Creates `count` streams one after the other (the way an application does); leaves them there."""
    async with await Client.connect(url) as client:
        latencies = []
        cpu = CpuWatch({})
        start = time.perf_counter()
        for n in range(count):
            one = time.perf_counter()
            await create_stream(client, f"{prefix}{n}", [f"{prefix.lower()}.{n}"], replicas)
            latencies.append((time.perf_counter() - one) * 1e3)
        return LoadResult(f"create R{replicas}", count, time.perf_counter() - start, latencies, cpu.read())


async def delete_streams(url: str, names: Sequence[str]) -> None:
    async with await Client.connect(url) as client:
        for name in names:
            await client.api(f"STREAM.DELETE.{name}")
