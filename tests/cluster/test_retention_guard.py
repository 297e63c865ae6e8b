"""A retention guard in a cluster of processes: servers are killed, and the account is backed up and restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testkit.client import Client, ClientError, create_stream
from testkit.consumer_client import SECOND, Jet
from testkit.harness import ProcessCluster, eventually
from tests.cluster.test_account_backup import Site

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.ours("nats-server has no retention_guard")]

COUNT = 40
GUARD = {"consumer": "archive", "max_bytes": 1 << 20}


async def guarded(client: Client, **limits: Any) -> None:
    """A stream whose guard exists, with so many messages."""
    await create_stream(client, "S", ["s.>"], 3, retention_guard=GUARD, **limits)
    config = {"durable_name": "archive", "ack_policy": "explicit"}
    await client.api("CONSUMER.CREATE.S.archive", {"stream_name": "S", "config": config})
    for number in range(COUNT):
        assert "error" not in (await client.request(f"s.{number % 3}", b"%d" % number)).json()


async def until_stored(client: Client, messages: int, first: int) -> None:
    async def is_so() -> bool:
        try:
            state = (await client.api("STREAM.INFO.S"))["state"]
        except (ClientError, TimeoutError):
            return False
        return (state["messages"], state["first_seq"]) == (messages, first)

    await eventually(is_so, 30.0, f"{messages} messages from {first} on")


async def reset(client: Client, seq: int) -> None:
    async def is_done() -> bool:
        try:
            return bool((await client.api("CONSUMER.RESET.S.archive", {"seq": seq}))["reset_seq"] == seq)
        except (ClientError, TimeoutError):
            return False

    await eventually(is_done, 30.0, f"the guard is at {seq}")


async def test_what_waits_outlives_leaders_and_all_servers() -> None:
    async with ProcessCluster(3) as cluster:
        async with await cluster[0].connect() as client:
            await guarded(client, max_age=SECOND, duplicate_window=SECOND)
            leader = await cluster.stream_leader("S")
        leader.kill9()
        other = next(node for node in cluster.nodes if node is not leader)
        async with await other.connect() as client:
            await reset(client, 11)
            await until_stored(client, COUNT - 10, 11)
        cluster.kill9_all()
        await cluster.start()
        async with await cluster[0].connect() as client:
            await until_stored(client, COUNT - 10, 11)
            jet = Jet(client, "S", 3, "jetcluster")
            for message in await jet.fetch("archive", 5):
                await jet.ack(message)
            await until_stored(client, COUNT - 15, 16)


async def test_a_restored_stream_is_guarded_from_the_same_place(tmp_path: Path) -> None:
    async with ProcessCluster(3) as cluster, await cluster[0].connect() as client:
        await guarded(client, max_msgs=5)
        await reset(client, 21)
        await until_stored(client, COUNT - 20, 21)
        site = Site(cluster, tmp_path / "backup")
        point = await site.backup()
        config = (await client.api("STREAM.INFO.S"))["config"]
        await client.api("STREAM.DELETE.S")
        await site.restore(point)
        info = await client.api("STREAM.INFO.S")
        assert info["config"] == config
        guard = info["retention_guard"]
        assert (guard["found"], guard["ack_floor"], guard["num_waiting"]) == (True, 20, COUNT - 20)
        assert (await client.request("s.1", b"new")).json()["seq"] == COUNT + 1
        await until_stored(client, COUNT - 19, 21)
        await reset(client, 31)
        await until_stored(client, COUNT - 29, 31)
