"""`Axis`: what there can be many of, and the figures that are taken at each size. A cluster grows from size to size."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bench import loads, reads
from bench.groups.starting import MB
from bench.stand import Stand
from testkit.client import Client, create_stream
from testkit.harness import resident

AT_ONCE = 20
"""Creations under way at once."""
QUIET = 3.0
"""Seconds of rest that are measured, after as many that are not."""
_FILES = 12_000
_MOST_CONSUMERS = 100_000
Grow = Callable[[Stand, int, int], Awaitable[dict[str, float]]]
"""Makes `before` things `size`, and returns the figures by name."""


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    text: str
    nodes: int
    sizes: Sequence[int]
    figures: dict[str, str]
    """Names of figures, and their units."""
    grow: Grow
    budget: float = 90.0
    """Seconds for one server: no larger size is begun later."""


async def _restarted(stand: Stand, messages: int) -> float:
    node = stand.nodes[0]
    await node.stop()
    start = time.monotonic()
    node.spawn()
    await stand.answers("S", node, messages)
    return time.monotonic() - start


async def messages(stand: Stand, before: int, size: int) -> dict[str, float]:
    """Messages of one stream. The cost of a publish is that of those by which it has grown."""
    if not before:
        await stand.stream("S")
    url = stand.nodes[0].url
    published = await loads.js_publish(url, "s", window=500, count=size - before, pids=stand.pids)
    await asyncio.sleep(QUIET)
    gets = await loads.direct_get([url], "S", 1, size, window=256, seconds=stand.seconds, pids=stand.pids)
    memory = resident(stand.nodes[0].pid) / MB
    return {
        "publish": published.server_us,
        "Direct Get": gets.server_us,
        "memory": memory,
        "restart": await _restarted(stand, size),
    }


async def subjects(stand: Stand, before: int, size: int) -> dict[str, float]:
    """Subjects of one stream, a message on each. The cost of a publish is that of more on one of them."""
    if not before:
        await stand.stream("S", ["s.>"])
    url = stand.nodes[0].url
    await reads.publish_many(url, lambda n: b"s.%d.%d" % ((before + n) % 1000, before + n), size - before, size=32)
    await asyncio.sleep(QUIET)
    some = [f"s.{n % 1000}.{n}" for n in range(0, size, max(1, size // 10_000))]
    gets = await loads.direct_get_last([url], "S", some, window=256, seconds=stand.seconds, pids=stand.pids)
    published = await loads.js_publish(url, "s.0.0", seconds=stand.seconds / 2, pids=stand.pids)
    memory = resident(stand.nodes[0].pid) / MB
    async with await stand.nodes[0].connect() as client:
        stored = int((await client.api("STREAM.INFO.S"))["state"]["messages"])
    restart = await _restarted(stand, stored)
    return {"publish": published.server_us, "last by subject": gets.server_us, "memory": memory, "restart": restart}


async def _made(size: int, before: int, make: Callable[[int], Awaitable[object]]) -> float:
    """Milliseconds for each of those that are missing, some at once."""
    start = time.monotonic()
    for first in range(before, size, AT_ONCE):
        await asyncio.gather(*(make(n) for n in range(first, min(size, first + AT_ONCE))))
    return 1e3 * (time.monotonic() - start) / max(1, size - before)


async def _rests(stand: Stand) -> dict[str, float]:
    await asyncio.sleep(QUIET)
    share = await stand.resting(QUIET)
    return {"at rest": share, "memory": max(resident(pid) for pid in stand.pids.values()) / MB}


async def streams(stand: Stand, before: int, size: int) -> dict[str, float]:
    """Streams with three replicas, and nothing in them."""
    async with await stand.nodes[0].connect() as client:
        each = await _made(size, before, lambda n: create_stream(client, f"S{n}", [f"s{n}"], 3))
    return {"create": each} | await _rests(stand)


async def consumers(stand: Stand, before: int, size: int) -> dict[str, float]:
    """Durable pull consumers of one stream."""
    if not before:
        await stand.stream("S", max_consumers=_MOST_CONSUMERS)  # nats-server allows 1,000 where none is said
    async with await stand.nodes[0].connect() as client:

        async def make(number: int) -> object:
            config = {"durable_name": f"d{number}", "ack_policy": "explicit"}
            return await client.api(f"CONSUMER.CREATE.S.d{number}", {"stream_name": "S", "config": config}, 30.0)

        each = await _made(size, before, make)
    return {"create": each} | await _rests(stand)


_connected: dict[int, list[Client]] = {}
"""The connections of each server, by its process id: they stay while it grows."""


async def connections(stand: Stand, before: int, size: int) -> dict[str, float]:
    """Clients with a subscription each."""
    node = stand.nodes[0]
    held = _connected.setdefault(node.pid, [])
    used = stand.spent()

    async def connect(number: int) -> None:
        client = await Client.connect(node.url, within=20.0)
        client.subscribe(f"own.{number}", lambda _msg: None)
        held.append(client)

    each = await _made(size, before, connect)
    await held[-1].flush()
    cpu = (stand.spent() - used) / (size - before) * 1e6
    core = await loads.core_pubsub(node.url, node.url, "core", seconds=stand.seconds / 2, pids=stand.pids)
    return {"connect": each, "connection": cpu, "core message": core.server_us} | await _rests(stand)


def disconnect() -> None:
    """Closes the connections of all servers."""
    for held in _connected.values():
        for client in held:
            client.close()
    _connected.clear()


def raise_file_limit() -> None:
    """Ten thousand connections need as many descriptors, here and in the servers, which inherit the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(_FILES, hard), hard))


US, SECONDS, MEGABYTES, SHARE, MS = "µs of CPU", "s", "MB", "% of a core", "ms"
AXES = (
    Axis("messages", "Messages of 128 B in one R1 stream.", 1, (1000, 10_000, 100_000, 1_000_000, 3_000_000),
         {"publish": US, "Direct Get": US, "restart": SECONDS, "memory": MEGABYTES}, messages),
    Axis("subjects", "Subjects in one R1 stream, a message of 32 B on each.", 1, (1000, 10_000, 100_000, 1_000_000),
         {"publish": US, "last by subject": US, "restart": SECONDS, "memory": MEGABYTES}, subjects),
    Axis("streams", "Idle streams with three replicas on three nodes.", 3, (10, 100, 1000, 3000, 10_000),
         {"create": MS, "at rest": SHARE, "memory": MEGABYTES}, streams),
    Axis("consumers", "Idle durable pull consumers of one R1 stream.", 1, (10, 100, 1000, 10_000, 30_000),
         {"create": MS, "at rest": SHARE, "memory": MEGABYTES}, consumers),
    Axis("connections", "Idle clients with one subscription each, at one node.", 1, (10, 100, 1000, 10_000),
         {"connect": MS, "connection": US, "core message": US, "at rest": SHARE, "memory": MEGABYTES}, connections),
)  # fmt: skip
