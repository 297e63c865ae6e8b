"""Each way of `ways.WAYS`, walked on nodes of this process.

With one replica that is a whole node, with a data store and a journal on disk, and a client of its port; with three it
is the nodes of the unit tests, whose data stores are twins; the files of their journals and the connections of their
mesh are left out. Every way is walked several times, and the shortest counts: what happens in between by itself
(heartbeats, ticks) makes some of them longer.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from testkit.native import python_alone
from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time
from tests.path.counter import Call, Recorder
from tests.unit.node.rig import running

TIMES = 8
PAUSE = 0.013
"""Seconds between two walks, longer in the three nodes' virtual time: what follows from the one before is over."""
_HELLO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\nSUB _INBOX.* 1\r\nPING\r\n'

Walk = Callable[[], Awaitable[Any]]

LEFT_OUT = ("FileDisk.", "TcpLink.", "FrameReader.")
"""Beginnings of functions that are not of the way with three replicas."""


class Wire:
    """A client of a node's port, with nothing of `jetcluster` in it. Replies go to `_INBOX.a`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, subject: bytes, payload: bytes = b"", headers: bytes = b"", reply: bytes = b"_INBOX.a") -> None:
        if headers:
            size = b"%d %d" % (len(headers), len(headers) + len(payload))
            self._writer.write(b"HPUB %b %b %b\r\n%b%b\r\n" % (subject, reply, size, headers, payload))
        else:
            self._writer.write(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload))

    async def received(self) -> tuple[bytes, bytes]:
        """(reply subject, header block and payload) of the next message."""
        while True:
            line = await self._reader.readline()
            if line == b"PING\r\n":
                self._writer.write(b"PONG\r\n")
            if line.startswith((b"MSG", b"HMSG")):
                words = line.split()
                body = await self._reader.readexactly(int(words[-1]) + 2)
                return words[3] if len(words) > 4 + line.startswith(b"HMSG") else b"", body[:-2]

    async def ask(self, subject: bytes, payload: bytes = b"", headers: bytes = b"") -> tuple[bytes, bytes]:
        self.send(subject, payload, headers)
        return await self.received()

    async def create(self, kind: str, name: str, config: dict[str, Any]) -> None:
        _, body = await self.ask(f"$JS.API.{kind}.CREATE.{name}".encode(), json.dumps(config).encode())
        assert b'"error"' not in body, body


@asynccontextmanager
async def _node() -> AsyncIterator[Wire]:
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), f'jetstream {{ store_dir: "{folder}/js" }}\n') as node:
            port = int(node.server.client_url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_HELLO)
            while await reader.readline() != b"PONG\r\n":
                pass
            yield Wire(reader, writer)
            writer.close()


async def _shortest(recorder: Recorder, walk: Walk, pause: float = PAUSE, settle: float = PAUSE) -> list[Call]:
    """`settle`: how long after the answer what follows from it is listened to."""
    found: list[list[Call]] = []
    for _ in range(TIMES):
        await asyncio.sleep(pause)
        recorder.begin()
        await walk()
        await asyncio.sleep(settle)
        found.append(recorder.end())
    return min(found[1:], key=len)  # the first one fills caches


async def _one_node(recorder: Recorder) -> dict[str, list[Call]]:
    ways: dict[str, list[Call]] = {}
    async with _node() as wire:
        await wire.create("STREAM", "P", {"name": "P", "subjects": ["p"], "allow_direct": True})
        await wire.create("STREAM", "B", {"name": "B", "subjects": ["b"], "allow_atomic": True})
        await wire.create("STREAM", "S", {"name": "S", "subjects": ["s"]})
        consumer = {"stream_name": "S", "config": {"durable_name": "C", "name": "C", "ack_policy": "explicit"}}
        await wire.create("CONSUMER", "S.C", consumer)

        async def publish() -> None:
            _, body = await wire.ask(b"p", b"x")
            assert b'"seq"' in body, body

        number = 0

        async def batch() -> None:
            nonlocal number
            number += 1
            head = b"NATS/1.0\r\nNats-Batch-Id: %d\r\nNats-Batch-Sequence: " % number
            wire.send(b"b", b"x", head + b"1\r\n\r\n", b"_INBOX.b")
            wire.send(b"b", b"x", head + b"2\r\nNats-Batch-Commit: 1\r\n\r\n")
            assert (await wire.received())[1] == b""
            assert b'"count":2' in (await wire.received())[1]

        delivered: list[bytes] = []

        async def pull() -> None:
            reply, body = await wire.ask(b"$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":1,"expires":5000000000}')
            assert body == b"x", body
            delivered.append(reply)

        async def ack() -> None:
            assert (await wire.ask(delivered.pop(0), b"+ACK"))[1] == b""

        async def get() -> None:
            assert (await wire.ask(b"$JS.API.DIRECT.GET.P", b'{"seq":1}'))[1].endswith(b"x")

        ways["publish-r1"] = await _shortest(recorder, publish)
        ways["batch-r1"] = await _shortest(recorder, batch)
        for _ in range(2 * TIMES):
            await wire.ask(b"s", b"x")
        ways["pull-r1"] = await _shortest(recorder, pull)
        ways["ack-r1"] = await _shortest(recorder, ack)
        for _ in range(TIMES):
            await get()  # a block that was written meanwhile is unpacked once it has been read often
        ways["direct-get"] = await _shortest(recorder, get)
    return ways


@virtual_time
async def _three_nodes(recorder: Recorder, ways: dict[str, list[Call]]) -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        leader = await cluster.led("S")
        got = asyncio.Event()
        leader.bus.subscribe(b"_INBOX.a", lambda subject, reply, headers, payload, origin: got.set())
        await asyncio.sleep(1.0)

        async def publish() -> None:
            got.clear()
            leader.bus.publish(b"s", b"x", b"_INBOX.a")
            await got.wait()

        walked = await _shortest(recorder, publish, 0.031, 0.01)
        ways["publish-r3"] = [call for call in walked if not call.function.startswith(LEFT_OUT)]


def walk_all() -> dict[str, list[Call]]:
    """The calls of every way, by its key, with Python alone: what is compiled depends on the machine."""
    recorder = Recorder()
    recorder.install()
    try:
        with python_alone():
            ways = asyncio.run(_one_node(recorder))
            _three_nodes(recorder, ways)
    finally:
        recorder.uninstall()
    return ways
