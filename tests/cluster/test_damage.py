"""Files of one node's data store rot: it is noticed without a read, and the node is whole again by itself."""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from testkit.client import Client, create_stream
from testkit.harness import Node, ProcessCluster, eventually, frozen
from testkit.ledger import Ledger, check_exactly_once, publish_all, read_all
from tests.symptom_page import shown

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.ours("nats-server is not asked what it does with damage"),
]

MESSAGES = 4000


async def filled(cluster: ProcessCluster) -> Ledger:
    """Table files on every node hold the stream, and nothing of it is in a cache."""
    rng = random.Random(7)
    async with await cluster[0].connect() as client:
        await create_stream(client, "S", ["s"], 3)
        await create_stream(client, "T", ["t"], 3)
        await publish_all(client, "t", [b"t%d" % n for n in range(50)])
        ledger = await publish_all(client, "s", [b"%d-" % n + rng.randbytes(1000) for n in range(MESSAGES)])
    await cluster.wait_current("S")
    for node in cluster.nodes:
        await node.stop()
        await node.start()
        await cluster.wait_meta()
        await cluster.wait_current("S")
    return ledger


def largest(node: Node) -> Path:
    files = (node.store / "jetstream" / "data").glob("*.sst")
    return max(files, key=lambda path: path.stat().st_size)


def flip(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        (byte,) = file.read(1)
        file.seek(size // 2)
        file.write(bytes([byte ^ 16]))


async def whole_again(cluster: ProcessCluster, node: Node, ledger: Ledger, pid: int) -> None:
    async def renewed() -> bool:
        _, _, after = node.log().partition("and is renewed")
        return "Server is ready" in after

    await eventually(renewed, 90, f"{node.name} is not renewed", node)
    assert node.alive and node.pid == pid and any((node.store / "jetstream" / "quarantine").glob("data-*"))
    shown("the-data-store-is-damaged", node.log(), *(node.store / "jetstream" / "quarantine").iterdir())
    await cluster.wait_meta()
    for stream in ("S", "T"):
        await cluster.wait_current(stream)
    others = [other for other in cluster.nodes if other is not node]
    await asyncio.sleep(1.0)  # its replicas join the readers
    with frozen(others):
        async with await node.connect() as client:
            check_exactly_once(ledger, await read_all(client, "S", within=4.0))
    await cluster.wait_current("S")
    scrub: dict[str, Any] = (await node.monitor("jsz"))["scrub"]
    assert scrub["damaged_replicas"] == 0
    async with await others[0].connect() as client:
        more = await publish_all(client, "s", [b"more-%d" % n for n in range(100)])
        ledger.acked |= more.acked


@pytest.mark.parametrize("harm", ["flip", "truncate"])
async def test_a_table_file_rots_under_a_running_node(server: str, harm: str) -> None:
    async with ProcessCluster(3, server, monitor=True) as cluster:
        ledger = await filled(cluster)
        told: list[dict[str, Any]] = []
        async with await cluster[0].connect() as ear:
            ear.subscribe("$JS.EVENT.ADVISORY.STREAM.REPLICA_DAMAGED.>", lambda msg: told.append(json.loads(msg.data)))
            await ear.flush()
            node = cluster[2]
            pid = node.pid
            path = largest(node)
            if harm == "flip":
                flip(path)
            else:
                os.truncate(path, path.stat().st_size // 2)
            await whole_again(cluster, node, ledger, pid)
        if harm == "flip":
            assert told and told[0]["stream"] == "S" and told[0]["server"] == node.name


async def test_a_table_file_is_truncated_while_the_node_is_down(server: str) -> None:
    async with ProcessCluster(3, server, monitor=True) as cluster:
        ledger = await filled(cluster)
        node = cluster[2]
        await node.stop()
        path = largest(node)
        os.truncate(path, path.stat().st_size // 2)
        await node.start()
        await whole_again(cluster, node, ledger, node.pid)
        async with await Client.connect(cluster[0].url) as client:
            check_exactly_once(ledger, await read_all(client, "S"))
