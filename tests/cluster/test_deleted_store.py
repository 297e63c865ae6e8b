"""Stores that are deleted under running servers: nobody acknowledges what is lost when its file is closed."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from testkit.client import Client, create_stream
from testkit.harness import Node, ProcessCluster, eventually
from testkit.ledger import Ledger, check_exactly_once, publish_all, read_all, steady_publisher
from tests.symptom_page import shown

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.monitored,
    pytest.mark.ours("nats-server goes on acknowledging"),
    pytest.mark.thorough,
]


async def says_so(node: Node) -> bool:
    codes = {one["code"]: one for one in (await node.monitor("findingsz"))["findings"]}
    return "JC126" in codes and "deleted, or another one is in its place" in codes["JC126"]["why"]


async def is_acked(client: Client, payload: bytes) -> bool:
    try:
        reply = await client.request("s", payload, within=1.0)
    except TimeoutError:
        return False
    return b'"seq"' in reply.data and b'"error"' not in reply.data


async def test_the_others_go_on_and_it_comes_back_with_a_restart(cluster: ProcessCluster) -> None:
    async with await cluster[0].connect() as client:
        await create_stream(client, "S", ["s"], 3)
    leader = await cluster.stream_leader("S")
    other = next(node for node in cluster.nodes if node is not leader)
    ledger, stop = Ledger(), asyncio.Event()
    task = asyncio.create_task(steady_publisher([other.url], "s", ledger, stop))
    await eventually(lambda: len(ledger.acked) >= 200, 30, "200 acks")
    shutil.rmtree(leader.store)
    await eventually(lambda: says_so(leader), 15, "the server does not notice")
    assert leader.alive
    health = await leader.monitor("healthz")
    shown("the-journal-was-deleted", health["error"], leader.log())
    new = await cluster.stream_leader("S")
    assert new is not leader
    count = len(ledger.acked)
    await eventually(lambda: len(ledger.acked) >= count + 200, 30, "200 acks of the others")
    stop.set()
    await task
    await leader.stop()  # not with exit code 0: the data store cannot be closed
    await leader.start()
    await cluster.wait_current("S")
    async with await leader.connect() as client:
        check_exactly_once(ledger, await read_all(client, "S"))


async def test_with_all_stores_deleted_nothing_is_acknowledged(cluster: ProcessCluster) -> None:
    async with await cluster[0].connect() as client:
        await create_stream(client, "S", ["s"], 3)
        await create_stream(client, "ALONE", ["alone"], 1)
        ledger = await publish_all(client, "s", [b"%d" % number for number in range(100)])
        assert len(ledger.acked) == 100
        for node in cluster.nodes:
            shutil.rmtree(node.store)
        for node in cluster.nodes:
            await eventually(lambda node=node: says_so(node), 15, "the server does not notice")
        for subject in ("s", "alone"):
            for _ in range(3):
                try:
                    reply = await client.request(subject, b"late", within=1.0)
                except TimeoutError:
                    continue
                assert b'"seq"' not in reply.data, reply.data
