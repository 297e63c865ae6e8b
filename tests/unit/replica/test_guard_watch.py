"""A cluster whose stream has a retention guard: what publishers, STREAM.INFO and advisories say, through failovers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetcluster.errors import ApiError
from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time
from tests.unit.cluster.consumers import SECOND, ask, consumer
from tests.unit.replica.test_mirror_host import serve_api

REFUSED = "maximum bytes exceeded while messages wait for the retention guard"


def guard(**fields: Any) -> dict[str, Any]:
    return {"retention_guard": {"consumer": "c", "max_bytes": 0, "max_age": 0, "discard": "new", **fields}}


def advisories(cluster: Cluster) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    for kind in ("GUARD_REFUSES", "GUARD_OVERRUN"):
        subject = f"$JS.EVENT.ADVISORY.STREAM.{kind}.S".encode()
        cluster["A"].bus.subscribe(subject, lambda _s, _r, _h, body, _o: told.append(json.loads(body)))
    return told


async def shown(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = (await ask(cluster["A"], "S", "info"))["guard"]
    return found


@virtual_time
async def test_a_guard_that_is_full_refuses_and_says_so_until_its_consumer_goes_on() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", max_msgs=2, **guard(max_bytes=200))
        told = advisories(cluster)
        assert await shown(cluster) == {"consumer": "c", "found": False, "ack_floor": 0, "num_waiting": 0}
        await consumer(cluster["A"], "c")
        answers = [await cluster["A"].publish(b"s") for _ in range(10)]
        errors = [answer["error"]["description"] for answer in answers if "error" in answer]
        assert errors and set(errors) == {REFUSED}
        stored = 10 - len(errors)
        info = await shown(cluster)
        assert info["refuses"] == REFUSED and info["num_waiting"] == stored and info["found"] and info["oldest_ts"]
        await cluster.until(lambda: bool(told), what="the advisory")
        assert told[0]["consumer"] == "c" and told[0]["waiting"] == stored and told[0]["reason"] == REFUSED
        leader = cluster.leader("S")
        cluster.crash([leader.name])
        cluster.restart([leader.name])
        await cluster.led("S")
        assert await ask(cluster["A"], "S", "consumer_reset", name="c", seq=stored + 1)
        info = await shown(cluster)
        assert (info["ack_floor"], info["num_waiting"]) == (stored, 0) and "refuses" not in info
        await cluster.until(lambda: cluster.leader("S").replica("S").store.messages == 2)
        assert "error" not in await cluster["A"].publish_again(b"s")
        await cluster.equal("S")


@virtual_time
async def test_an_overrun_is_told_and_stays_counted_on_every_replica() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", max_age=SECOND, **guard(max_age=3 * SECOND, discard="old"))
        told = advisories(cluster)
        await consumer(cluster["A"], "c")
        for _ in range(3):
            await cluster["A"].publish(b"s")
        await cluster.never(lambda: cluster.leader("S").replica("S").store.messages < 3, 2.0, "the guard holds them")
        await cluster.until(lambda: not cluster.leader("S").replica("S").store.messages, 5.0, "they are given up")
        await cluster.until(lambda: sum(one["messages"] for one in told) == 3, 5.0, "the advisories")
        await cluster.equal("S")
        assert {node.replica("S").machine.guard.overrun.messages for node in cluster} == {3}
        assert (await shown(cluster))["overrun"]["messages"] == 3


@virtual_time
async def test_the_consumer_of_a_guard_is_deleted_only_after_it_and_goes_with_its_stream() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", **guard(max_bytes=1 << 20))
        await consumer(cluster["A"], "c")
        with pytest.raises(ApiError, match="retention_guard of its stream"):
            await ask(cluster["A"], "S", "consumer_delete", name="c")
        await cluster.update("S")
        await ask(cluster["A"], "S", "consumer_delete", name="c")
        await cluster.update("S", **guard(max_bytes=1 << 20))
        await cluster.delete("S")


@virtual_time
async def test_a_mirror_waits_for_its_own_guard_and_goes_on() -> None:
    async with Cluster() as cluster:
        apis = [serve_api(node) for node in cluster]
        await cluster.create("S")
        await cluster.create("M", subjects=[], mirror={"name": "S"}, max_msgs=2, **guard(max_bytes=200))
        for _ in range(20):
            await cluster["A"].publish(b"s")
        await consumer(cluster["A"], "c", stream="M")
        mirror = (await cluster.led("M")).replica("M").store
        await cluster.until(lambda: mirror.messages > 2, 10.0, "more than the limit")
        await cluster.never(lambda: mirror.messages > 6, 10.0, "no more than the guard permits")
        while mirror.last_seq < 20:
            before = mirror.last_seq
            await ask(cluster["A"], "M", "consumer_reset", name="c", seq=before + 1)
            await cluster.until(lambda before=before: mirror.last_seq > before, 30.0, "it goes on")  # type: ignore[misc]
        assert len(apis) == 3
