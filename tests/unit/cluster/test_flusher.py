"""The subject tables that a flush saves besides what is dirty (cluster/flusher.py, `store.search.saved_table`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.cluster.flusher import FLUSH_SECONDS, LAST_SAVED_BYTES, SAVED_BYTES, Flusher
from jetcluster.store import block_store, keys
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.kv import KvError
from testkit.twins.log import ListLog
from testkit.twins.mem_kv import CrashKv
from testkit.twins.time import ManualTime


class Rig:
    def __init__(self, *streams: int) -> None:
        self.kv = CrashKv()
        self.replicas: dict[int, Any] = {}
        for stream in streams:
            store = BlockStore(self.kv, stream, memory=False)
            store.append(Batch.of([b"a" * 100, b"b" * 100], [], [b"1", b"2"]), 1, 10)
            self.replicas[stream] = SimpleNamespace(
                store=store, sound=False, installing=False, assignment=SimpleNamespace(name=f"S{stream}")
            )
        meta = SimpleNamespace(save=lambda: None, group=None)
        orphans = SimpleNamespace(settle=lambda predates: lambda: None)
        self.forgotten = 0
        self.commits = SimpleNamespace(kv=self.kv, erased=False, forgotten=self._forgotten)
        self.log = ListLog()
        self.time = ManualTime()
        self.retention = SimpleNamespace(forgets=False)
        journal = SimpleNamespace(forget_old=lambda: None, retention=self.retention)
        runtime = SimpleNamespace(clock=self.time, log=self.log)
        network = SimpleNamespace(raft=SimpleNamespace(groups={}, journal=journal))
        self.flusher = Flusher(runtime, network, self.commits, meta, self.replicas, orphans)  # type: ignore[arg-type]

    def _forgotten(self) -> None:
        self.forgotten += 1

    def saved(self) -> list[int]:
        """Streams whose table is durable."""
        left = self.kv.crashed()
        return [stream for stream in self.replicas if left.get(keys.stream_prefix(keys.TABLE, stream)) is not None]


@pytest.fixture(autouse=True)
def saves_small_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_store, "MIN_MESSAGES", 2)


async def test_the_last_flush_saves_the_tables() -> None:
    rig = Rig(1, 2)
    await rig.flusher.flush()
    assert rig.saved() == [], "two messages are few for two subjects"
    await rig.flusher.stop()
    assert rig.saved() == [1, 2]


async def test_what_does_not_fit_into_one_flush_is_saved_by_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetcluster.cluster.flusher.LAST_SAVED_BYTES", 510)
    rig = Rig(1, 2, 3)
    for saved in ([1, 2], [1, 2, 3]):
        await rig.flusher.flush(last=True)
        assert rig.saved() == saved


async def test_no_busy_stream_keeps_others_from_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetcluster.cluster.flusher.LAST_SAVED_BYTES", 300)
    rig = Rig(1, 2, 3)
    for saved in ([1], [1, 2], [1, 2, 3]):
        await rig.flusher.flush(last=True)
        assert rig.saved() == saved
        store = rig.replicas[1].store
        store.append(Batch.of([b"a" * 100, b"b" * 100], [], [b"1", b"2"]), store.last_seq + 1, 20)


async def test_a_stream_whose_table_cannot_be_saved_keeps_no_other_from_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(1, 2, 3)

    def defective(room: int, *, last: bool = False) -> int:
        raise OverflowError("int too big to convert")

    monkeypatch.setattr(rig.replicas[2].store, "save_table", defective)
    await rig.flusher.flush(last=True)
    assert rig.saved() == [1, 3] and rig.kv.crashed().get(keys.block(2, 1)) is not None
    assert rig.log.events("error") == ["a subject table cannot be saved"]


@pytest.mark.parametrize("first_seq", [1 << 32, (1 << 63) - 10])
async def test_high_sequences_stop_no_flush(first_seq: int) -> None:
    rig = Rig(1)
    store = rig.replicas[1].store
    store.compact(first_seq)
    store.append(Batch.of([b"a", b"b"], [], [b"1", b"2"]), first_seq, 20)
    await rig.flusher.flush(last=True)
    assert rig.saved() == [1] and not rig.log.events("error")


async def test_a_disk_that_is_nearly_full_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(1)
    spare: list[int] = [2 * LAST_SAVED_BYTES - 1]
    monkeypatch.setattr(CrashKv, "spare_bytes", property(lambda kv: spare[0]))
    await rig.flusher.flush(last=True)
    assert rig.saved() == [] and rig.kv.crashed().get(keys.block(1, 1)) is not None, "the flush itself was done"

    def gone(kv: CrashKv) -> int:
        raise KvError("no disk")

    monkeypatch.setattr(CrashKv, "spare_bytes", property(gone))
    await rig.flusher.flush(last=True)
    assert rig.saved() == []
    monkeypatch.setattr(CrashKv, "spare_bytes", property(lambda kv: 2 * LAST_SAVED_BYTES))
    await rig.flusher.flush(last=True)
    assert rig.saved() == [1] and SAVED_BYTES < LAST_SAVED_BYTES


async def test_that_something_was_erased_stays_on_record_until_the_journal_has_forgotten_it() -> None:
    """The log under a state that is being installed is carried to the new segment, erased entries and all."""
    rig = Rig(1, 2)
    rig.commits.erased = True
    rig.time.advance(FLUSH_SECONDS)
    await rig.flusher.flush()
    assert not rig.commits.erased and not rig.forgotten
    for installing, forgets, forgotten in ((True, False, 0), (False, True, 0), (False, False, 1), (False, False, 1)):
        rig.replicas[2].installing, rig.retention.forgets = installing, forgets
        await rig.flusher.flush()
        assert rig.forgotten == forgotten
