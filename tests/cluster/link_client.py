"""Questions of the tests of mirrors and sources: a stream's messages, one by one, and the state of its links."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from testkit.client import Client, ClientError, create_stream, stored_messages
from testkit.harness import HarnessError, ProcessCluster, eventually
from testkit.ledger import Ledger, steady_publisher, wait_newest

_numbers = itertools.count(1)


class Stored(NamedTuple):
    seq: int
    subject: str
    time: str
    data: bytes
    source: str
    """Nats-Stream-Source."""


def fresh(prefix: str) -> str:
    """A stream name of the test's own."""
    return f"{prefix}{next(_numbers)}"


@contextlib.asynccontextmanager
async def upstream(
    cluster: ProcessCluster, tail: str = "", replicas: int = 1, **config: Any
) -> AsyncIterator[tuple[Client, str, str]]:
    """A new stream on `<its name><tail>`: a client of the first node, the stream, and a name for another one."""
    up = fresh("UP")
    async with await cluster[0].connect() as client:
        await create_stream(client, up, [up + tail], replicas, **config)
        await settled(cluster, client)
        yield client, up, fresh("M")


async def stored(client: Client, stream: str) -> list[Stored]:
    """All messages, by batched Direct Get from whoever answers for `stream`, once it has what the leader has."""
    await wait_newest(client, stream)
    return [
        Stored(
            int(m.get("Nats-Sequence") or 0),
            m.get("Nats-Subject") or "",
            m.get("Nats-Time-Stamp") or "",
            m.data,
            m.get("Nats-Stream-Source") or "",
        )
        for m in await stored_messages(client, stream)
    ]


async def info(client: Client, stream: str) -> dict[str, Any]:
    return await client.api(f"STREAM.INFO.{stream}", within=3.0)


async def publish(client: Client, subject: str, *payloads: bytes) -> list[int]:
    """Sequences, once all are acked."""
    acks = await asyncio.gather(*(client.request(subject, payload, within=5.0) for payload in payloads))
    return [int(ack.json()["seq"]) for ack in acks]


async def reached(client: Client, stream: str, last: int, within: float = 25.0, *, messages: int | None = None) -> None:
    """Until the stream's last sequence (and number of messages) is so high."""
    seen: dict[str, Any] = {}

    async def there() -> bool:
        with contextlib.suppress(ClientError, TimeoutError):
            seen.update(await info(client, stream))
            state = seen["state"]
            return bool(state["last_seq"] >= last and (messages is None or state["messages"] >= messages))
        return False

    try:
        await eventually(there, within, f"{stream} has not come to {last}", every=0.05)
    except HarnessError as error:
        shown = {key: seen.get(key) for key in ("state", "mirror", "sources")}
        raise AssertionError(f"{error}: {json.dumps(shown)}") from None


async def settled(cluster: ProcessCluster, client: Client) -> None:
    """nats-server answers a create before everybody knows of it."""
    if cluster.server == "nats-server":
        await asyncio.sleep(0.3)


async def leaders_killed_under_load(cluster: ProcessCluster, stream: str) -> Ledger:
    """Publishes on `up` while the leader of a stream is killed twice; what was acknowledged."""
    ledger, stop = Ledger(), asyncio.Event()
    load = asyncio.create_task(steady_publisher(cluster.urls, "up", ledger, stop, pause=0.01))
    await asyncio.sleep(1.0)
    for _ in range(2):
        node = await cluster.stream_leader(stream)
        node.kill9()
        await asyncio.sleep(2.5)
        await node.start()
        await asyncio.sleep(1.5)
    stop.set()
    await load
    return ledger
