"""The load: publishers with the stock client, which send a message again until it is acked, and book every ack."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client as NATS
from nats.js import JetStreamContext
from nats.js.api import RetentionPolicy, StorageType

from testkit.ledger import Ledger

WORKERS = 8
LIMIT = 2.0
"""Seconds between two acks that a client sees, at most."""
PATIENCE = 1.0
"""Seconds until a message without an answer is sent again. What is under way when a connection ends gets none: the
client does not say so, and would wait as long as it was told."""


async def connect(url: str, **options: Any) -> NATS:
    """A connection that never gives up. It waits 0.25 s before it asks a server again, not 2 s."""

    async def silent(_: Exception) -> None:
        """Every reconnection would be printed."""

    return await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.25, error_cb=silent, **options)


async def make_stream(client: NATS, name: str, replicas: int = 3) -> None:
    await client.jetstream(timeout=15).add_stream(
        name=name, subjects=[f"{name.lower()}.>"], num_replicas=replicas, allow_direct=True, duplicate_window=120,
        retention=RetentionPolicy.LIMITS, storage=StorageType.FILE,
    )  # fmt: skip


@dataclass
class Book(Ledger):
    """The ledger of a publisher, and when it lost its connection or got another one."""

    events: list[tuple[float, str]] = field(default_factory=list)

    def note(self, what: str) -> None:
        self.events.append((time.monotonic(), what))

    def gaps(self) -> str:
        """The longest one, with what happened to the connection in it, and how many are longer than PATIENCE."""
        pairs = sorted(itertools.pairwise(self.ack_times), key=lambda pair: pair[0] - pair[1])
        (before, after), more = pairs[0], sum(after - before >= PATIENCE for before, after in pairs[1:])
        seen = [f"{what} after {at - before:.1f} s" for at, what in self.events if before <= at <= after]
        others = f", {more} more from {PATIENCE:.0f} s on" if more else ""
        return f"longest gap {after - before:.1f} s ({', '.join(seen) or 'connected'}){others}"


class Publisher:
    """Eight tasks on one connection, each with one message at a time under way."""

    def __init__(self, client: NATS, stream: str, ledger: Book) -> None:
        self._js: JetStreamContext = client.jetstream(timeout=PATIENCE)
        self._stream, self._ledger = stream, ledger
        self.again = 0
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for worker in range(WORKERS):
                group.create_task(self._work(worker))

    async def _work(self, worker: int) -> None:
        number = 0
        while not self._stopped:
            await self._publish(f"{self._stream.lower()}.{worker}", f"{worker}-{number}")
            number += 1
            await asyncio.sleep(0.01)

    async def _publish(self, subject: str, text: str) -> None:
        while True:
            try:
                ack = await self._js.publish(subject, text.encode(), headers={"Nats-Msg-Id": text})
            except (nats.errors.Error, OSError, TimeoutError):
                self.again += 1
                await asyncio.sleep(0.1)
                continue
            ledger = self._ledger
            before = ledger.acked.setdefault(text.encode(), ack.seq)
            assert before == ack.seq, f"{text} acked as {before} and as {ack.seq}"
            ledger.duplicates += bool(ack.duplicate)
            ledger.ack_times.append(time.monotonic())
            return


@asynccontextmanager
async def load(url: str, stream: str, *, tls: ssl.SSLContext | None = None, **options: Any) -> AsyncIterator[Book]:
    """Publishes meanwhile. At the end everything that was sent is acked; the stream is made if need be."""
    if tls is not None:
        options["tls"] = tls
    ledger = Book()

    async def lost() -> None:
        ledger.note("disconnected")

    async def found() -> None:
        ledger.note(f"connected to {client.connected_url.netloc if client.connected_url else 'nobody'}")

    client = await connect(url, disconnected_cb=lost, reconnected_cb=found, **options)
    await make_stream(client, stream)
    publisher = Publisher(client, stream, ledger)
    task = asyncio.create_task(publisher.run())
    try:
        async with asyncio.timeout(60):
            while len(ledger.acked) < 200:
                assert not task.done(), task
                await asyncio.sleep(0.1)
        yield ledger
        # What comes last is under load, too.
        async with asyncio.timeout(120):
            goal = len(ledger.acked) + 200
            while len(ledger.acked) < goal:
                await asyncio.sleep(0.1)
    finally:
        publisher.stop()
        async with asyncio.timeout(120):
            await task
        await client.close()
