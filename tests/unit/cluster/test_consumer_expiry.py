"""Consumers that nobody uses any more."""

from __future__ import annotations

import asyncio

from tests.unit.cluster.consumers import (
    SECOND,
    Puller,
    consumer,
    filled,
    host,
)
from tests.unit.cluster.nodes import Cluster
from tests.unit.cluster.virtual_loop import virtual_time


@virtual_time
async def test_an_ephemeral_that_nobody_uses_is_deleted_and_that_is_told_once() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 0)
        told: list[bytes] = []
        cluster["B"].bus.subscribe(b"$JS.EVENT.ADVISORY.CONSUMER.DELETED.S.*", lambda subject, *_: told.append(subject))
        await asyncio.sleep(0.01)
        for number in range(5):
            await consumer(cluster["A"], f"e{number}", durable_name="", inactive_threshold=2 * SECOND)
        user = Puller(cluster["C"], "S", "e3")
        user.pull(5, expires=5.0)
        await asyncio.sleep(4.0)
        assert sorted(host(cluster["A"]).table.by_name) == ["e3"]
        await asyncio.sleep(6.0)
        assert host(cluster["A"]).table.count == 0
        assert sorted(told) == [b"$JS.EVENT.ADVISORY.CONSUMER.DELETED.S.e%d" % n for n in range(5)]


@virtual_time
async def test_a_short_threshold_is_kept() -> None:
    """nats.c: 50 ms, looked for 150 ms after the connection has gone."""
    async with Cluster() as cluster:
        await filled(cluster, 1)
        await consumer(cluster["A"], "e", durable_name="", inactive_threshold=SECOND // 20)
        await asyncio.sleep(0.1)
        assert host(cluster["A"]).table.count == 0
