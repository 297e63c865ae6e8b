"""nats-server by a configuration file, and ours with the same face, for tests that compare the two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from testkit.harness import HarnessError, Node, find_server, free_ports
from tests.unit.server.serving import Reload, configured

BY_CHANCE = "import forms a cycle"
"""nats-server adds imports in random order, and of some configurations without a circle it sees one in some orders."""
MOST_STARTS = 40
"""At the worst configuration known five starts of eight are refused."""


@asynccontextmanager
async def ours(file: Path) -> AsyncIterator[tuple[int, Reload]]:
    """(port, what reads the file again)."""
    async with configured(file) as (server, reload):
        yield server.port, reload


async def started(node: Node) -> int:
    """Starts nats-server, again where it refuses a configuration by chance; returns how often that took. Raises
    HarnessError."""
    starts = 1
    while True:
        seen = len(node.log())
        try:
            await node.start()
        except HarnessError:
            if node.alive or BY_CHANCE not in node.log()[seen:] or starts == MOST_STARTS:
                raise
            starts += 1
        else:
            return starts


@asynccontextmanager
async def theirs(file: Path, http: int = 0) -> AsyncIterator[tuple[int, Reload]]:
    """nats-server with the configuration in `file`; yields the same as `ours`. `http`: its monitoring port."""
    command = find_server("nats-server")
    if command is None:
        pytest.skip("nats-server is not on this machine: run `make tools`")
    (port,) = free_ports(1)
    args = ["-a", "127.0.0.1", "-p", str(port), "-c", str(file), *(["-m", str(http)] if http else [])]
    node = Node("oracle", command, file.parent / f"oracle-{port}", port, args)
    await started(node)

    async def reload() -> None:
        before = node.log().count("Reloaded server configuration")
        node.signal(1)
        for _ in range(500):
            if node.log().count("Reloaded server configuration") > before:
                return
            await asyncio.sleep(0.02)
        pytest.fail(f"nats-server did not reload: {node.tail()}")

    try:
        yield port, reload
    finally:
        node.kill9()
