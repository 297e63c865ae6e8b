"""The giving side of catch-up (replica/exports.py): the same answer to the same question, and bounds;
what hinders catch-up, and when an operator reads of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from jetcluster.mesh.api import MeshError, MeshRefusedError
from jetcluster.replica import exports
from jetcluster.replica.exports import (
    ASK_RANGES,
    ASK_READ,
    EXPORT_IDLE_SECONDS,
    NO_METHOD,
    OPEN,
    RANGES,
    READ,
    REPEAT_SECONDS,
    TROUBLE_SECONDS,
    Troubles,
)
from jetcluster.store import transfer
from jetcluster.store.transfer import END, START, decode_ranges, encode_places
from testkit.sim.shared import virtual_time
from testkit.twins.time import ManualTime
from tests.unit.cluster.transfers import GID, Others, Owner, Pair

REQUEST = b'{"gid": %d, "index": 1}' % GID


class Asker:
    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.id = b""

    async def call(self, method: str, payload: bytes) -> bytes:
        return await self.pair.meshes[1].call(self.pair.ids[0], method, payload)

    async def open(self) -> None:
        self.id = json.loads(await self.call(OPEN, REQUEST))["id"].encode()

    async def ranges(self, place: bytes, done: int = 0) -> bytes:
        return await self.call(RANGES, ASK_RANGES.pack(self.id, done) + place)

    async def read(self, *places: bytes, offset: int = 0) -> bytes:
        return await self.call(READ, ASK_READ.pack(self.id, offset) + encode_places(places))


async def opened(owner: Owner) -> Asker:
    pair = Pair(owner, Owner())
    await asyncio.sleep(0.1)
    asker = Asker(pair)
    await asker.open()
    return asker


@virtual_time
async def test_the_same_question_gets_the_same_answer_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "RANGE_BYTES", 1)
    owner = Owner(9, b"1", b"22", b"333")
    asker = await opened(owner)
    announced = await asker.ranges(START)
    found = decode_ranges(START, announced)
    assert found[-1].end == END
    first = await asker.read(b"\3", found[4].end)
    owner.set(b"something else")
    assert await asker.read(found[4].end, found[5].end) != first
    assert await asker.read(b"\3", found[4].end) == first
    assert await asker.ranges(START) == announced
    assert decode_ranges(found[4].start, await asker.ranges(found[4].start)) == found[4:]
    assert len(await asker.read(b"\3", found[3].end, found[4].end, b"\4")) == found[3].size + found[5].size


@virtual_time
async def test_what_is_larger_than_a_chunk_comes_in_pieces_and_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "CHUNK_BYTES", 10)
    asker = await opened(Owner(9, b"x" * 33))
    (export,) = asker.pair.sides[0]._exports._open.values()
    reads = 0
    read = export.giver.read

    def counted(spans: list[tuple[bytes, bytes]]) -> bytes:
        nonlocal reads
        reads += 1
        return read(spans)

    monkeypatch.setattr(export.giver, "read", counted)
    pieces = [await asker.read(b"\3", b"\4", offset=at) for at in range(0, 45, 10)]
    assert list(map(len, pieces)) == [10, 10, 10, 10, 5]
    assert b"".join(pieces).endswith(b"x" * 33)
    assert reads == 1 and export.large is None, "nothing of it stays"


@virtual_time
async def test_malformed_questions_are_refused_and_harm_nobody() -> None:
    owner = Owner(9, b"1")
    asker = await opened(owner)
    for place in (END, b"", b"\xff"):
        with pytest.raises(MeshRefusedError, match="no such place"):
            await asker.ranges(place)
    for places in ((b"\1", b"\3"), (b"\3", b"\2"), (b"\3",), (b"\7", b"\7a")):
        with pytest.raises(MeshRefusedError, match="malformed"):
            await asker.read(*places)
    with pytest.raises(MeshRefusedError):
        await asker.call(READ, b"nonsense")
    asker.id = b"0" * 16
    with pytest.raises(MeshRefusedError, match="no such snapshot"):
        await asker.read(b"\3", b"\4")
    assert owner.log == [] and asker.pair.sides[0].exports == 1


@virtual_time
async def test_an_export_is_its_peers_alone_and_ends_when_nobody_asks() -> None:
    asker = await opened(Owner(9, b"1"))
    a, b = asker.pair.meshes
    with pytest.raises(MeshError, match="no such snapshot"):
        await a.call(a.me.peer_id, RANGES, ASK_RANGES.pack(asker.id, 0) + START)
    a.notify(b.me.peer_id, exports.CLOSE, asker.id)  # not of this node
    await asyncio.sleep(0.01)
    await asyncio.sleep(EXPORT_IDLE_SECONDS - 1)
    await asker.ranges(START)
    await asyncio.sleep(2)
    asker.pair.sides[0].tick()
    assert asker.pair.sides[0].exports == 1
    await asyncio.sleep(EXPORT_IDLE_SECONDS)
    asker.pair.sides[0].tick()
    assert asker.pair.sides[0].exports == 0
    await asker.open()
    b.notify(a.me.peer_id, exports.CLOSE, asker.id)
    await asyncio.sleep(0.01)
    assert asker.pair.sides[0].exports == 0


@virtual_time
async def test_exports_are_bounded_per_node_and_one_per_peer_and_group(monkeypatch: pytest.MonkeyPatch) -> None:
    asker = await opened(Owner(9, b"1"))
    a, b = asker.pair.meshes
    for _ in range(3):
        await asker.open()
    assert asker.pair.sides[0].exports == 1
    monkeypatch.setattr(exports, "MAX_OPEN_EXPORTS", 1)
    with pytest.raises(MeshError, match="too many"):
        await a.call(a.me.peer_id, OPEN, REQUEST)
    with pytest.raises(MeshError, match="no replica"):
        await b.call(a.me.peer_id, OPEN, b'{"gid": 99, "index": 1}')
    asker.pair.sides[0].forget(GID)
    assert asker.pair.sides[0].exports == 0


@virtual_time
async def test_one_answer_announces_a_bounded_part_and_others_work_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "SLICE_BYTES", 10_000)
    monkeypatch.setattr(exports, "LIST_BYTES", 100_000)
    monkeypatch.setattr(transfer, "RANGE_BYTES", 2_000)
    asker = await opened(Owner(9, *[b"." * 1_000 for _ in range(1_000)]))
    with Others() as others:
        found = decode_ranges(START, await asker.ranges(START))
    assert others.turns >= 9
    assert 100_000 <= sum(one.cost for one in found) < 100_000 + 2 * 10_000


@virtual_time
async def test_an_export_that_is_dropped_while_it_is_read_ends_with_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "SLICE_BYTES", 1)
    monkeypatch.setattr(transfer, "RANGE_BYTES", 1)
    asker = await opened(Owner(9, *[b"1" for _ in range(100)]))
    task = asyncio.get_running_loop().create_task(asker.ranges(START))
    for _ in range(20):
        await asyncio.sleep(0)
    asker.pair.sides[0].forget(GID)
    with pytest.raises(MeshRefusedError, match="no such snapshot"):
        await task


class Lines:
    def __init__(self) -> None:
        self.read: list[str] = []

    def debug(self, event: str, **_: Any) -> None:
        pass

    def warning(self, event: str, **values: Any) -> None:
        self.read.append(f"{event}: {values['gid']} {values['peer']}")


def troubles() -> tuple[Troubles, ManualTime, list[str]]:
    time, log = ManualTime(), Lines()
    return Troubles(time, log), time, log.read  # type: ignore[arg-type]


def fail(found: Troubles, time: ManualTime, seconds: float, gid: int = 1, peer: str = "B") -> None:
    for _ in range(round(seconds)):
        found.failed(gid, peer, MeshError("lost"))
        time.advance(1)


def test_a_short_trouble_is_not_logged() -> None:
    found, time, read = troubles()
    fail(found, time, TROUBLE_SECONDS - 1)
    found.over(1)
    fail(found, time, TROUBLE_SECONDS - 1)
    time.advance(TROUBLE_SECONDS + 1)
    fail(found, time, TROUBLE_SECONDS - 1)
    assert read == []


def test_a_long_trouble_is_logged_once_a_minute_for_each_peer() -> None:
    found, time, read = troubles()
    fail(found, time, TROUBLE_SECONDS + 2 * REPEAT_SECONDS - 5)
    assert read == ["catch-up does not come on: 1 B"] * 2
    found.failed(2, "B", MeshError("lost"))
    found.failed(1, "C", MeshError("lost"))
    assert read[2:] == ["catch-up does not come on: 1 C"], "of B it was logged already"


def test_another_version_is_logged_at_once() -> None:
    found, time, read = troubles()
    found.failed(1, "B", MeshRefusedError("fetch" + NO_METHOD))
    found.other_version(2, "B", "")
    assert read == ["a state waits until both nodes run the same version: 1 B"]
    time.advance(REPEAT_SECONDS)
    found.other_version(2, "B", "")
    assert len(read) == 2
    found.failed(1, "C", MeshRefusedError("busy"))
    assert len(read) == 2
