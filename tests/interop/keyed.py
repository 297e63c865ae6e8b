"""A stream with three replicas and a consumer of it with order per key, as the tests of keys with stock clients use
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import APIError

from testkit.harness import ProcessCluster, eventually

CONSUMER: Final = "C"
TROUBLE: Final = (nats.errors.Error, APIError, OSError, TimeoutError, asyncio.IncompleteReadError)
"""Errors that a client meets while servers are killed and leaders change."""


def order(most: int, key: str = "") -> dict[str, str]:
    """The metadata that asks for order per key."""
    found = {"jetcluster.max_ack_pending_per_subject": str(most)}
    return found | {"jetcluster.key": key} if key else found


class Keyed:
    """A connection to all servers, and the consumer."""

    def __init__(self, nc: Client, stream: str) -> None:
        self.nc = nc
        self.js: JetStreamContext = nc.jetstream(timeout=10)
        self.stream = stream

    async def make(self, metadata: Mapping[str, str], ack_wait: float = 30) -> ConsumerConfig:
        """Create the stream, of all subjects below its name in small letters, and the consumer."""
        await self.js.add_stream(name=self.stream, subjects=[f"{self.stream.lower()}.>"], num_replicas=3)
        config = ConsumerConfig(
            durable_name=CONSUMER, ack_policy=AckPolicy.EXPLICIT, ack_wait=ack_wait, metadata=dict(metadata)
        )
        info = await self.js.add_consumer(self.stream, config)
        assert info.config.metadata is not None and metadata.items() <= info.config.metadata.items()
        return config

    async def answer(self) -> dict[str, Any]:
        """CONSUMER.INFO, with the fields that nats-py does not know."""
        answer = await self.nc.request(f"$JS.API.CONSUMER.INFO.{self.stream}.{CONSUMER}", timeout=5)
        found: dict[str, Any] = json.loads(answer.data)
        return found

    async def members(self) -> int:
        return int((await self.answer())["order_per_key"]["members"])

    async def until_members(self, count: int) -> None:
        async def there() -> bool:
            return await self.members() == count

        await eventually(there, 30, f"{count} members are there")

    async def last(self) -> int:
        """The last sequence of the stream."""
        return (await self.js.stream_info(self.stream)).state.last_seq

    async def is_done(self) -> bool:
        """True when everything was delivered and acked; False while no server answers."""
        with contextlib.suppress(*TROUBLE, KeyError):
            last, info = await self.last(), await self.answer()
            order_per_key = info["order_per_key"]
            waiting = order_per_key["messages_waiting"], order_per_key["keys_waiting"]
            counts = info["num_pending"], info["num_ack_pending"], info["num_redelivered"]
            floor, delivered = info["ack_floor"]["stream_seq"], info["delivered"]["stream_seq"]
            return (*waiting, *counts, floor, delivered) == (0, 0, 0, 0, 0, last, last)
        return False


async def connected(cluster: ProcessCluster) -> Client:
    """A connection to any of the servers, which survives their kills."""
    servers = cluster.urls
    random.shuffle(servers)
    return await nats.connect(servers, max_reconnect_attempts=-1, reconnect_time_wait=0.1, connect_timeout=2)


@contextlib.asynccontextmanager
async def keyed(cluster: ProcessCluster, server: str, stream: str) -> AsyncIterator[Keyed]:
    """The frame of a test: skips it for nats-server, and leaves no stream."""
    if server == "nats-server":
        pytest.skip("nats-server has no order per key")
    nc = await connected(cluster)
    try:
        one = Keyed(nc, stream)
        yield one
        await one.js.delete_stream(stream)
    finally:
        await nc.close()
