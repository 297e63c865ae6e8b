from __future__ import annotations

import time

from jetcluster.store.batch import Batch
from jetcluster.store.block_cache import BlockCache, bytes_of, cache_of
from testkit.twins.mem_kv import MemKv


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
