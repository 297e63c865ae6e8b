"""Connections that publish without waiting do not keep others from their acks."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time

import pytest

from testkit.client import ClientError, create_stream
from testkit.flood import Probe, run_flood
from testkit.harness import Node, ProcessCluster

pytestmark = [pytest.mark.cluster, pytest.mark.alone, pytest.mark.thorough]

LONGEST = 3.0
"""Seconds to an ack, on a machine that the flood and other tests share; the goal is 2 s (bench/scenarios/flood.py).
Without turns and valves it was 10 s and more."""


@pytest.mark.parametrize("replies", [False, True], ids=["no-replies", "replies"])
async def test_a_flood_does_not_keep_others_waiting(replies: bool) -> None:
    async with ProcessCluster(3) as cluster:
        async with await cluster[0].connect() as client:
            await create_stream(client, "FLOOD", ["flood.>"], 3)
        leader = await cluster.stream_leader("FLOOD")
        stop = asyncio.Event()
        probes = [Probe(node) for node in cluster.nodes]
        tasks = [asyncio.create_task(probe.run(stop)) for probe in probes]
        await asyncio.sleep(0.5)
        start = time.monotonic()
        sent = await run_flood(cluster.nodes, 100, 5.0, replies=replies, send_buffer=32768)
        took = time.monotonic() - start
        stop.set()
        await asyncio.gather(*tasks)
        assert sent > 1_000_000, f"{sent} bytes in {took:.1f} s are no flood"
        for probe in probes:
            assert not probe.refused
            assert max(wait for _, wait in probe.waits) <= LONGEST, probe.node.name
        assert await cluster.stream_leader("FLOOD") is leader
        async with await leader.connect() as client:
            for probe in probes:
                for seq, payload in probe.acked.items():
                    answer = await client.request("$JS.API.DIRECT.GET.FLOOD", b'{"seq":%d}' % seq, within=10)
                    assert answer.data == payload


async def test_the_publishers_of_a_flood_find_the_next_leader() -> None:
    """The leader's process stops while it takes no more, and more than enough waits for its link: whoever was held for
    it goes on when it is suspected, not only when its link is given up after 3.5 s."""
    async with ProcessCluster(3) as cluster:
        async with await cluster[0].connect() as client:
            await create_stream(client, "FLOOD", ["flood.>"], 3)
        leader = await cluster.stream_leader("FLOOD")
        others = [node for node in cluster.nodes if node is not leader]
        flood = asyncio.ensure_future(run_flood(others, 60, 9.0, send_buffer=32768))
        await asyncio.sleep(3.0)
        leader.signal(signal.SIGSTOP)
        start = time.monotonic()
        took = await asyncio.gather(*(_until_acked(node) for node in others))
        until = time.monotonic()
        leader.signal(signal.SIGCONT)
        await flood
        print(f"acked after {took} s, {until - start:.1f} s")
        assert max(took) < LONGEST


async def _until_acked(node: Node) -> float:
    """Seconds to the first ack of a client that asks again and again, on one connection."""
    start = time.monotonic()
    async with await node.connect() as client:
        while time.monotonic() < start + 20:
            with contextlib.suppress(TimeoutError, ClientError, KeyError):
                answer = await client.request("flood.probe", b"x", within=0.3)
                assert answer.json()["seq"]
                break
            await asyncio.sleep(0.02)
    return time.monotonic() - start
