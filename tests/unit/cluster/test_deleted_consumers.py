"""Advisories about the consumers of a stream that is deleted (cluster/local_streams.py)."""

from __future__ import annotations

import asyncio

from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time
from tests.unit.cluster.consumers import consumer


@virtual_time
async def test_consumers_that_go_with_their_stream_are_told_of_once() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        names = [f"c{n}" for n in range(70)]
        for name in names:
            await consumer(cluster["A"], name)
        told: list[bytes] = []

        def take(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: object) -> None:
            told.append(subject)

        cluster["B"].bus.subscribe(b"$JS.EVENT.ADVISORY.CONSUMER.DELETED.S.*", take)
        await asyncio.sleep(1)
        await cluster.delete("S")
        await asyncio.sleep(1)
        assert sorted(told) == sorted(b"$JS.EVENT.ADVISORY.CONSUMER.DELETED.S." + name.encode() for name in names)
