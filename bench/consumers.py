"""Loads of consumers and key-value buckets: fetch and ack, an ordered consumer, KV puts and gets, idle durables.

They run against any server with the JetStream API. Streams must hold payloads that end with MARK (what
`loads.js_publish` writes does).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections.abc import Sequence

from bench.loads import ACK, SIGN, payload_of
from bench.result import CpuWatch, LoadResult
from bench.window import Window, cycle, open_wires, run_windows
from bench.wire import Wire
from testkit.client import Client, ClientError

SECOND = 1_000_000_000
_ACK_REPLIES = re.compile(rb"\$JS\.ACK\.[^ ]+")
_FLOW_REPLIES = re.compile(rb"\$JS\.FC\.[^ \r]+")
_STATUS = re.compile(rb"NATS/1\.0 [45]\d\d[^\r]*")
_STRIDE = 7919
BUCKET = "BENCH"
_runs = itertools.count(1)


class _Feed:
    """Counts the messages that a connection is sent, up to `limit`."""

    def __init__(self, wire: Wire, limit: int) -> None:
        self.wire = wire
        self.limit = limit
        self.got = 0

    def react(self, data: bytes) -> None:
        """For the subclass: what a client does with whole lines that came."""

    def run(self) -> float:
        """Seconds until all came. Raises ClientError when nothing more does."""
        start = time.perf_counter()
        rest = b""
        while self.got < self.limit:
            data = self.wire.read()
            if rest:
                data = rest + data
            cut = data.rfind(b"\r\n") + 2
            if cut < 2:
                rest = data
                continue
            rest = data[cut:]
            whole = data[:cut] if rest else data
            if not self.got and b'"error"' in whole:
                raise ClientError(f"error answer: {whole[-300:]!r}")
            self.got += whole.count(SIGN)
            if (found := whole.find(b"NATS/1.0 ")) >= 0 and (status := _STATUS.search(whole, found)) is not None:
                raise ClientError(f"after {self.got} messages: {status[0].decode()}")
            self.react(whole)
        return time.perf_counter() - start


class _Ordered(_Feed):
    """Answers flow control, as client libraries do."""

    def react(self, data: bytes) -> None:
        if b"$JS.FC." in data:
            for reply in _FLOW_REPLIES.findall(data):
                self.wire.send(b"PUB %b 0\r\n\r\n" % reply)


class _Fetches(_Feed):
    """Asks for `batch` messages, acknowledges each one, asks again; `ahead` fetches are under way at any time."""

    def __init__(self, wire: Wire, limit: int, batch: int, ahead: int, next_subject: bytes) -> None:
        super().__init__(wire, limit)
        body = b'{"batch":%d,"expires":%d}' % (batch, 30 * SECOND)
        self._request = b"PUB %b %b.fetch %d\r\n%b\r\n" % (next_subject, wire.inbox, len(body), body)
        self._batch = batch
        self._ahead = ahead
        self._asked = 0

    def ask(self) -> None:
        while self._asked < self.limit and self._asked - self.got <= (self._ahead - 1) * self._batch:
            self._asked += self._batch
            self.wire.send(self._request)

    def react(self, data: bytes) -> None:
        acks = [b"PUB %b 4\r\n+ACK\r\n" % reply for reply in _ACK_REPLIES.findall(data)]
        if acks:
            self.wire.send(b"".join(acks))
        self.ask()


async def ordered(url: str, stream: str, count: int, *, pids: dict[str, int] | None = None) -> LoadResult:
    """Reads messages 1..`count` as the ordered consumer of a client library does: push, no acks, flow control."""
    name = f"bench_ordered{next(_runs)}"

    def work() -> LoadResult:
        with Wire(url) as wire:
            feed = _Ordered(wire, count)
            inbox = wire.inbox + b"_ordered"
            wire.send(b"SUB %b 2\r\n" % inbox)  # nats-server sees no interest in a wildcard here
            wire.flush()
            config = {
                "deliver_subject": inbox.decode(), "deliver_policy": "all", "ack_policy": "none",
                "max_deliver": 1, "ack_wait": 22 * 3600 * SECOND, "flow_control": True, "idle_heartbeat": 5 * SECOND,
                "mem_storage": True, "num_replicas": 1, "replay_policy": "instant",
            }  # fmt: skip
            body = json.dumps({"stream_name": stream, "config": config}).encode()
            cpu = CpuWatch(pids or {})
            # The answer to the request and the first messages come together: all is counted in bulk from here on.
            subject = f"$JS.API.CONSUMER.CREATE.{stream}.{name}".encode()
            wire.send(b"PUB %b %b.api %d\r\n%b\r\n" % (subject, wire.inbox, len(body), body))
            seconds = feed.run()
            result = LoadResult("ordered consumer", feed.got, seconds, [], cpu.read())
            if feed.got != count:
                raise ClientError(f"{feed.got} messages where there are {count}")
            return result

    result = await asyncio.to_thread(work)
    async with await Client.connect(url) as client:
        await client.api(f"CONSUMER.DELETE.{stream}.{name}")
    return result


async def fetch(
    url: str, stream: str, count: int, *, batch: int = 500, ahead: int = 1, pids: dict[str, int] | None = None
) -> LoadResult:  # fmt: skip
    """One durable pull consumer: fetches of `batch`, `ahead` of them under way, and an ack for every message; at the
    end the consumer must know of all the acks."""
    name = f"bench_fetch{next(_runs)}"
    limit = count - count % batch
    async with await Client.connect(url) as client:
        config = {"durable_name": name, "ack_policy": "explicit", "max_ack_pending": 20 * batch}
        await client.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})

        def work() -> LoadResult:
            with Wire(url) as wire:
                feed = _Fetches(wire, limit, batch, ahead, f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}".encode())
                cpu = CpuWatch(pids or {})
                feed.ask()
                seconds = feed.run()
                wire.flush()
                return LoadResult(f"fetch {batch} + acks", feed.got, seconds, [], cpu.read())

        result = await asyncio.to_thread(work)
        deadline = time.monotonic() + 10
        while (info := await client.api(f"CONSUMER.INFO.{stream}.{name}"))["ack_floor"]["stream_seq"] < limit:
            if time.monotonic() > deadline:
                raise ClientError(f"acks missing: {info['ack_floor']}, {info['num_ack_pending']} pending")
            await asyncio.sleep(0.05)
        await client.api(f"CONSUMER.DELETE.{stream}.{name}")
        return result


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
    [wire] = await open_wires([url])
    frames = [b"PUB $KV.%b.key%d %b.a %d\r\n%b\r\n" % (bucket.encode(), n, wire.inbox, size, body) for n in range(keys)]
    return await run_windows("kv put", [Window(wire, window, ACK, cycle(frames))], seconds=seconds, pids=pids)


async def kv_get(
    url: str, *, keys: int = 1000, window: int = 256, seconds: float = 3.0, bucket: str = BUCKET,
    pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """Gets of the `keys` that `kv_put` wrote, `window` at a time, by Direct Get of the last message of a subject."""
    [wire] = await open_wires([url])
    api = b"PUB $JS.API.DIRECT.GET.KV_%b.$KV.%b.key" % (bucket.encode(), bucket.encode())
    frames = [b"%b%d %b.a 0\r\n\r\n" % (api, n * _STRIDE % keys, wire.inbox) for n in range(keys)]
    return await run_windows("kv get", [Window(wire, window, SIGN, cycle(frames))], seconds=seconds, pids=pids)


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
