"""The subject table on disk is written, erased and checked like other records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jetcluster.store import block_store, keys
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.blocks import BlockCache
from jetcluster.store.kv import KeyValue
from jetcluster.store.search import saved_table
from jetcluster.store.search.saved_table import Covered
from testkit.twins.mem_kv import CrashKv

STREAM = 1
KEY = keys.stream_prefix(keys.TABLE, STREAM)
ROOM = 1 << 20
SUBJECTS = [b"a", b"b", b"a", b"c", b"a"]


@pytest.fixture(autouse=True)
def saves_small_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_store, "MIN_MESSAGES", 5)


class Kv(CrashKv):
    """Counts what is read of postings."""

    postings = 0

    def chunks(self, start: bytes, end: bytes) -> Iterator[list[KeyValue]]:
        for chunk in super().chunks(start, end):
            if start[0] == keys.POSTING:
                self.postings += len(chunk)
            yield chunk


def opened(kv: CrashKv) -> BlockStore:
    return BlockStore(kv, STREAM, memory=False, cache=BlockCache(1))


def filled(kv: CrashKv, blocks: int = 4) -> BlockStore:
    store = opened(kv)
    for _ in range(blocks):
        grow(store)
    kv.commit()
    return store


def grow(store: BlockStore) -> None:
    store.append(Batch.of(SUBJECTS, [], [b"p"] * 5), store.last_seq + 1, store.last_ts + 9)


def table(store: BlockStore) -> dict[bytes, tuple[int, int]]:
    return {s: (store.last_seq_of(s), store.count_of(s)) for s in (b"a", b"b", b"c", b"d")} | {b"": (store.messages, 0)}


def rebuilt(kv: CrashKv) -> dict[bytes, tuple[int, int]]:
    """The table as the postings have it."""
    kv.delete(KEY)
    return table(opened(kv))


def test_an_erased_message_leaves_its_subject_nowhere() -> None:
    kv = Kv()
    store = filled(kv)
    store.append(Batch.of([b"d"], [], [b""]), store.last_seq + 1, 1000)
    store.save_table(ROOM, last=True)
    kv.commit()
    store.delete(store.last_seq)
    kv.commit()
    assert kv.get(KEY) is None
    assert store.save_table(ROOM, last=True) > 0 and b"d" not in (kv.get(KEY) or b"")


def test_no_bit_of_it_is_believed_without_the_others() -> None:
    kv = Kv()
    store = filled(kv)
    store.save_table(ROOM, last=True)
    kv.commit()
    record = kv.get(KEY)
    assert record is not None
    for bit in range(8 * len(record)):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        kv.put(KEY, bytes(damaged))
        kv.commit()
        kv.postings = 0
        assert table(opened(kv)) == table(store) and kv.postings > 0
    for size in range(len(record)):
        assert saved_table.decode(KEY, record[:size]) is None


def test_a_crash_leaves_the_table_of_the_last_flush() -> None:
    kv = Kv()
    store = filled(kv)
    store.save_table(ROOM, last=True)
    kv.flush_now()
    grow(store)
    store.delete_all([2])
    store.save_table(ROOM, last=True)
    kv.commit()
    left = kv.crashed()
    assert left.get(KEY) is not None
    assert table(opened(left)) == rebuilt(left)


def test_what_is_left_of_another_replicas_import() -> None:
    """An import replaces the blocks, and the table of those before goes with its beginning."""
    kv = Kv()
    store = filled(kv)
    store.save_table(ROOM, last=True)
    kv.commit()
    store.import_begin()
    assert kv.get(KEY) is None and store.save_table(ROOM, last=True) == 0
    store.import_wipe()
    assert kv.get(KEY) is None


def test_a_small_stream_and_a_large_table_are_not_saved() -> None:
    kv = Kv()
    assert filled(kv, 0).save_table(ROOM, last=True) == 0
    large = {b"%d" % at: at for at in range(ROOM // 16)}
    assert saved_table.encode(KEY, Covered(1, 2, 3), {**large, b"x" * 300_000: 1}, ROOM) == b""
    assert saved_table.encode(KEY, Covered(1, 2, 3), {b"a\nb": 1}, ROOM) == b"", "no subject has a line feed"
    record = saved_table.encode(KEY, Covered(1, 2, 3), large, ROOM)
    assert saved_table.decode(keys.stream_prefix(keys.TABLE, 2), record) == (Covered(1, 2, 3), large)


def test_a_deleted_stream_leaves_none() -> None:
    kv = Kv()
    store = filled(kv)
    store.save_table(ROOM, last=True)
    kv.commit()
    store.remove()
    kv.commit()
    assert kv.get(KEY) is None and store.save_table(ROOM, last=True) == 0
