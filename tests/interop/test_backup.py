"""`nats stream backup` and `restore` against the server, and archives carried to and from the real nats-server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jetcluster.cli.bench_client import Client
from tests.cluster.harness import Node, ProcessCluster, find_nats_cli, find_server
from tests.interop.test_nats_cli import Cli

pytestmark = [pytest.mark.cluster, pytest.mark.interop]


@pytest.fixture(autouse=True)
def tool() -> str:
    found = find_nats_cli()
    if found is None:
        pytest.skip("the nats CLI is not on this machine: run `make tools` (needs Go and its module proxy)")
    return found


async def ask(client: Client, subject: str, body: Any = "") -> dict[str, Any]:
    reply = await client.request(f"$JS.API.{subject}", json.dumps(body).encode() if body != "" else b"")
    found: dict[str, Any] = reply.json()
    return found


async def fill(client: Client, stream: str, replicas: int) -> None:
    """300 messages on a few subjects, with and without headers; holes inside and at the end."""
    config = {"name": stream, "subjects": [f"{stream}.>"], "num_replicas": replicas, "description": "to be kept"}
    created = await ask(client, f"STREAM.CREATE.{stream}", config)
    assert "error" not in created, created
    for i in range(1, 301):
        headers = {"Number": str(i)} if i % 3 == 0 else None
        payload = b"m%d " % i * (1 + i % 50 * 20)
        await client.request(f"{stream}.{i % 7}", payload, headers=headers)
    for seq in (1, 2, 50, 51, 120, 299, 300):
        assert (await ask(client, f"STREAM.MSG.DELETE.{stream}", {"seq": seq}))["success"]


async def contents(client: Client, stream: str) -> tuple[dict[str, Any], list[Any]]:
    info = await ask(client, f"STREAM.INFO.{stream}", {"deleted_details": True})
    state = info["state"]
    messages = [await ask(client, f"STREAM.MSG.GET.{stream}", {"seq": seq}) for seq in range(1, state["last_seq"] + 1)]
    for found in messages:
        found.get("message", {}).pop("headers", None)  # ours adds them decoded (streams.md R11)
        found.pop("error", None)
    return state, messages


async def carry(tool: str, source: Node, target: Node, stream: str, folder: Path) -> None:
    """Backs the stream up, deletes it where it is to go, restores it there, and compares everything."""
    there, here = await source.connect(), await target.connect()
    state, before = await contents(there, stream)
    await Cli(tool, source.url)("stream", "backup", stream, str(folder), "--no-progress")
    if source is target:
        assert (await ask(there, f"STREAM.DELETE.{stream}"))["success"]
    await Cli(tool, target.url)("stream", "restore", str(folder), "--no-progress")
    restored_state, after = await contents(here, stream)
    for found in (state, restored_state):
        found.pop("consumer_count")
    # The time of the last message is that of the last one there: what was behind it is gone on both sides.
    for found in (state, restored_state):
        found.pop("last_ts")
    assert restored_state == state
    assert after == before
    info = await ask(here, f"STREAM.INFO.{stream}")
    assert info["config"]["description"] == "to be kept"
    assert "restoring" not in info["config"]
    ack = (await here.request(f"{stream}.new", b"next")).json()
    assert ack["seq"] == state["last_seq"] + 1
    there.close()
    here.close()


@pytest.mark.parametrize("replicas", [1, 3])
async def test_round_trip(cluster: ProcessCluster, tool: str, tmp_path: Path, replicas: int) -> None:
    client = await cluster[0].connect()
    await fill(client, "KEEP", replicas)
    await carry(tool, cluster[0], cluster[0], "KEEP", tmp_path / "backup")
    if replicas == 3:
        before = await contents(client, "KEEP")
        assert (await ask(client, "STREAM.LEADER.STEPDOWN.KEEP"))["success"]
        assert await contents(client, "KEEP") == before
    assert not any("differs" in node.log() for node in cluster.nodes)
    client.close()


async def test_carried_to_and_from_nats_server(single: ProcessCluster, tool: str, tmp_path: Path) -> None:
    """Its archives are compressed, ours are not; both are of format V2."""
    if find_server("nats-server") is None:
        pytest.skip("nats-server is not on this machine")
    async with ProcessCluster(1, "nats-server", root=tmp_path / "peer") as peer:
        for stream, source, target in (("THERE", single[0], peer[0]), ("HERE", peer[0], single[0])):
            client = await source.connect()
            await fill(client, stream, 1)
            await carry(tool, source, target, stream, tmp_path / stream)
            client.close()
