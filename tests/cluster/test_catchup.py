"""A replica that joins a stream while that is written, and is killed in the middle (replica/catchup.py)."""

from __future__ import annotations

import asyncio
import json
import random
import re

import pytest

from testkit.client import create_stream
from testkit.harness import Node, ProcessCluster, eventually, frozen
from testkit.ledger import Ledger, publish_all, steady_publisher

pytestmark = [pytest.mark.cluster, pytest.mark.monitored, pytest.mark.thorough]

MESSAGES = 1_500
SIZE = 64_000
"""More in all than the journal of a node retains."""
DONE = re.compile(r"caught up from a snapshot.*?compared=(\d+)")


async def fetched(node: Node) -> int:
    try:
        found = (await node.monitor("jsz")).get("catching_up") or [{}]
    except OSError:
        return 0
    return int(found[0].get("fetched_bytes", 0))


def payload(number: int) -> bytes:
    return (b"large-%d." % number).ljust(SIZE, b"%d" % (number % 10))


@pytest.mark.ours("about our own /jsz and log")
async def test_a_joining_replica_that_is_killed_in_the_middle_gets_all(cluster: ProcessCluster) -> None:
    async with await cluster[0].connect() as client:
        await create_stream(client, "S", ["s"], 2)
        info = await client.api("STREAM.INFO.S")
    members = {info["cluster"]["leader"], *[peer["name"] for peer in info["cluster"]["replicas"]]}
    joiner = next(node for node in cluster.nodes if node.name not in members)
    leader = await cluster.stream_leader("S")
    async with await leader.connect() as client:
        large = await publish_all(client, "s", [payload(n) for n in range(MESSAGES)], window=50)
        assert len(large.acked) == MESSAGES

    ledger, stop = Ledger(), asyncio.Event()
    urls = [node.url for node in cluster.nodes if node is not joiner]
    writer = asyncio.create_task(steady_publisher(urls, "s", ledger, stop, pause=0.01))
    async with await leader.connect() as client:
        config = {**info["config"], "num_replicas": 3}
        await client.request("$JS.API.STREAM.UPDATE.S", json.dumps(config).encode(), within=10.0)

    async def begun() -> bool:
        return await fetched(joiner) > 0

    await eventually(begun, 30, "nothing comes", every=0.005)
    joiner.kill9()
    await asyncio.sleep(0.5)
    await joiner.start()
    await cluster.wait_current("S", 60)
    stop.set()
    await writer
    await cluster.wait_current("S")

    text = re.sub(r"\x1b\[[0-9;]*m", "", joiner.log())
    compared = [int(found) for found in DONE.findall(text)]
    assert max(compared) > MESSAGES * SIZE // 2, "the state came by a transfer"
    acked = {seq: body for part in (large, ledger) for body, seq in part.acked.items()}
    chosen = random.Random(1).sample(sorted(acked), 100)
    others = [node for node in cluster.nodes if node is not joiner]
    await asyncio.sleep(0.5)  # it joins the readers
    with frozen(others):
        async with await joiner.connect() as client:
            for seq in chosen:
                msg = await client.request("$JS.API.DIRECT.GET.S", b'{"seq":%d}' % seq, within=2.5)
                assert msg.data == acked[seq]
