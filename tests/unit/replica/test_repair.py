"""Damaged records are found by the scrub, and the replica is rebuilt (replica/repair.py, cluster/scrubber.py).

What fails beside the stream is counted and logged, and a flood of it does not fill the log (replica/repair.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from jetcluster.cluster.scrubber import BYTES_PER_SECOND, PASS_SECONDS, STREAM_BYTES
from jetcluster.replica.repair import LOGGED_FAILURES, Failures
from jetcluster.store import keys
from jetcluster.store.block_store import BlockStore
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.search.posting_check import PostingCheck
from jetcluster.store.transfer import Scrub
from testkit.sim.nodes import SMALL_LOG, Cluster, Node
from testkit.sim.shared import virtual_time
from testkit.twins.log import ListLog

MESSAGES = 40


def rot(node: Node, kind: int = keys.BLOCK, pick: int = 5) -> None:
    """Flips a bit of one record of the node's only stream, below everything that could notice."""
    gid = node.replica("S").assignment.gid
    start, end = keys.stream_prefix(kind, gid), keys.stream_end(kind, gid)
    found = list(node.kv.scan(start, end))
    key, sound = found[pick % len(found)]
    value = bytearray(sound)
    value[-1] ^= 4
    node.kv.put(key, bytes(value))
    node.replica("S").store._cache.drop_stream(gid)


async def filled(cluster: Cluster) -> None:
    await cluster.create("S")
    await cluster.led("S")
    for number in range(MESSAGES):
        await cluster["A"].publish(b"s", b"%d" % number)
    await cluster.equal("S")
    await cluster.all_read("S")


def scrubs(patch: pytest.MonkeyPatch) -> list[int]:
    """The groups whose replicas are scrubbed from now on, in their order."""
    begun: list[int] = []

    def begin(kv: RocksKv, gid: int, begin_check: Callable[[], PostingCheck]) -> Scrub:
        begun.append(gid)
        return Scrub(kv, gid, begin_check)

    patch.setattr("jetcluster.cluster.scrubber.Scrub", begin)
    return begun


async def whole(cluster: Cluster, node: Node) -> None:
    await cluster.until(lambda: node.replica("S").repair.repaired == 1, 3 * PASS_SECONDS, "it is rebuilt")
    await cluster.equal("S")
    await cluster.all_read("S")
    for seq in range(1, MESSAGES + 1):
        assert (await node.get(b"S", seq))[2] == b"%d" % (seq - 1)


@virtual_time
async def test_a_follower_with_a_rotten_record_that_nobody_reads_is_found_and_rebuilt() -> None:
    async with Cluster(options=SMALL_LOG) as cluster:
        await filled(cluster)
        node = cluster.followers("S")[0]
        told: list[dict[str, object]] = []
        for account in ("$G", "$SYS"):
            bus = node.accounts[account]
            take = lambda _s, _r, _h, body, _o: told.append(json.loads(body))  # noqa: E731
            bus.subscribe(b"$JS.EVENT.ADVISORY.STREAM.REPLICA_DAMAGED.S", take)
        rot(node)
        await whole(cluster, node)
        assert node.replica("S").repair.found == 1 and node.replica("S").sound
        assert "damaged replica was rebuilt" in node.log.events("warning")
        assert [event.get("account") for event in told] == [None, "$G"]
        assert {event["server"] for event in told} == {node.name}
        await asyncio.sleep(4 * PASS_SECONDS)
        assert all(n.js.scrubber.passes >= 2 and n.replica("S").repair.found <= 1 for n in cluster)


@virtual_time
async def test_small_streams_are_verified_a_few_per_second_whatever_their_number() -> None:
    with pytest.MonkeyPatch.context() as patch:
        begun = scrubs(patch)
        async with Cluster("A", clustered=False) as cluster:
            for number in range(300):
                await cluster.create(f"S{number}", 1)
            scrubber = cluster["A"].js.scrubber
            await cluster.until(lambda: bool(begun), 2 * PASS_SECONDS, what="a pass")
            passes = scrubber.passes
            begun.clear()
            await asyncio.sleep(10.0)
            assert 100 <= len(begun) <= 10.0 * BYTES_PER_SECOND / STREAM_BYTES + 1
            assert scrubber.passes == passes
            await cluster.until(lambda: scrubber.passes > passes, PASS_SECONDS, what="the end of it")


@virtual_time
async def test_streams_whose_postings_were_not_compared_at_the_start_are_verified_first() -> None:
    with pytest.MonkeyPatch.context() as patch:
        begun = scrubs(patch)
        async with Cluster("A", clustered=False) as cluster:
            for number in range(30):
                await cluster.create(f"S{number}", 1)
            node = cluster["A"]
            unproven = [node.replica(f"S{number}").store for number in (3, 17)]
            patch.setattr(BlockStore, "compared", property(lambda store: store not in unproven))
            await cluster.until(lambda: len(begun) >= 30, 2 * PASS_SECONDS, what="a pass")
            assert set(begun[:2]) == {node.replica(f"S{number}").assignment.gid for number in (3, 17)}


@virtual_time
async def test_a_leader_with_a_rotten_record_steps_aside_and_is_rebuilt() -> None:
    async with Cluster(options=SMALL_LOG) as cluster:
        await filled(cluster)
        node = cluster.leader("S")
        rot(node, keys.INFO)
        await whole(cluster, node)
        assert not node.replica("S").leading


@pytest.mark.parametrize("places", [(3, 20), (7, 7)], ids=["different places", "the same place"])
@pytest.mark.parametrize("leads", [True, False], ids=["the leader and a follower", "both followers"])
@virtual_time
async def test_two_of_three_are_repaired_from_the_one_that_is_whole(places: tuple[int, int], leads: bool) -> None:
    async with Cluster(options=SMALL_LOG) as cluster:
        await filled(cluster)
        one, other = cluster.followers("S")
        hurt = (cluster.leader("S"), one) if leads else (one, other)
        for node, place in zip(hurt, places, strict=True):
            rot(node, pick=place)
        for node in hurt:
            await whole(cluster, node)


@virtual_time
async def test_a_replica_keeps_what_it_has_while_no_other_one_is_whole() -> None:
    """Each lacks something else: together they have everything."""
    async with Cluster(options=SMALL_LOG) as cluster:
        await filled(cluster)
        for number, node in enumerate(cluster):
            rot(node, pick=3 + 10 * number)
        await asyncio.sleep(4 * PASS_SECONDS)
        for node in cluster:
            replica = node.replica("S")
            assert replica.damaged and not replica.installing and replica.store.messages == MESSAGES
            assert replica.repair.repaired == 0 and not node.reads("S")
        for number, node in enumerate(cluster):  # the operator puts back what was there
            rot(node, pick=3 + 10 * number)


@virtual_time
@pytest.mark.parametrize("leads", [False, True])
async def test_a_command_that_meets_a_rotten_record_has_the_replica_rebuilt(leads: bool) -> None:
    """An erased message is read first. The others have carried it out."""
    async with Cluster(options=SMALL_LOG) as cluster:
        await filled(cluster)
        node = cluster.leader("S") if leads else cluster.followers("S")[0]
        asker = next(other for other in cluster if other is not node)
        rot(node, pick=5)
        assignment = asker.js.assignment("$G", "S")
        assert assignment is not None
        for seq in range(1, MESSAGES):
            await asker.js.stream_request(assignment, "msg_delete", {"seq": seq, "no_erase": False})
        await cluster.until(lambda: node.replica("S").repair.repaired == 1, what="it is rebuilt")
        await cluster.equal("S")
        assert not node.replica("S").failed and node.replica("S").store.messages == 1
        assert (await asker.publish_again(b"s", b"on"))["seq"] == MESSAGES + 1
        await cluster.equal("S")
        await cluster.all_read("S")
        assert (await node.get(b"S", MESSAGES + 1))[2] == b"on"


@virtual_time
async def test_a_replica_alone_keeps_what_it_has() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", 1)
        node = await cluster.led("S")
        for number in range(MESSAGES):
            await cluster["A"].publish(b"s", b"%d" % number)
        rot(node)
        await asyncio.sleep(2 * PASS_SECONDS)
        replica = node.replica("S")
        assert replica.damaged and replica.store.messages == MESSAGES and replica.leading


def test_a_failure_is_logged_with_where_it_came_from() -> None:
    log = ListLog()
    failures = Failures(log, "S")
    try:
        int("of a link")
    except ValueError as error:
        failures.failed("links fail", error, index=7, kind=8)
    ((_, event, line),) = log.lines
    assert event == "links fail"
    assert (line["stream"], line["index"], line["kind"], line["so_far"]) == ("S", 7, 8, 1)
    assert "of a link" in line["error"] and "test_a_failure_is_logged" in line["error"]


def test_of_many_failures_some_are_logged_and_all_are_counted() -> None:
    log = ListLog()
    failures = Failures(log, "S")
    for _ in range(2_000):
        failures.failed("links fail", ValueError("again"))
    assert failures.count == 2_000
    assert [line["so_far"] for _, _, line in log.lines] == [*range(1, LOGGED_FAILURES + 1), 1_000, 2_000]
    assert all("index" not in line for _, _, line in log.lines)
