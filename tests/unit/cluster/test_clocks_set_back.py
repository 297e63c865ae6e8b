"""Clocks that a majority of the servers sets back: consumers go on as before (clock.OnwardClock)."""

from __future__ import annotations

import asyncio

from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time
from tests.unit.cluster.consumers import SECOND, Puller, consumer

HOUR = 3600.0


@virtual_time
async def test_consumers_beat_deliver_and_end_requests_after_the_time_has_gone_back() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", ask="A")
        bus = cluster["A"].bus
        beats: list[float] = []
        sent: list[bytes] = []

        def hear(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: object) -> None:
            beats.append(cluster.loop.time())

        def take(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: object) -> None:
            sent.append(payload)

        bus.subscribe(b"beats", hear)
        bus.subscribe(b"slow", take)
        plain = {"ack_policy": "none", "max_waiting": 0, "max_ack_pending": 0}
        idle = {"deliver_subject": "beats", "idle_heartbeat": SECOND, "filter_subject": "t"}
        await consumer(cluster["A"], "beats", **plain, **idle)
        await consumer(cluster["A"], "slow", **plain, deliver_subject="slow", rate_limit_bps=8 * 100)
        await consumer(cluster["A"], "pulled", filter_subject="t")
        for _ in range(100):
            await cluster["A"].publish(b"s", b"x" * 100)
        await asyncio.sleep(3)
        assert len(beats) >= 2 and len(sent) >= 2
        before = cluster["A"].js.runtime.clock.time_ns()
        for name in "ABC":
            cluster.ahead[name] = -HOUR
        client = Puller(cluster["A"], "S", "pulled")
        assert client.pull(1, 60.0)
        await asyncio.sleep(40)
        assert cluster["A"].js.runtime.clock.time_ns() < before, "the time has gone back"
        beats.clear()
        sent.clear()
        await asyncio.sleep(25)
        assert len(beats) > 20 and len(sent) > 20 and client.statuses == [b"408 Request Timeout"]
