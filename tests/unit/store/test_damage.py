"""A flipped bit anywhere in what is stored is found, never answered as "not there"."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from jetcluster.store import keys
from jetcluster.store.api import DamagedError
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.blocks import BlockCache
from jetcluster.store.kv import KvDamagedError
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.transfer import START
from testkit.twins.mem_kv import MemKv

STREAM = 1
SUBJECTS = [b"a", b"b", b"a", b"c", b"a"]


def filled(kv: MemKv | RocksKv) -> BlockStore:
    store = BlockStore(kv, STREAM, memory=False, cache=BlockCache(1))
    for i in range(3):
        batch = Batch.of(SUBJECTS, [b"NATS/1.0\r\n\r\n"] * 5, [b"payload %d" % i] * 5)
        store.append(batch, store.last_seq + 1, 1000 + 10 * i)
    store.delete(7)
    store.save_machine_state(b"machine")
    kv.commit()
    return store


def flip(kv: MemKv, key: bytes, bit: int) -> None:
    value = bytearray(kv.get(key) or b"")
    value[bit // 8] ^= 1 << bit % 8
    kv.put(key, bytes(value))


def stored_keys(kv: MemKv, kind: int) -> list[bytes]:
    return [key for key, value in kv.scan(bytes([kind]), bytes([kind + 1])) if value]


READS: list[Callable[[BlockStore], object]] = [
    lambda store: store.get(8),
    lambda store: list(store.queries.scan(b">", 1)),
    lambda store: list(store.queries.scan(b"a", 1)),
    lambda store: store.queries.last_by_subject(b"c", 9),
    lambda store: store.queries.next_by_subject(b"c", 6),
    lambda store: store.export().announce(START, 1 << 30),
]


@pytest.mark.parametrize("read", READS)
def test_every_bit_of_a_block(read: Callable[[BlockStore], object]) -> None:
    key = keys.block(STREAM, 6)
    size = len(filled_value(key))
    for bit in range(size * 8):
        kv = MemKv()
        store = filled(kv)
        flip(kv, key, bit)
        with pytest.raises(DamagedError) as damage:
            read(store)
        assert damage.value.first_seq == 6 or read is READS[-1]


def filled_value(key: bytes) -> bytes:
    kv = MemKv()
    filled(kv)
    value = kv.get(key)
    assert value is not None
    return value


def test_the_error_names_the_whole_block() -> None:
    kv = MemKv()
    store = filled(kv)
    kv.delete(keys.block(STREAM, 6))
    with pytest.raises(DamagedError) as damage:
        store.get(8)
    assert (damage.value.first_seq, damage.value.last_seq) == (6, 10)
    assert store.get(5) is not None, "its neighbours are well"


def test_a_block_under_another_key() -> None:
    kv = MemKv()
    store = filled(kv)
    kv.put(keys.block(STREAM, 6), kv.get(keys.block(STREAM, 1)) or b"")
    with pytest.raises(DamagedError):
        store.get(8)


@pytest.mark.parametrize("kind", [keys.INFO, keys.POSTING, keys.STATE])
def test_every_bit_of_the_other_records_is_found_at_open(kind: int) -> None:
    kv = MemKv()
    filled(kv)
    for key in stored_keys(kv, kind):
        for bit in range(len(kv.get(key) or b"") * 8):
            flip(kv, key, bit)
            with pytest.raises(DamagedError):
                BlockStore(kv, STREAM, memory=False)
            flip(kv, key, bit)
    assert BlockStore(kv, STREAM, memory=False).messages == 14


@pytest.mark.parametrize("kind", [keys.INFO, keys.POSTING, keys.STATE])
def test_a_missing_record_is_found_at_open(kind: int) -> None:
    kv = MemKv()
    filled(kv)
    for key, value in list(kv.scan(bytes([kind]), bytes([kind + 1]))):
        kv.delete(key)
        with pytest.raises(DamagedError):
            BlockStore(kv, STREAM, memory=False)
        kv.put(key, value)


def test_a_posting_that_leads_astray() -> None:
    kv = MemKv()
    store = filled(kv)
    kv.delete(keys.posting_prefix(STREAM, b"c") + keys.seq_suffix(9))
    kv.put(keys.posting_prefix(STREAM, b"c") + keys.seq_suffix(10), b"")
    with pytest.raises(DamagedError):
        store.queries.next_by_subject(b"c", 5)


def test_flipped_bits_in_the_table_files_of_rocksdb(tmp_path: Path) -> None:
    kv = RocksKv(tmp_path / "db")
    store = BlockStore(kv, STREAM, memory=False)
    payloads = [random.Random(i).randbytes(5_000) for i in range(100)]
    for i, payload in enumerate(payloads):
        store.append(Batch.of([b"a"], [], [payload]), i + 1, i)
    kv.flush_now()
    kv.close()
    (table,) = (tmp_path / "db").glob("*.sst")
    raw = bytearray(table.read_bytes())
    at = raw.index(payloads[50][1_000:1_020])
    raw[at] ^= 1
    table.write_bytes(raw)
    kv = RocksKv(tmp_path / "db")
    store = BlockStore(kv, STREAM, memory=False)
    wrong = []
    for i, payload in enumerate(payloads):
        try:
            found = store.get(i + 1)
        except DamagedError as damage:
            assert damage.first_seq == i + 1
            wrong.append(i)
        else:
            assert found is not None and found.payload == payload
    assert 50 in wrong and len(wrong) < 10
    with pytest.raises(DamagedError):
        store.export().announce(START, 1 << 30)
    with pytest.raises(KvDamagedError):
        list(kv.scan(b"\x01", b"\x02"))
    with pytest.raises(KvDamagedError):
        list(kv.chunks(b"\x01", b"\x02"))
    kv.close()
