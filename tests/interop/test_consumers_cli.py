"""`nats consumer ...` and `nats kv ...` against the server, as an operator types them."""

from __future__ import annotations

import asyncio
import re

import pytest

from testkit.harness import ProcessCluster
from tests.interop.test_nats_cli import Cli

pytestmark = [pytest.mark.cluster, pytest.mark.interop, pytest.mark.thorough]


@pytest.fixture
def cli(shared: ProcessCluster, tool: str) -> Cli:
    return Cli(tool, shared.urls[1])


@pytest.fixture(params=[1, 3], ids=["R1", "R3"])
async def stream(cli: Cli, request: pytest.FixtureRequest) -> str:
    """A stream with three messages."""
    name = f"{request.node.originalname.removeprefix('test_').upper()}_{request.param}"
    await asyncio.sleep(0.5)  # nats-server is ready before it knows the other nodes' resources
    await cli("stream", "add", name, "--subjects", f"{name}.>", "--replicas", str(request.param), "--defaults")
    await cli("pub", f"{name}.a", "msg {{Count}}", "--count", "3", "--jetstream")
    return name


async def test_pull_consumer(cli: Cli, stream: str) -> None:
    await cli("consumer", "add", stream, "C", "--pull", "--filter", f"{stream}.>", "--ack", "explicit", "--defaults")
    info = await cli.json("consumer", "info", stream, "C", "--json")
    assert (info["name"], info["num_pending"], info["config"]["max_waiting"]) == ("C", 3, 512)
    text = await cli("consumer", "info", stream, "C")
    assert re.search(r"Unprocessed Messages:\s+3", text)
    out = await cli("consumer", "next", stream, "C", "--ack")
    assert "msg 1" in out
    assert "Acknowledged message" in out
    out = await cli("consumer", "next", stream, "C", "--count", "2", "--no-ack")
    assert "msg 2" in out
    assert "msg 3" in out
    info = await cli.json("consumer", "info", stream, "C", "--json")
    assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"], info["num_pending"]) == (2, 1, 0)
    assert await cli.json("consumer", "ls", stream, "--json") == ["C"]
    report = await cli("consumer", "report", stream)
    assert re.search(r"│\s*C\s*│\s*Pull\s*│\s*Explicit", report), report
    await cli("consumer", "edit", stream, "C", "--max-deliver", "9", "--force")
    assert (await cli.json("consumer", "info", stream, "C", "--json"))["config"]["max_deliver"] == 9
    await cli("consumer", "rm", stream, "C", "--force")
    assert await cli.json("consumer", "ls", stream, "--json") in ([], None)


async def test_push_consumer(cli: Cli, stream: str) -> None:
    await cli("consumer", "add", stream, "P", "--target", f"out.{stream}", "--ack", "none", "--deliver", "all",
              "--replay", "instant", "--heartbeat=-1", "--defaults")  # fmt: skip
    info = await cli.json("consumer", "info", stream, "P", "--json")
    assert info["config"]["deliver_subject"] == f"out.{stream}"
    out = await cli("sub", f"out.{stream}", "--count", "3", "--raw")
    assert out.split("\n")[:3] == ["msg 1", "msg 2", "msg 3"]
    out = await cli("sub", f"{stream}.>", "--stream", stream, "--all", "--count", "3", "--raw")
    assert [line for line in out.split("\n") if line.startswith("msg")] == ["msg 1", "msg 2", "msg 3"]


async def test_pause(cli: Cli, stream: str) -> None:
    await cli("consumer", "add", stream, "C", "--pull", "--defaults")
    out = await cli("consumer", "pause", stream, "C", "1h", "--force")
    assert "Paused" in out
    assert (await cli.json("consumer", "info", stream, "C", "--json"))["paused"] is True
    assert re.search(r"Paused Until Deadline:.*remaining", await cli("consumer", "info", stream, "C"))
    await cli("consumer", "resume", stream, "C", "--force")
    await asyncio.sleep(0.2)
    assert not (await cli.json("consumer", "info", stream, "C", "--json")).get("paused")


async def test_groups_and_step_down(cli: Cli, stream: str) -> None:
    await cli("consumer", "add", stream, "G", "--pull", "--pinned-groups", "g", "--pinned-ttl", "1m", "--defaults")
    info = await cli.json("consumer", "info", stream, "G", "--json")
    assert (info["config"]["priority_policy"], info["config"]["priority_groups"]) == ("pinned_client", ["g"])
    await cli("consumer", "unpin", stream, "G", "g", "--force", rc=1)  # nobody is pinned: the CLI says so
    if stream.endswith("_3"):
        out = await cli("consumer", "cluster", "step-down", stream, "G", "--force")
        assert "leader" in out.lower()


async def test_kv(cli: Cli, shared: ProcessCluster, request: pytest.FixtureRequest) -> None:
    await asyncio.sleep(0.5)
    for replicas in ("1", "3"):
        name = f"bucket{replicas}"
        await cli("kv", "add", name, "--history", "5", "--replicas", replicas)
        await cli("kv", "put", name, "a", "1")
        await cli("kv", "put", name, "a", "2")
        assert await cli("kv", "get", name, "a", "--raw") == "2"
        await cli("kv", "create", name, "b", "x")
        await cli("kv", "create", name, "b", "y", rc=1)
        await cli("kv", "update", name, "b", "z", "3")
        await cli("kv", "update", name, "b", "w", "3", rc=1)
        assert sorted((await cli("kv", "ls", name)).split()) == ["a", "b"]
        history = await cli("kv", "history", name, "a")
        assert history.count("PUT") == 2
        await cli("kv", "del", name, "a", "--force")
        await cli("kv", "get", name, "a", rc=1)
        await cli("kv", "revert", name, "b", "3", "--force")
        assert await cli("kv", "get", name, "b", "--raw") == "x"
        await cli("kv", "purge", name, "b", "--force")
        assert (await cli("kv", "ls", name)).split() in ([], ["No", "keys", "found", "in", "bucket"])
        status = await cli("kv", "info", name)
        assert re.search(r"Bucket Name:\s+" + name, status)
        assert name in await cli("kv", "ls")
        await cli("kv", "compact", name, "--force")
        await cli("kv", "rm", name, "--force")


async def test_kv_watch(cli: Cli, shared: ProcessCluster) -> None:
    await asyncio.sleep(0.5)
    await cli("kv", "add", "watched", "--replicas", "3")
    await cli("kv", "put", "watched", "k", "before")
    watch = await asyncio.create_subprocess_exec(
        *cli.base, "kv", "watch", "watched", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        assert watch.stdout is not None
        async with asyncio.timeout(10):
            assert b"before" in await watch.stdout.readline()
            await cli("kv", "put", "watched", "k", "after")
            assert b"after" in await watch.stdout.readline()
            await cli("kv", "del", "watched", "k", "--force")
            assert b"DEL" in await watch.stdout.readline()
    finally:
        watch.kill()
        await watch.wait()
