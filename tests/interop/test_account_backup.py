"""Backups of accounts carried to and from the real nats-server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testkit.client import Client
from testkit.consumer_client import Jet
from testkit.harness import ProcessCluster, find_server
from tests.cluster.test_account_backup import HOUR, STREAMS, Site, everything, load

pytestmark = [pytest.mark.cluster, pytest.mark.interop, pytest.mark.thorough]


async def filled(client: Client) -> dict[str, Any]:
    for name, config in STREAMS.items():
        if name not in ("COPY", "SUM"):  # they go on by themselves while this test compares
            await client.api(f"STREAM.CREATE.{name}", {"name": name, **config, "num_replicas": 1})
    await load(client, 0, 200)
    for seq in (1, 50, 200):
        await client.api("STREAM.MSG.DELETE.ORDERS", {"seq": seq})
    config = {"durable_name": "d", "ack_policy": "explicit", "ack_wait": HOUR}
    await client.api("CONSUMER.CREATE.ORDERS.d", {"stream_name": "ORDERS", "config": config})
    for i in range(6):
        (msg,) = await Jet(client, "ORDERS", 1, "").fetch("d")
        if i not in (2, 5):
            await client.request(msg.reply.decode(), b"+ACK")
    return await everything(client)


def comparable(found: dict[str, Any]) -> dict[str, Any]:
    """Without what each kind of server counts or adds in its own way."""
    made = json.loads(json.dumps(found))
    for one in made.values():
        one["state"].pop("bytes")
        for message in one["messages"]:
            message.pop("headers", None)
        for config in (one["config"], *(each["config"] for each in one["consumers"].values())):
            config.pop("metadata", None)
    return {name: {key: one[key] for key in ("state", "messages", "consumers")} for name, one in made.items()}


@pytest.mark.parametrize("source", ["jetcluster", "nats-server"])
async def test_an_account_moves(source: str, tmp_path: Path) -> None:
    if find_server("nats-server") is None:
        pytest.skip("nats-server is not on this machine")
    target = "nats-server" if source == "jetcluster" else "jetcluster"
    async with (
        ProcessCluster(1, source, root=tmp_path / "source") as there,
        ProcessCluster(1, target, root=tmp_path / "target") as here,
    ):
        client = await there[0].connect()
        site = Site(there, tmp_path / "backup")
        await filled(client)
        await site.backup()
        await load(client, 200, 8)
        before = await everything(client)
        point = await site.backup()
        assert site.said[-1].startswith("WORK: 1 new messages")
        client.close()
        client = await here[0].connect()
        await Site(here, tmp_path / "backup").restore(point)
        assert comparable(await everything(client)) == comparable(before)
        client.close()
