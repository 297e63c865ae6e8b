"""The load of its replicas, as a server tells it (cluster/replica_load.py)."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from jetcluster.cluster.replica_load import ReplicaLoad, is_amiss
from jetcluster.meta.placement import PlacementRules
from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time


def replica(size: int, storage: str = "file", *, retiring: bool = False, trusted: bool = True) -> Any:
    group = SimpleNamespace(leader="B", applied_index=5, told_index=5)
    return SimpleNamespace(
        assignment=SimpleNamespace(config={"storage": storage}),
        store=SimpleNamespace(byte_count=size),
        group=group,
        leading=False,
        retiring=retiring,
        trusted=trusted,
    )


def test_a_copy_that_leaves_counts_for_nothing() -> None:
    load = ReplicaLoad()
    load.add(replica(300))
    load.add(replica(5000, retiring=True, trusted=False))
    assert load.stored == {"file": 300} and load.amiss == 0
    load.add(replica(40, "memory", trusted=False))
    assert load.stored == {"file": 300, "memory": 40} and load.amiss == 1


def test_a_tenth_of_the_capacity_stays_free() -> None:
    load = ReplicaLoad()
    load.add(replica(300))
    load.add(replica(40, "memory"))
    rules = PlacementRules(max_memory=100, max_storage=1000)
    assert load.free(rules, 10_000, 20_000) == {"file": 600, "memory": 50}
    assert load.free(rules, 200, 20_000)["file"] == 150, "the file system has less than what may be stored"
    assert load.free(rules, 0, 20_000)["file"] == -30
    assert load.free(rules, 0, 0)["file"] == 600, "its size is not known"
    assert load.free(PlacementRules(), 10_000, 20_000)["memory"] > sys.maxsize // 2


@virtual_time
async def test_replicas_are_amiss_without_a_leader_and_while_one_of_them_is_away() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        leader = await cluster.led("S")
        await cluster.equal("S")
        assert not any(is_amiss(node.replica("S")) for node in cluster)
        other, last = (node.name for node in cluster if node is not leader)
        cluster.crash(other)
        await cluster.until(lambda: is_amiss(leader.replica("S")), what="a voter is away")
        assert not is_amiss(cluster[last].replica("S")), "it follows its leader"
        cluster.crash(leader.name)
        await cluster.until(lambda: is_amiss(cluster[last].replica("S")), what="it knows no leader")
        cluster.restart(other)
        cluster.restart(leader.name)
        await cluster.until(lambda: not any(is_amiss(node.replica("S")) for node in cluster if node.has("S")), 30.0)
        follower = next(node for node in cluster if not node.replica("S").leading)
        follower.replica("S").damaged = "torn"
        assert is_amiss(follower.replica("S"))
