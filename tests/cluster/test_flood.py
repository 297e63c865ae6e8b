"""Connections that publish without waiting do not keep others from their acks."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.cluster.client import create_stream
from tests.cluster.flood import Probe, run_flood
from tests.cluster.harness import ProcessCluster

pytestmark = pytest.mark.cluster

LONGEST = 3.0
"""Seconds to an ack, on a machine that the flood and other tests share; the goal is 2 s (scripts/bench_flood.py).
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
