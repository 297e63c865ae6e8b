"""An account's max_store and max_mem hold for publishes, over all its streams; the same on nats-server."""

from __future__ import annotations

import asyncio
import json

import pytest

from testkit.client import Client, create_stream
from testkit.harness import ProcessCluster, eventually

pytestmark = pytest.mark.cluster

CONFIG = """accounts { A {
  jetstream { max_store: 1000000, max_mem: 500000, max_streams: 2 }, users: [{user: a, password: a}]
} }
no_auth_user: a
"""
REFUSED = {"code": 400, "err_code": 10002, "description": "resource limits exceeded for account"}
SIZE = 50_000


async def publish(client: Client, subject: str, size: int = SIZE) -> dict[str, object]:
    found: dict[str, object] = (await client.request(subject, b"x" * size, 5.0)).json()
    return found


async def fill(client: Client, subject: str, most: int = 40) -> int:
    """Counts the messages that are taken before the first refusal."""
    for count in range(most):
        answer = await publish(client, subject)
        if "error" in answer:
            assert answer == {"error": REFUSED, "stream": subject.upper(), "seq": 0}
            return count
    return most


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_one_limit_for_all_streams_of_the_account(server: str, storage: str) -> None:
    room = {"file": 1_000_000, "memory": 500_000}[storage]
    record = SIZE + 1 + {"file": 30, "memory": 16}[storage]
    async with ProcessCluster(1, server, config=CONFIG) as nodes, await nodes[0].connect() as client:
        await create_stream(client, "S", ["s"], 1, storage=storage)
        await create_stream(client, "T", ["t"], 1, storage=storage)
        assert await fill(client, "s") == room // record
        assert await fill(client, "t") == 0
        assert "error" not in await publish(client, "s", 10)
        info = await client.api("INFO")
        assert room - record < info[{"file": "storage", "memory": "memory"}[storage]] <= room
        await client.api("STREAM.PURGE.S")
        assert await fill(client, "t") == room // record
        assert (await client.api("STREAM.INFO.T"))["state"]["bytes"] <= room


async def test_one_limit_wherever_the_streams_are_led(server: str) -> None:
    async with ProcessCluster(3, server, config=CONFIG) as nodes, await nodes[0].connect() as client:
        await create_stream(client, "S", ["s"], 3)
        await create_stream(client, "T", ["t"], 1)
        # Each of the three replicas counts. nats-server refuses when its servers have sent each other their usage.
        first = await fill(client, "s")
        assert (first == 6) if server == "jetcluster" else (6 <= first <= 19)
        await asyncio.sleep(1.5)
        info = await client.api("INFO")
        assert info["storage"] == first * 3 * (SIZE + 31)
        assert await fill(client, "t") <= 1
        await client.api("STREAM.PURGE.S")

        async def room_again() -> bool:
            return "error" not in await publish(client, "t")

        await eventually(room_again, 10.0, "the purge made no room", every=0.1)


async def test_account_info_counts_streams_and_consumers_wherever_they_are(cluster: ProcessCluster) -> None:
    async with await cluster[0].connect() as client, await cluster[1].connect() as other:
        for stream, replicas in (("S", 3), ("T", 1), ("U", 1)):
            await create_stream(client, stream, [stream.lower()], replicas)
            for name in ("one", "two"):
                config = {"durable_name": name, "ack_policy": "explicit"}
                body = {"stream_name": stream, "config": config}
                await client.api(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", body)

        async def counts(streams: int, consumers: int) -> bool:
            found = [await each.api("INFO") for each in (client, other)]
            return all((info["streams"], info["consumers"]) == (streams, consumers) for info in found)

        await eventually(lambda: counts(3, 6), 5.0, "not all are counted", every=0.1)
        await client.api("CONSUMER.DELETE.S.one")
        await client.api("STREAM.DELETE.T")
        await eventually(lambda: counts(2, 3), 5.0, "what is gone is counted", every=0.1)


async def test_streams_reserve_what_a_node_has(server: str) -> None:
    """Each node that the stream is placed on must have room for what `max_bytes` reserves."""
    gigabyte = 1 << 30
    config = "jetstream { max_mem: 1GB, max_file: 10GB }"
    refusal = "no suitable peers for placement, insufficient storage"
    async with ProcessCluster(3, server, config=config) as nodes, await nodes[0].connect() as client:

        async def create(name: str, replicas: int, size: int, storage: str = "file") -> str:
            body = {"name": name, "subjects": [name], "storage": storage, "num_replicas": replicas, "max_bytes": size}
            reply = (await client.request(f"$JS.API.STREAM.CREATE.{name}", json.dumps(body).encode(), 5.0)).json()
            error = reply.get("error", {"code": 400, "err_code": 10005, "description": ""})
            assert (error["code"], error["err_code"]) == (400, 10005), reply
            return str(error["description"])

        async def told(text: str, name: str, replicas: int, size: int, storage: str = "file") -> None:
            """nats-server's nodes tell each other now and then what they have left."""

            async def is_told() -> bool:
                return await create(name, replicas, size, storage) == text

            await eventually(is_told, 5, f"{text!r} for {name}")

        await told("", "first", 3, 4 * gigabyte)
        for replicas, size, storage in ((1, 20, "file"), (3, 12, "file"), (1, 2, "memory")):
            assert await create("large", replicas, size * gigabyte, storage) == refusal
        if server == "jetcluster":
            assert await create("large", 1, 7 * gigabyte) == refusal
        await told("", "second", 3, 6 * gigabyte)
        if server == "jetcluster":
            assert await create("third", 1, 1) == refusal
        await client.api("STREAM.DELETE.first")
        await told("", "third", 1, 4 * gigabyte)
