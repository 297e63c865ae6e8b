"""kill -9 of everything with a past: deleted streams, changed configurations and many streams in the meta log.

The meta state is flushed now and then; a restart replays what came after the last flush. While it does, streams that
were deleted, and configurations that were changed, are alive again in every replica's memory: nobody may be served from
that past (found by review: acks of a deleted stream, messages evicted under an old limit).
"""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from testkit.client import Client, create_stream
from testkit.harness import Node, ProcessCluster

pytestmark = [pytest.mark.cluster, pytest.mark.ours("a regression test of jetcluster's meta log")]

OTHERS = 150


async def other_streams(client: Client) -> None:
    await asyncio.gather(*(create_stream(client, f"X{i}", [f"x{i}"], 1) for i in range(OTHERS)))


def ack_at_once(node: Node, subject: str, seconds: float) -> bytes:
    """Publishes from the first moment that the port answers; everything that came back. Blocking, on purpose."""
    end = time.monotonic() + 20
    while True:
        try:
            link = socket.create_connection(("127.0.0.1", node.port))
            break
        except OSError:
            assert time.monotonic() < end, node.tail()
            time.sleep(0.001)
    with link:
        link.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB in.* 1\r\n')
        link.setblocking(False)
        received, number, stop = b"", 0, time.monotonic() + seconds
        while time.monotonic() < stop:
            link.sendall(b"PUB %b in.%d 1\r\nx\r\n" % (subject.encode(), number))
            number += 1
            time.sleep(0.002)
            try:
                received += link.recv(1 << 20)
            except BlockingIOError:
                pass
    return received


async def test_deleted_stream_does_not_ack_during_replay(single: ProcessCluster) -> None:
    async with await single[0].connect() as client:
        await create_stream(client, "OLD", ["s.>"], 1)
        await other_streams(client)
        await client.api("STREAM.DELETE.OLD")
        await create_stream(client, "NEW", ["s.>"], 1)
    single[0].kill9()
    single[0].spawn()
    received = await asyncio.to_thread(ack_at_once, single[0], "s.a", 2.0)
    assert received.count(b'"stream":"OLD"') == 0
    acked = received.count(b'"stream":"NEW"')
    assert acked > 0
    async with await single[0].connect() as client:
        info = await client.api("STREAM.INFO.NEW")
        assert info["state"]["messages"] >= acked


@pytest.mark.parametrize("replicas", [1, 3])
async def test_old_configuration_is_not_applied_again(cluster: ProcessCluster, replicas: int) -> None:
    async with await cluster[0].connect() as client:
        await create_stream(client, "S", ["s"], replicas, max_msgs=5)
        await other_streams(client)
        config = (await client.api("STREAM.INFO.S"))["config"]
        await client.api("STREAM.UPDATE.S", {**config, "max_msgs": 100_000})
        for i in range(300):
            await client.request("s", b"%d" % i)
    cluster.kill9_all()
    await cluster.start()
    async with await cluster[0].connect() as client:
        info = await client.api("STREAM.INFO.S")
        assert info["config"]["max_msgs"] == 100_000
        assert info["state"]["messages"] == 300
