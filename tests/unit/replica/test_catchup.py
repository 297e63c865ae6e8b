"""Snapshots between replicas (replica/catchup.py): whole, interrupted, overtaken, from bad sources."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from jetcluster.mesh.api import MeshError
from jetcluster.raft.config import RaftConfig
from jetcluster.replica import catchup, exports
from jetcluster.replica.catchup import FULL_SECONDS, RESUME_SECONDS
from jetcluster.replica.exports import ASKED_SECONDS, EXPORT_IDLE_SECONDS
from jetcluster.store import transfer
from jetcluster.store.kv import KvError
from testkit.sim.nodes import SMALL_LOG, Cluster, Node
from testkit.sim.shared import virtual_time
from testkit.twins.mem_kv import CrashKv
from tests.unit.cluster.consumers import Puller, ask, consumer, filled, host
from tests.unit.cluster.transfers import GID, Owner, Pair, begun


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record is a range, and travels alone."""
    monkeypatch.setattr(transfer, "RANGE_BYTES", 1)
    monkeypatch.setattr(catchup, "CHUNK_BYTES", 1)
    monkeypatch.setattr(catchup, "MAX_CHUNKS_AHEAD", 0)
    monkeypatch.setattr(exports, "LIST_BYTES", 1)


@virtual_time
async def test_the_state_comes_whole_and_nothing_is_left() -> None:
    source, target = Owner(9, b"1", b"2", b"3"), Owner(0, b"old", b"2", b"old", b"older")
    pair = Pair(source, target)
    await pair.pull()
    assert (target.values, target.log, target.index) == ([b"1", b"2", b"3"], ["begin", "end"], 9)
    await asyncio.sleep(0.01)  # the giver hears it
    assert pair.sides[0].exports == 0 and pair.sides[1].transfers == {}


@virtual_time
async def test_older_state_is_never_taken() -> None:
    for source, wanted in ((Owner(9), 10), (Owner(9), 1)):
        target = Owner(10 if wanted == 1 else 0)
        pair = Pair(source, target)
        await pair.pull(wanted)
        assert target.log == []


@pytest.mark.parametrize(
    "numbers",
    [(1 << 62, 1), (1 << 63, 1), (1 << 64, 1), (-1, 1), (9, 1 << 62), (9, 1 << 64), (9, -1), (9.5, 1), (9, None)],
)
@virtual_time
async def test_a_state_of_an_index_or_term_that_cannot_be_is_not_taken(numbers: tuple[Any, Any]) -> None:
    """The journal could not hold it: the node would end, again at each start."""
    source, target = Owner(9, b"1"), Owner(0, b"old")
    target.index = -5
    index, term = numbers
    cut = source.snapshot_export()
    source.snapshot_export = lambda: dataclasses.replace(cut, index=index, term=term)  # type: ignore[method-assign]
    pair = Pair(source, target)
    await pair.pull(-9)
    assert (target.log, target.values) == ([], [b"old"])


@virtual_time
async def test_a_replica_that_goes_on_from_the_log_fetches_nothing() -> None:
    """It was offered a state, and sent entries before it began."""
    target = Owner(3, b"mine")
    target.wants_state = False
    pair = Pair(Owner(9, b"1"), target)
    await pair.pull()
    assert target.log == []
    await asyncio.sleep(0.01)
    assert pair.sides[0].exports == 0


@virtual_time
async def test_trouble_of_the_giver_ends_the_pull_and_says_so() -> None:
    source, target = Owner(9, b"1", b"bad", b"3"), Owner()
    pair = Pair(source, target)
    await pair.pull()
    assert (source.log, target.log, target.index) == (["export failed"], [], 0), "nothing is given up for a refusal"
    assert len(pair.logs[0].events("error")) == 1
    assert pair.sides[0].exports == 0
    source.set(b"ok")
    await pair.pull()
    assert target.values == [b"ok"] and target.index == 9


@pytest.mark.parametrize("error", [KvError("No space left on device"), ZeroDivisionError()])
@virtual_time
async def test_trouble_of_the_receiver_ends_the_pull_and_says_so(error: Exception) -> None:
    source, target = Owner(9, b"1", b"2"), Owner()
    target.kv.error, target.kv.fail_after = error, 1
    pair = Pair(source, target)
    await pair.pull()
    assert (target.log, target.index) == (["begin"], 0)
    assert len(pair.logs[1].events("error")) == 1
    await asyncio.sleep(0.01)
    assert pair.sides[0].exports == 0, "the giver hears it"
    target.kv.error = None
    await pair.pull()
    assert target.values == [b"1", b"2"] and target.index == 9


@virtual_time
async def test_both_sides_know_how_many_messages_are_missing(tiny: None) -> None:
    source, target = Owner(9, b"1" * 38, b"2" * 38, b"3" * 88), Owner()
    pair = Pair(source, target)
    giver, taker = pair.sides
    seen: list[tuple[int | None, int, int, int]] = []

    async def look(size: int) -> None:
        ((running, _),) = taker.progress()
        if size:
            found = giver.missing(GID, pair.ids[1])
            seen.append((found, running.missing, running.compared, running.fetched))

    target.snapshot_room = look  # type: ignore[method-assign]
    await pair.pull()
    assert seen == [(30, 30, 0, 0), (23, 23, 50, 50), (23, 15, 100, 100)], (
        "the giver hears of it when more is asked for"
    )
    await asyncio.sleep(0.01)
    assert giver.missing(GID, pair.ids[1]) is None and taker.progress() == []


@virtual_time
async def test_what_is_here_already_counts_as_compared_and_not_as_fetched(tiny: None) -> None:
    source, target = Owner(9, b"1" * 38, b"2" * 38, b"3" * 88), Owner(0, b"1" * 38, b"x")
    pair = Pair(source, target)
    await pair.pull()
    assert (pair.ended()["compared"], pair.ended()["fetched"]) == (200, 150)


@virtual_time
async def test_a_state_that_does_not_fit_is_given_back_and_fetched_again_when_it_is_smaller_or_later(
    tiny: None,
) -> None:
    source, target = Owner(9, b"1" * 60, b"2" * 60), Owner()
    target.room = 100
    pair = Pair(source, target)
    await pair.pull()
    assert target.log == ["begin", "abandon"] and len(pair.logs[1].events("error")) == 1
    await pair.pull()
    assert target.log == ["begin", "abandon"], "it is as large as it was"
    source.set(b"3" * 60)
    await pair.pull()
    assert (target.log, target.index) == (["begin", "abandon", "begin", "end"], 9)

    source, target = Owner(9, b"1" * 120), Owner()
    target.room = 100
    pair = Pair(source, target)
    await pair.pull()
    target.room = 200
    await asyncio.sleep(FULL_SECONDS)
    await pair.pull()
    assert target.index == 9, "there may be more room by now"


@virtual_time
async def test_a_state_that_is_kept_is_given_up_only_when_the_giver_has_read_all_of_its(tiny: None) -> None:
    """Both may be damaged."""
    source, target = Owner(9, b"1", b"2", b"bad"), Owner(0, b"mine", b"2")
    target.keeps_state = True
    pair = Pair(source, target)
    await pair.pull()
    assert (target.log, target.values) == ([], [b"mine", b"2"])
    source.set(b"1", b"2", b"3")
    await pair.pull()
    assert (target.log, target.values) == (["begin", "end"], [b"1", b"2", b"3"])


@virtual_time
@pytest.mark.parametrize("cut_after", range(3))
async def test_a_lost_link_is_waited_for_and_the_transfer_goes_on_where_it_was(tiny: None, cut_after: int) -> None:
    """Wherever the link breaks, also when a chunk is on its way and is lost with it."""
    source, target = Owner(9, b"1", b"2", b"3"), Owner()
    pair = await begun(source, target)
    while target.taken < 13 * cut_after:
        await asyncio.sleep(0)
    for _ in range(cut_after % 2):
        await asyncio.sleep(0)
    pair.network.cut(*pair.ids)
    await asyncio.sleep(RESUME_SECONDS - 1)
    assert pair.sides[1].running(GID) and target.log == ["begin"]
    pair.network.heal(*pair.ids)
    await pair.settled()
    assert target.values == [b"1", b"2", b"3"] and target.log == ["begin", "end"]
    assert pair.ended()["fetched"] == 39
    await asyncio.sleep(0.01)
    assert pair.sides[0].exports == 0


@virtual_time
async def test_a_peer_that_stays_away_is_given_up_and_the_next_pull_goes_on_where_it_was(tiny: None) -> None:
    source, target = Owner(9, b"1", b"2", b"3"), Owner()
    pair = await begun(source, target)
    pair.network.cut(*pair.ids)
    await asyncio.sleep(EXPORT_IDLE_SECONDS + 1)
    pair.sides[0].tick()
    assert pair.sides[0].exports == 0 and not pair.sides[1].running(GID)
    came = target.taken
    pair.network.heal(*pair.ids)
    await pair.pull()
    assert target.values == [b"1", b"2", b"3"] and target.log == ["begin", "begin", "end"]
    assert 0 < came < 39 == target.taken


@virtual_time
async def test_who_asks_no_more_does_not_count_as_one_that_lacks_messages(tiny: None) -> None:
    """It may have fetched them from another one, and nobody has closed the export."""
    pair = await begun(Owner(9, b"1", b"2", b"3"), Owner())
    assert pair.sides[0].missing(GID, pair.ids[1]) is not None
    pair.network.cut(*pair.ids)
    await asyncio.sleep(ASKED_SECONDS + 1)
    assert pair.sides[0].missing(GID, pair.ids[1]) is None and pair.sides[0].exports == 1


@virtual_time
async def test_nobody_waits_for_a_peer_out_of_reach_when_another_can_give_the_state(tiny: None) -> None:
    pair = await begun(Owner(9, b"1", b"2"), Owner())
    a = pair.ids[0]
    pair.sides[1].pull(GID, "C" * 8, 1)
    await asyncio.sleep(0)
    assert pair.sides[1].running(GID), "a pull that moves is not ended for another peer's sake"
    pair.network.cut(*pair.ids)
    await asyncio.sleep(1)
    pair.sides[1].pull(GID, a, 1)
    await asyncio.sleep(0.01)
    assert pair.sides[1].running(GID), "the same peer: it may come back"
    pair.sides[1].pull(GID, "C" * 8, 1)
    await asyncio.sleep(0.01)
    assert not pair.sides[1].running(GID)


@virtual_time
async def test_a_forgotten_replica_takes_no_further_step(tiny: None) -> None:
    target = Owner()
    pair = await begun(Owner(9, b"1", b"2"), target)
    pair.sides[1].forget(GID)
    await asyncio.sleep(1)
    assert target.values in ([], [b"1"]) and target.log == ["begin"] and not pair.sides[1].running(GID)
    assert pair.sides[0].exports == 0


@virtual_time
async def test_every_request_keeps_the_log_behind_the_state(tiny: None) -> None:
    source = Owner(9, *[b"%d" % number for number in range(10)])
    pair = Pair(source, Owner())
    await pair.pull()
    assert set(source.fetched) == {(pair.ids[1], 9)}
    assert len(source.fetched) >= 1 + 10 + 10, "the beginning, each list, each chunk"


# With real replicas


async def far_behind(cluster: Cluster, *, messages: int = 200) -> Node:
    """C was away while the others' logs forgot what it needs. Returns the restarted C, catching up."""
    await cluster.create("S")
    for number in range(10):
        await cluster["A"].publish(b"s", b"%d" % number)
    await cluster.equal("S")
    cluster.crash("C")
    await cluster.led("S")
    for number in range(10, messages):
        await cluster["A"].publish(b"s", b"%d" % number + b"." * 200)
    for name in "AB":
        await cluster[name].js.flusher.flush()
        assert cluster[name].replica("S").group.log.base_index > 20  # type: ignore[attr-defined]
    return cluster.restart("C")


def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small ranges, so that there is something to interrupt."""
    monkeypatch.setattr(transfer, "RANGE_BYTES", 200)
    monkeypatch.setattr(exports, "LIST_BYTES", 5_000)
    monkeypatch.setattr(catchup, "CHUNK_BYTES", 500)
    monkeypatch.setattr(catchup, "MAX_CHUNKS_AHEAD", 0)


@virtual_time
async def test_a_follower_behind_the_log_fetches_a_snapshot_while_the_leader_serves() -> None:
    async with Cluster(options=SMALL_LOG) as cluster:
        node = await far_behind(cluster)
        acks = [(await cluster["A"].publish(b"s"))["seq"] for _ in range(50)]
        assert acks == list(range(201, 251))
        await cluster.equal("S")
        await cluster.all_read("S")
        assert "caught up from a snapshot" in node.log.events("info")
        assert (await node.get(b"S", 1))[2] == b"0" and (await node.get(b"S", 150))[2].startswith(b"149")
        # and it counts again
        cluster.crash(cluster.leader("S").name)
        await cluster.led("S")
        assert (await node.publish(b"s"))["seq"] == 251


@virtual_time
async def test_a_replica_that_was_away_for_long_fetches_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch)
    async with Cluster(options=SMALL_LOG) as cluster:
        await cluster.create("S")
        for number in range(300):
            await cluster["A"].publish(b"s", b"%d" % number + b"." * 200)
        await cluster.equal("S")
        await cluster["C"].js.flusher.flush()
        cluster.crash("C")
        await cluster.led("S")
        for number in range(60):
            await cluster["A"].publish(b"s", b"%d" % number + b"." * 200)
        await cluster["A"].request(b"$JS.API.DIRECT.GET.S", b'{"seq":7}')
        for name in "AB":
            await cluster[name].js.flusher.flush()
        node = cluster.restart("C")
        await cluster.equal("S")
        await cluster.all_read("S")
        ((_, _, found),) = [line for line in node.log.lines if line[1] == "caught up from a snapshot"]
        assert found["compared"] > 360 * 200
        assert 60 * 200 < found["fetched"] < 60 * 400 + 2_000


SCALED = replace(SMALL_LOG, segment_bytes=32 << 10, node_retain_bytes=64 << 10, retain_bytes=8 << 10, retain_entries=64)
SCALED_RAFT = RaftConfig(pin_seconds=0.12, pin_bytes=256 << 10, offer_retry=0.05, stall=0.1)


@virtual_time
async def test_catch_up_of_a_stream_that_is_written_without_pause_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """All limits are a thousandth of the default ones, and a transfer takes longer than any pin: some 4 s, for which
    an hour stands."""
    slow(monkeypatch)
    async with Cluster(options=SCALED, config=SCALED_RAFT) as cluster:
        node = await far_behind(cluster)
        for _, link in cluster.network.tcp.links():
            link.delay = 0.01
        written = 0

        async def load() -> None:
            nonlocal written
            while True:
                cluster.leader("S").bus.publish(b"s", b"%d" % written + b"." * 400)
                written += 1
                await asyncio.sleep(0.01)

        task = asyncio.get_running_loop().create_task(load())
        await cluster.until(lambda: node.has("S") and node.replica("S").installing, what="an import under way")
        began = cluster.loop.time()
        leader = cluster.leader("S")
        held: list[int] = []

        def caught_up() -> bool:
            held.append(len(leader.disk.segments()))
            there, here = leader.replica("S").group, node.replica("S").group
            return node.replica("S").sound and there.last_index - here.applied_index < 20

        await cluster.until(caught_up, seconds=60, what="it has caught up")
        took = cluster.loop.time() - began
        assert took > 1.0 and written > 90, "what is shown is not the case of a short transfer"
        assert node.log.events("info").count("caught up from a snapshot") == 1
        await asyncio.sleep(3)
        task.cancel()
        assert caught_up() and len(leader.disk.segments()) <= 5, "what was held for it is gone"
        assert max(held) > 5
        await cluster.equal("S")


@virtual_time
async def test_an_interrupted_transfer_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch)
    async with Cluster(options=SMALL_LOG) as cluster:
        node = await far_behind(cluster)
        await cluster.until(lambda: node.has("S") and node.replica("S").installing, what="an import under way")
        assert not node.reads("S")
        cluster.isolate("C")
        await asyncio.sleep(3)
        assert node.replica("S").installing and not node.reads("S")
        cluster.heal()
        await cluster.equal("S")
        await cluster.all_read("S")


@virtual_time
@pytest.mark.parametrize("frees", [True, False])
async def test_on_a_full_disk_the_given_up_state_goes_first_and_no_half_of_a_new_one_stays(
    monkeypatch: pytest.MonkeyPatch, frees: bool
) -> None:
    slow(monkeypatch)
    async with Cluster(options=SMALL_LOG) as cluster:
        node = await far_behind(cluster)
        room = {"spare": 0}
        reclaimed: list[int] = []

        async def reclaim(kv: CrashKv, ranges: list[tuple[bytes, bytes]]) -> None:
            assert kv is node.kv and ranges
            reclaimed.append(node.replica("S").store.messages)
            room["spare"] = 1 << 20 if frees else 0

        monkeypatch.setattr(
            CrashKv, "spare_bytes", property(lambda kv: room["spare"] if kv is node.kv else 1 << 20), raising=True
        )
        monkeypatch.setattr(CrashKv, "reclaim", reclaim)
        await cluster.until(lambda: bool(reclaimed), what="it is freed")
        assert reclaimed[0] == 0, "before anything of the new state was there"
        if not frees:
            await asyncio.sleep(FULL_SECONDS / 2)
            assert not node.reads("S") and not node.replica("S").store.messages
            assert len(reclaimed) == 3, "twice to find room, once to leave nothing behind; not again and again"
            room["spare"] = 1 << 20
        await cluster.until(lambda: node.replica("S").sound, 3 * FULL_SECONDS, "there is room")
        await cluster.equal("S")
        await cluster.all_read("S")


@virtual_time
async def test_a_crash_in_the_middle_of_a_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch)
    async with Cluster(options=SMALL_LOG) as cluster:
        node = await far_behind(cluster)
        await cluster.until(lambda: node.has("S") and node.replica("S").installing, what="an import under way")
        gid = node.replica("S").assignment.gid
        await cluster.until(lambda: node.services.network.catchup.transfers[gid].fetched > 30_000, what="half of it")
        came = node.services.network.catchup.transfers[gid].fetched
        node.js.meta.save()
        node.kv.flush_now()  # half an import on disk
        cluster.crash("C")
        cluster.isolate("C")
        node = cluster.restart("C")
        replica = node.replica("S")
        assert replica.store.incomplete and replica.installing and not replica.sound
        assert replica.store.messages == 0 and replica.machine.applied_index == 0
        with pytest.raises(MeshError, match="not sound"):
            replica.snapshot_export()
        await asyncio.sleep(2)
        assert not node.reads("S") and replica.store.incomplete
        cluster.heal()
        await cluster.equal("S")
        await cluster.all_read("S")
        assert (await node.get(b"S", 1))[2] == b"0"
        ((_, _, found),) = [line for line in node.log.lines if line[1] == "caught up from a snapshot"]
        assert found["fetched"] <= found["compared"] - came + 1_000


@virtual_time
async def test_a_crash_after_any_range_of_a_stream_with_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk then has rows of two histories: of consumers here and there, and of what is pending for them."""
    slow(monkeypatch)
    monkeypatch.setattr(transfer, "RANGE_BYTES", 1)
    async with Cluster(options=SMALL_LOG) as cluster:
        await filled(cluster, 10)
        for name in ("gone", "stays"):
            await consumer(cluster["A"], name)
            await Puller(cluster["A"], "S", name).fetch(5)
        await cluster.equal("S")
        cluster["C"].js.meta.save()
        await cluster["C"].js.flusher.flush()
        cluster.crash("C")
        await cluster.led("S")
        await ask(cluster["A"], "S", "consumer_delete", name="gone")
        await consumer(cluster["A"], "new")
        await Puller(cluster["A"], "S", "new").fetch(3)
        for _ in range(60):
            await cluster["A"].publish(b"s", b"." * 200)
        for name in "AB":
            await cluster[name].js.flusher.flush()
        node, crashes, came = cluster.restart("C"), 0, 0
        gid = node.replica("S").assignment.gid

        def over() -> bool:
            return "caught up from a snapshot" in node.log.events("info")

        def further() -> bool:
            running = node.services.network.catchup.transfers.get(gid)
            return over() or (running is not None and running.compared > came)

        while True:
            await cluster.until(further, what="a range has come")
            if over():
                break
            came = node.services.network.catchup.transfers[gid].compared
            node.kv.flush_now()
            cluster.crash("C")
            crashes += 1
            node = cluster.restart("C")
            assert node.has("S"), node.log.lines
            assert node.replica("S").store.incomplete and not host(node).table.count
        assert crashes > 10, "hardly anything was interrupted: the test shows nothing"
        await cluster.equal("S")
        await cluster.all_read("S")
        assert set(host(node).table.by_name) == {"stays", "new"}


@virtual_time
async def test_the_source_dies_in_the_middle_and_the_new_leader_gives_its_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow(monkeypatch)
    async with Cluster("ABCDE", options=SMALL_LOG) as cluster:
        await cluster.create("S", 5)
        await cluster.equal("S")
        cluster.crash("C")
        await cluster.led("S")
        for number in range(200):
            await cluster["A" if cluster["A"].alive else "B"].publish(b"s", b"%d" % number + b"." * 200)
        await cluster.flush()
        node = cluster.restart("C")
        await cluster.until(lambda: node.has("S") and node.replica("S").installing, what="an import under way")
        cluster.crash(cluster.leader("S").name)
        await cluster.led("S")
        await cluster.equal("S")
        await cluster.all_read("S")


@virtual_time
async def test_nothing_is_applied_to_half_a_state_when_a_new_leader_has_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The old leader had forgotten the log, the new one has all of it: it would rather send entries."""
    slow(monkeypatch)
    async with Cluster(options=SMALL_LOG) as cluster:
        await cluster.create("S")
        await cluster.equal("S")
        leader = cluster.leader("S")
        behind, other = cluster.followers("S")
        cluster.crash(behind.name)
        for number in range(200):
            await leader.publish(b"s", b"%d" % number + b"." * 200)
        await cluster.equal("S", leader.name, other.name)
        await leader.js.flusher.flush()  # only the leader forgets
        assert other.replica("S").group.log.base_index == 0  # type: ignore[attr-defined]
        behind = cluster.restart(behind.name)
        await cluster.until(lambda: behind.has("S") and behind.replica("S").installing, what="an import under way")
        cluster.crash(leader.name)
        await cluster.until(lambda: other.replica("S").leading, what="the other one leads")
        await cluster.equal("S", behind.name, other.name)
        assert behind.replica("S").failed == "" and behind.replica("S").divergences == 0
        assert (await behind.publish(b"s"))["seq"] == 201


@virtual_time
async def test_deletion_while_the_state_is_being_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch)
    async with Cluster(options=SMALL_LOG) as cluster:
        node = await far_behind(cluster)
        await cluster.until(lambda: node.has("S") and node.replica("S").installing, what="an import under way")
        gid = await cluster.delete("S")
        await cluster.until(lambda: gid not in node.js.replicas, what="C deletes it")
        await asyncio.sleep(5)
        assert not node.services.network.catchup.running(gid) and all(
            n.services.network.catchup.exports == 0 for n in cluster
        )
        assert node.log.events("error") == []
        await node.js.flusher.flush()
        assert not [key for key, _ in node.kv.scan(b"\x01", b"\xff") if key[1:5] == gid.to_bytes(4, "big")]


@virtual_time
async def test_the_meta_group_catches_up_the_same_way() -> None:
    async with Cluster(options=SMALL_LOG) as cluster:
        await cluster.create("OLD", subjects=["old"])
        gone = (await cluster.create("GONE", subjects=["gone"])).gid
        await cluster["C"].js.flusher.flush()
        cluster.crash("C")
        for number in range(60):
            await cluster.create(f"S{number}", 1, subjects=[f"s{number}"])
        await cluster.delete("GONE")
        for name in "AB":
            await cluster[name].js.flusher.flush()
            assert cluster[name].js.meta.group.log.base_index > 20  # type: ignore[union-attr]
        node = cluster.restart("C")
        assert gone in node.js.replicas
        await cluster.until(lambda: len(node.js.meta.machine.all_assignments()) == 61, what="the meta state")
        assert node.js.meta.machine.digest == cluster["A"].js.meta.machine.digest
        assert gone not in node.js.replicas
        await cluster.create("NEW", subjects=["new"])
        await cluster.until(lambda: node.has("NEW"), what="the log goes on")
