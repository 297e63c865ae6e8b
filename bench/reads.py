"""Loads of replies with many messages: batched Direct Get in sequence, by a selective wildcard, and multi_last.

Every load asks for what must be there and counts what came, so a reply that is cut short shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from bench.loads import ACK, SIGN, payload_of
from bench.result import LoadResult
from bench.window import Render, Window, open_wires, run_windows
from bench.wire import Wire
from testkit.client import ClientError

EOB = b"NATS/1.0 204 EOB"


class Replies(Window):
    """A window of requests whose answers end with an EOB; counts the messages too."""

    messages = 0

    def count(self, data: bytes) -> None:
        self.messages += data.count(SIGN)
        super().count(data)


async def publish_many(
    url: str, subject_of: Callable[[int], bytes], messages: int, *, size: int = 128, window: int = 500
) -> LoadResult:
    """Message n = 0, 1, ... on `subject_of(n)`, with payloads that end with MARK; `window` without their ack at any
    time (1: each one becomes a block of its own)."""
    [wire] = await open_wires([url])
    tail = b" %b.a %d\r\n%b\r\n" % (wire.inbox, size, payload_of(size))

    def render(first: int, last: int) -> bytes:
        return b"".join([b"PUB %b%b" % (subject_of(n), tail) for n in range(first, last)])

    load = Window(wire, window, ACK, render, messages)
    return await run_windows(f"publish window={window}", [load], seconds=None)


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
    numbers = count()
    loads = [Replies(wire, window, EOB, _renderer(wire, stream, body, numbers)) for wire in await open_wires(urls)]
    result = await run_windows(name, loads, seconds=seconds, pids=pids)
    messages, answered = sum(load.messages for load in loads), result.messages
    if messages != answered * expected:
        raise ClientError(f"{messages} messages in {answered} replies, {expected} each were expected")
    result.messages = messages
    return result


def _renderer(wire: Wire, stream: str, body: Callable[[int], bytes], numbers: count[int]) -> Render:
    head = b"PUB $JS.API.DIRECT.GET.%b %b.a" % (stream.encode(), wire.inbox)

    def render(first: int, last: int) -> bytes:
        parts = []
        for _ in range(first, last):
            text = body(next(numbers))
            parts.append(b"%b %d\r\n%b\r\n" % (head, len(text), text))
        return b"".join(parts)

    return render
