"""A stream that is moved by its placement, on several nodes of one process."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest

from jetcluster.cluster.restore_watch import SILENT_SECONDS
from jetcluster.meta.state import Assignment
from testkit.sim.nodes import ACCOUNT, NO_LIMITS, Cluster
from testkit.sim.shared import virtual_time

OLD, NEW = "ABC", "DEF"


async def tag(cluster: Cluster) -> None:
    """A, B, C are `old`; D, E, F are `new`."""
    for node in cluster:
        node.mesh.update_me(replace(node.mesh.me, tags=("old" if node.name in OLD else "new",)))

    def known() -> bool:
        return all(len([n for n in node.js.meta.machine.nodes.values() if n.tags]) == 6 for node in cluster)

    await cluster.until(known, what="all tags")


def holders(cluster: Cluster, stream: str) -> str:
    return "".join(node.name for node in cluster if node.has(stream))


def assigned(cluster: Cluster, stream: str) -> Assignment:
    found = cluster["A"].js.assignment(ACCOUNT, stream)
    assert found is not None
    return found


async def cancel(cluster: Cluster, stream: str) -> None:
    body = {"account": ACCOUNT, "name": stream, "revision": assigned(cluster, stream).revision}
    result = await cluster["A"].js.meta_request("stream_move_cancel", {"request": f"c{next(cluster.inboxes)}", **body})
    await cluster.until(lambda: assigned(cluster, stream).revision == result["revision"])


@pytest.mark.parametrize("replicas", [1, 3])
@virtual_time
async def test_all_replicas_move_while_messages_come_in(replicas: int) -> None:
    async with Cluster("ABCDEF") as cluster:
        await tag(cluster)
        await cluster.create("S", replicas, placement={"tags": ["old"]})
        acked = [(await cluster["A"].publish(b"s", b"%d" % n))["seq"] for n in range(20)]
        moved = await cluster.update("S", replicas, placement={"tags": ["new"]})
        names = {cluster[name].me: name for name in "ABCDEF"}
        assert {names[peer] for peer in moved.peers} <= set(NEW)
        number = itertools.count(20)

        async def publish() -> None:
            try:
                acked.append((await cluster["A"].publish(b"s", b"%d" % next(number)))["seq"])
            except Exception:  # the leader changes once: a client tries again
                pass

        for _ in range(1000):
            await publish()
            await asyncio.sleep(0.01)
            if len(holders(cluster, "S")) == replicas and set(holders(cluster, "S")) <= set(NEW):
                break
            voters = next((n.replica("S").group.peers for n in cluster if n.has("S") and n.replica("S").leading), ())
            assert len(voters) <= replicas + 1 + (replicas > 1) * 2
        assert len(holders(cluster, "S")) == replicas and set(holders(cluster, "S")) <= set(NEW)
        leader = await cluster.led("S")
        assert set(leader.replica("S").group.peers) == set(moved.peers)
        assert acked == sorted(set(acked)) and len(acked) > 20
        await cluster.all_read("S")
        for node in cluster:
            if node.has("S"):
                await cluster.until(lambda node=node: node.replica("S").store.last_seq >= acked[-1])
                assert node.replica("S").store.get(1).payload == b"0"  # type: ignore[union-attr]
        await cluster.equal("S")


@virtual_time
async def test_a_cancelled_move_goes_back() -> None:
    async with Cluster("ABCDEF") as cluster:
        await tag(cluster)
        first = await cluster.create("S", placement={"tags": ["old"]})
        for n in range(20):
            await cluster["A"].publish(b"s", b"%d" % n)
        for name in NEW[1:]:
            cluster.isolate(name)  # the move cannot end
        cluster.heal()
        cluster.isolate("F")
        await cluster.until(lambda: all(node.mesh.settled for node in cluster), what="links of those that came back")
        await cluster.update("S", placement={"tags": ["new"]}, ask="A")
        await cluster.until(lambda: len(holders(cluster, "S")) > 3)
        await cancel(cluster, "S")
        cluster.heal()
        await cluster.until(lambda: holders(cluster, "S") == OLD, what="the old places")
        back = assigned(cluster, "S")
        assert (set(back.peers), back.origin, back.config["placement"]) == (set(first.peers), None, {"tags": ["old"]})
        leader = await cluster.led("S")
        await cluster.until(lambda: set(leader.replica("S").group.peers) == set(first.peers))
        assert (await cluster["F"].publish(b"s"))["seq"] == 21


@pytest.mark.parametrize(("before", "wanted"), [(1, 3), (3, 1), (3, 5)])
@virtual_time
async def test_another_number_of_replicas_is_taken_back(before: int, wanted: int) -> None:
    """It cannot end: who is to come, or two of three that must agree to go, are away."""
    async with Cluster("ABCDE") as cluster:
        first = await cluster.create("S", before, ask="A")
        for n in range(20):
            await cluster["A"].publish(b"s", b"%d" % n)
        leader = await cluster.led("S")
        body = cluster.stream_body({"name": "S", "subjects": ["s"], "num_replicas": wanted})
        if wanted < before:
            for node in cluster.followers("S"):
                cluster.isolate(node.name)
            gone = set(cluster.followers("S"))
            await cluster.until(lambda: cluster.meta_leader() not in (None, *gone), what="who can decide")
        changed = Assignment.from_dict((await leader.js.meta_request("stream_update", body))["assignment"])
        assert len(changed.peers) == wanted
        for peer in set(changed.peers).difference(first.peers):
            cluster.isolate(next(node.name for node in cluster if node.me == peer))
        await cluster.until(lambda: leader.replica("S").assignment == changed, what="the leader knows it")
        await asyncio.sleep(2)
        members = await leader.js.stream_request(changed, "members", {}) if wanted > before else {"voters": first.peers}
        stay = {**body, "request": "c", "name": "S", "revision": changed.revision, "peers": list(members["voters"])}
        back = Assignment.from_dict((await leader.js.meta_request("stream_stay", stay))["assignment"])
        assert (set(back.peers), back.replicas) == (set(first.peers), before)
        cluster.heal()

        def settled() -> bool:
            holders = {node.me for node in cluster if node.has("S")}
            return holders == {*first.peers} == set(leader.replica("S").group.peers)

        await cluster.until(settled, 60, what="the old places")
        assert not leader.replica("S").group.members_at(leader.replica("S").group.last_index).outgoing
        assert (await leader.publish_again(b"s"))["seq"] == 21
        await cluster.equal("S")


@virtual_time
async def test_a_move_that_is_cancelled_does_not_go_back_to_a_server_that_was_removed() -> None:
    async with Cluster("ABCDEF") as cluster:
        await tag(cluster)
        await cluster.create("S", placement={"tags": ["old"]})
        await cluster["A"].publish(b"s", b"0")
        cluster.isolate("F")
        await cluster.update("S", placement={"tags": ["new"]}, ask="A")
        await cluster.until(lambda: len(holders(cluster, "S")) > 3)
        gone = cluster["C"].me
        cluster.crash("C")
        cluster.heal()
        cluster.isolate("F")  # it does not end now either
        await cluster.led("S")
        await asyncio.sleep(1)
        await cluster["A"].js.meta_request("server_remove", {"request": "r", "peer": "C"})
        await cancel(cluster, "S")
        rest = {cluster["A"].me, cluster["B"].me}
        await cluster.until(lambda: set(assigned(cluster, "S").peers) == rest, 30, "it belongs to who is left")
        assert gone not in cluster["A"].js.meta.machine.nodes
        cluster.heal()
        await cluster.until(lambda: holders(cluster, "S") == "AB", what="nobody else has it")
        leader = await cluster.led("S")
        await cluster.until(lambda: set(leader.replica("S").group.peers) == rest, 30, "its voters")
        assert (await cluster["A"].publish_again(b"s"))["seq"] == 2


@virtual_time
async def test_a_placement_that_the_places_have_moves_nothing() -> None:
    async with Cluster("ABCDEF") as cluster:
        await tag(cluster)
        first = await cluster.create("S", placement={"tags": ["old"]})
        second = await cluster.update("S", placement={"tags": ["old", "!new"]})
        assert (second.peers, second.origin) == (first.peers, None)


@virtual_time
async def test_a_restore_that_nobody_goes_on_with_is_given_up() -> None:
    async with Cluster() as cluster:
        seen: list[dict[str, Any]] = []
        cluster["B"].bus.subscribe(b"$JS.EVENT.ADVISORY.STREAM.DELETED.S", lambda s, r, h, p, o: seen.append({"is": p}))
        body = cluster.stream_body({"name": "S", "subjects": ["s"], "num_replicas": 3})
        body["config"]["restoring"] = True
        result = await cluster["A"].js.meta_request("stream_create", body)
        assignment = Assignment.from_dict(result["assignment"])
        for _ in range(int(SILENT_SECONDS)):
            await cluster["C"].js.meta_request("restore_alive", {"gid": assignment.gid})
            await cluster.never(lambda: assigned_or_none(cluster) is None, 2.0)
        await cluster.until(lambda: assigned_or_none(cluster) is None, SILENT_SECONDS + 2, "deletion")
        await cluster.until(lambda: bool(seen))
        warned = [event for node in cluster for event in node.log.events("warning")]
        assert warned.count("a restore was not continued; the stream is deleted") == 1
        # The name is free again.
        again = {"account": ACCOUNT, "limits": NO_LIMITS, "config": {**body["config"]}, "request": "again"}
        again["config"].pop("restoring")
        assert (await cluster["A"].js.meta_request("stream_create", again))["created"]


def assigned_or_none(cluster: Cluster) -> Assignment | None:
    return cluster["B"].js.assignment(ACCOUNT, "S")
