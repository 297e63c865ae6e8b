"""When a node with damaged files may renew its data store (cluster/store_care.py)."""

from __future__ import annotations

import asyncio

from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvDamagedError
from tests.unit.cluster.nodes import Cluster, Node
from tests.unit.cluster.virtual_loop import virtual_time

DAMAGE = "000007.sst has 5 bytes, 10 were written"


def watched(node: Node) -> list[str]:
    """What the node asks to be renewed for."""
    asked: list[str] = []
    node.js._store_care._renew = asked.append
    return asked


@virtual_time
async def test_it_is_asked_for_once_and_only_while_the_others_can_do_without_the_node() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await asyncio.sleep(10)
        asked = watched(cluster["B"])
        cluster.crash("C")
        await cluster.led("S")
        cluster["B"].kv.damage = DAMAGE
        await asyncio.sleep(20)
        assert asked == []
        assert cluster["B"].log.events("error").count("the files of the data store are damaged") == 1
        cluster.restart("C")
        await cluster.until(lambda: asked == [DAMAGE], what="it is asked for")
        await asyncio.sleep(20)
        assert asked == [DAMAGE]


@virtual_time
async def test_a_stream_that_only_this_node_has_is_not_put_aside() -> None:
    async with Cluster() as cluster:
        await cluster.create("ONE", 1)
        node = await cluster.led("ONE")
        await asyncio.sleep(10)
        asked = watched(node)
        error = DamagedError(1, 5)
        error.__cause__ = KvDamagedError("Corruption: block checksum mismatch")
        node.replica("ONE").report_damage(error)
        assert node.replica("ONE").repair.in_store
        node.kv.damage = "Corruption: block checksum mismatch"
        await asyncio.sleep(20)
        assert asked == []


@virtual_time
async def test_a_server_that_stands_alone_keeps_its_store() -> None:
    async with Cluster("A", clustered=False) as cluster:
        await cluster.create("S", 1)
        asked = watched(cluster["A"])
        cluster["A"].kv.damage = DAMAGE
        await asyncio.sleep(30)
        assert asked == []
        assert "the files of the data store are damaged" in cluster["A"].log.events("error")
