"""Streams of which one replica was made the whole, offline (cluster/stream_rescue.py)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from jetcluster.cluster.stream_rescue import METHOD, RETRY_SECONDS
from jetcluster.consumer.state.table import ConsumerTable
from jetcluster.raft import rescue
from jetcluster.raft.api import META_GROUP
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.journal.recovery import scan
from jetcluster.raft.membership import Config
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.rules import StreamRules
from testkit.sim.nodes import ACCOUNT, SMALL_LOG, Cluster, Node
from testkit.sim.shared import virtual_time
from testkit.twins.journal import InlineWriter
from testkit.twins.time import SeededRng
from tests.unit.cluster.test_meta_rescue import _leaderless
from tests.unit.cluster.test_meta_rescue import rescue as rescue_meta


async def force(cluster: Cluster, name: str, stream: str = "S") -> None:
    """Does to the store of a node that is down what `jetcluster rescue --keep` does."""
    node = cluster.nodes[name]
    assert not node.alive
    assignment = node.js.assignment(ACCOUNT, stream)
    assert assignment is not None
    kv = node.kv.crashed()
    store = BlockStore(kv, assignment.gid, memory=False)
    machine = StreamMachine(stream, StreamRules.from_config(assignment.config), store, ConsumerTable(store))
    journal = Journal(node.disk, InlineWriter(cluster.loop), cluster.loop, SeededRng(77), cluster.options)
    journal.open()
    log = journal.groups[assignment.gid]
    rescue.take_over(log, node.me, log.term, machine.applied_index, machine.applied_term)
    while log.durable_gseq < log.gseq:
        await asyncio.sleep(0.001)
    journal.close()


def homes(cluster: Cluster, stream: str = "S") -> list[Node]:
    return [node for node in cluster if node.has(stream)]


async def settled(cluster: Cluster, replicas: int = 3, stream: str = "S") -> None:
    """Waits until there are as many replicas as there are to be, all voters, and all equal."""

    def whole() -> bool:
        leader = next((n for n in cluster if n.has(stream) and n.replica(stream).leading), None)
        assignment = leader.js.assignment(ACCOUNT, stream) if leader is not None else None
        return (
            leader is not None
            and assignment is not None
            and len(assignment.peers) == replicas
            and set(leader.replica(stream).group.peers) == set(assignment.peers)
        )

    await cluster.until(whole, 60, f"{stream} is whole")
    await cluster.equal(stream)


async def contents(node: Node, stream: str = "S") -> list[bytes]:
    store = node.replica(stream).store
    return [msg.payload for msg in store.queries.scan(b">", 1)]


async def publish(cluster: Cluster, node: Node, *payloads: bytes) -> None:
    for payload in payloads:
        await node.publish_again(b"s", payload)


@virtual_time
async def test_a_stream_goes_on_with_the_one_replica_that_is_left() -> None:
    async with Cluster("ABCDE", options=SMALL_LOG) as cluster:
        await cluster.create("S", 3)
        kept, *gone = homes(cluster)
        other = next(node for node in cluster if not node.has("S"))
        await publish(cluster, other, *(b"%d" % n for n in range(50)))
        await cluster.equal("S")
        for node in gone:
            cluster.crash(node.name)
        await cluster.until(lambda: kept.replica("S").group.leader is None, what="no leader")
        await cluster.stop(kept.name)
        await force(cluster, kept.name)
        kept = cluster.restart(kept.name)
        await cluster.until(lambda: kept.has("S") and kept.replica("S").leading, 30, "it leads")
        assert await contents(kept) == [b"%d" % n for n in range(50)]
        assert "the rescued replica of a stream is in use" in kept.log.events("info")
        assert "a stream goes on with one replica that was rescued" in " ".join(
            line for node in cluster for line in node.log.events("warning")
        )
        await publish(cluster, other, b"after")
        await settled(cluster)
        for node in homes(cluster):
            assert (await contents(node))[-2:] == [b"49", b"after"]
        assert kept.js.assignment(ACCOUNT, "S").rescue == 1
        # Also those that start again, or got the state and never saw the forced configuration, ignore the old ones.
        filled = next(node for node in homes(cluster) if node is not kept)
        await cluster.stop(filled.name)
        cluster.restart(filled.name)
        await settled(cluster)
        for node in homes(cluster):
            assert set(node.replica("S").group._shut_out) == {old.me for old in gone}
            assert {old.me for old in gone} <= node.replica("S").group.fenced
        # It is an ordinary stream again: the kept one may go, and everybody may start again.
        await cluster.stop(kept.name)
        await publish(cluster, await cluster.led("S"), b"without it")
        kept = cluster.restart(kept.name)
        await settled(cluster)
        assert (await contents(kept))[-1] == b"without it"


@virtual_time
async def test_replicas_of_before_come_back_as_a_majority_and_are_given_up() -> None:
    """They even have more than the one that was kept. What that had is the stream, on all of them."""
    async with Cluster("ABCDE") as cluster:
        await cluster.create("S", 3)
        leader = await cluster.led("S")
        kept = next(node for node in homes(cluster) if node is not leader)
        gone = [node for node in homes(cluster) if node is not kept]
        await publish(cluster, leader, b"1", b"2")
        await cluster.equal("S")
        cluster.isolate(kept.name)
        await publish(cluster, leader, b"lost 1", b"lost 2")
        await cluster.until(lambda: all(node.replica("S").store.messages == 4 for node in gone), what="both know more")
        for node in gone:
            cluster.crash(node.name)
        cluster.heal()
        await cluster.stop(kept.name)
        await force(cluster, kept.name)
        kept = cluster.restart(kept.name)
        await cluster.until(lambda: kept.has("S") and kept.replica("S").leading, 30, "it leads")
        await publish(cluster, kept, b"3")
        for node in gone:
            cluster.restart(node.name)
        back = [cluster[node.name] for node in gone]
        await cluster.until(
            lambda: all("was rescued elsewhere" in " ".join(n.log.events("warning")) for n in back), 30, "given up"
        )
        # Meanwhile and afterwards the rescued group was not disturbed.
        assert kept.replica("S").leading and not kept.replica("S").failed
        await publish(cluster, back[0], b"4")
        await settled(cluster)
        for node in homes(cluster):
            assert await contents(node) == [b"1", b"2", b"3", b"4"]
        for node in cluster:
            assert not node.js.broken


@virtual_time
async def test_all_replicas_are_damaged_and_one_is_chosen() -> None:
    async with Cluster() as cluster:
        gid = (await cluster.create("S", 3)).gid
        await cluster.create("T", 3)
        for number in range(20):
            await publish(cluster, cluster["A"], b"%d" % number)
            await asyncio.sleep(0.2)  # what is known to be committed is written down now and then
        cluster.crash("ABC")
        for name, number in (("A", 12), ("B", 16), ("C", 8)):
            disk = cluster.nodes[name].disk
            place = scan(disk).groups[gid].entries[number]
            disk.corrupt(place.segment, place.offset, b"\xff\xff\xff\xff")
        cluster.restart("ABC")
        await cluster.until(lambda: cluster.meta_leader() is not None, 30, "a meta leader")
        assert all(node.journal.groups[gid].damaged for node in cluster)
        await cluster.never(lambda: any(n.replica("S").group.ready for n in cluster), 10, "S has a leader")
        assert (await (await cluster.led("T")).publish(b"t"))["seq"] == 1
        await cluster.stop("B")
        await force(cluster, "B")
        kept = cluster.restart("B")
        await cluster.until(lambda: kept.has("S") and kept.replica("S").leading, 60, "it leads")
        had = await contents(kept)
        assert had == [b"%d" % n for n in range(len(had))] and 8 <= len(had) <= 14
        await settled(cluster)
        await publish(cluster, cluster["C"], b"new")
        await cluster.equal("S")
        assert await contents(cluster["A"]) == [*had, b"new"]
        assert not any(node.journal.groups[gid].damaged for node in cluster)


@virtual_time
async def test_one_of_three_is_empty_another_one_damaged_and_the_third_has_everything() -> None:
    """Two machines are damaged at a time: nobody may lead, the meta group's majority is lost as well."""
    async with Cluster() as cluster:
        gid = (await cluster.create("S", 3)).gid
        for number in range(20):
            await publish(cluster, cluster["A"], b"%d" % number)
            await asyncio.sleep(0.2)  # what is known to be committed is written down now and then
        cluster.crash("ABC")
        disk = cluster.nodes["B"].disk
        for group in (META_GROUP, gid):
            place = scan(disk).groups[group].entries[2]
            disk.corrupt(place.segment, place.offset, b"\xff\xff\xff\xff")
        cluster.restart("AB")
        empty = cluster.add("C")
        await cluster.never(lambda: cluster.meta_leader() is not None, 10, "a meta leader")
        assert {name: cluster[name].journal.groups[gid].damaged for name in "AB"} == {"A": False, "B": True}
        await cluster.until(lambda: _leaderless(cluster), what="no leader for long enough")
        answers = await rescue_meta(cluster["A"], 2)
        assert {name for name, answer in answers.items() if "error" not in answer} == {"A", "B"}
        await cluster.until(lambda: cluster.meta_leader() is cluster["A"], 2, "a meta leader")
        await cluster.until(lambda: empty.me in cluster["A"].js.meta.group.peers, 30, "the empty server is a member")
        assert not any(node.has("S") and node.replica("S").leading for node in cluster)
        await cluster.stop("A")
        await force(cluster, "A")
        kept = cluster.restart("A")
        await cluster.until(lambda: kept.has("S") and kept.replica("S").leading, 60, "it leads")
        await settled(cluster)
        await publish(cluster, cluster["B"], b"new")
        await cluster.equal("S")
        for node in cluster:
            assert await contents(node) == [*(b"%d" % n for n in range(20)), b"new"]
            assert not any(log.damaged for log in node.journal.groups.values())


@virtual_time
async def test_a_replica_that_was_never_down_is_given_up_too() -> None:
    """R5: two are left, one is kept; the other one runs while its store was not touched."""
    async with Cluster("ABCDEFG") as cluster:
        await cluster.create("S", 5)
        kept, other, *gone = homes(cluster)
        await publish(cluster, kept, b"1", b"2")
        await cluster.equal("S")
        for node in gone:
            cluster.crash(node.name)
        await cluster.until(lambda: other.replica("S").group.leader is None, what="no leader")
        await cluster.stop(kept.name)
        await force(cluster, kept.name)
        # Four of seven servers are needed for the meta group as well.
        restarted = cluster.restart(gone[0].name)
        kept = cluster.restart(kept.name)
        await cluster.until(lambda: kept.has("S") and kept.replica("S").leading, 60, "it leads")
        await publish(cluster, kept, b"3")
        await cluster.until(lambda: other.has("S") and restarted.has("S"), 60, "both have it again")
        await cluster.equal("S", kept.name, other.name, restarted.name)
        assert await contents(other) == [b"1", b"2", b"3"]


@virtual_time
async def test_a_rescue_of_a_stream_that_is_led_is_refused_and_hurts_nobody() -> None:
    async with Cluster("ABCD") as cluster:
        await cluster.create("S", 3)
        leader = await cluster.led("S")
        kept = next(node for node in homes(cluster) if node is not leader)
        await publish(cluster, leader, b"1")
        await cluster.equal("S")
        await cluster.stop(kept.name)
        await publish(cluster, leader, b"2")
        await force(cluster, kept.name)
        kept = cluster.restart(kept.name)
        gid = leader.js.assignment(ACCOUNT, "S").gid
        await cluster.until(lambda: "is led by" in kept.js.broken.get(gid, (None, ""))[1], 30, "refused")
        assert not kept.has("S") and leader.replica("S").leading
        await publish(cluster, leader, b"3")
        assert leader.js.assignment(ACCOUNT, "S").rescue == 0
        told = [line for line in kept.log.events("warning") if "is not used" in line]
        await asyncio.sleep(RETRY_SECONDS * 3)
        assert len(told) == 1 and len([line for line in kept.log.events("warning") if "is not used" in line]) == 1
        # Its place can be given to another one, and the stream is whole again.
        body = {"request": "x", "account": ACCOUNT, "name": "S", "peer": kept.name}
        await leader.js.meta_request("stream_peer_remove", body)
        await settled(cluster)
        assert not kept.has("S") and kept.journal.groups[gid].rescues == 1, "what it has is kept"


@virtual_time
async def test_a_rescue_while_a_majority_is_back_is_refused() -> None:
    """The others are there and whole, and on the point of electing one of them."""
    async with Cluster("ABCD") as cluster:
        await cluster.create("S", 3)
        kept, *others = homes(cluster)
        await publish(cluster, kept, b"1")
        await cluster.equal("S")
        for node in (kept, *others):
            await cluster.stop(node.name)
        await force(cluster, kept.name)
        for node in (kept, *others):
            cluster.restart(node.name)
        kept = cluster[kept.name]
        await cluster.until(lambda: bool(kept.js.broken), 30, "it waits")
        gid = next(iter(kept.js.broken))
        await cluster.until(lambda: "rescued replica is not used" in kept.js.broken[gid][1], 30, "refused")
        leader = await cluster.led("S")
        assert leader.name in {node.name for node in others}
        await publish(cluster, leader, b"2")


@virtual_time
async def test_replicas_in_the_places_of_the_lost_ones_are_no_majority() -> None:
    """R5, four replicas are gone and others were given their places: they have nothing, and vote for nobody."""
    async with Cluster("ABCDEFGHI") as cluster:
        await cluster.create("S", 5)
        kept, *gone = homes(cluster)
        await publish(cluster, kept, b"1")
        await cluster.equal("S")
        for node in gone:
            cluster.crash(node.name)
        await cluster.until(lambda: cluster.meta_leader() is not None, 30, "a meta leader")
        asked = next(node for node in cluster if node is not kept)
        for node in gone:
            await asked.js.meta_request("server_remove", {"request": f"rm{node.name}", "peer": node.name})
        new = [node for node in cluster if node is not kept and node.me in asked.js.assignment(ACCOUNT, "S").peers]
        assert len(new) == 4
        await cluster.until(lambda: all(node.has("S") for node in new), 30, "they have replicas")
        await cluster.stop(kept.name)
        await force(cluster, kept.name)
        kept = cluster.restart(kept.name)
        await cluster.until(lambda: kept.has("S") and kept.replica("S").leading, 60, "it leads")
        await settled(cluster, 5)
        assert await contents(new[0]) == [b"1"]


@virtual_time
async def test_the_kept_replica_moves_away_and_back() -> None:
    """The kept replica stays the one that was kept: a node with another replica of the stream is no second rescue."""
    async with Cluster("ABCD") as cluster:
        await cluster.create("S", 3)
        kept, *gone = homes(cluster)
        await publish(cluster, kept, b"1")
        await cluster.equal("S")
        cluster.crash(gone[0].name)
        await cluster.stop(gone[1].name)
        await cluster.stop(kept.name)
        await force(cluster, kept.name)
        kept = cluster.restart(kept.name)
        cluster.restart(gone[1].name)
        await settled(cluster)
        cluster.restart(gone[0].name)
        body = {"account": ACCOUNT, "name": "S"}
        leader = await cluster.led("S")
        await leader.js.meta_request("stream_peer_remove", {**body, "request": "away", "peer": kept.name})
        await cluster.until(lambda: not kept.has("S"), 60, "it has moved away")
        await settled(cluster)
        victim = next(node for node in homes(cluster))
        await kept.js.meta_request("stream_peer_remove", {**body, "request": "back", "peer": victim.name})
        await cluster.until(lambda: kept.has("S"), 60, "it is back")
        await settled(cluster)
        assert kept.me not in kept.js.assignment(ACCOUNT, "S").founders
        await cluster.stop(kept.name)
        kept = cluster.restart(kept.name)
        await settled(cluster)
        assert kept.has("S") and not kept.js.broken and await contents(kept) == [b"1"]


@virtual_time
async def test_of_two_rescued_replicas_the_first_counts() -> None:
    async with Cluster("ABCDE") as cluster:
        await cluster.create("S", 5)
        await publish(cluster, cluster["A"], b"1")
        await cluster.equal("S")
        cluster.crash("CDE")
        await cluster.until(lambda: _leaderless(cluster), 30, "no meta leader")
        await rescue_meta(cluster["A"], 2)
        await cluster.until(lambda: cluster.meta_leader() is not None, what="a meta leader")
        for name in "AB":
            await cluster.stop(name)
            await force(cluster, name)
        first, second = cluster.restart("A"), cluster.restart("B")
        gid = first.js.assignment(ACCOUNT, "S").gid
        await cluster.until(lambda: first.has("S") or second.has("S"), 60, "one counts")
        await asyncio.sleep(RETRY_SECONDS * 3)
        counted, other = (first, second) if first.has("S") else (second, first)
        assert counted.replica("S").leading and not other.has("S")
        assert "rescue 1 of the stream was done elsewhere" in other.js.broken[gid][1]
        await publish(cluster, other, b"2")
        assert await contents(counted) == [b"1", b"2"]
        assert other.journal.groups[gid].config.voters == (other.me,), "its data is left alone"
        # The same after a restart of both.
        for name in "AB":
            await cluster.stop(name)
        cluster.restart("AB")
        await cluster.until(lambda: cluster[counted.name].has("S"), 60, "it counts")
        await asyncio.sleep(RETRY_SECONDS)
        assert not cluster[other.name].has("S")


@virtual_time
async def test_a_crash_between_the_registration_and_the_first_flush() -> None:
    async with Cluster("ABCD") as cluster:
        await cluster.create("S", 3)
        kept, *gone = homes(cluster)
        await publish(cluster, kept, b"1")
        await cluster.equal("S")
        await cluster.stop(kept.name)
        for node in gone:
            await cluster.stop(node.name)
        await force(cluster, kept.name)
        kept = cluster.restart(kept.name)
        cluster.restart(gone[0].name)  # the meta group needs three of four
        await cluster.until(lambda: kept.has("S") and kept.replica("S").leading, 60, "it leads")
        await publish(cluster, kept, b"2")
        back = cluster[gone[0].name]
        for node in (kept, back):
            cluster.crash(node.name)
        for node in (kept, back):
            cluster.restart(node.name)
        kept = cluster[kept.name]
        await cluster.until(lambda: kept.has("S") and kept.replica("S").leading, 60, "it leads again")
        await cluster.until(lambda: cluster[back.name].has("S"), 60, "the other one has it")
        await cluster.equal("S", kept.name, back.name)
        assert await contents(cluster[back.name]) == [b"1", b"2"]
        late = cluster.restart(gone[1].name)
        await cluster.until(lambda: "was rescued elsewhere" in " ".join(late.log.events("warning")), 30, "given up")
        await settled(cluster)
        assert not late.has("S") or await contents(late) == [b"1", b"2"]


def test_the_newest_rescue_is_this_replicas_or_another_ones() -> None:
    from tests.unit.raft.loopback import Loopback

    net = Loopback()
    net.start()
    node = net["A"].node
    assert (node.rescues(1), node.forced(1), node.rescues(9), node.forced(9)) == (0, 0, 0, 0)
    log = net["A"].group().log
    rescue.take_over(log, "A", 5, log.base_index, log.base_term)
    assert (node.rescues(1), node.forced(1)) == (1, 1)
    net["A"].group().follow_config()
    net.until(lambda: net["A"].group().log.config == Config(("A",), (), 1, ("B", "C")))
    other = net["B"].group().log
    rescue.append_forced(other, "C", other.term + rescue.TERM_STEP, ("C",))
    assert (net["B"].node.rescues(1), net["B"].node.forced(1)) == (1, 0)


@virtual_time
async def test_a_replica_that_is_not_begun_yet_is_no_absent_one() -> None:
    """Its node is starting, or could not begin it; its log is in the journal."""
    async with Cluster() as cluster:
        gid = (await cluster.create("S")).gid
        await cluster["A"].publish(b"s")
        await cluster.equal("S")
        node = cluster.followers("S")[0]
        asker = next(other for other in cluster if other is not node)

        async def standing(gid: int) -> dict[str, Any] | None:
            found: dict[str, Any] | None = json.loads(await asker.mesh.call(node.me, METHOD, b"%d" % gid, 2.0))
            return found

        runs = await standing(gid)
        node.raft.stop_group(gid)
        waits = await standing(gid)
        assert runs is not None and waits is not None
        assert {key: waits[key] for key in ("peer", "term", "last_index", "voters", "damaged", "stopped")} == {
            key: runs[key] for key in ("peer", "term", "last_index", "voters", "damaged", "stopped")
        }
        node.js.broken[gid] = node.replica("S").assignment, "its records cannot be read"
        broken = await standing(gid)
        assert broken is not None and broken["stopped"] == "its records cannot be read"
        assert await standing(gid + 1) is None
