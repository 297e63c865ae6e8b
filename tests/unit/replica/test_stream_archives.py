"""Archives of a stream that are being read: piece by piece, each at most once more, and not too many."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.budget import at_once
from jetcluster.errors import ApiError
from jetcluster.raft.api import NotLeaderError
from jetcluster.replica.stream_archives import IDLE_SECONDS, MAX_OPEN, StreamArchives
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.rules import StreamRules
from testkit.twins.mem_kv import MemKv, MemSnapshot
from testkit.twins.time import ManualTime, SeededRng


class Budget:
    async def run(self, account: str, steps: Any) -> Any:
        return at_once(steps)


class PinnedKv(MemKv):
    """Counts the views of the store that are still held."""

    def __init__(self) -> None:
        super().__init__()
        self._views: weakref.WeakSet[MemSnapshot] = weakref.WeakSet()

    def snapshot(self) -> MemSnapshot:
        found = super().snapshot()
        self._views.add(found)
        return found

    def views(self) -> int:
        gc.collect()
        return len(self._views)


class Desk:
    def __init__(self) -> None:
        self.time, kv = ManualTime(), PinnedKv()
        self.views = kv.views
        store = BlockStore(kv, 1, memory=False)
        for n in range(20):
            store.append(Batch.of([b"s"], [b""], [SeededRng(n).token(100_000)]), n + 1, n + 1)
        kv.commit()
        budget: Any = Budget()
        self.archives = StreamArchives(kv, self.time, self.time, SeededRng(1), budget)
        self.leads = True
        self.replica = self.replica_of(store, 1)
        self.other = self.replica_of(store, 2)

    def replica_of(self, store: BlockStore, gid: int) -> Any:
        async def confirm_leadership() -> bool:
            return self.leads

        return SimpleNamespace(
            confirm_leadership=confirm_leadership,
            group=SimpleNamespace(leader="B"),
            store=store,
            assignment=SimpleNamespace(gid=gid, config={"name": "S"}, account="A"),
            consumers=SimpleNamespace(table=SimpleNamespace(by_cid={})),
            machine=SimpleNamespace(rules=StreamRules.from_config({})),
        )

    async def open(self) -> str:
        found = await self.archives.snapshot(self.replica, {})
        assert found["state"]["messages"] == 20
        return str(found["id"])

    async def piece(self, key: str, number: int, replica: Any = None) -> str:
        found = await self.archives.snapshot_next(replica or self.replica, {"id": key, "number": number})
        return str(found["data"])


async def test_pieces_come_in_order_and_the_newest_once_more() -> None:
    desk = Desk()
    key = await desk.open()
    pieces = [await desk.piece(key, number) for number in (1, 2, 3)]
    assert all(pieces) and len(set(pieces)) == 3
    assert await desk.piece(key, 3) == pieces[2], "an answer was lost"
    for number in (2, 5):
        with pytest.raises(ApiError, match="out of order"):
            await desk.piece(key, number)
    number = 3
    while await desk.piece(key, number):
        number += 1
        assert number < 100, "never ends"


async def test_an_archive_is_of_one_stream_and_over_when_it_is_closed() -> None:
    desk = Desk()
    key = await desk.open()
    with pytest.raises(ApiError, match="another leader"):
        await desk.piece(key, 1, desk.other)
    await desk.archives.snapshot_close(desk.replica, {"id": key})
    with pytest.raises(ApiError, match="another leader"):
        await desk.piece(key, 1)


async def test_only_a_leader_opens_one() -> None:
    desk = Desk()
    desk.leads = False
    with pytest.raises(NotLeaderError):
        await desk.open()


async def test_there_are_not_too_many_and_those_that_nobody_reads_make_room() -> None:
    desk = Desk()
    keys = [await desk.open() for _ in range(MAX_OPEN)]
    with pytest.raises(ApiError, match="too many"):
        await desk.open()
    desk.time.advance(IDLE_SECONDS)
    await desk.piece(keys[0], 1)
    desk.time.advance(1)
    await desk.open()
    assert await desk.piece(keys[0], 2)
    with pytest.raises(ApiError, match="another leader"):
        await desk.piece(keys[1], 1)


async def test_one_that_nobody_reads_any_more_pins_no_view_of_the_store() -> None:
    desk = Desk()
    left, read = await desk.open(), await desk.open()
    await desk.piece(left, 1)
    for number in range(1, 4):
        desk.time.advance(IDLE_SECONDS)  # the node of its client died, or asks the next leader
        await desk.piece(read, number)
    assert desk.views() == 1
    desk.time.advance(3 * IDLE_SECONDS)
    assert desk.views() == 0
    assert await desk.piece(await desk.open(), 1)
