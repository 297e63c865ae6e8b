"""The subject table on disk is written, erased and checked like other records."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from zlib import crc32

import pytest

from jetcluster.store import block_store, keys
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.blocks import BlockCache, BlockTable
from jetcluster.store.kv import KeyValue
from jetcluster.store.search import saved_table
from jetcluster.store.search.kept_filters import COUNT_BITS
from jetcluster.store.search.saved_table import BLOCK_WORK, GAP_WORK, GROWTH_PER_REMOVAL, SUBJECT_WORK, Covered
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
    kv = Kv()
    store = filled(kv)
    size = store.save_table(ROOM, last=True)
    for room in (size - 1, 0):
        grow(store)
        assert store.save_table(room, last=True) == 0
    assert store.save_table(size, last=True) == size
    assert saved_table.joined({b"a\nb": 1}) == b"", "no subject has a line feed"


@pytest.mark.parametrize("first_seq", [1, 1 << 32, 1 << 63])
def test_any_sequence_and_count_is_kept(first_seq: int) -> None:
    table = {b"%d" % at: (first_seq + at << COUNT_BITS) | (2**32 - 1 - at) for at in range(1000)}
    covered = Covered(first_seq + 999, 2, 3)
    subjects = saved_table.joined(table)
    record = saved_table.encode(KEY, covered, table, subjects)
    assert len(record) == saved_table.size_of(len(table), subjects)
    assert saved_table.decode(keys.stream_prefix(keys.TABLE, 2), record) == (covered, table)


@pytest.mark.parametrize("first_seq", [1 << 32, (1 << 63) - 100])
def test_a_stream_with_high_sequences_is_saved_and_loaded(first_seq: int) -> None:
    kv = Kv()
    store = opened(kv)
    store.compact(first_seq)
    for _ in range(4):
        grow(store)
    assert store.save_table(ROOM, last=True) > 0
    kv.commit()
    kv.postings = 0
    again = opened(kv)
    assert table(again) == table(store) and kv.postings == 0
    assert again.last_seq_of(b"a") == first_seq + 19


def test_a_record_of_another_form_is_not_read() -> None:
    """The form before had last sequence << 32 | count in one column, and a check over the same bytes."""
    numbers = array("Q", [5 << 32 | 3, 2 << 32 | 1]).tobytes()
    rest = struct.pack("<QQII", 5, 4, 7, 2) + numbers + b"a\nb"
    record = crc32(rest, crc32(KEY[keys.STREAM_PREFIX :])).to_bytes(4, "little") + rest
    assert saved_table.decode(KEY, record) is None


@pytest.mark.parametrize("removed", [0, 1, 5])
def test_a_stream_that_loses_messages_all_the_time_is_left_to_the_last_flush(removed: int) -> None:
    store = filled(Kv())
    assert store.save_table(ROOM) > 0
    for _ in range(3):
        for _ in range(4):
            grow(store)
        store.delete_all(range(store.first_seq, store.first_seq + removed))
        assert (store.save_table(ROOM) > 0) == (removed <= 20 // GROWTH_PER_REMOVAL)
    grow(store)
    grow(store)
    assert store.save_table(ROOM) > 0, "nothing was removed of late"
    store.delete_all([store.first_seq])
    assert store.save_table(ROOM) == 0 < store.save_table(ROOM, last=True)


def test_a_long_stream_is_left_to_the_last_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a save counts blocks and gaps between them, and is known before anything is computed."""
    store = filled(Kv(), 40)
    digests: list[int] = []
    real = BlockTable.rows_to
    monkeypatch.setattr(BlockTable, "rows_to", lambda blocks, last: digests.append(last) or real(blocks, last))
    real_joined = saved_table.joined
    monkeypatch.setattr(saved_table, "joined", pytest.fail)
    least = 3 * SUBJECT_WORK + 40 * BLOCK_WORK
    assert store.save_table(least) == 0
    store.compact(6)
    for _ in range(10):
        grow(store)
    assert store.save_table(least + 9 * BLOCK_WORK + GAP_WORK) == 0 and not digests
    monkeypatch.setattr(saved_table, "joined", real_joined)
    assert 0 < store.save_table(least, last=True) < least and digests == [store.last_seq]


def test_a_table_that_was_too_large_is_not_put_together_at_each_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(Kv())
    store.append(Batch.of([b"w" * 500], [], [b""]), store.last_seq + 1, 1000)
    calls: list[int] = []
    real = saved_table.joined
    monkeypatch.setattr(saved_table, "joined", lambda table: calls.append(len(table)) or real(table))
    for _ in range(5):
        grow(store)
        assert store.save_table(600) == 0
    assert calls == [4]
    store.delete_all([21])
    for _ in range(20):
        grow(store)
    assert store.save_table(600) == 0 < store.save_table(ROOM) and calls == [4, 3]


def test_the_digest_is_the_same_after_a_start_wherever_blocks_are_gone() -> None:
    for gone in ([], [1], [1, 6], [6], [6, 11], [11, 21], [26], [1, 26], [1, 11, 26], [6, 11, 16, 21]):
        kv = Kv()
        store = filled(kv, 6)
        for first in gone:
            store.delete_all(range(first, first + 5))
        kv.commit()
        assert store.blocks.rows_to(30) == opened(kv).blocks.rows_to(30)
        assert store.blocks.rows_to(15) == opened(kv).blocks.rows_to(15) != store.blocks.rows_to(30)


def test_a_deleted_stream_leaves_none() -> None:
    kv = Kv()
    store = filled(kv)
    store.save_table(ROOM, last=True)
    kv.commit()
    store.remove()
    kv.commit()
    assert kv.get(KEY) is None and store.save_table(ROOM, last=True) == 0
