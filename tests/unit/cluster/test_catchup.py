"""Snapshots between replicas (cluster/catchup.py): whole, interrupted, overtaken, from bad sources."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from jetcluster.clock import SeededRng
from jetcluster.cluster import catchup
from jetcluster.cluster.catchup import (
    EXPORT_IDLE_SECONDS,
    FULL_SECONDS,
    RESUME_SECONDS,
    CatchUp,
    Cut,
    SnapshotOwner,
)
from jetcluster.cluster.mesh_api import MeshError, MeshRefusedError
from jetcluster.cluster.mesh_memory import InMemoryMesh, MemoryNetwork
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvError, KvFullError
from tests.unit.cluster.nodes import SMALL_LOG, Cluster, CrashKv, ListLog, Node
from tests.unit.cluster.virtual_loop import VirtualLoop, virtual_time

GID = 5


class Owner:
    """A replica whose state is a list of chunks."""

    def __init__(self, index: int = 0, *chunks: bytes | Exception) -> None:
        self.index = index
        self.chunks = list(chunks)
        self.taken: list[bytes] = []
        self.log: list[str] = []
        self.pause = 0.0
        self.room = 1 << 20
        self.keeps_state = False

    def export_failed(self, error: DamagedError) -> None:
        self.log.append("export failed")

    @property
    def state_index(self) -> int:
        return self.index

    def snapshot_export(self, chunk_bytes: int) -> Cut:
        size = sum(len(chunk) for chunk in self.chunks if isinstance(chunk, bytes))
        return Cut(self.index, 1, ("A", "B"), self._read(), ("L",), size, 10 * len(self.chunks))

    def _read(self) -> Iterator[bytes]:
        for chunk in self.chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    def snapshot_begin(self) -> None:
        self.log.append("begin")
        self.taken = []

    async def snapshot_room(self, size: int) -> None:
        if sum(map(len, self.taken)) + size > self.room:
            raise KvFullError("no room")

    async def snapshot_abandon(self) -> None:
        self.log.append("abandon")

    def snapshot_chunk(self, chunk: bytes) -> None:
        if chunk == b"bad":
            raise DamagedError(1, 2)
        if chunk == b"full":
            raise KvError("No space left on device")
        if chunk == b"bug":
            raise ZeroDivisionError
        self.taken.append(chunk)

    async def snapshot_end(self, index: int, term: int, peers: tuple[str, ...], learners: tuple[str, ...] = ()) -> None:
        assert (peers, learners) == (("A", "B"), ("L",))
        self.log.append("end")
        self.index = index


class Pair:
    """A has state, B wants it."""

    def __init__(self, a: Owner, b: Owner) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.network = MemoryNetwork(loop, clock=loop)
        self.meshes: list[InMemoryMesh] = []
        self.sides: list[CatchUp] = []
        self.logs = [ListLog(), ListLog()]
        for name, owner, log in (("A", a, self.logs[0]), ("B", b, self.logs[1])):
            mesh = self.network.mesh(name, name * 8)
            owners: dict[int, SnapshotOwner] = {GID: owner}
            self.sides.append(CatchUp(mesh, loop, SeededRng(1), owners, log))
            mesh.start_now()
            self.meshes.append(mesh)

    async def pull(self, index: int = 1) -> None:
        await asyncio.sleep(0.001)
        self.sides[1].pull(GID, self.meshes[0].me.peer_id, index)
        while self.sides[1].running(GID):
            await asyncio.sleep(0.001)


async def begun(source: Owner, target: Owner) -> Pair:
    """One chunk has come."""
    pair = Pair(source, target)
    await asyncio.sleep(0.001)
    pair.sides[1].pull(GID, pair.meshes[0].me.peer_id, 1)
    while not target.taken:
        await asyncio.sleep(0)
    return pair


async def settled(pair: Pair) -> None:
    while pair.sides[1].running(GID):
        await asyncio.sleep(0.001)


@virtual_time
async def test_all_chunks_in_order_and_nothing_left() -> None:
    source, target = Owner(9, b"1", b"2", b"3"), Owner()
    pair = Pair(source, target)
    await pair.pull()
    assert (target.taken, target.log, target.index) == ([b"1", b"2", b"3"], ["begin", "end"], 9)
    assert pair.sides[0].exports == 0 and pair.sides[1].transfers == {}


@virtual_time
async def test_older_state_is_never_taken() -> None:
    for source, wanted in ((Owner(9), 10), (Owner(9), 1)):
        target = Owner(10 if wanted == 1 else 0)
        pair = Pair(source, target)
        await pair.pull(wanted)
        assert target.log == []


@virtual_time
async def test_trouble_on_either_side_ends_the_pull_and_says_so() -> None:
    cases: list[tuple[bytes | Exception, int]] = [
        (b"bad", 1),
        (b"full", 1),
        (b"bug", 1),
        (DamagedError(3, 4), 0),
        (KvError("io"), 0),
    ]
    for chunk, teller in cases:
        source, target = Owner(9, b"1", chunk), Owner()
        pair = Pair(source, target)
        await pair.pull()
        assert target.log == ["begin"] and target.index == 0
        assert len(pair.logs[teller].events("error")) == 1
        pair.sides[0].tick()
        await asyncio.sleep(EXPORT_IDLE_SECONDS + 1)
        pair.sides[0].tick()
        assert pair.sides[0].exports == 0
        source.chunks = [b"ok"]
        await pair.pull()
        assert target.taken == [b"ok"] and target.index == 9


@virtual_time
async def test_both_sides_know_how_many_messages_are_missing() -> None:
    source, target = Owner(9, b"1" * 50, b"2" * 50, b"3" * 100), Owner()
    pair = Pair(source, target)
    giver, taker = pair.sides
    seen: list[tuple[int | None, int, int]] = []

    async def look(size: int) -> None:
        ((pull, _),) = taker.progress()
        seen.append((giver.missing(GID, pair.meshes[1].me.peer_id), pull.missing, pull.received))

    target.snapshot_room = look  # type: ignore[method-assign]
    await pair.pull()
    assert seen == [(23, 30, 0), (15, 23, 50), (0, 15, 100)], "one chunk is on its way"
    assert giver.missing(GID, pair.meshes[1].me.peer_id) is None and taker.progress() == []


@virtual_time
async def test_a_state_that_does_not_fit_is_given_back_and_fetched_again_when_it_is_smaller_or_later() -> None:
    source, target = Owner(9, b"1" * 60, b"2" * 60), Owner()
    target.room = 100
    pair = Pair(source, target)
    await pair.pull()
    assert target.log == ["begin", "abandon"] and len(pair.logs[1].events("error")) == 1
    await pair.pull()
    assert target.log == ["begin", "abandon"], "it is as large as it was"
    source.chunks = [b"3" * 60]
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
@pytest.mark.parametrize("cut_after", range(4))
async def test_a_lost_link_is_waited_for_and_the_transfer_goes_on_where_it_was(cut_after: int) -> None:
    """Wherever the link breaks, also when a chunk or the end is on its way and is lost with it."""
    source, target = Owner(9, b"1", b"2", b"3"), Owner()
    pair = await begun(source, target)
    a, b = (mesh.me.peer_id for mesh in pair.meshes)
    while len(target.taken) < min(cut_after, 3):
        await asyncio.sleep(0)
    for _ in range(cut_after % 2):
        await asyncio.sleep(0)
    pair.network.cut(a, b)
    await asyncio.sleep(RESUME_SECONDS - 1)
    assert pair.sides[1].running(GID) and target.log == ["begin"]
    pair.network.heal(a, b)
    await settled(pair)
    assert target.taken == [b"1", b"2", b"3"] and target.log == ["begin", "end"]
    assert pair.sides[0].exports == 0


@virtual_time
async def test_a_lost_answer_is_given_again_and_no_other_chunk_twice() -> None:
    pair = Pair(Owner(9, b"1", b"2"), Owner())
    a, b = pair.meshes
    await asyncio.sleep(0.001)
    opened = json.loads(await b.call(a.me.peer_id, "snapshot.open", b'{"gid": %d, "index": 1}' % GID))

    async def chunk(number: int) -> bytes:
        return await b.call(a.me.peer_id, "snapshot.next", b"%b %d" % (opened["id"].encode(), number))

    assert [await chunk(n) for n in (0, 0, 1, 1, 2, 2)] == [b"1", b"1", b"2", b"2", b"", b""]
    for wrong in (0, 1, 3):
        with pytest.raises(MeshRefusedError, match="is asked for"):
            await chunk(wrong)
    assert pair.sides[0].exports == 0
    await asyncio.sleep(EXPORT_IDLE_SECONDS + 1)
    pair.sides[0].tick()
    with pytest.raises(MeshRefusedError, match="no such snapshot"):
        await chunk(2)


@virtual_time
async def test_a_peer_that_stays_away_is_given_up_and_the_next_pull_begins_anew() -> None:
    source, target = Owner(9, b"1", b"2"), Owner()
    pair = await begun(source, target)
    pair.network.cut(pair.meshes[0].me.peer_id, pair.meshes[1].me.peer_id)
    await asyncio.sleep(EXPORT_IDLE_SECONDS + 1)
    pair.sides[0].tick()
    assert pair.sides[0].exports == 0 and not pair.sides[1].running(GID)
    pair.network.heal(pair.meshes[0].me.peer_id, pair.meshes[1].me.peer_id)
    await pair.pull()
    assert target.taken == [b"1", b"2"] and target.log == ["begin", "begin", "end"]


@virtual_time
async def test_nobody_waits_for_a_peer_out_of_reach_when_another_can_give_the_state() -> None:
    source, target = Owner(9, b"1", b"2"), Owner()
    pair = await begun(source, target)
    a, b = (mesh.me.peer_id for mesh in pair.meshes)
    pair.sides[1].pull(GID, "C" * 8, 1)
    await asyncio.sleep(0)
    assert pair.sides[1].running(GID), "a pull that moves is not ended for another peer's sake"
    pair.network.cut(a, b)
    await asyncio.sleep(1)
    pair.sides[1].pull(GID, a, 1)
    await asyncio.sleep(0.01)
    assert pair.sides[1].running(GID), "the same peer: it may come back"
    pair.sides[1].pull(GID, "C" * 8, 1)
    await asyncio.sleep(0.01)
    assert not pair.sides[1].running(GID)


@virtual_time
async def test_a_forgotten_replica_takes_no_further_step() -> None:
    source, target = Owner(9, b"1", b"2"), Owner()
    pair = Pair(source, target)
    await asyncio.sleep(0.001)
    pair.sides[1].pull(GID, pair.meshes[0].me.peer_id, 1)
    while not target.taken:
        await asyncio.sleep(0)
    pair.sides[1].forget(GID)
    await asyncio.sleep(1)
    assert target.taken == [b"1"] and target.log == ["begin"] and not pair.sides[1].running(GID)
    assert pair.sides[0].exports == 1
    pair.sides[0].forget(GID)
    assert pair.sides[0].exports == 0


@virtual_time
async def test_exports_are_bounded_per_node_and_one_per_peer_and_group(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(Owner(9, b"1"), Owner())
    a, b = pair.meshes
    await asyncio.sleep(0.001)
    request = b'{"gid": %d, "index": 1}' % GID
    for _ in range(3):
        await b.call(a.me.peer_id, "snapshot.open", request)
    assert pair.sides[0].exports == 1
    monkeypatch.setattr(catchup, "MAX_OPEN_EXPORTS", 1)
    with pytest.raises(MeshError, match="too many"):
        await a.call(a.me.peer_id, "snapshot.open", request)
    with pytest.raises(MeshError, match="no replica"):
        await b.call(a.me.peer_id, "snapshot.open", b'{"gid": 99, "index": 1}')
    with pytest.raises(MeshError, match="no such snapshot"):
        await b.call(a.me.peer_id, "snapshot.next", b"nonsense")


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


def slow(monkeypatch: pytest.MonkeyPatch, *, chunk_bytes: int = 500) -> None:
    """Many small chunks, so that there is something to interrupt."""
    monkeypatch.setattr(catchup, "CHUNK_BYTES", chunk_bytes)


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
            assert len(reclaimed) == 2, "once to find room, once to leave nothing behind; not again and again"
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
        node.js.meta.save()
        node.kv.flush_now()  # half an import on disk
        cluster.crash("C")
        node = cluster.restart("C")
        assert node.replica("S").store.incomplete
        await cluster.equal("S")
        await cluster.all_read("S")
        assert (await node.get(b"S", 1))[2] == b"0"


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
        for node in cluster:
            await node.js.flusher.flush()
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
        assert not node.context.catchup.running(gid) and all(n.context.catchup.exports == 0 for n in cluster)
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
