"""Clients that send rubbish, read slowly or connect to the wrong port: they harm only themselves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random

import pytest

from testkit.client import create_stream
from testkit.harness import ProcessCluster, eventually
from testkit.ledger import publish_all, read_all, wait_newest

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

RUBBISH = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"CONNECT {\r\n",
    b'CONNECT {"verbose":"yes"}\r\n',
    b"PUB s 99999999999999999999\r\n",
    b"PUB s -1\r\nx\r\n",
    b"PUB s 3\r\nabcdef\r\n",
    b"HPUB s 10 5\r\n",
    b"HPUB s 99 100\r\n" + b"x" * 102,
    b"SUB\r\nUNSUB\r\nPUB\r\n",
    b"MSG a 1 0\r\n\r\n",
    b"RMSG $G a 0\r\n\r\nRS+ $G foo\r\n",
    b"-ERR 'x'\r\n-ERR 'y'\r\n",
    b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85\x94R\x94.",
    b"\0" * 70_000,
    b"A" * 70_000,
    b"\xff\xff\xff\xff" * 20_000,
]


async def throw(port: int, data: bytes, linger: float = 0.05) -> bytes:
    """Sends `data` on a connection of its own, and returns the server's answer."""
    answer = b""
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            await writer.drain()
            async with asyncio.timeout(linger):
                while piece := await reader.read(65536):
                    answer += piece
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    return answer


async def test_rubbish_on_client_and_cluster_ports_harms_nobody(cluster: ProcessCluster) -> None:
    rng = random.Random(5)
    async with await cluster[0].connect() as client:
        await create_stream(client, "S", ["s"], 3)
        noise = [*RUBBISH, *(rng.randbytes(rng.randrange(1, 5000)) for _ in range(20))]
        for data in noise:
            for node in cluster.nodes:
                await asyncio.gather(throw(node.port, data), throw(node.cluster_port, data))
        assert all(node.alive for node in cluster.nodes)
        ledger = await publish_all(client, "s", [b"m-%d" % n for n in range(500)])
        assert len(ledger.acked) == 500
        await wait_newest(client, "S")
        stored = await read_all(client, "S")
    assert [stored[n + 1] for n in range(500)] == [b"m-%d" % n for n in range(500)]
    for node in cluster.nodes:
        async with await node.connect() as client:
            assert (await client.api("STREAM.INFO.S"))["state"]["messages"] == 500
        assert "Traceback" not in node.log()


async def test_unknown_operation_gets_the_real_error(single: ProcessCluster) -> None:
    answer = await throw(single[0].port, b"HELLO world\r\n", linger=1)
    assert answer.startswith(b"INFO {")
    assert b"-ERR 'Unknown Protocol Operation'\r\n" in answer


async def test_too_large_a_payload_closes_only_that_client(single: ProcessCluster) -> None:
    answer = await throw(single[0].port, b'CONNECT {"verbose":false}\r\nPUB s 1048577\r\n', linger=1)
    assert b"-ERR 'Maximum Payload Violation'\r\n" in answer
    async with await single[0].connect() as client:
        await client.flush()


async def test_a_slow_consumer_is_closed_and_counted(server: str) -> None:
    config = "max_pending: 2MB\nwrite_deadline: '2s'\n"
    async with ProcessCluster(1, server, config=config, monitor=True) as single:
        node = single[0]
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port, limit=1 << 16)
        writer.write(b'CONNECT {"verbose":false,"name":"slow"}\r\nSUB flood 1\r\nPING\r\n')
        await reader.readuntil(b"PONG\r\n")
        # from here on nothing is read
        async with await node.connect() as client, await node.connect() as quick:
            got = 0

            def count(_msg: object) -> None:
                nonlocal got
                got += 1

            quick.subscribe("flood", count)
            await quick.flush()
            sent = 0
            body = b"x" * 64_000

            async def counted() -> bool:
                nonlocal sent
                for _ in range(10):
                    client.publish("flood", body)
                    sent += 1
                await client.flush()
                return int((await node.monitor("varz"))["slow_consumers"]) >= 1

            await eventually(counted, 30, "no slow consumer is counted", node)
            await client.flush()
            await eventually(lambda: got == sent, 10, "the quick subscriber got fewer")
            assert node.alive
        writer.close()


async def test_a_client_on_the_cluster_port_gets_an_error(cluster: ProcessCluster) -> None:
    answer = await throw(
        cluster[0].cluster_port, b"CONNECT " + json.dumps({"lang": "python", "verbose": False}).encode() + b"\r\n", 1
    )
    # nats-server says "attempted to connect to route port"; closing without a word would do as well
    assert b"PONG" not in answer
    async with await cluster[0].connect() as client:
        await client.flush()
