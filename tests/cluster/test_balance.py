"""A fourth server joins three, and gets its share of what they carry by itself, while every stream is written to."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any

import nats
import pytest
from nats.errors import Error
from nats.js.client import JetStreamContext

from testkit.client import Client, create_stream
from testkit.harness import Node, ProcessCluster, eventually, find_server, free_ports

pytestmark = [
    pytest.mark.cluster, pytest.mark.thorough(shared=False), pytest.mark.timeout(400),
    pytest.mark.ours("nats-server moves nothing by itself"),
]  # fmt: skip

STREAMS = [f"S{number}" for number in range(20)]
SHARE = len(STREAMS) * 3 // 4
"""Replicas of each of four servers."""
PAUSE = 0.25
AGAIN = 0.4
LONGEST = 1.0
"""Seconds until a message is acked; it is sent again after AGAIN."""


def joining(cluster: ProcessCluster) -> Node:
    """A server that knows the three others."""
    port, route = free_ports(2)
    command = find_server("jetcluster")
    assert command is not None
    node = Node("n4", command, cluster.root / "n4", port, [])
    routes = ",".join(f"nats://127.0.0.1:{one.cluster_port}" for one in cluster.nodes)
    node.args = ["-a", "127.0.0.1", "-p", str(port), "-n", "n4", "-js", "-sd", str(node.store), "--cluster",
                 f"nats://127.0.0.1:{route}", "--cluster_name", "C", "--routes", routes]  # fmt: skip
    return node


async def carried(client: Client) -> tuple[Counter[str], Counter[str]]:
    """Leaders and replicas of each server; a stream that has no leader just now counts for nobody."""
    leaders: Counter[str] = Counter()
    replicas: Counter[str] = Counter()
    for stream in STREAMS:
        cluster = (await client.api(f"STREAM.INFO.{stream}"))["cluster"]
        leaders[cluster.get("leader", "")] += 1
        replicas.update([cluster.get("leader", ""), *(one["name"] for one in cluster.get("replicas") or ())])
    return leaders, replicas


class Publisher:
    """Writes to one stream, and knows how long it went without an ack."""

    def __init__(self, js: JetStreamContext, stream: str) -> None:
        self._js, self._stream = js, stream
        self.acked = 0
        self.longest = 0.0
        self.task = asyncio.create_task(self._publish())

    async def _publish(self) -> None:
        while True:
            began, last = time.monotonic(), 0
            while not last:
                try:
                    headers = {"Nats-Msg-Id": f"{self._stream}-{self.acked}"}
                    last = (await self._js.publish(self._stream.lower(), b"x", timeout=AGAIN, headers=headers)).seq
                except Error:
                    await asyncio.sleep(0.01)
            self.acked += 1
            assert last == self.acked, f"{self._stream} has {last} messages, and {self.acked} were sent"
            self.longest = max(self.longest, time.monotonic() - began)
            await asyncio.sleep(PAUSE)


async def test_a_server_that_joins_gets_its_share_and_no_stream_waits(server: str) -> None:
    async with ProcessCluster(3, server) as cluster, await cluster[0].connect() as client:
        for stream in STREAMS:
            await create_stream(client, stream, [stream.lower()], 3)
        connection = await nats.connect(cluster[0].url)
        told: list[dict[str, Any]] = []

        async def heard(message: Any) -> None:
            told.append(json.loads(message.data))

        await connection.subscribe("$JS.EVENT.ADVISORY.STREAM.BALANCED.>", cb=heard)
        publishers = [Publisher(connection.jetstream(), stream) for stream in STREAMS]
        await asyncio.sleep(5)
        cluster.nodes.append(added := joining(cluster))
        await added.start()

        async def shared() -> bool:
            for publisher in publishers:
                if publisher.task.done():
                    publisher.task.result()
            leaders, replicas = await carried(client)
            return replicas["n4"] >= SHARE - 1 and leaders["n4"] >= len(STREAMS) // 4 - 1

        await eventually(shared, 300, "n4 does not get its share", every=1.0)
        for publisher in publishers:
            publisher.task.cancel()
        await asyncio.gather(*(publisher.task for publisher in publishers), return_exceptions=True)
        leaders, replicas = await carried(client)
        assert sum(replicas.values()) == 3 * len(STREAMS) and max(leaders.values()) <= 7
        to_it = Counter(event["kind"] for event in told if event["to"] == "n4")
        assert to_it["replica"] >= SHARE - 1 and to_it["leader"] >= len(STREAMS) // 4 - 1
        assert all(event["type"] == "io.nats.jetstream.advisory.v1.stream_balanced" for event in told)
        assert all(event["before"] and event["after"] and event["why"] for event in told)
        for publisher, stream in zip(publishers, STREAMS, strict=True):
            messages = (await client.api(f"STREAM.INFO.{stream}"))["state"]["messages"]
            assert publisher.acked <= messages <= publisher.acked + 1
        late = {stream: round(one.longest, 2) for stream, one in zip(STREAMS, publishers, strict=True)
                if one.longest > LONGEST}  # fmt: skip
        assert not late, f"seconds without an ack: {late}"
        await connection.close()
