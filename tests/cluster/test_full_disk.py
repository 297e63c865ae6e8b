"""A disk that is really full (64 MB): publishes are refused, reads go on, and what frees space is let in."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from testkit.client import Client, create_stream
from testkit.harness import Node, ProcessCluster, eventually
from tests.symptom_page import shown

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.ours("about this server's reserves"),
    pytest.mark.thorough,
]

SIZE = 500_000
DISK_MIB = 64


async def publish(client: Client) -> dict[str, object]:
    reply = await client.request("s", os.urandom(SIZE), within=8.0)
    return json.loads(reply.data) if reply.data else {"error": f"status {reply.status}"}


async def fill(client: Client) -> tuple[int, dict[str, object]]:
    """Publishes until refused: (how many were acked, the refusal)."""
    for n in range(400):
        answer = await publish(client)
        if "error" in answer:
            return n, answer
    raise AssertionError("200 MB fitted on 64 MB")


async def said(node: Node, answer: dict[str, object]) -> None:
    """The client, the log and health say that the disk is full."""
    await eventually(lambda: "[ERR] this node is not well aspect=space" in node.log(), 5, "no line in the log", node)

    async def unhealthy() -> bool:
        return "this server is not well: " in (await node.monitor("healthz")).get("error", "")

    await eventually(unhealthy, 5, "/healthz says nothing of it", node)
    shown("the-disk-is-full", answer, node.log(), (await node.monitor("healthz"))["error"])


async def _writable(client: Client) -> bool:
    return "error" not in await publish(client)


@pytest.mark.parametrize("way", ["purge", "delete"])
async def test_a_full_disk_can_be_emptied(small_disk: Path, server: str, way: str) -> None:
    async with (
        ProcessCluster(1, server, root=small_disk, monitor=True) as single,
        await single[0].connect() as client,
    ):
        await create_stream(client, "S", ["s"], 1)
        for _ in range(3):
            count, answer = await fill(client)
            assert answer["error"]["err_code"] in (10077, 10047), answer
            await said(single[0], answer)
            last = (await client.api("STREAM.INFO.S"))["state"]["last_seq"]
            read = await client.request("$JS.API.DIRECT.GET.S", json.dumps({"seq": last}).encode())
            assert len(read.data) == SIZE
            await asyncio.sleep(1.5)  # what the journal alone gives up has come back by now; it is filled once more
            count, answer = await fill(client)
            if way == "purge":
                assert (await client.api("STREAM.PURGE.S"))["success"]
            else:
                assert (await client.api("STREAM.DELETE.S"))["success"]
                await create_stream(client, "S", ["s"], 1)
            took = await eventually(lambda: _writable(client), 15, "not writable again", single[0], every=0.1)
            print(f"{count} more until full; writable {took:.2f} s after the {way}")
        assert single[0].alive


async def test_one_full_node_of_three_does_not_stop_the_stream(small_disk: Path, tmp_path: Path, server: str) -> None:
    (tmp_path / "nodes" / "n1").mkdir(parents=True)
    (tmp_path / "nodes" / "n1" / "store").symlink_to(small_disk)
    async with ProcessCluster(3, server, root=tmp_path / "nodes") as cluster, await cluster[1].connect() as client:
        await create_stream(client, "S", ["s"], 3)
        acked = 0
        for _ in range(160):  # 80 MB: more than the small disk holds

            async def ok() -> bool:
                try:
                    return await _writable(client)
                except TimeoutError:
                    return False

            await eventually(ok, 20, "the stream stands still", cluster[0], every=0.1)
            acked += 1
        assert (await client.api("STREAM.INFO.S"))["state"]["messages"] >= acked
        assert cluster[0].alive
        assert (await client.api("STREAM.PURGE.S"))["success"]
        for _ in range(5):
            assert await _writable(client)
        await cluster.wait_current("S", within=60)


async def test_a_snapshot_that_does_not_fit_leaves_room_and_comes_when_it_does(
    small_disk: Path, tmp_path: Path, server: str
) -> None:
    """n1 was away for more than the log of the others holds, and the stream is larger than its disk. It gives back what
    it could not use: a purge of the stream, which it only hears of by the next snapshot, is enough to heal it."""
    (tmp_path / "nodes" / "n1").mkdir(parents=True)
    (tmp_path / "nodes" / "n1" / "store").symlink_to(small_disk)
    async with ProcessCluster(3, server, root=tmp_path / "nodes") as cluster, await cluster[1].connect() as client:
        await create_stream(client, "S", ["s"], 3)
        for _ in range(20):
            assert await _writable(client)
        await cluster.wait_current("S")
        cluster[0].kill9()
        await eventually(lambda: _writable(client), 10, "no leader", cluster[1])
        for _ in range(160):
            assert await _writable(client)
        await cluster[0].start()

        async def has_room() -> bool:
            free = os.statvfs(small_disk)
            return free.f_bavail > free.f_blocks // 2

        await eventually(
            lambda: "there is no room for the state" in cluster[0].log(), 30, "it was never full", cluster[0]
        )
        await eventually(has_room, 10, "half a state is of no use, and is kept", cluster[0])
        assert (await client.api("STREAM.PURGE.S"))["success"]
        assert await _writable(client)
        await cluster.wait_current("S", within=30)
