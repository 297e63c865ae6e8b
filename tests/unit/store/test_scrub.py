"""Everything that a stream has on disk is verified, in bounded steps (store/transfer.py)."""

from __future__ import annotations

import pytest

from jetcluster.store import keys
from jetcluster.store.api import DamagedError
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.transfer import Scrub
from testkit.twins.mem_kv import MemKv

STREAM = 7


def filled() -> MemKv:
    kv = MemKv()
    for stream in (STREAM - 1, STREAM, STREAM + 1):
        store = BlockStore(kv, stream, memory=False)
        for block in range(20):
            subjects = [b"s.%d" % (n % 3) for n in range(10)]
            payloads = [b"%d" % n + b"." * 100 for n in range(10)]
            store.append(Batch.of(subjects, [b""] * 10, payloads), 1 + 10 * block, 1 + 10 * block)
        store.side_put(1, b"key", b"value")
    kv.commit()
    return kv


def opened(kv: MemKv) -> BlockStore:
    return BlockStore(kv, STREAM, memory=False)


def whole_pass(kv: MemKv, step: int, store: BlockStore) -> tuple[int, int]:
    scrub = Scrub(kv, STREAM, store.begin_check)
    total = steps = 0
    while not scrub.done:
        total += scrub.step(step)
        steps += 1
    return total, steps


@pytest.mark.parametrize("step", [1, 500, 5000, 1 << 20])
def test_a_pass_reads_all_of_the_stream_and_nothing_else(step: int) -> None:
    kv = filled()
    store = opened(kv)
    kinds = (keys.BLOCK, keys.INFO, keys.POSTING, keys.SIDE, keys.STATE)
    prefixes = tuple(keys.stream_prefix(kind, STREAM) for kind in kinds)
    wanted = sum(len(key) + len(value) for key, value in kv.scan(b"", b"\xff") if key.startswith(prefixes))
    total, steps = whole_pass(kv, step, store)
    assert total == wanted > 10_000
    assert steps >= total // (step + 3000)


@pytest.mark.parametrize("kind", [keys.BLOCK, keys.INFO, keys.POSTING])
def test_any_flipped_bit_of_a_checked_record_is_found(kind: int) -> None:
    kv = filled()
    store = opened(kv)
    prefix = keys.stream_prefix(kind, STREAM)
    found = 0
    rows = list(kv.scan(prefix, keys.stream_end(kind, STREAM)))
    for key, value in [(key, value) for key, value in rows if len(value) > 4][:5]:
        for at in range(0, len(value), max(len(value) // 7, 1)):
            kv.put(key, value[:at] + bytes([value[at] ^ 8]) + value[at + 1 :])
            with pytest.raises(DamagedError):
                whole_pass(kv, 1000, store)
            found += 1
        kv.put(key, value)
    assert found
    whole_pass(kv, 1000, store)


def test_damage_of_another_stream_is_not_this_ones() -> None:
    kv = filled()
    store = opened(kv)
    key, value = next(kv.scan(keys.stream_prefix(keys.BLOCK, STREAM + 1), keys.stream_end(keys.BLOCK, STREAM + 1)))
    kv.put(key, value[:-1] + b"?")
    whole_pass(kv, 1000, store)
