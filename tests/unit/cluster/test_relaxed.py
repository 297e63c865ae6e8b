"""Nodes with a `sync_interval`: what a loss of power takes from most of them goes everywhere, and nothing else does."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from jetcluster.raft.config import JournalOptions
from testkit.sim.nodes import ACCOUNT, SMALL_LOG, Cluster
from testkit.sim.shared import virtual_time

WHOLE_LOG = JournalOptions(segment_bytes=1 << 20, reserve_bytes=0, sync_interval=3600.0)
RELAXED = {"whole log": WHOLE_LOG, "short log": replace(SMALL_LOG, sync_interval=3600.0)}


async def lose(cluster: Cluster, kept: str) -> None:
    """The power of all nodes but `kept` fails, and they agree on what they still have before they hear of it."""
    others = [name for name in "ABC" if name != kept]
    cluster.isolate(kept)
    for name in others:
        cluster[name].disk.lose_unsynced()
        cluster.crash(name)
    await asyncio.sleep(1)
    cluster.restart(others)
    await cluster.until(lambda: any(n.has("S") and n.replica("S").leading for n in map(cluster.__getitem__, others)))


async def fill(cluster: Cluster, kept: str, more: int) -> None:
    """Five messages that are on the disks, and `more` that are on that of `kept` alone."""
    await cluster.create("S")
    for number in range(5):
        await cluster["A"].publish_again(b"s", b"%d" % number)
    await cluster.flush()
    for number in range(more):
        await cluster["A"].publish_again(b"s", b"lost %d" % number)
    await cluster.equal("S")
    for _ in range(3):
        await cluster[kept].js.flusher.flush()


@virtual_time
@pytest.mark.parametrize("log", RELAXED)
@pytest.mark.parametrize("more", [1, 3, 100])
@pytest.mark.parametrize("restarts", [False, True])
async def test_who_kept_more_than_the_leader_follows_it_on_an_idle_stream(log: str, more: int, restarts: bool) -> None:
    async with Cluster(options=RELAXED[log]) as cluster:
        await fill(cluster, "C", more)
        if log == "short log" and more == 100:
            assert cluster["C"].replica("S").group.log.base_index > 8
        await lose(cluster, "C")
        if restarts:
            cluster.crash("C")
            cluster.restart("C")
        cluster.heal()
        await cluster.equal("S")
        assert cluster["C"].replica("S").store.last_seq == 5
        ack = await cluster["C"].publish_again(b"s", b"new")
        assert ack["seq"] == 6
        await cluster.equal("S")
        await cluster.all_read("S")
        assert (await cluster["C"].get(b"S", 6))[2] == b"new"


@virtual_time
async def test_while_it_differs_from_the_leader_it_answers_no_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster(options=WHOLE_LOG) as cluster:
        await fill(cluster, "C", 3)
        await lose(cluster, "C")
        monkeypatch.setattr(cluster["C"].services.network.catchup, "pull", lambda *_: None)
        cluster.heal()
        replica = cluster["C"].replica("S")
        await cluster.until(lambda: replica.group.contradicted, what="it hears of it")
        assert not replica.reads.own.joined
        await cluster.never(lambda: replica.reads.own.joined, 5.0, "it answers")


@virtual_time
async def test_what_most_nodes_have_forgotten_of_the_meta_group_is_forgotten() -> None:
    async with Cluster(options=WHOLE_LOG) as cluster:
        await fill(cluster, "C", 0)
        await cluster.flush()
        await cluster.update("S", max_msgs=7)
        for node in cluster:
            assignment = node.js.assignment(ACCOUNT, "S")
            assert assignment is not None and assignment.config["max_msgs"] == 7
        await cluster["C"].js.flusher.flush()
        await lose(cluster, "C")
        cluster.heal()
        assignment = cluster["A"].js.assignment(ACCOUNT, "S")
        assert assignment is not None and assignment.config["max_msgs"] == -1
        digest = cluster["A"].js.meta.machine.digest
        await cluster.until(lambda: cluster["C"].js.meta.machine.digest == digest, what="equal meta states")
        await cluster.update("S", max_msgs=9)
        await cluster.equal("S")
        assert cluster["C"].replica("S").machine.config["max_msgs"] == 9
