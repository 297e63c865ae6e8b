"""Loads of replies with many messages: batched Direct Get in sequence, by a selective wildcard, and multi_last.

Every load asks for what must be there and counts what came, so a reply that is cut short shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count

from bench.loads import MARK, _run_windows, _Window, payload_of
from bench.result import CpuWatch, LoadResult
from testkit.client import Client, ClientError

EOB = b"NATS/1.0 204 EOB"


class _Replies(_Window):
    """A window of requests whose answers end with an EOB; counts the messages too."""

    messages = 0

    def _take(self, data: bytes) -> None:
        self.messages += data.count(MARK + b"\r\n")
        super()._take(data)


async def publish_many(
    url: str, subject_of: Callable[[int], bytes], messages: int, *, size: int = 128, window: int = 500
) -> LoadResult:
    """Message n = 0, 1, ... on `subject_of(n)`, with payloads that end with MARK; `window` without their ack at any
    time (1: each one becomes a block of its own)."""
    body = payload_of(size)
    async with await Client.connect(url) as client:
        tail = b" %d\r\n%b\r\n" % (len(body), body)

        def render(first: int, last: int) -> bytes:
            return b"".join([b"PUB %b %b.%d%b" % (subject_of(n), client.inbox, n, tail) for n in range(first, last)])

        load = _Window(client, window, b'"seq":', render)
        load.limit = messages
        cpu = CpuWatch({})
        start = time.perf_counter()
        await _run_windows([load])
        return LoadResult(f"publish window={window}", load.answered, time.perf_counter() - start, [], cpu.read())


async def batched_gets(
    urls: Sequence[str], stream: str, last: int, *, batch: int = 1000, window: int = 2, seconds: float = 3.0,
    pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """Reads 1..`last` of a stream without gaps in batches, over and over; `window` requests in flight per connection,
    one connection per element of `urls`. `LoadResult.messages` counts messages, latencies are those of whole
    replies."""
    pages = last // batch
    assert pages, (last, batch)

    def body(n: int) -> bytes:
        return b'{"seq":%d,"batch":%d}' % (1 + n % pages * batch, batch)

    return await replies(f"batch {batch} x {len(urls)}", urls, stream, body, batch, window, seconds, pids)


async def wildcard_batches(
    urls: Sequence[str], stream: str, wildcard: str, highest: int, *, batch: int = 100, window: int = 2,
    seconds: float = 3.0, pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """Batches of what matches `wildcard` from sequences spread over 1..`highest`, behind which there must be `batch`
    more matching messages."""

    def body(n: int) -> bytes:
        return b'{"next_by_subj":"%b","seq":%d,"batch":%d}' % (wildcard.encode(), 1 + n * 7919 % highest, batch)

    return await replies(f"{wildcard} {batch} x {len(urls)}", urls, stream, body, batch, window, seconds, pids)


async def multi_last(
    urls: Sequence[str], stream: str, filters: Callable[[int], bytes], expected: int, *, window: int = 2,
    seconds: float = 3.0, pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """The last messages of the subjects that match `filters(n)` (one filter, of request n); `expected` of them each."""

    def body(n: int) -> bytes:
        return b'{"multi_last":["%b"]}' % filters(n)

    return await replies(f"multi_last {expected} x {len(urls)}", urls, stream, body, expected, window, seconds, pids)


async def replies(
    name: str, urls: Sequence[str], stream: str, body: Callable[[int], bytes], expected: int, window: int,
    seconds: float, pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """Requests `body(0)`, `body(1)`, ... over one connection per element of `urls`, each of which must be answered by
    `expected` messages. Raises ClientError when not."""
    clients = [await Client.connect(url) for url in urls]
    numbers = count()
    try:
        loads = [_Replies(client, window, EOB, _renderer(client, stream, body, numbers)) for client in clients]
        cpu = CpuWatch(pids or {})
        start = time.perf_counter()
        for load in loads:
            load.stop_at = start + seconds
        await _run_windows(loads)
        spent = time.perf_counter() - start
        messages, answered = sum(load.messages for load in loads), sum(load.answered for load in loads)
        if messages != answered * expected:
            raise ClientError(f"{messages} messages in {answered} replies, {expected} each were expected")
        latencies = [ms for load in loads for ms in load.latencies_ms]
        return LoadResult(name, messages, spent, latencies, cpu.read())
    finally:
        for client in clients:
            client.close()


def _renderer(
    client: Client, stream: str, body: Callable[[int], bytes], numbers: count[int]
) -> Callable[[int, int], bytes]:
    head = b"PUB $JS.API.DIRECT.GET.%b %b." % (stream.encode(), client.inbox)

    def render(first: int, last: int) -> bytes:
        parts = []
        for number in range(first, last):
            text = body(next(numbers))
            parts.append(b"%b%d %d\r\n%b\r\n" % (head, number, len(text), text))
        return b"".join(parts)

    return render
