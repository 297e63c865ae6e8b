"""Nodes that run out of file descriptors go on, and lose nothing."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from pathlib import Path

import pytest

from testkit.client import ClientError, create_stream
from testkit.harness import Node, ProcessCluster, eventually
from testkit.ledger import publish_all
from tests.cluster.test_health import acks_come_again, drilled, is_well, leader_at_hand, reasons

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

LIMIT = 180
BODY = 16 * 1024


def limit_files(node: Node) -> None:
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))


async def come(node: Node, count: int) -> list[socket.socket]:
    """Connections that say nothing."""

    def connect() -> list[socket.socket]:
        return [socket.create_connection(("127.0.0.1", node.port), timeout=5) for _ in range(count)]

    return await asyncio.to_thread(connect)


async def test_connections_do_not_take_the_stores_descriptors() -> None:
    async with ProcessCluster(3) as cluster:
        async with await cluster[0].connect() as client:
            await create_stream(client, "S", ["s"], 3)
        for node in cluster.nodes:
            limit_files(node)
        await asyncio.sleep(0.5)
        silent = [one for node in cluster.nodes for one in await come(node, 300)]
        await asyncio.sleep(1.5)
        payloads = [b"%08d" % n + b"x" * BODY for n in range(4000)]
        async with await cluster[1].connect() as client:  # one that logs in takes the place of one that did not
            ledger = await publish_all(client, "s", payloads, window=100)
            assert len(ledger.acked) == len(payloads), ledger.refused[:3]
            for payload in payloads[::400]:
                answer = await client.request("$JS.API.DIRECT.GET.S", b'{"seq":%d}' % ledger.acked[payload], within=5)
                assert answer.data == payload
        for node in cluster.nodes:
            assert node.alive
            assert "File descriptors run short" in node.log()
            assert "Raft journal failed" not in node.log()
        for one in silent:
            one.close()


async def test_a_client_that_cannot_be_taken_gets_an_error() -> None:
    async with ProcessCluster(1) as cluster:
        node = cluster[0]
        limit_files(node)
        await asyncio.sleep(0.5)
        known = [await node.connect() for _ in range(60)]
        held = await come(node, 200)
        text = b""
        held[-1].settimeout(5)
        while chunk := held[-1].recv(4096):
            text += chunk
        assert b"-ERR 'maximum connections exceeded'" in text
        await known[0].flush()
        for one in held:
            one.close()
        await eventually(lambda: lets_in(node), 5, "it has room again, once it has read that they are gone")
        for one in known:
            one.close()


async def lets_in(node: Node) -> bool:
    with contextlib.suppress(ClientError, OSError):
        async with await node.connect() as client:
            await client.flush()
            return True
    return False


async def test_a_journal_without_a_descriptor_for_its_next_segment_waits(tmp_path: Path) -> None:
    async with drilled(tmp_path, "journal.create=emfile") as (cluster, files):
        leader, other = await leader_at_hand(cluster, "S", "s")
        for file in files.values():
            file.touch()
        payloads = [b"%08d" % n + b"x" * BODY for n in range(4000)]
        async with await other.connect() as client:
            publishing = asyncio.create_task(publish_all(client, "s", payloads, window=100, within=120))
            await eventually(lambda: short(leader), 60, "the leader's journal needs a segment")
            await asyncio.sleep(1)
            assert not publishing.done()
            for file in files.values():
                file.unlink()
            ledger = await publishing
            assert len(ledger.acked) == len(payloads), ledger.refused[:3]
            assert await acks_come_again(client, "s") < 5
        for node in cluster.nodes:
            assert node.alive
            await eventually(lambda node=node: is_well(node), 10, "it is well")
            assert await reasons(node) == ""


async def short(node: Node) -> bool:
    def get() -> str:
        with socket.create_connection(("127.0.0.1", node.http_port), timeout=5) as one:
            one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            text = b""
            while chunk := one.recv(65536):
                text += chunk
            return text.decode()

    lines = (await asyncio.to_thread(get)).splitlines()
    return any(line.startswith("jetcluster_journal_shortages_total") and not line.endswith(" 0") for line in lines)
