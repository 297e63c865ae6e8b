"""Other replicas in STREAM.INFO (replica/replica_info.py).

Who leads a consumer, sent and shown.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from jetcluster.model.times import parse_rfc3339
from jetcluster.replica import catchup, exports
from jetcluster.store import transfer
from testkit.sim.nodes import SMALL_LOG, Cluster, Node
from testkit.sim.shared import virtual_time
from tests.unit.cluster.consumers import (
    consumer,
    filled,
    owner,
    state,
)


@virtual_time
async def test_lag_is_log_entries_and_messages_while_the_state_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "RANGE_BYTES", 500)
    monkeypatch.setattr(exports, "LIST_BYTES", 500)
    monkeypatch.setattr(catchup, "CHUNK_BYTES", 700)
    monkeypatch.setattr(catchup, "MAX_CHUNKS_AHEAD", 0)
    async with Cluster(options=SMALL_LOG) as cluster:
        await cluster.create("S")
        away = cluster.followers("S")[0]
        await cluster.equal("S")
        leader = cluster.leader("S")

        def info() -> tuple[int, bool]:
            found = next(i for i in leader.replica("S").infos.others() if i.peer == away.me)
            return found.lag, found.current

        await cluster.until(lambda: info()[0] == 0, what="the leader knows where all stand")
        cluster.isolate(away.name)
        for _ in range(5):
            await leader.publish(b"s", b"m" * 100)
        assert 5 <= info()[0] < 10 and not info()[1], "an entry for each, and the leader's own"
        for _ in range(195):
            await leader.publish(b"s", b"m" * 100)
        for node in cluster:
            await node.js.flusher.flush()  # only what is flushed may leave the log
        assert leader.replica("S").group.status().first_index > 100
        assert info() == (200, False), "all of them, for it has to fetch the state"
        cluster.heal()
        await cluster.until(lambda: leader.services.network.catchup.exports == 1, what="it fetches")
        lags = []
        while leader.services.network.catchup.exports:
            lags.append(info())
            await cluster.until(
                lambda: not leader.services.network.catchup.exports or info() != lags[-1], what="it goes on"
            )
        assert len(lags) > 10 and all(not current and lag > 0 for lag, current in lags)
        assert [lag for lag, _ in lags] == sorted({lag for lag, _ in lags}, reverse=True)
        assert lags[0][0] <= 200 and lags[-1][0] < 10
        await cluster.equal("S")
        await cluster.until(lambda: info() == (0, True), what="it is current")


@virtual_time
async def test_a_replica_that_is_away_lacks_what_came_since() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        away = cluster.followers("S")[0]
        leader = cluster.leader("S")
        for _ in range(50):
            await leader.publish(b"s", b"m")
        await cluster.equal("S")

        def info() -> tuple[int, bool]:
            found = next(i for i in leader.replica("S").infos.others() if i.peer == away.me)
            return found.lag, found.offline

        await cluster.until(lambda: info() == (0, False), what="the leader knows where it stands")
        cluster.isolate(away.name)
        await cluster.until(lambda: info()[1], what="it is offline")
        for _ in range(3):
            await leader.publish(b"s", b"m")
        assert 3 <= info()[0] < 10


@virtual_time
async def test_a_replica_that_is_no_voter_yet_is_pending() -> None:
    async with Cluster("ABC") as cluster:
        await cluster.create("S", 1)
        leader = cluster.leader("S")
        away, there = (node for node in cluster if node is not leader)
        await cluster.update("S", 3, ask=leader.name)
        cluster.isolate(away.name)

        def told() -> dict[str, bool]:
            return {info.peer: info.pending for info in leader.replica("S").infos.others()}

        await asyncio.sleep(5)
        assert told() == {away.me: True, there.me: True}, "both become voters together"
        cluster.heal()
        await cluster.until(lambda: told() == {away.me: False, there.me: False}, what="both are voters")


def names(desired: dict[str, Any]) -> list[str]:
    return [replica["name"] for replica in desired.get("replicas", ())]


def desired_of(node: Node, name: str) -> dict[str, Any] | None:
    """The consumer as CONSUMER.INFO shows it."""
    replica = node.replica("S")
    found = replica.infos.consumer_cluster(replica.consumers.table.by_name[name], replica.infos.all())
    return (found or {}).get("desired")


@virtual_time
async def test_more_replicas_are_desired_until_they_vote() -> None:
    async with Cluster("ABCDE") as cluster:
        await filled(cluster, 0, replicas=1)
        await consumer(cluster["A"], "all")
        await consumer(cluster["A"], "one", num_replicas=1)
        leader = cluster.leader("S")
        infos, group = leader.replica("S").infos, leader.replica("S").group
        assert infos.cluster_object() == {"name": "C", "leader": leader.name} and desired_of(leader, "all") is None
        changed = await cluster.update("S", 3, ask=leader.name)
        coming = [node for node in cluster if node.me in changed.peers and node is not leader]
        for node in coming:
            cluster.isolate(node.name)
        await asyncio.sleep(2)
        shown = infos.cluster_object()
        assert shown["raft_group"].startswith("S-R3F-") and [r["pending"] for r in shown["replicas"]] == [True, True]
        desired = shown["desired"]
        assert names(desired)[0] == leader.name and names(desired)[1:] == [
            r["name"] for r in desired["replicas"] if r.get("offline")
        ]
        assert desired["origin"] == {"replicas": 1} and desired["status"]["type"] == "catchup"
        whole = desired_of(leader, "all")
        assert whole is not None and "origin" not in whole and names(whole) == names(desired)
        assert desired_of(leader, "one") is None, "it stays as it is"
        await cluster.update("S", 2, ask=leader.name)
        second = infos.cluster_object()["desired"]
        assert len(second["replicas"]) == 2 and second["origin"] == {"replicas": 1}
        assert second["created"] == desired["created"], "the first change began then"
        cluster.heal()
        await cluster.until(lambda: "desired" not in infos.cluster_object(), what="all vote")
        assert len(group.peers) == 2 and desired_of(leader, "all") is None


@virtual_time
async def test_fewer_replicas_are_desired_until_the_old_voters_agree() -> None:
    async with Cluster("ABC") as cluster:
        await filled(cluster, 0)
        for name, replicas in (("all", 0), ("three", 3), ("one", 1)):
            await consumer(cluster["A"], name, num_replicas=replicas)
        leader = await cluster.led("S")
        infos, group = leader.replica("S").infos, leader.replica("S").group
        change = asyncio.create_task(cluster.update("S", 1, ask=leader.name))
        await cluster.until(lambda: bool(group.members_at(group.last_index).outgoing), what="it is proposed")
        shown = infos.cluster_object()
        assert shown["raft_group"].startswith("S-R3F-") and len(shown["replicas"]) == 2
        desired = shown["desired"]
        assert names(desired) == [leader.name] and desired["origin"] == {"replicas": 3}
        assert desired["status"]["type"] == "membership"
        assert names(desired_of(leader, "all") or {}) == names(desired_of(leader, "three") or {}) == [leader.name]
        single = leader.replica("S").consumers.table.by_name["one"]
        assert (desired_of(leader, "one") is None) == (single.owner == leader.me)
        await change
        await cluster.until(lambda: "desired" not in infos.cluster_object(), what="they have agreed")
        assert infos.cluster_object() == {"name": "C", "leader": leader.name}


@virtual_time
async def test_a_rescued_stream_has_no_origin() -> None:
    async with Cluster("ABC") as cluster:
        await cluster.create("S", 1)
        leader = cluster.leader("S")
        assignment = leader.replica("S").assignment
        others = tuple(node.me for node in cluster if node is not leader)
        cluster.isolate(leader.name)
        leader.replica("S").update(assignment.rescued(99, 1, leader.me, others))
        assert "desired" not in leader.replica("S").infos.cluster_object()
        changed = {**assignment.config, "num_replicas": 3}
        scaled = assignment.changed(100, config=changed, peers=(leader.me, *others), scaled=assignment.scaled_at(9))
        leader.replica("S").update(scaled)
        assert leader.replica("S").infos.cluster_object()["desired"]["origin"] == {"replicas": 1}


@virtual_time
async def test_another_number_is_desired_since_it_was_asked_for_whoever_leads() -> None:
    async with Cluster("ABCDE") as cluster:
        before = await cluster.create("S", 3)
        await cluster.equal("S")
        changed = await cluster.update("S", 5)
        for node in cluster:
            if node.me not in before.peers:
                cluster.isolate(node.name)
        first = await cluster.led("S")
        shown = first.replica("S").infos.cluster_object()["desired"]
        assert changed.scaled is not None and parse_rfc3339(shown["created"]) == changed.scaled.since_ns
        await asyncio.sleep(2)
        other = next(node for node in cluster.followers("S") if node.me in before.peers)
        await cluster.flush()
        cluster.crash(other.name)
        again = cluster.restart(other.name)
        await asyncio.sleep(3)  # what it learns at its start, it learns now
        assert (await cluster.led("S")).replica("S").group.transfer(again.me)
        await cluster.until(lambda: again.has("S") and again.replica("S").leading, what="it leads")
        assert again.replica("S").infos.cluster_object()["desired"] == shown


@virtual_time
async def test_what_a_removed_server_leaves_is_not_desired() -> None:
    """The stream goes on with one replica less, and is given another one: nobody asked for less."""
    async with Cluster("ABC") as cluster:
        assignment = await cluster.create("S", 1)
        leader = cluster.leader("S")
        infos = leader.replica("S").infos
        coming = next(node for node in cluster if node is not leader)
        cluster.isolate(leader.name)
        two = replace(assignment, config={**assignment.config, "num_replicas": 2}, peers=(leader.me, "gone"))
        less = two.changed(100, peers=(leader.me,))
        leader.replica("S").update(less)
        assert infos.cluster_object() == {"name": "C", "leader": leader.name}
        leader.replica("S").update(less.changed(101, peers=(leader.me, coming.me)))
        assert infos.cluster_object() == {"name": "C", "leader": leader.name}
        scaled = less.changed(102, peers=(leader.me, coming.me), scaled=two.scaled_at(7))
        leader.replica("S").update(scaled)
        assert infos.cluster_object() == {"name": "C", "leader": leader.name}, (
            "it had two before the update, and not one"
        )


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
            shown = replica.infos.consumer_cluster(found, replica.infos.all())
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
        shown = replica.infos.consumer_cluster(found, replica.infos.all())
        assert shown is not None
        assert shown.keys() == {"name", "leader"}
