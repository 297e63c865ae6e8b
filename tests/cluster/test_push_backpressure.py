"""A client that does not read for a while, at another node than its push consumer's owner: nothing is lost, nobody is
closed as a slow consumer, and what waits for it stays small. (nats-server closes such a client.)"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from testkit.client import Client
from testkit.consumer_client import Inbox, Jet, ack_fields
from testkit.harness import ProcessCluster

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.thorough]

COUNT, SIZE = 150, 200_000
MAX_PENDING = 8 << 20


async def pending_bytes(port: int, name: str) -> int:
    """Bytes that the node has not written yet to the connections of that name."""

    def get() -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/connz", timeout=5) as response:
            return json.loads(response.read())  # type: ignore[no-any-return]

    found = await asyncio.get_running_loop().run_in_executor(None, get)
    return sum(conn["pending_bytes"] for conn in found["connections"] if conn.get("name") == name)


@asynccontextmanager
async def nodes_client(nodes: ProcessCluster, at: int, **options: str) -> AsyncIterator[Client]:
    async with await Client.connect(nodes[at].url, **options) as client:
        yield client


@pytest.mark.parametrize("policy", ["none", "explicit"])
async def test_a_client_that_does_not_read_is_waited_for_across_nodes(policy: str) -> None:
    async with (
        ProcessCluster(3, config=f"max_pending: {MAX_PENDING}\n", monitor=True) as nodes,
        nodes_client(nodes, 0) as creator,
        nodes_client(nodes, 1, name="slow") as slow,
    ):
        jet = await Jet.start(creator, "S", 3, "jetcluster")
        for _ in range(0, COUNT, 10):
            await jet.publish(*[b"x" * SIZE] * 10)
        inbox = Inbox(slow)
        await slow.flush()
        transport = slow._transport
        assert transport is not None
        transport.pause_reading()  # type: ignore[attr-defined]
        await jet.consumer("P", deliver_subject=inbox.subject, ack_policy=policy)
        owner = (await jet.info("P"))["cluster"]["leader"]
        assert owner == nodes[0].name, "where the client is connected that created it"
        waiting = 0
        for _ in range(12):
            await asyncio.sleep(0.25)
            waiting = max(waiting, await pending_bytes(nodes[1].http_port, "slow"))
        assert 0 < waiting < MAX_PENDING // 2
        transport.resume_reading()  # type: ignore[attr-defined]
        messages = await inbox.take(COUNT, 20.0)
        assert [ack_fields(message)[1:3] for message in messages] == [(n, n) for n in range(1, COUNT + 1)]
        assert not slow.closed.is_set()
