"""A node that is not well, as its replicas, its peers and its operator see it (cluster/health_report.py).

Servers that wait for different things before they acknowledge (cluster/health_report.py).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.cluster.health_report import Durability, NodeWatch, said
from jetcluster.health.node_health import Aspect
from jetcluster.replica.reads.membership import LEADERLESS_SECONDS
from jetcluster.replica.rounds import SLICE_PAUSE, Pulse
from jetcluster.replica.stream_replica import StreamReplica
from jetcluster.store.kv import KvError
from testkit.sim.nodes import ACCOUNT, Cluster, Node
from testkit.sim.shared import MeshNetwork, VirtualLoop, virtual_time
from testkit.twins.log import ListLog

HOUR = 3600.0


def ail(node: Node, aspect: Aspect) -> list[str]:
    """Not well for as long as the list holds something."""
    reasons = ["broken"]
    node.raft.health.watch(aspect, lambda: "".join(reasons))
    return reasons


async def another_leads(cluster: Cluster, old: Node, seconds: float) -> None:
    others = [node for node in cluster if node is not old]
    await cluster.until(lambda: any(n.replica("S").leading for n in others), what="another leader", seconds=seconds)


@virtual_time
async def test_many_replicas_follow_a_change_in_slices_and_each_follows_the_last_one() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jetcluster.cluster.health_report.VISITS_AT_ONCE", 3)
        followed: list[str] = []
        patch.setattr(StreamReplica, "health_changed", lambda replica: followed.append(replica.assignment.name))
        async with Cluster("A", clustered=False) as cluster:
            names = [f"S{number}" for number in range(10)]
            for name in names:
                await cluster.create(name, 1)
            node = cluster["A"]
            ail(node, Aspect.MEMORY)
            node.raft.health.look()
            await asyncio.sleep(0)
            assert followed == names[:3]
            await asyncio.sleep(SLICE_PAUSE * 1.5)
            assert followed == names[:6]
            ail(node, Aspect.DATA)
            node.raft.health.look()
            await asyncio.sleep(SLICE_PAUSE * 10)
            assert followed == [*names, *names[:6]], "those first that had not followed the earlier change"
            await asyncio.sleep(1.0)
            assert len(followed) == 16


@virtual_time
async def test_a_leader_that_is_not_well_hands_over_within_a_second_and_says_so_once() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        leader = cluster.leader("S")
        events: list[bytes] = []
        system = leader.accounts["$SYS"]
        system.subscribe(b"$JS.EVENT.ADVISORY.SERVER.>", lambda s, r, h, payload, o: events.append(payload))
        reasons = ail(leader, Aspect.MEMORY)
        begin = cluster.loop.monotonic()
        await another_leads(cluster, leader, 1.0)
        assert cluster.loop.monotonic() - begin < 1.0
        for number in range(5):
            assert (await leader.publish_again(b"s", b"%d" % number))["seq"] == number + 1
        await asyncio.sleep(2)
        reasons.clear()
        await asyncio.sleep(2)
        assert leader.raft.health.well
        told = [json.loads(event) for event in events]
        assert [event["type"].rpartition(".")[2] for event in told] == ["server_unhealthy", "server_healthy"]
        assert told[0]["server"] == leader.name and told[0]["aspect"] == "memory" and told[0]["reason"] == "broken"
        assert told[1]["seconds"] > 1
        assert leader.log.events("error").count("this node is not well") == 1
        assert leader.log.events("warning").count("this node is well again") == 1


@virtual_time
@pytest.mark.parametrize("aspect", Aspect)
async def test_reads_stop_where_they_cannot_be_vouched_for_and_come_back(aspect: Aspect) -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster["A"].publish(b"s", b"1")
        await cluster.all_read("S")
        node = cluster.followers("S")[0]
        reasons = ail(node, aspect)
        await asyncio.sleep(0.5)
        reads = node.replica("S").reads
        stops = aspect in (Aspect.JOURNAL, Aspect.DELETED, Aspect.STORE)
        assert reads.own.joined is not stops
        assert (await node.get(b"S", 1))[2] == b"1", "somebody answers"
        reasons.clear()
        await cluster.until(lambda: reads.own.joined, what="it is back")


@virtual_time
async def test_where_all_are_not_well_reads_go_on() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster["A"].publish(b"s", b"1")
        await cluster.all_read("S")
        for node in cluster:
            ail(node, Aspect.STORE)
        await asyncio.sleep(5)
        assert (await cluster["B"].get(b"S", 1))[2] == b"1"
        assert (await cluster["B"].publish_again(b"s", b"2"))["seq"] == 2


@virtual_time
async def test_the_only_replica_of_a_stream_goes_on_reading_and_leading() -> None:
    async with Cluster("A", clustered=False) as cluster:
        await cluster.create("S", 1)
        ail(cluster["A"], Aspect.STORE)
        await asyncio.sleep(2)
        assert (await cluster["A"].publish(b"s", b"1"))["seq"] == 1
        assert (await cluster["A"].get(b"S", 1))[2] == b"1"


@virtual_time
async def test_a_data_store_that_fails_makes_somebody_else_lead() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        leader = cluster.leader("S")
        await leader.publish(b"s", b"1")
        leader.kv.error, leader.kv.broken = KvError("IO error: Input/output error"), True
        other = cluster.followers("S")[0]
        begin = last = cluster.loop.monotonic()
        longest = 0.0
        while cluster.loop.monotonic() - begin < 5.0:
            await other.publish_again(b"s", b"x")
            longest = max(longest, cluster.loop.monotonic() - last)
            last = cluster.loop.monotonic()
            await asyncio.sleep(0.01)
        assert longest < 2.0
        assert cluster.leader("S") is not leader
        assert "store: IO error" in leader.raft.health.reasons[0]
        leader.kv.broken = False
        await cluster.until(lambda: leader.raft.health.well, what="it is well again")
        await cluster.equal("S")


@virtual_time
@pytest.mark.parametrize("ahead", [2 * HOUR, -2 * HOUR])
async def test_a_clock_that_is_hours_off_stamps_and_removes_nothing(ahead: float) -> None:
    """max_age, TTLs, schedules and the window for duplicates, on the leader and on an owner of consumers."""
    async with Cluster() as cluster:
        await cluster.create("S", max_age=3600 * 10**9, allow_msg_ttl=True, duplicate_window=120 * 10**9)
        leader = cluster.leader("S")
        for number in range(10):
            await leader.publish(b"s", b"%d" % number, headers=b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % number)
        await leader.publish(b"s", b"ttl", headers=b"NATS/1.0\r\nNats-TTL: 60s\r\n\r\n")
        cluster.ahead[leader.name] = ahead
        answers = [await leader.publish_again(b"s", b"during")]
        await another_leads(cluster, leader, 2.0)
        again = await leader.publish_again(b"s", b"3", headers=b"NATS/1.0\r\nNats-Msg-Id: 3\r\n\r\n")
        assert again.get("duplicate") is True and again["seq"] == 4
        for _ in range(20):
            answers.append(await leader.publish_again(b"s", b"more"))
            await asyncio.sleep(0.5)
        await cluster.equal("S")
        store = cluster.leader("S").replica("S").store
        assert store.messages == 11 + len(answers)
        now = cluster.loop.time_ns()
        assert all(0 <= now - message.ts < 60 * 10**9 for message in store.queries.scan(b">", 1))
        cluster.ahead[leader.name] = 0.0
        await asyncio.sleep(60)
        assert store.messages == 10 + len(answers), "what has a TTL of a minute went after a minute"


async def removal_unheard(cluster: Cluster) -> Node:
    """A follower of S that is about to be removed from its group; its node does not hear of that."""
    await cluster.create("S")
    await cluster["A"].publish(b"s", b"1")
    await cluster.all_read("S")
    removed = next(node for node in cluster.followers("S") if not node.js.meta.leading)
    removed.js.meta.machine.apply = lambda index, term, command: (None, [])  # type: ignore[method-assign, assignment, return-value]
    meta = cluster.meta_leader()
    assert meta is not None
    body = {"request": "r", "account": ACCOUNT, "name": "S", "peer": removed.name}
    await meta.js.meta_request("stream_peer_remove", body)
    return removed


async def own_writes(cluster: Cluster, node: Node, seconds: float) -> None:
    """A client of `node` reads all that was acknowledged to it, or gets an error."""
    until = cluster.loop.time() + seconds
    while cluster.loop.time() < until:
        ack = await node.publish_again(b"s", b"own")
        _, headers, payload = await node.request(b"$JS.API.DIRECT.GET.S", b'{"seq":%d}' % ack["seq"], 5.0)
        assert payload == b"own" or headers.startswith(b"NATS/1.0 503"), headers


@virtual_time
async def test_a_replica_that_was_removed_and_has_not_heard_of_it_leaves_the_reads() -> None:
    async with Cluster("ABCD") as cluster:
        removed = await removal_unheard(cluster)
        group, own = cluster.leader("S").replica("S").group, asyncio.create_task(own_writes(cluster, removed, 4.0))
        await cluster.until(lambda: removed.me not in group.peers, what="its removal", seconds=30)
        await cluster.until(lambda: not removed.reads("S"), 0.01, "it has left")
        await own
        await cluster.never(lambda: removed.reads("S"), 20.0, "it came back")


@virtual_time
async def test_a_replica_that_was_removed_leaves_the_reads_when_it_hears_of_another_leader() -> None:
    """The one that removed it, and tells it nothing any more, leads no more."""
    async with Cluster("ABCD") as cluster:
        removed = await removal_unheard(cluster)
        old = cluster.leader("S")
        old.raft.led.tell = lambda to=None: None  # type: ignore[method-assign, assignment]
        group = old.replica("S").group
        await cluster.until(lambda: removed.me not in group.peers and len(group.peers) == 3, 30, "its removal")
        assert removed.reads("S") and removed.replica("S").group.leader == old.me
        await cluster.until(lambda: group.transfer() or not old.replica("S").leading, what="a transfer")
        await own_writes(cluster, removed, 4.0)
        assert not removed.reads("S")


@virtual_time
async def test_a_replica_that_knows_of_no_leader_for_long_leaves_the_reads() -> None:
    """It was removed, by one that is gone since, and it missed who leads now."""
    async with Cluster("ABCD") as cluster:
        removed = await removal_unheard(cluster)
        removed.services.network.leaders.on_led = lambda gid, term: None
        old = cluster.leader("S")
        removed.raft._on_digest = lambda peer, message: None  # type: ignore[method-assign]
        others = [node for node in cluster if node is not removed]

        def replaced() -> bool:
            groups = [node.replica("S").group for node in others if node.has("S")]
            return all(removed.me not in group.peers and len(group.peers) == 3 for group in groups)

        await cluster.until(replaced, 30, "its removal")
        cluster.crash(old.name)
        await asyncio.sleep(LEADERLESS_SECONDS / 2)
        assert removed.replica("S").group.leader is None and removed.reads("S"), "an election may take its time"
        await asyncio.sleep(LEADERLESS_SECONDS)
        assert not removed.reads("S")


@virtual_time
async def test_a_replica_that_is_cut_off_from_all_others_goes_on_reading() -> None:
    """The data of this replica may be all there is: the two others may be gone for good."""
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster["A"].publish(b"s", b"1")
        await cluster.all_read("S")
        await cluster.equal("S")
        left = cluster.followers("S")[0]
        cluster.isolate(left.name)
        await asyncio.sleep(30)
        assert left.replica("S").group.leader is None
        assert (await left.get(b"S", 1))[2] == b"1"
        cluster.heal()
        await cluster.until(lambda: left.replica("S").group.leader is not None, what="it is back")
        assert left.replica("S").reads.own.joined


def test_servers_that_differ_are_logged_once() -> None:
    time, log = VirtualLoop(), ListLog()
    network = MeshNetwork(time)
    meshes = [network.mesh(name, sync_interval=seconds) for name, seconds in (("A", 0.0), ("B", 0.0), ("C", 10.0))]
    of_before = network.mesh("D")
    durability = Durability(meshes[0], log)
    for mesh in (*meshes, of_before):
        mesh.start_now()
    time.advance(1.0)
    assert durability.differing == ["C"]
    assert len(log.events("warning")) == 1
    a, c = meshes[0].me.peer_id, meshes[2].me.peer_id
    for _ in range(3):
        network.cut(a, c)
        network.heal(a, c)
        time.advance(1.0)
    assert len(log.events("warning")) == 1
    meshes[2].me = replace(meshes[2].me, sync_interval=0.0)
    network.cut(a, c)
    network.heal(a, c)
    time.advance(1.0)
    assert durability.differing == []
    assert (said(None), said(0.0), said(10.0)) == ("always", "always", "10s")


def test_a_slow_disk_wakes_all_replicas_when_it_begins_and_when_it_ends() -> None:
    """Not at each tick: visits of ten thousand replicas took a third of a core for as long as a disk hung."""
    journal = SimpleNamespace(full=False, in_flight=0)
    raft: Any = SimpleNamespace(journal=journal, peers=SimpleNamespace(last_seen=lambda peer: 0.0))
    mesh: Any = SimpleNamespace(peers={})
    clock: Any = SimpleNamespace(monotonic=lambda: 1.0, time_ns=lambda: 1_000_000_000)
    watch = NodeWatch(mesh, raft, clock, Pulse())

    def ticks(*states: tuple[int, bool]) -> list[bool]:
        found = []
        for journal.in_flight, journal.full in states:
            found.append(watch.changed())
        return found

    assert not any(ticks((0, False), (1, False), (2, False), (0, False)))
    assert ticks((3, False), (3, False), (3, False), (3, False), (4, False), (5, False)) == [
        False, True, False, False, True, False,
    ]  # fmt: skip
    assert ticks((6, True), (6, True), (6, False), (7, False)) == [True, False, False, True]


def test_only_replicas_behind_their_leader_are_watched_while_the_disk_is_slow() -> None:
    groups = {gid: SimpleNamespace(told_index=9, applied_index=9 - gid % 2) for gid in (1, 2, 3, 4)}
    journal = SimpleNamespace(full=False, in_flight=3)
    peers = SimpleNamespace(last_seen=lambda peer: 0.0)
    raft: Any = SimpleNamespace(journal=journal, peers=peers, groups=groups, turns=SimpleNamespace(held={7: None}))
    mesh: Any = SimpleNamespace(peers={})
    clock: Any = SimpleNamespace(monotonic=lambda: 1.0, time_ns=lambda: 1_000_000_000)
    watch = NodeWatch(mesh, raft, clock, Pulse())
    watch.changed()
    assert watch.held() == [7]
    watch.changed()
    assert watch.held() == [7, 1, 3]
    groups[1].applied_index = 9
    assert watch.held() == [7, 3]
