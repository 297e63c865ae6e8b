"""Consumers on /jsz, of whole nodes in one process."""

from __future__ import annotations

import asyncio

from jetcluster.monitor.consumers import consumer_count, each_consumer
from tests.unit.cluster.consumers import Puller, consumer, filled, owned_by
from tests.unit.cluster.nodes import Cluster
from tests.unit.cluster.virtual_loop import virtual_time


@virtual_time
async def test_every_replica_shows_its_consumers_and_only_the_owner_who_waits() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 3)
        leader = await cluster.led("S")
        for name in ("b", "a"):
            await consumer(leader, name)
        await consumer(leader, "internal", direct=True)
        home = cluster.followers("S")[0]
        await owned_by(cluster, "a", home)
        client = Puller(leader, "S", "a")
        for message in (await client.fetch(3))[:2]:
            await client.ack(message)
        client.pull(1)
        await asyncio.sleep(0.05)
        await cluster.equal("S")
        for node in cluster:
            replica = node.replica("S")
            assert consumer_count(replica) == 2
            first, second = each_consumer(node.js, replica, config=node is leader)
            assert (first["name"], second["name"]) == ("a", "b")
            assert first["ack_floor"]["stream_seq"] == 2 and first["num_ack_pending"] == 1
            assert first["num_waiting"] == (1 if node is home else 0)
            assert (first["num_pending"], second["num_pending"]) == (0, 3)
            assert first["cluster"]["leader"] == home.name
            assert ("replicas" in first["cluster"]) == (node is leader)
            assert ("config" in first) == (node is leader)
        walk = each_consumer(leader.js, leader.replica("S"), config=False)
        assert next(walk)["name"] == "a"
        leader.replica("S").consumers.table.by_name.pop("b")  # deleted meanwhile
        assert list(walk) == []
        whole = next(each_consumer(leader.js, leader.replica("S"), config=True))
        assert list(whole)[:5] == ["stream_name", "name", "created", "config", "delivered"]
        shown = whole["config"]
        assert shown["durable_name"] == "a" and not [key for key in shown if key.endswith("_ns")]
