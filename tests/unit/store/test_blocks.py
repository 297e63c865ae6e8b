"""The table of a stream's blocks against a plain set of sequences, and its records.

The record with a stream's counters.
"""

from __future__ import annotations

import random
import time

import pytest

from jetcluster.store import keys
from jetcluster.store.api import DamagedError
from jetcluster.store.batch import Batch
from jetcluster.store.blocks import (
    BlockCache,
    BlockTable,
    Counters,
    bytes_of,
    cache_of,
    decode_block,
    decode_info,
    decode_state,
    encode_block,
    encode_info,
    encode_state,
)
from testkit.twins.mem_kv import MemKv

EACH = 10
"""Bytes of a message."""


def table_of(*blocks: tuple[int, int]) -> BlockTable:
    """(first, count) of each; messages of `EACH` bytes, and time 1000 + sequence."""
    table = BlockTable()
    for first, count in blocks:
        table.add(first, count, 1000 + first, count * EACH)
    return table


def live_of(table: BlockTable) -> list[int]:
    found = []
    at = table.live_from(0)
    while at < len(table.firsts):
        found += table.live_seqs(at)
        at = table.live_from(at + 1)
    return found


def delete(table: BlockTable, seq: int) -> None:
    """Deletes one row, as the store does."""
    at = table.find(seq)
    first = table.firsts[at]
    if table.lives[at] == 1:
        table.drop(at)
    else:
        table.set_bits(at, table.bits.get(first, 0) | 1 << (seq - first), table.sizes[at] - EACH)


def test_the_table_is_that_of_a_plain_set() -> None:
    rng = random.Random(5)
    for _ in range(30):
        first, blocks = 1, []
        for _ in range(rng.randrange(1, 120)):
            first += rng.choice((0, 0, 5))
            blocks.append((first, rng.randrange(1, 6)))
            first += blocks[-1][1]
        table = table_of(*blocks)
        alive = {seq for begin, count in blocks for seq in range(begin, begin + count)}
        for seq in rng.sample(sorted(alive), rng.randrange(len(alive))):
            delete(table, seq)
            alive.discard(seq)
        ordered = sorted(alive)
        assert live_of(table) == ordered
        assert (table.messages, table.bytes) == (len(alive), len(alive) * EACH)
        assert table.live_blocks == sum(1 for begin, count in blocks if alive & set(range(begin, begin + count)))
        for seq in range(first + 3):
            assert (table.find(seq) >= 0) is (seq in alive)
            assert table.next_live(seq) == min((s for s in ordered if s >= seq), default=None)
            assert table.prev_live(seq) == max((s for s in ordered if s <= seq), default=None)
            assert table.seq_at_time(1000 + seq) == table.next_live(seq)
            assert table.first_live(seq, seq + 9, 3) == [s for s in ordered if seq <= s < seq + 9][:3]


def test_what_is_cut_off_in_front_is_gone() -> None:
    table = table_of((1, 4), (5, 4))
    table.cut(3, 2 * EACH)
    assert live_of(table) == [3, 4, 5, 6, 7, 8]
    assert (table.messages, table.bytes) == (6, 60)
    assert table.find(2) == -1 and table.find(3) == 0
    assert table.containing(2) == 0, "its block has room for it"
    table.drop_below(1)
    table.cut(5, 0)
    assert live_of(table) == [5, 6, 7, 8] and table.bytes == 40


def test_sums_of_a_load_are_settled_by_the_total() -> None:
    table = BlockTable()
    table.first_seq = 3
    table.add(1, 4, 1001, 40)
    table.add(5, 4, 1005, 40)
    table.settle(60)
    assert (table.messages, table.bytes, table.sizes[0]) == (6, 60, 20)
    for total in (40, 81):
        with pytest.raises(DamagedError):
            table.settle(total)


def test_a_part_shares_nothing_with_the_whole() -> None:
    table = table_of((1, 4), (5, 4), (9, 4))
    for seq in (2, 6, 10):
        delete(table, seq)
    part = table.part(1, 3)
    assert live_of(part) == [5, 7, 8, 9, 11, 12]
    assert set(part.bits) == {5, 9}
    table.clear()
    assert live_of(part) == [5, 7, 8, 9, 11, 12] and live_of(table) == [] and table.messages == 0


@pytest.mark.parametrize("bits", [0, 0b10])
def test_a_table_is_built_from_its_records(bits: int) -> None:
    records = []
    for first in (1, 5, 9):
        key = keys.info(7, first)
        of = bits if first == 5 else 0
        records.append((key, encode_info(key, 1000 + first, 4, (4 - of.bit_count()) * EACH, of)))
    table = BlockTable()
    table.add_records(records)
    wanted = table_of((1, 4), (5, 4), (9, 4))
    if bits:
        delete(wanted, 6)
    assert live_of(table) == live_of(wanted)
    assert (table.messages, table.bytes, list(table.times)) == (wanted.messages, wanted.bytes, list(wanted.times))


def flips(value: bytes) -> list[bytes]:
    return [value[:at] + bytes((value[at] ^ 1,)) + value[at + 1 :] for at in range(len(value))]


@pytest.mark.parametrize("bits", [0, 0b101])
def test_a_record_that_is_not_as_it_was_written_is_damage(bits: int) -> None:
    key, other = keys.info(7, 5), keys.info(7, 6)
    value = encode_info(key, 1005, 4, 40, bits)
    assert decode_info(key, value) == (1005, 4, 40, bits)
    assert decode_info(keys.info(8, 5), value) == (1005, 4, 40, bits), "of a stream with another id"
    for wrong in (*flips(value), value[:-1], b""):
        with pytest.raises(DamagedError):
            decode_info(key, wrong)
        with pytest.raises(DamagedError):
            BlockTable().add_records([(key, wrong)])
    with pytest.raises(DamagedError):
        decode_info(other, value)


def test_a_block_that_is_not_as_it_was_written_is_damage() -> None:
    key = keys.block(7, 5)
    batch = Batch.encode([b"a", b"b"], [b"", b""], [b"x", b"yy"])
    value = encode_block(key, 1005, batch)
    ts, found = decode_block(key, value)
    assert (ts, found.count, found.message(1)) == (1005, 2, (b"b", b"", b"yy"))
    for wrong in (*flips(value), value[:-1], b""):
        with pytest.raises(DamagedError) as raised:
            decode_block(key, wrong)
        assert raised.value.first_seq == 5
    with pytest.raises(DamagedError):
        decode_block(keys.block(7, 6), value)


def batch(size: int) -> Batch:
    return Batch.of([b"a"], [], [bytes(size)])


def test_the_least_recently_used_goes_first() -> None:
    cache = BlockCache(10_000)
    for seq in range(4):
        cache.put(1, seq, batch(1_500))
    assert cache.get(1, 0) is not None
    cache.put(1, 4, batch(1_500))
    assert [cache.get(1, seq) is not None for seq in range(5)] == [True, False, True, True, True]


def test_bounded_by_bytes_whatever_is_put() -> None:
    cache = BlockCache(10_000)
    for round_ in range(3):
        for seq in range(100):
            cache.put(1, seq, batch(seq * round_))
    kept = [found for seq in range(100) if (found := cache.get(1, seq))]
    assert 0 < sum(found.encoded_bytes for found in kept) <= 10_000
    assert cache.get(1, 99) is not None


def test_a_batch_that_would_push_out_much_is_not_kept() -> None:
    cache = BlockCache(10_000)
    cache.put(1, 1, batch(100))
    cache.put(1, 2, batch(5_000))
    assert cache.get(1, 1) is not None
    assert cache.get(1, 2) is None


def test_a_batch_too_large_to_keep_still_replaces_its_predecessor() -> None:
    cache = BlockCache(10_000)
    cache.put(1, 1, batch(100))
    cache.put(1, 1, batch(5_000))
    assert cache.get(1, 1) is None


def test_drop() -> None:
    cache = BlockCache()
    for stream in (1, 2):
        for seq in (1, 2):
            cache.put(stream, seq, batch(1))
    cache.drop(1, 1)
    cache.drop(1, 7)
    assert cache.get(1, 1) is None and cache.get(1, 2) is not None
    cache.drop_stream(1)
    assert cache.get(1, 2) is None and cache.get(2, 2) is not None


def test_a_stream_that_goes_costs_what_it_has_itself() -> None:
    cache, one = BlockCache(64 << 20), batch(1)
    for seq in range(50_000):
        cache.put(1, seq, one)
    begun = time.thread_time()
    for stream in range(2, 502):
        cache.put(stream, 1, one)
        cache.drop_stream(stream)
    took = time.thread_time() - begun
    assert took < 0.25, "a walk over all that is kept, for each of them, takes seconds"
    assert cache.get(1, 0) is not None and cache.get(7, 1) is None


def test_what_was_dropped_leaves_its_room_to_others() -> None:
    cache = BlockCache(10_000)
    for round_ in range(50):
        cache.put(round_, 1, batch(1_500))
        cache.put(round_, 2, batch(1_500))
        cache.drop_stream(round_)
        cache.drop_stream(round_)
    for seq in range(4):
        cache.put(1, seq, batch(1_500))
    assert all(cache.get(1, seq) is not None for seq in range(4))


def test_one_for_all_streams_of_a_kv() -> None:
    kv, other = MemKv(), MemKv()
    assert cache_of(kv) is cache_of(kv)
    assert cache_of(kv) is not cache_of(other)


def test_its_size_goes_by_the_memory_that_there_is() -> None:
    assert [bytes_of(memory) >> 20 for memory in (0, 1 << 30, 5 << 30, 1 << 40)] == [32, 32, 102, 192]


COUNTERS = Counters(messages=3, bytes=1 << 40, first_seq=2, last_seq=(1 << 64) - 1, last_ts=-5)


@pytest.mark.parametrize("machine", [None, b"", b"state"])
def test_it_is_read_as_it_was_written(machine: bytes | None) -> None:
    assert decode_state(encode_state(COUNTERS, machine)) == (COUNTERS, machine)


def test_any_other_byte_is_damage_of_the_whole_stream() -> None:
    value = encode_state(COUNTERS, b"state")
    for at in range(len(value)):
        with pytest.raises(DamagedError) as raised:
            decode_state(value[:at] + bytes((value[at] ^ 1,)) + value[at + 1 :])
        assert (raised.value.first_seq, raised.value.last_seq) == (0, (1 << 64) - 1)
    for size in range(len(value)):
        with pytest.raises(DamagedError):
            decode_state(value[:size])
