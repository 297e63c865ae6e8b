"""nats-py's ordered consumer reads a stream to its end, in order and without a gap, whatever happens meanwhile: the
leaders of stream and consumer move, the node where the client is connected (and which owns the consumer) is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from testkit.harness import ProcessCluster, eventually

pytestmark = pytest.mark.cluster


@asynccontextmanager
async def connected(*urls: str) -> AsyncIterator[NatsClient]:
    async def quiet(_: Exception) -> None:
        """Reconnecting is part of the test."""

    client = await nats.connect(list(urls), max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=quiet)
    try:
        yield client
    finally:
        await client.close()


class Reader:
    """An ordered consumer, and a publisher that goes on until it is stopped."""

    def __init__(self, reader: NatsClient, publisher: NatsClient) -> None:
        self.seen: list[int] = []
        self._reader = reader.jetstream()
        self._publisher = publisher.jetstream()
        self._stop = False

    async def begin(self) -> None:
        await self._publisher.add_stream(name="O", subjects=["o.>"], num_replicas=3)
        await self._reader.subscribe("o.>", ordered_consumer=True, cb=self._take)
        self._task = asyncio.create_task(self._publish())

    async def _take(self, msg: Msg) -> None:
        self.seen.append(msg.metadata.sequence.stream)

    async def _publish(self) -> None:
        while not self._stop:
            try:
                await self._publisher.publish("o.a", b"x", timeout=1)
            except (nats.errors.Error, nats.js.errors.Error):
                await asyncio.sleep(0.05)

    async def end(self) -> None:
        """All that is stored was read once, in order."""
        self._stop = True
        await self._task
        stored = (await self._publisher.stream_info("O")).state.messages
        await eventually(lambda: len(self.seen) >= stored, 15, "the reader does not get to the end")
        assert self.seen == list(range(1, stored + 1))


async def test_leaders_move() -> None:
    async with (
        ProcessCluster(3) as nodes,
        connected(nodes[0].url) as one,
        connected(nodes[1].url) as two,
    ):
        reader = Reader(one, two)
        await reader.begin()
        for _ in range(5):
            await asyncio.sleep(0.3)
            consumer = (await two.jetstream().consumers_info("O"))[0].name
            for api in (f"CONSUMER.LEADER.STEPDOWN.O.{consumer}", "STREAM.LEADER.STEPDOWN.O"):
                answer = await two.request(f"$JS.API.{api}", b"", timeout=5)
                assert b'"success":true' in answer.data
                await asyncio.sleep(0.3)
        await reader.end()


async def test_the_node_of_the_client_is_killed() -> None:
    async with (
        ProcessCluster(3) as nodes,
        connected(nodes[0].url, nodes[1].url) as one,
        connected(nodes[2].url) as two,
    ):
        reader = Reader(one, two)
        await reader.begin()
        assert one.connected_url is not None
        victim = next(node for node in nodes.nodes if node.port == one.connected_url.port)
        await eventually(lambda: len(reader.seen) > 50, 10, "nothing is read")
        os.kill(victim.pid, signal.SIGKILL)
        before = len(reader.seen)
        await eventually(lambda: len(reader.seen) > before + 50, 10, "it does not go on at another node")
        await reader.end()
