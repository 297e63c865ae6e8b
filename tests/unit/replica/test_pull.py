"""The fetching side of catch-up (replica/catchup.py): far links, bounded steps, giver that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from jetcluster.mesh.api import MeshError
from jetcluster.replica import catchup, exports
from jetcluster.replica.catchup import Pull, Transfer, _spans
from jetcluster.replica.exports import OPEN
from jetcluster.store import transfer
from jetcluster.store.transfer import Range, WantedRange
from testkit.sim.shared import VirtualLoop, virtual_time
from tests.unit.cluster.transfers import GID, Answers, Others, Owner, Pair

RTT = 0.05


async def took(source: Owner, target: Owner) -> float:
    """Seconds from the open on."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    pair = Pair(source, target, RTT / 2)
    await asyncio.sleep(1)
    begin = loop.time()
    await pair.pull()
    assert target.values == source.values and target.index == 9
    return loop.time() - begin - 0.1 - RTT


@virtual_time
async def test_over_a_far_link_comparing_costs_a_round_trip_per_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of ranges, and an announcement for each."""
    monkeypatch.setattr(transfer, "RANGE_BYTES", 100)
    monkeypatch.setattr(exports, "LIST_BYTES", 1_000_000)
    values = [b"%0100d" % number for number in range(5_000)]
    seconds = await took(Owner(9, *values), Owner(0, *values))
    lists = 5_000 * 1_136 / 1_000_000
    assert seconds < (lists + 1) * RTT


@virtual_time
async def test_over_a_far_link_several_chunks_are_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "RANGE_BYTES", 100)
    monkeypatch.setattr(catchup, "CHUNK_BYTES", 1_000)
    values = [b"%0100d" % number for number in range(5_000)]
    seconds = await took(Owner(9, *values), Owner())
    chunks = 5_000 / (1_000 // 112)
    assert chunks / (catchup.MAX_CHUNKS_AHEAD + 1) * RTT * 0.9 < seconds < (chunks / catchup.MAX_CHUNKS_AHEAD + 3) * RTT


@virtual_time
async def test_others_work_while_gigabytes_are_compared_and_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (exports, catchup):
        monkeypatch.setattr(module, "SLICE_BYTES", 20_000)
    monkeypatch.setattr(transfer, "RANGE_BYTES", 2_000)
    values = [b"%01000d" % number for number in range(2_000)]
    cost = 2_000 * (1_012 + transfer.PAIR_COST)
    for own in (values, []):
        source, target = Owner(9, *values), Owner(0, *own)
        target.room = 1 << 30
        pair = Pair(source, target)
        await asyncio.sleep(0.1)
        with Others() as others:
            pair.sides[1].pull(GID, pair.ids[0], 1)
            while target.log[-1:] != ["end"]:
                await asyncio.sleep(0)
        assert others.turns >= 2 * cost // 25_000, "slices of the giver and of the receiver"


@virtual_time
async def test_what_comes_is_put_in_its_place_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers come in any order."""
    monkeypatch.setattr(transfer, "RANGE_BYTES", 1)
    monkeypatch.setattr(catchup, "CHUNK_BYTES", 1)
    source, target = Owner(9, *[b"%d" % number for number in range(20)]), Owner()
    pair = Pair(source, target)

    async def late(number: int, call: Awaitable[bytes]) -> bytes:
        await asyncio.sleep(0.5 if number % 3 else 0.1)
        return await call

    Answers(pair, late)
    seen: list[list[bytes]] = []

    async def room(size: int) -> None:
        seen.append(target.values)

    target.snapshot_room = room  # type: ignore[method-assign]
    await pair.pull()
    assert target.values == source.values
    assert all(before == source.values[: len(before)] for before in seen)


@pytest.mark.parametrize("answer", [b"", b"much too long" * 1000])
@virtual_time
async def test_an_answer_of_another_size_ends_the_transfer_and_all_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(transfer, "RANGE_BYTES", 1)
    monkeypatch.setattr(catchup, "CHUNK_BYTES", 1)
    source, target = Owner(9, *[b"%d" % number for number in range(20)]), Owner()
    pair = Pair(source, target)

    async def third(number: int, call: Awaitable[bytes]) -> bytes:
        found = await call
        if number > 3:
            await asyncio.sleep(1000)
        return answer if number == 3 else found

    Answers(pair, third)
    await asyncio.sleep(0.1)
    opened = await pair.meshes[1].call(pair.ids[0], OPEN, b'{"gid": %d, "index": 1}' % GID)
    export_id = opened.decode().split('"id": "')[1][:16]
    running = Transfer(pair.meshes[1], pair.loop, Pull(GID, pair.ids[0], 0.0, 0, 0), export_id)
    with pytest.raises(MeshError, match=r"gave \d+ bytes"):
        await running.run(target, target.snapshot_begin)
    assert target.values == [b"0", b"1"]
    assert len([task for task in asyncio.all_tasks() if not task.get_name().startswith("dial ")]) == 1


@virtual_time
async def test_content_that_is_not_what_was_announced_is_not_written() -> None:
    source, target = Owner(9, b"abc"), Owner(0, b"old")
    pair = Pair(source, target)

    async def changed(number: int, call: Awaitable[bytes]) -> bytes:
        return (await call).replace(b"abc", b"abd")

    Answers(pair, changed)
    await pair.pull()
    assert target.values == [b"old"] and target.log == ["begin"]
    assert pair.logs[1].events("error") == ["catch-up failed"]


def test_neighbours_are_asked_for_as_one_span_within_a_kind() -> None:
    def wanted(start: bytes, end: bytes) -> WantedRange:
        return WantedRange(Range(start, end, 1, 1, b""), [])

    batch = [wanted(b"\0", b"\0a"), wanted(b"\0a", b"\0b"), wanted(b"\0c", b"\1"), wanted(b"\1", b"\1x")]
    assert _spans(batch) == [(b"\0", b"\0b"), (b"\0c", b"\1"), (b"\1", b"\1x")]
