"""Replicas whose journals lost something, and which need to hear that nobody else has the stream
(cluster/lone_replicas.py)."""

from __future__ import annotations

import asyncio

import pytest

from jetcluster.raft.journal import records
from jetcluster.raft.journal.recovery import scan
from testkit.sim.nodes import Cluster, Node
from testkit.sim.shared import virtual_time
from tests.unit.cluster.test_jetstream import whole
from tests.unit.cluster.test_moves import tag


def lose(node: Node, gid: int, what: str) -> None:
    """A part of the group's log rots, in the journal of a node that is down."""
    log = scan(node.disk).groups[gid]
    configs = [index for index, place in log.entries.items() if place.config is not None]
    first, last = {
        "all members": (min(configs, default=3), max(configs, default=3)),
        "all that came after": (min(configs, default=3), log.last_index),
        "its middle": (3, 3),
    }[what]
    for index in range(first, last + 1):
        place = log.entries[index]
        node.disk.corrupt(place.segment, place.offset, b"\xff" * 8)
    assert scan(node.disk).groups[gid].damaged


def forget(node: Node, gid: int) -> None:
    """All records of the group rot."""
    head = records.record_head(0, 0, gid, 0, 0, 0, b"", 0)
    magic, number = head[4:6], gid.to_bytes(4, "little")
    behind = head.index(number, 8) - 4
    for segment in node.disk.segments():
        data, at = node.disk.load(segment), 0
        while (at := data.find(number, at)) >= 0:
            if data[at - behind : at - behind + 2] == magic:
                node.disk.corrupt(segment, at, b"\xff")
            at += 1
    assert gid not in scan(node.disk).groups


def told(node: Node) -> str:
    return " ".join(node.log.events("warning"))


def holders(cluster: Cluster) -> list[Node]:
    return [node for node in cluster if node.has("S")]


def alone(node: Node) -> bool:
    """It leads the stream, by itself."""
    return node.has("S") and node.replica("S").leading and node.replica("S").group.peers == (node.me,)


async def stalled_shrink(cluster: Cluster, *, flush: bool = False) -> tuple[Node, int]:
    """A stream that has grown from one replica to three is to shrink again, and its leader, whose server then goes
    down, took no step: the two others vote. The founder and the gid."""
    gid = (await cluster.create("S", 1)).gid
    founder = cluster.leader("S")
    for n in range(5):
        await founder.publish(b"s", b"%d" % n)
    await cluster.update("S", 3)
    await cluster.until(lambda: len(founder.replica("S").group.peers) == 3)
    await founder.publish(b"s", b"of three")
    await cluster.equal("S")
    for node in holders(cluster):
        node.replica("S").tick = lambda: 0.0  # type: ignore[method-assign]
    assignment = await cluster.update("S", 1)
    assert assignment.peers == (founder.me,)
    await asyncio.sleep(1.0)
    if flush:
        await founder.js.flusher.flush()
    cluster.crash(founder.name)
    return founder, gid


async def comes_back(cluster: Cluster, founder: Node) -> None:
    """In a majority of the servers, without the two with the stream, which go on with it."""
    await cluster.led("S")
    for node in holders(cluster):
        node.replica("S").tick = lambda: 0.0  # type: ignore[method-assign]
        for other in cluster.nodes.values():
            if other is founder or not other.has("S"):
                cluster.network.cut(node.me, other.me)
    assert (await cluster.leader("S").publish_again(b"s", b"without it"))["seq"] == 7
    back = cluster.restart(founder.name)
    await cluster.until(lambda: back.js.known.current, what="it knows all that was decided")
    await cluster.never(lambda: alone(back), 5.0, what="two majorities")
    cluster.heal()
    await cluster.until(lambda: back.replica("S").store.last_seq == 7, what="it is healed by the leader")
    assert "No other replica" not in told(back) and not any(alone(node) for node in cluster)
    assert (await back.publish_again(b"s"))["seq"] == 8


@virtual_time
@pytest.mark.parametrize("what", ["all members", "all that came after"])
async def test_an_assignment_does_not_make_a_replica_the_only_one(what: str) -> None:
    async with Cluster("ABCDE") as cluster:
        founder, gid = await stalled_shrink(cluster)
        lose(founder, gid, what)
        await comes_back(cluster, founder)


@virtual_time
@pytest.mark.parametrize("flush", [True, False])
async def test_a_replica_whose_whole_log_is_gone_is_not_the_only_one_either(flush: bool) -> None:
    async with Cluster("ABCDEFG") as cluster:  # its replica of the meta group is healed without the two
        founder, gid = await stalled_shrink(cluster, flush=flush)
        forget(founder, gid)
        await comes_back(cluster, founder)


async def written(cluster: Cluster) -> tuple[Node, int]:
    """The only replica of S, with nine messages, and its group."""
    gid = (await cluster.create("S", 1)).gid
    owner = cluster.leader("S")
    for n in range(9):
        await owner.publish(b"s", b"%d" % n)
    return owner, gid


async def waiting(cluster: Cluster) -> tuple[Node, Node]:
    """The only replica of S, back with a log that lost its middle, and another node, which is away and waited for."""
    owner, gid = await written(cluster)
    away = next(node for node in cluster if node is not owner)
    cluster.crash(owner.name)
    lose(owner, gid, "its middle")
    cluster.crash(away.name)
    back = cluster.restart(owner.name)
    await cluster.until(lambda: f"{away.name} does not say" in str(back.log.lines), what="it says whom it waits for")
    return back, away


@virtual_time
async def test_who_is_the_only_one_goes_on_when_all_others_have_said_so() -> None:
    async with Cluster() as cluster:
        back, away = await waiting(cluster)
        await cluster.never(lambda: alone(back), 5.0)
        assert back.replica("S").group.status().damaged
        cluster.restart(away.name)
        await cluster.until(lambda: alone(back), what="it goes on")
        assert "No other replica has this group" in told(back)
        assert (await cluster["A"].publish_again(b"s"))["seq"] >= 1


@virtual_time
async def test_a_server_that_was_removed_is_not_waited_for() -> None:
    async with Cluster("ABCD") as cluster:
        back, away = await waiting(cluster)
        asker = next(node for node in cluster if node is not back)
        await asker.js.meta_request("server_remove", {"request": "r", "peer": away.me})
        await cluster.until(lambda: alone(back), what="it goes on")


@virtual_time
async def test_a_stream_that_is_to_grow_is_not_held_up_by_those_that_have_nothing_yet() -> None:
    async with Cluster() as cluster:
        owner, gid = await written(cluster)
        others = [node for node in cluster if node is not owner]
        owner.replica("S").tick = lambda: 0.0  # type: ignore[method-assign]
        body = cluster.stream_body({"name": "S", "subjects": ["s"], "num_replicas": 3})
        await owner.js.meta_request("stream_update", body)
        await cluster.until(lambda: all(node.has("S") for node in others), what="they wait to be added")
        cluster.crash(owner.name)
        lose(owner, gid, "its middle")
        back = cluster.restart(owner.name)
        await cluster.until(lambda: alone(back), what="it goes on")
        await whole(cluster, "S")
        assert set(back.replica("S").group.peers) == {node.me for node in cluster}


@virtual_time
@pytest.mark.parametrize("how", ["shrunk", "moved"])
async def test_a_state_without_a_log_goes_on_by_the_word_of_all(how: str) -> None:
    """The journal of the only replica has lost all of the group, and the stream has had other peers before."""
    async with Cluster("ABCDEF") as cluster:
        await tag(cluster)
        gid = (await cluster.create("S", 1, placement={"tags": ["old"]})).gid
        await cluster["A"].publish(b"s", b"kept")
        if how == "moved":
            await cluster.update("S", 1, placement={"tags": ["new"]})
            await cluster.until(lambda: [n.name in "DEF" for n in holders(cluster)] == [True])
        else:
            await cluster.update("S", 3, placement={"tags": ["old"]})
            await cluster.until(lambda: len(cluster.leader("S").replica("S").group.peers) == 3)
            await cluster.update("S", 1, placement={"tags": ["old"]})
        await cluster.until(lambda: len(holders(cluster)) == 1, what="one replica")
        owner = await cluster.led("S")
        await owner.js.flusher.flush()
        cluster.crash(owner.name)
        forget(owner, gid)
        back = cluster.restart(owner.name)
        await cluster.until(lambda: alone(back), what="it goes on")
        assert "No other replica has this group" in told(back)
        assert (await cluster["A" if owner.name != "A" else "B"].publish_again(b"s"))["seq"] == 2
