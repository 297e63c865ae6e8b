"""Keys stay with their members, with stock nats-py on three servers: subscriptions that stay, requests with fresh
inboxes as `Fetch` of nats.go makes them, and one that goes with messages in hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from testkit.harness import ProcessCluster, eventually
from tests.interop.keyed import CONSUMER, keyed, order

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120), pytest.mark.long]

KEYS = 100
STREAM = "MEMBERS"


class Share:
    """One member, and when it got messages of which keys."""

    def __init__(self, nc: Client, *, fresh: bool = False) -> None:
        self.nc = nc
        self.fresh = fresh
        self.keys: dict[str, list[float]] = defaultdict(list)
        self.stopped = False
        self.task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self.task = asyncio.create_task(self._fetch_fresh() if self.fresh else self._fetch())

    async def _fetch(self) -> None:
        sub = await self.nc.jetstream(timeout=10).pull_subscribe_bind(CONSUMER, STREAM)
        while not self.stopped:
            with contextlib.suppress(nats.errors.TimeoutError):
                for msg in await sub.fetch(20, timeout=2):
                    await self._take(msg)

    async def _fetch_fresh(self) -> None:
        request = json.dumps({"batch": 20, "expires": 300_000_000}).encode()
        while not self.stopped:
            inbox = self.nc.new_inbox()
            sub = await self.nc.subscribe(inbox)
            await self.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}", request, reply=inbox)
            with contextlib.suppress(nats.errors.TimeoutError):
                for _ in range(20):
                    msg = await sub.next_msg(timeout=1)
                    if msg.headers and "Status" in msg.headers:
                        break
                    await self._take(msg)
            await sub.unsubscribe()

    async def _take(self, msg: Msg) -> None:
        if not self.stopped:  # who ends keeps what it has
            self.keys[msg.subject].append(time.monotonic())
            await msg.ack()

    async def end(self) -> None:
        self.stopped = True
        if self.task is not None:
            self.task.cancel()
        await self.nc.close()

    def since(self, begin: float) -> set[str]:
        return {key for key, times in self.keys.items() if times[-1] >= begin}


@contextlib.asynccontextmanager
async def publishing(nc: Client) -> AsyncIterator[None]:
    js = nc.jetstream(timeout=10)

    done = asyncio.Event()  # wait_for of Python 3.11 may swallow a cancellation

    async def publish() -> None:
        while not done.is_set():
            for key in range(KEYS):
                await js.publish(f"members.{key}", b"m")

    task = asyncio.create_task(publish())
    try:
        yield
    finally:
        done.set()
        await task


async def each_key_at_one(shares: list[Share]) -> float:
    """Return since when each key came to one member only, each member has some, and all keys have come."""
    begin = time.monotonic()
    await asyncio.sleep(1.5)

    async def all_came() -> bool:
        return len(set().union(*(share.since(begin) for share in shares))) == KEYS

    await eventually(all_came, 30, "all keys come")
    found = [share.since(begin) for share in shares]
    assert all(found) and sum(map(len, found)) == KEYS, [len(keys) for keys in found]
    return begin


async def test_each_key_comes_to_one_member_and_moves_only_when_members_come_or_go(
    shared: ProcessCluster, server: str
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        consumer = await stack.enter_async_context(keyed(shared, server, STREAM))
        await consumer.make(order(1), ack_wait=3)
        shares = [Share(await nats.connect(node.url), fresh=number == 2) for number, node in enumerate(shared.nodes)]
        for share in shares:
            stack.push_async_callback(share.end)
            share.begin()
        await consumer.until_members(3)
        async with publishing(consumer.nc):
            await asyncio.sleep(0.5)
            before = time.monotonic()
            begin = await each_key_at_one(shares)
            had = [share.since(begin) for share in shares]
            assert had == [share.since(before) for share in shares], "nothing moves meanwhile"
            await shares[0].end()
            gone = shares.pop(0)
            assert gone.keys
            await consumer.until_members(2)
            await asyncio.sleep(3.5)  # what it had in hand comes again
            begin = await each_key_at_one(shares)
            for share, keys in zip(shares, had[1:], strict=True):
                assert keys <= share.since(begin), "keys of those who stay do not move"
            back = Share(await nats.connect(shared.nodes[0].url))
            stack.push_async_callback(back.end)
            had = [share.since(begin) for share in shares]
            back.begin()
            shares.append(back)
            await consumer.until_members(3)
            await asyncio.sleep(0.5)
            begin = await each_key_at_one(shares)
            for share, keys in zip(shares[:2], had, strict=True):
                assert share.since(begin) == keys - back.since(begin), "one that comes takes its share, no more"
