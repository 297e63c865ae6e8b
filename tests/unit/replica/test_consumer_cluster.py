"""Who leads a consumer, told and shown."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from jetcluster.replica.consumer_cluster import all_replicas, consumer_cluster
from tests.unit.cluster.consumers import (
    consumer,
    filled,
    owner,
    state,
)
from tests.unit.cluster.nodes import Cluster
from tests.unit.cluster.virtual_loop import virtual_time


@virtual_time
async def test_a_new_owner_tells_that_it_was_elected() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 0)
        heard: dict[str, list[dict[str, Any]]] = {}
        subject = b"$JS.EVENT.ADVISORY.CONSUMER.LEADER_ELECTED.S.c"
        for node in cluster:
            took = heard[node.name] = []
            node.bus.subscribe(subject, lambda s, r, h, payload, o, took=took: took.append(json.loads(payload)))  # type: ignore[misc]
        await asyncio.sleep(0.01)
        await consumer(cluster["B"], "c")
        home = owner(cluster)
        await asyncio.sleep(0.01)
        cluster.crash(home.name)
        survivor = next(iter(cluster))
        told = heard[survivor.name]
        await cluster.until(lambda: len(told) == 2, what="the event of the successor")
        assert [event["leader"] for event in told] == [home.name, owner(cluster).name]
        assert told[0]["consumer"] == "c" and len(told[0]["replicas"]) == 3
        assert state(survivor).epoch == 2


@virtual_time
async def test_every_replica_was_seen_by_the_leader_that_shows_it() -> None:
    """`active: 0` reads as "never seen" in tools: the stream's leader has at least seen itself."""
    async with Cluster() as cluster:
        await filled(cluster, 0)
        await consumer(cluster["B"], "c")
        await asyncio.sleep(2)
        leader = cluster.leader("S")
        replica = leader.replica("S")
        found = replica.consumers.table.by_name["c"]
        for peer in replica.group.peers:
            found.owner = peer
            shown = consumer_cluster(replica, found, all_replicas(replica))
            assert shown is not None
            assert len(shown["replicas"]) == 2
            assert all(other["active"] > 0 for other in shown["replicas"]), (peer, shown)


@virtual_time
async def test_a_consumer_of_fewer_replicas_shows_as_many_as_it_was_given() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 0)
        await consumer(cluster["B"], "c", num_replicas=1)
        leader = cluster.leader("S")
        replica = leader.replica("S")
        found = replica.consumers.table.by_name["c"]
        shown = consumer_cluster(replica, found, all_replicas(replica))
        assert shown is not None
        assert shown.keys() == {"name", "leader"}
