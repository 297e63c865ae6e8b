"""A counter with sources under anything: increments on both sides, upstreams purged, leaders that change, nodes that
crash. In the end its total is what the upstreams and its own increments come to, on all replicas."""

from __future__ import annotations

import json

import pytest

from jetcluster.stream.apply.counters import MAX_COMMAND_MESSAGES
from jetcluster.stream.fields import nats_fields
from jetcluster.stream.log import commands
from testkit.sim.nodes import SMALL_LOG, Cluster, Node, NoRespondersError
from testkit.sim.shared import virtual_time
from tests.unit.cluster.test_mirror_random import Run
from tests.unit.stream.fake_store import block

pytestmark = pytest.mark.thorough

UPS = ("UP", "UP2")
STREAMS = (*UPS, "S")
SUBJECTS = (b"up.a", b"up.b", b"up2.a")


class Counting(Run):
    streams = STREAMS

    async def publish(self) -> None:
        subject = self.rng.choice((*SUBJECTS, b"sum"))
        count = self.rng.randrange(1, 30)
        headers = block(f"Nats-Incr: {self.rng.randint(-100, 100)}")
        try:
            await self.any_node().requests(subject, [b""] * count, 0.3, headers)
        except (TimeoutError, NoRespondersError):
            pass  # counted or not

    async def administer(self) -> None:
        """An upstream's counter is reset, or loses its newest increments."""
        leader = await self.cluster.led("UP")
        now = self.cluster.loop.time_ns()
        if self.rng.random() < 0.3:
            await self.proposed(leader, commands.encode_purge(now, self.rng.choice(SUBJECTS)))
            return
        last = leader.replica("UP").store.last_seq
        for seq in range(max(1, last - 2), last + 1):
            await self.proposed(leader, commands.encode_delete_msg(now, seq))


def value(node: Node, stream: str, subject: bytes) -> int:
    message = node.replica(stream).store.queries.last_by_subject(subject)
    return int(json.loads(message.payload)["val"]) if message is not None else 0


@virtual_time
@pytest.mark.parametrize("seed", range(5))
async def test_the_total_is_the_sum(seed: int) -> None:
    async with Cluster(options=SMALL_LOG) as cluster:
        run = Counting(cluster, seed)
        counter = {"allow_msg_counter": True}
        await cluster.create("UP", subjects=["up.*"], **counter)
        await cluster.create("UP2", subjects=["up2.*"], **counter)
        sources = [{"name": up, "subject_transforms": [{"src": f"{up.lower()}.*", "dest": "sum"}]} for up in UPS]
        await cluster.create("S", subjects=["sum"], sources=sources, **counter)
        await run.go()
        for stream in STREAMS:
            leader = await cluster.led(stream)
            expected = MAX_COMMAND_MESSAGES if stream == "S" else 4096
            assert leader.replica(stream).ingest.batch_messages == expected
        for subject in SUBJECTS:
            await cluster["A"].publish_again(subject, b"", block("Nats-Incr: 1"))
        for up in UPS:
            await cluster.equal(up)
        wanted = {
            "UP": {subject.decode(): str(value(cluster["A"], "UP", subject)) for subject in SUBJECTS[:2]},
            "UP2": {"up2.a": str(value(cluster["A"], "UP2", b"up2.a"))},
        }

        def seen() -> object:
            message = cluster["A"].replica("S").store.queries.last_by_subject(b"sum")
            return json.loads(nats_fields(message.headers)[b"Nats-Counter-Sources"]) if message is not None else None

        await cluster.until(lambda: seen() == wanted, 60.0, "what the upstreams have")
        await cluster.equal("S")
        stored = [nats_fields(m.headers) for m in cluster["B"].replica("S").store.queries.scan(b">", 1)]
        own = sum(int(fields[b"Nats-Incr"]) for fields in stored if b"Nats-Stream-Source" not in fields)
        total = sum(int(one) for totals in wanted.values() for one in totals.values()) + own
        assert value(cluster["C"], "S", b"sum") == total
        assert sum(int(fields[b"Nats-Incr"]) for fields in stored) == total
        assert own and any(b"Nats-Stream-Source" in fields for fields in stored)
        for api in run.apis.values():
            await api.stop()
