"""The counted loads: a cluster of three whole nodes in this process, and clients of its ports.

Clock, network and disks are those of the simulation (`testkit.sim.deployment`), and nothing in it is left to chance:
the same program does the same steps. Clients write ready bytes and count what comes with `bytes.count`, so that what is
counted is the servers' work and that of their twins of network, disk and data store.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from jetcluster.api import dispatch, models
from jetcluster.node.warm_up import build_models
from testkit.sim.deployment import Deployment
from testkit.sim.layout import CLIENT_PORT, cluster
from testkit.twins.time import SeededRng

CHUNK: Final = 100
"""Messages that a client writes at once, and waits for all that comes of them: so they are one batch to the server,
however long anything takes."""
WARM: Final = 5
"""Chunks of each load that go before and are not counted."""
PAYLOAD: Final = b"x" * 128
SECONDS: Final = 120.0
"""Simulated time in which all of it has ended."""
BETWEEN: Final = 0.53
"""Seconds after a whole one at which a load begins."""
_HELLO: Final = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
_ACK: Final = re.compile(rb"\$JS\.ACK\S+")

Load = Callable[[int], Awaitable[None]]
"""Sends so many chunks and returns when all is done with them."""
Count = Callable[[str, int, Load], Awaitable[None]]
"""Gets each row's name, the number of its chunks that are to be counted, and its load."""


class Row(NamedTuple):
    """One counted load."""

    name: str
    chunks: int
    """Chunks of it that are counted."""
    title: str


ROWS: Final = (
    Row("core", 40, "publish to a subscriber of the same node"),
    Row("publish_r1", 30, "publish to a stream with one replica, 100 at a time"),
    Row("publish_r3", 20, "publish to a stream with three replicas at its leader, 100 at a time"),
    Row("publish_follower", 20, "the same at a follower: each message and ack crosses the mesh"),
    Row("direct_get", 20, "Direct Get by sequence, 100 at a time"),
    Row("pull", 20, "pulls of 100 from a stream with one replica, and an ack of each message"),
)


class Calm(SeededRng):
    """The randomness of disks each of whose pieces of work takes as long as any other."""

    def random(self) -> float:
        return 0.0

    def uniform(self, a: float, b: float) -> float:
        return a


class Wire(asyncio.Protocol):
    """A client that counts one pattern in what comes. `inbox`: the first tokens of its reply subjects."""

    def __init__(self, inbox: bytes) -> None:
        self.inbox = inbox
        self.kept: list[bytes] | None = None
        """Pieces that came, where a list was put here."""
        self._transport: Any = None
        self._pattern = b"PONG\r\n"
        self._tail = b""
        self._seen = 0
        self._wanted = 0
        self._reached: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self.kept is not None:
            self.kept.append(data)
        text = self._tail + data
        self._seen += text.count(self._pattern)
        self._tail = text[1 - len(self._pattern) :]
        if self._reached is not None and self._seen >= self._wanted:
            self._reached.set_result(None)
            self._reached = None

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def count(self, pattern: bytes) -> None:
        """Counts this pattern from now on."""
        self._pattern, self._tail, self._seen = pattern, b"", 0

    async def until(self, number: int) -> None:
        """Until the pattern has come so often."""
        if self._seen < number:
            self._wanted = number
            self._reached = asyncio.get_running_loop().create_future()
            await self._reached

    async def ask(self, subject: str, body: dict[str, Any]) -> bytes:
        """The answer's bytes."""
        self.kept = []
        self.count(b"}\r\n")
        text = json.dumps(body).encode()
        self.write(b"PUB %b %b.a %d\r\n%b\r\n" % (subject.encode(), self.inbox, len(text), text))
        await self.until(1)
        found, self.kept = b"".join(self.kept), None
        return found


class World:
    """The cluster, when it has found itself, and the clients' loop."""

    def __init__(self) -> None:
        self.deployment = Deployment(1, cluster(3))
        self._network = network = self.deployment.network
        network.split = lambda size: 0  # type: ignore[method-assign]
        network.seen = lambda *_: None  # type: ignore[method-assign] # a checksum of all bytes
        network.overhear = None
        for machine in self.deployment.machines.values():
            machine.disk.rng = Calm(1)
            machine.start()
        self.deployment.run(6.0)
        self.loop = self.deployment.client("counts")
        self._wires = 0

    async def wire(self, server: str) -> Wire:
        """A client of this server."""
        self._wires += 1
        wire = Wire(b"_INBOX.%d" % self._wires)
        await self.loop.create_connection(lambda: wire, self.deployment.servers[server].ip, CLIENT_PORT)
        wire.write(b"%bSUB %b.* 1\r\nPING\r\n" % (_HELLO, wire.inbox))
        await wire.until(1)
        for _, link in self._network.links():
            link.jitter = 0.0
        return wire

    async def between_beats(self) -> None:
        """Until a moment that is at the same place between the servers' beats for each load: what a beat costs is a
        twentieth of a load, which else counted it or not by when the load before had ended."""
        now = self.deployment.scheduler.now
        await asyncio.sleep(math.ceil(now) + BETWEEN - now)

    async def stream(self, name: str, replicas: int) -> str:
        """Makes a stream with the subject `name.*`; returns its leader's name."""
        wire = await self.wire("n1")
        config = {"name": name, "subjects": [f"{name}.*"], "num_replicas": replicas, "allow_direct": True}
        answer = await wire.ask(f"$JS.API.STREAM.CREATE.{name}", config)
        while b'"leader":' not in answer:
            await asyncio.sleep(0.5)
            answer = await wire.ask(f"$JS.API.STREAM.INFO.{name}", {})
        found = re.search(rb'"leader": ?"(\w+)"', answer)
        assert found is not None
        return found[1].decode()


async def _in_turn(chunk: bytes, number: int, sender: Wire, receiver: Wire, pattern: bytes) -> None:
    receiver.count(pattern)
    for sent in range(1, number + 1):
        sender.write(chunk)
        await receiver.until(sent * CHUNK)


def _publishes(subject: bytes, inbox: bytes) -> bytes:
    """A chunk of publishes, each with a reply subject, to ten subjects in turn."""
    return b"".join(
        b"PUB %b.%d %b.%d %d\r\n%b\r\n" % (subject, i % 10, inbox, i, len(PAYLOAD), PAYLOAD) for i in range(CHUNK)
    )


async def core(world: World) -> Load:
    sender, taker = await world.wire("n1"), await world.wire("n1")
    taker.write(b"SUB core.* 2\r\n")
    await asyncio.sleep(0.5)
    chunk = b"PUB core.0 %d\r\n%b\r\n" % (len(PAYLOAD), PAYLOAD) * CHUNK
    return lambda number: _in_turn(chunk, number, sender, taker, b"MSG core.")


async def _publishing(world: World, server: str, subject: bytes) -> Load:
    wire = await world.wire(server)
    chunk = _publishes(subject, wire.inbox)
    return lambda number: _in_turn(chunk, number, wire, wire, b'"seq"')


async def publish_r1(world: World) -> Load:
    return await _publishing(world, await world.stream("ONE", 1), b"ONE")


async def publish_r3(world: World) -> Load:
    return await _publishing(world, await world.stream("THREE", 3), b"THREE")


async def publish_follower(world: World) -> Load:
    leader = await world.stream("THREE", 3)
    return await _publishing(world, next(name for name in world.deployment.servers if name != leader), b"THREE")


async def direct_get(world: World) -> Load:
    wire = await world.wire(await world.stream("ONE", 1))
    requests = [b'{"seq":%d}' % (i % 500 + 1) for i in range(CHUNK)]
    chunk = b"".join(
        b"PUB $JS.API.DIRECT.GET.ONE %b.%d %d\r\n%b\r\n" % (wire.inbox, i, len(r), r) for i, r in enumerate(requests)
    )
    return lambda number: _in_turn(chunk, number, wire, wire, b"Nats-Sequence")


async def pull(world: World) -> Load:
    wire = await world.wire(await world.stream("ONE", 1))
    config = {"durable_name": "C", "name": "C", "ack_policy": "explicit", "max_ack_pending": 10 * CHUNK}
    await wire.ask("$JS.API.CONSUMER.CREATE.ONE.C", {"stream_name": "ONE", "config": config})
    body = b'{"batch":%d,"expires":5000000000}' % CHUNK
    ask = b"PUB $JS.API.CONSUMER.MSG.NEXT.ONE.C %b.p %d\r\n%b\r\n" % (wire.inbox, len(body), body)
    done = wire.inbox + b".done"

    async def load(number: int) -> None:
        for _ in range(number):
            wire.kept = []
            wire.count(b"x\r\n")
            wire.write(ask)
            await wire.until(CHUNK)
            *replies, last = _ACK.findall(b"".join(wire.kept))
            wire.kept = None
            wire.count(b"MSG %b " % done)
            wire.write(b"".join([b"PUB %b 4\r\n+ACK\r\n" % reply for reply in replies]))
            wire.write(b"PUB %b %b 4\r\n+ACK\r\n" % (last, done))
            await wire.until(1)

    return load


MAKERS: Final[dict[str, Callable[[World], Awaitable[Load]]]] = {
    "core": core,
    "publish_r1": publish_r1,
    "publish_r3": publish_r3,
    "publish_follower": publish_follower,
    "direct_get": direct_get,
    "pull": pull,
}


def run(count: Count) -> None:
    """Runs each row, a part of it first that is not counted."""
    asyncio.run(_warm_up())
    gc.collect()
    gc.disable()
    world = World()

    async def work() -> None:
        for row in ROWS:
            load = await MAKERS[row.name](world)
            await load(WARM)
            await world.between_beats()
            await count(row.name, row.chunks, load)

    world.deployment.run_until_done(world.deployment.spawn(world.loop, work()), SECONDS)
    world.deployment.close()


async def _warm_up() -> None:
    await dispatch.load_endpoints()
    await models.load()
    await build_models()
