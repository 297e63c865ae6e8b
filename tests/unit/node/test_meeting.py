"""Nodes that are ready know each other (node/node_jetstream.py)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from jetcluster import logs
from jetcluster.config.options import ClusterOptions, JetStreamOptions, Options
from jetcluster.monitor.start import NodeMonitoring
from jetcluster.node.node import Node
from testkit.harness import free_port


async def started(name: str, store: Path, port: int, cluster_port: int, *routes: str) -> Node:
    node = Node(
        Options(
            server_name=name,
            host="127.0.0.1",
            port=port,
            cluster=ClusterOptions(name="C", host="127.0.0.1", port=cluster_port, routes=[*routes]),
            jetstream=JetStreamOptions(enabled=False, store_dir=str(store)),
        ),
        logs.get_logger("test"),
        monitoring=NodeMonitoring,
    )
    await node.start()
    return node


@pytest.mark.parametrize("fixed", [True, False])
async def test_whoever_connects_to_a_ready_node_gets_the_urls_of_the_others(tmp_path: Path, fixed: bool) -> None:
    """nats.js: connects to the first of two servers once the second one is ready, and kills the first. nats.c: nothing
    may be news to a client that has just connected."""
    first_route, port = free_port(), free_port() if fixed else -1
    first = await started("a", tmp_path / "a", -1, first_route)
    second = await started("b", tmp_path / "b", port, -1, f"nats://127.0.0.1:{first_route}")
    try:
        for node, other in ((first, second), (second, first)):
            reader, writer = await asyncio.open_connection("127.0.0.1", node.server.port)
            info = json.loads((await reader.readline()).split(b" ", 1)[1])
            assert f"127.0.0.1:{other.server.port}" in info["connect_urls"], info
            writer.close()
            await writer.wait_closed()
    finally:
        await second.stop()
        await first.stop()
