"""STREAM.LEADER.STEPDOWN with a placement, on real nodes with tags; the same on nats-server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testkit.client import Client, create_stream
from testkit.harness import ProcessCluster, eventually

pytestmark = pytest.mark.cluster


async def stepdown(client: Client, stream: str, placement: dict[str, Any]) -> str:
    """The description of the error, "" for a success."""
    body = json.dumps({"placement": placement} if placement else {}).encode()
    reply = (await client.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}", body, 5.0)).json()
    return str(reply["error"]["description"]) if "error" in reply else ""


async def test_who_leads_next(server: str) -> None:
    cluster = ProcessCluster(4, server, config="#")
    for node in cluster.nodes:
        (node.root / "server.conf").write_text(f'server_tags: ["only-{node.name}", "all"]\n')
    async with cluster, await cluster[0].connect() as client:
        await create_stream(client, "S", ["s"], 3)
        await create_stream(client, "ONE", ["one"], 1)
        info = (await client.api("STREAM.INFO.S"))["cluster"]
        members = {info["leader"], *(replica["name"] for replica in info["replicas"])}
        (spare,) = {node.name for node in cluster.nodes} - members
        leader = (await cluster.stream_leader("S")).name
        for placement, text in (
            ({"preferred": "nope"}, 'preferred server "nope" not known'),
            ({"preferred": spare}, f'preferred server "{spare}" not known'),
            ({"preferred": leader}, f'preferred server "{leader}" is already leader'),
            ({"tags": [f"only-{spare}"]}, "no replacement peer connected"),
            ({"tags": [f"only-{leader}"]}, "no replacement peer connected"),
            ({"cluster": "elsewhere"}, "no replacement peer connected"),
        ):
            assert await stepdown(client, "S", placement) == text
            assert (await cluster.stream_leader("S")).name == leader
        # nats-server says nothing while its leader is about to change: the replicas are waited for.
        for kind in ("preferred", "tags"):
            leader = (await cluster.stream_leader("S")).name
            for wanted in sorted(members - {leader}):
                placement = {"preferred": wanted} if kind == "preferred" else {"tags": [f"only-{wanted}"]}
                await cluster.wait_current("S")
                assert await stepdown(client, "S", placement) == ""

                async def leads(wanted: str = wanted) -> bool:
                    return (await cluster.stream_leader("S")).name == wanted

                await eventually(leads, 10.0, f"{wanted} does not lead", every=0.1)
        assert await stepdown(client, "ONE", {}) == ""
        assert await stepdown(client, "ONE", {"preferred": "nope"}) == ""
