"""Loads of consumers and key-value buckets: fetch and ack, an ordered consumer, KV puts and gets, idle durables.

They run against any server with the JetStream API. Streams must hold payloads that end with MARK (what
`loads.js_publish` writes does).
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Sequence

from bench.loads import MARK, STALL, _run_windows, _Window, payload_of
from bench.result import CpuWatch, LoadResult
from testkit.client import Client, ClientError

SECOND = 1_000_000_000
_MESSAGE = MARK + b"\r\n"
_ACK_REPLIES = re.compile(rb"\$JS\.ACK\.[^ ]+")
_FLOW_REPLIES = re.compile(rb"\$JS\.FC\.[^ \r]+")
_STATUS = re.compile(rb"NATS/1\.0 [45]\d\d[^\r]*")
BUCKET = "BENCH"


class _Feed:
    """Counts the messages that a client is sent, up to `limit`."""

    def __init__(self, client: Client, limit: int) -> None:
        self.client = client
        self.limit = limit
        self.got = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, data: bytes) -> None:
        self.got += data.count(_MESSAGE)
        if (status := _STATUS.search(data)) is not None:
            self.fail(ClientError(f"after {self.got} messages: {status[0].decode()}"))
            return
        self.react(data)
        if self.got >= self.limit and not self.done.done():
            self.done.set_result(None)

    def react(self, data: bytes) -> None:
        """For the subclass: what a client does with what came."""

    def fail(self, error: ClientError) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    async def run(self) -> float:
        """Seconds until all came. Raises ClientError when nothing more does."""
        start = time.perf_counter()
        seen = -1
        try:
            while not self.done.done():
                await asyncio.wait({self.done}, timeout=STALL)
                if not self.done.done() and self.got == seen:
                    raise ClientError(f"nothing for {STALL:.0f} s after {self.got} of {self.limit} messages")
                seen = self.got
            self.done.result()
            return time.perf_counter() - start
        finally:
            self.client.bulk = None


class _Ordered(_Feed):
    """Answers flow control, as client libraries do."""

    def react(self, data: bytes) -> None:
        if b"$JS.FC." in data:
            for reply in _FLOW_REPLIES.findall(data):
                self.client.write(b"PUB %b 0\r\n\r\n" % reply)


class _Fetches(_Feed):
    """Asks for `batch` messages, acknowledges each one, asks again."""

    def __init__(self, client: Client, limit: int, batch: int, next_subject: bytes) -> None:
        super().__init__(client, limit)
        body = b'{"batch":%d,"expires":%d}' % (batch, 30 * SECOND)
        self._request = b"PUB %b %b.fetch %d\r\n%b\r\n" % (next_subject, client.inbox, len(body), body)
        self._batch = batch
        self._asked_at = 0.0
        self._due = 0
        self.latencies_ms: list[float] = []

    def ask(self) -> None:
        self._due += self._batch
        self._asked_at = time.perf_counter()
        self.client.write(self._request)

    def react(self, data: bytes) -> None:
        acks = [b"PUB %b 4\r\n+ACK\r\n" % reply for reply in _ACK_REPLIES.findall(data)]
        if acks:
            self.client.write(b"".join(acks))
        if self.got >= self._due:
            self.latencies_ms.append((time.perf_counter() - self._asked_at) * 1e3)
            if self.got < self.limit:
                self.ask()


async def ordered(url: str, stream: str, count: int, *, pids: dict[str, int] | None = None) -> LoadResult:
    """Reads messages 1..`count` as the ordered consumer of a client library does: push, no acks, flow control."""
    async with await Client.connect(url) as client:
        inbox = client.inbox + b"_ordered"
        feed = _Ordered(client, count)
        client.subscribe(inbox.decode(), lambda _msg: None)
        await client.flush()
        config = {
            "deliver_subject": inbox.decode(), "deliver_policy": "all", "ack_policy": "none", "max_deliver": 1,
            "ack_wait": 22 * 3600 * SECOND, "flow_control": True, "idle_heartbeat": 5 * SECOND, "mem_storage": True,
            "num_replicas": 1, "replay_policy": "instant",
        }  # fmt: skip
        cpu = CpuWatch(pids or {})
        # The answer to the request and the first messages come together: all is counted in bulk from here on.
        client.bulk = feed.take
        body = json.dumps({"stream_name": stream, "config": config}).encode()
        client.request_soon(f"$JS.API.CONSUMER.CREATE.{stream}.bench_ordered", body)
        seconds = await feed.run()
        result = LoadResult("ordered consumer", feed.got, seconds, [], cpu.read())
        if feed.got != count:
            raise ClientError(f"{feed.got} messages where there are {count}")
    async with await Client.connect(url) as client:
        await client.api(f"CONSUMER.DELETE.{stream}.bench_ordered")
    return result


async def fetch(
    url: str, stream: str, count: int, *, batch: int = 500, pids: dict[str, int] | None = None
) -> LoadResult:  # fmt: skip
    """One durable pull consumer: fetches of `batch`, one after the other, and an ack for every message; at the end the
    consumer must know of all the acks."""
    async with await Client.connect(url) as client:
        name = "bench_fetch"
        config = {"durable_name": name, "ack_policy": "explicit", "max_ack_pending": 20 * batch}
        await client.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
        feed = _Fetches(client, count - count % batch, batch, f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}".encode())
        cpu = CpuWatch(pids or {})
        client.bulk = feed.take
        feed.ask()
        seconds = await feed.run()
        used = cpu.read()
        await client.flush()
        deadline = time.monotonic() + 10
        while (info := await client.api(f"CONSUMER.INFO.{stream}.{name}"))["ack_floor"]["stream_seq"] < feed.limit:
            if time.monotonic() > deadline:
                raise ClientError(f"acks missing: {info['ack_floor']}, {info['num_ack_pending']} pending")
            await asyncio.sleep(0.05)
        await client.api(f"CONSUMER.DELETE.{stream}.{name}")
        return LoadResult(f"fetch {batch} + acks", feed.got, seconds, feed.latencies_ms, used)


async def create_bucket(url: str, replicas: int = 1, bucket: str = BUCKET) -> None:
    """Creates a key-value bucket with a history of 1, as clients do."""
    config = {
        "name": f"KV_{bucket}", "subjects": [f"$KV.{bucket}.>"], "max_msgs_per_subject": 1, "discard": "new",
        "allow_rollup_hdrs": True, "deny_delete": True, "allow_direct": True, "num_replicas": replicas,
        "max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msg_size": -1, "duplicate_window": 120 * SECOND,
        "storage": "file", "retention": "limits",
    }  # fmt: skip
    async with await Client.connect(url) as client:
        await client.api(f"STREAM.CREATE.KV_{bucket}", config)


async def kv_put(
    url: str, *, keys: int = 1000, size: int = 128, window: int = 500, seconds: float = 3.0, bucket: str = BUCKET,
    pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """Puts without waiting for each, `window` without their answer at any time, over `keys` keys in turn."""
    body = payload_of(size)
    async with await Client.connect(url) as client:
        heads = [b"PUB $KV.%b.key%d %b." % (bucket.encode(), n, client.inbox) for n in range(keys)]
        tail = b" %d\r\n%b\r\n" % (len(body), body)

        def render(first: int, last: int) -> bytes:
            return b"".join([b"%b%d%b" % (heads[n % keys], n, tail) for n in range(first, last)])

        return await _window("kv put", client, window, b'"seq":', render, seconds, pids)


async def kv_get(
    url: str, *, keys: int = 1000, window: int = 64, seconds: float = 3.0, bucket: str = BUCKET,
    pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """Gets of the `keys` that `kv_put` wrote, `window` at a time, by Direct Get of the last message of a subject."""
    async with await Client.connect(url) as client:
        stride = 7919
        api = b"PUB $JS.API.DIRECT.GET.KV_%b.$KV.%b.key" % (bucket.encode(), bucket.encode())

        def render(first: int, last: int) -> bytes:
            return b"".join(
                [b"%b%d %b.%d 0\r\n\r\n" % (api, n * stride % keys, client.inbox, n) for n in range(first, last)]
            )

        return await _window("kv get", client, window, _MESSAGE, render, seconds, pids)


async def _window(
    name: str, client: Client, window: int, mark: bytes, render: Callable[[int, int], bytes], seconds: float,
    pids: dict[str, int] | None,
) -> LoadResult:  # fmt: skip
    load = _Window(client, window, mark, render)
    cpu = CpuWatch(pids or {})
    start = time.perf_counter()
    load.stop_at = start + seconds
    await _run_windows([load])
    return LoadResult(name, load.answered, time.perf_counter() - start, load.latencies_ms, cpu.read())


async def idle_durables(
    url: str, stream: str, count: int = 1000, *, seconds: float = 10.0, settle: float = 3.0,
    pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """Creates `count` durable pull consumers, lets them be, and tells the CPU seconds of each process in `cpu` while
    nothing happened for `seconds`."""
    async with await Client.connect(url) as client:
        names = [f"idle{n}" for n in range(count)]
        for first in range(0, count, 50):
            await _all(client, "CREATE", stream, names[first : first + 50])
        await asyncio.sleep(settle)
        cpu = CpuWatch(pids or {})
        start = time.perf_counter()
        await asyncio.sleep(seconds)
        result = LoadResult(f"{count} idle durables", count, time.perf_counter() - start, [], cpu.read())
        for first in range(0, count, 50):
            await _all(client, "DELETE", stream, names[first : first + 50])
        return result


async def _all(client: Client, action: str, stream: str, names: Sequence[str]) -> None:
    """One request for each, all under way at once."""
    requests = []
    for name in names:
        body = {"stream_name": stream, "config": {"durable_name": name, "ack_policy": "explicit"}}
        requests.append(client.api(f"CONSUMER.{action}.{stream}.{name}", body if action == "CREATE" else None, 30.0))
    await asyncio.gather(*requests)
