"""The watch over consumers that have messages and readers and deliver nothing (cluster/consumer_watch.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetcluster.cluster import consumer_facts, consumer_watch
from jetcluster.cluster.consumer_watch import LOOK_SECONDS
from jetcluster.consumer.owner.owner import ConsumerOwner
from jetcluster.consumer.owner.pull import PullDelivery
from jetcluster.consumer.owner.pull_dispatch import PullDispatch
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.doctor.facts import ConsumerFacts
from jetcluster.replica.stream_replica import StreamReplica
from testkit.sim.nodes import Cluster, Node
from testkit.sim.shared import virtual_time
from tests.unit.cluster.consumers import SECOND, Puller, consumer, filled, host, owner, state

STUCK = "a consumer delivers nothing although messages and a reader wait"


def stuck(node: Node) -> list[str]:
    return [one.subject.consumer for one in node.js.consumer_watch.stuck.values()]


def told(cluster: Cluster, text: str) -> list[dict[str, Any]]:
    return [values for node in cluster for _, event, values in node.log.lines if event == text]


@virtual_time
async def test_one_that_delivers_nothing_is_noticed_told_once_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        await filled(cluster, 3)
        await consumer(cluster["A"], "c")
        await consumer(cluster["A"], "d")
        node = owner(cluster, "c")
        broken = host(node).owner(state(node, "c").cid)
        assert broken is not None and isinstance(broken.delivery, PullDelivery)
        queue = broken.delivery.queue
        deliver = PullDispatch.deliver

        def skip(dispatch: PullDispatch, now: int) -> None:
            if dispatch.queue is not queue:
                deliver(dispatch, now)

        monkeypatch.setattr(PullDispatch, "deliver", skip)
        puller, other = Puller(node, "S", "c"), Puller(node, "S", "d")
        puller.pull(3, 400.0)
        await other.fetch(3)
        other.pull(3, 400.0)
        await asyncio.sleep(LOOK_SECONDS + 20)
        assert [stuck(one) for one in cluster] == [["c"] if one is node else [] for one in cluster]
        await asyncio.sleep(2 * LOOK_SECONDS)
        lines = told(cluster, STUCK)
        assert len(lines) == 1 and lines[0]["consumer"] == "c", lines
        assert "The oldest waits for" in lines[0]["reason"]
        monkeypatch.setattr(PullDispatch, "deliver", deliver)
        broken.run_soon()
        await cluster.until(lambda: len(puller.got) == 3)
        await asyncio.sleep(LOOK_SECONDS + 1)
        assert stuck(node) == []
        assert len(told(cluster, "a consumer does not wait any more")) == 1


@virtual_time
async def test_one_whose_owner_is_never_run_is_found_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster("A", clustered=False) as cluster:
        await filled(cluster, 1, replicas=1)
        monkeypatch.setattr(ConsumerOwner, "run", lambda owner: None)
        await consumer(cluster["A"], "c")
        Puller(cluster["A"], "S", "c").pull(1, 400.0)
        await asyncio.sleep(2 * LOOK_SECONDS + 5)
        assert stuck(cluster["A"]) == ["c"]


@virtual_time
async def test_those_that_do_what_they_are_configured_to_do_are_well() -> None:
    async with Cluster("A", clustered=False) as cluster:
        node = cluster["A"]
        await filled(cluster, 1, replicas=1)
        await asyncio.sleep(600)
        await node.publish(b"s", b"2")
        await consumer(node, "replays", replay_policy="original")
        await consumer(node, "full", max_ack_pending=1, ack_wait=3600 * SECOND)
        await consumer(node, "unasked")
        for name in ("replays", "full"):
            assert Puller(node, "S", name).pull(5, 3600.0)
        await asyncio.sleep(3 * LOOK_SECONDS)
        assert stuck(node) == [] and told(cluster, STUCK) == []


@virtual_time
async def test_a_look_costs_what_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_watch, "OTHERS_PER_LOOK", 2)
    looked: list[int] = []
    facts = consumer_facts.consumer_facts

    def count(replica: StreamReplica, state: ConsumerState, server: str, now: int) -> ConsumerFacts | None:
        looked.append(state.cid)
        return facts(replica, state, server, now)

    monkeypatch.setattr(consumer_facts, "consumer_facts", count)
    async with Cluster("A", clustered=False) as cluster:
        node = cluster["A"]
        await filled(cluster, 2, replicas=1)
        for number in range(20):
            await consumer(node, f"idle{number}")
        await consumer(node, "due", max_ack_pending=1, ack_wait=3600 * SECOND)
        Puller(node, "S", "due").pull(5, 3600.0)
        await asyncio.sleep(4 * LOOK_SECONDS + 5)
        due = state(node, "due").cid
        assert looked.count(due) >= 4
        assert len(looked) <= 4 * 3, looked


@virtual_time
async def test_what_is_deleted_while_it_waits_is_forgotten() -> None:
    async with Cluster("A", clustered=False) as cluster:
        node = cluster["A"]
        await filled(cluster, 2, replicas=1)
        await consumer(node, "c", max_ack_pending=1)
        Puller(node, "S", "c").pull(5, 3600.0)
        unserved = node.js.services.settings.unserved
        await cluster.until(lambda: len(unserved) == 1)
        await cluster.delete("S")
        assert unserved == {}
