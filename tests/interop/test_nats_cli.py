"""The `nats` command line tool against the server, as an operator uses it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from testkit.harness import ProcessCluster

pytestmark = [pytest.mark.cluster, pytest.mark.interop, pytest.mark.usefixtures("tool")]


class Cli:
    def __init__(self, tool: str, url: str) -> None:
        self.base = [tool, "--server", url, "--timeout", "5s"]

    async def __call__(self, *args: str, rc: int = 0, data: bytes = b"") -> str:
        process = await asyncio.create_subprocess_exec(
            *self.base, *args, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await asyncio.wait_for(process.communicate(data), 30)
        assert process.returncode == rc, f"nats {' '.join(args)} -> {process.returncode}: {out.decode()}"
        return out.decode()

    async def json(self, *args: str) -> Any:
        out = await self(*args)
        return json.loads(out)


async def test_streams(tidy: ProcessCluster, tool: str) -> None:
    cli = Cli(tool, tidy.urls[1])
    await cli("stream", "add", "ORDERS", "--subjects", "orders.>", "--replicas", "3", "--storage", "file",
              "--allow-direct", "--defaults")  # fmt: skip
    info = await cli.json("stream", "info", "ORDERS", "--json")
    assert info["config"]["num_replicas"] == 3
    assert info["config"]["subjects"] == ["orders.>"]
    assert len(info["cluster"]["replicas"]) == 2
    assert "ORDERS" in await cli("stream", "ls")
    assert (await cli.json("stream", "ls", "--json")) == ["ORDERS"]

    await cli("pub", "orders.new", "hello", "--jetstream")
    await cli("pub", "orders.new", "msg {{Count}}", "--count", "20", "--jetstream")
    message = await cli("stream", "get", "ORDERS", "1")
    assert "orders.new" in message
    assert "hello" in message
    assert "msg 20" in await cli("stream", "get", "ORDERS", "--last-for", "orders.new")
    assert (await cli.json("stream", "info", "ORDERS", "--json"))["state"]["messages"] == 21
    subjects = await cli("stream", "subjects", "ORDERS")
    assert "orders.new" in subjects

    await cli("stream", "edit", "ORDERS", "--max-msgs", "1000", "--force")
    assert (await cli.json("stream", "info", "ORDERS", "--json"))["config"]["max_msgs"] == 1000
    await cli("stream", "rmm", "ORDERS", "3", "--force")
    assert (await cli.json("stream", "info", "ORDERS", "--json"))["state"]["messages"] == 20
    await cli("stream", "purge", "ORDERS", "--force")
    assert (await cli.json("stream", "info", "ORDERS", "--json"))["state"]["messages"] == 0
    await cli("stream", "rm", "ORDERS", "--force")
    assert "ORDERS" not in await cli("stream", "ls")


async def test_core_request_and_checks(tidy: ProcessCluster, tool: str) -> None:
    cli = Cli(tool, tidy.urls[0])
    responder = await asyncio.create_subprocess_exec(
        tool, "--server", tidy.urls[2], "reply", "help", "we are here",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert responder.stdout is not None
        await asyncio.wait_for(responder.stdout.readline(), 10)  # it says that it listens
        await asyncio.sleep(0.3)  # interest crosses the mesh
        assert "we are here" in await cli("request", "help", "please")
    finally:
        responder.kill()
        await responder.communicate()
    assert "OK" in await cli("server", "check", "connection")
    assert "no responders" in (await cli("request", "nobody", "x")).lower()
    assert "Maximum Payload" in await cli("account", "info")
    assert tidy.urls[0] in await cli("rtt")
