"""Catch-up: a cut survives changes of its source, a crash in the middle of an import leaves nothing half done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jetcluster.store import keys
from jetcluster.store.api import DamagedError
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.kv import Kv
from jetcluster.store.mem_kv import MemKv
from jetcluster.store.rocks_kv import RocksKv


@pytest.fixture(params=["rocks", "mem"])
def kv(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kv]:
    opened: Kv = RocksKv(tmp_path / "source") if request.param == "rocks" else MemKv()
    yield opened
    opened.close()


def filled(kv: Kv, stream: int = 1) -> BlockStore:
    store = BlockStore(kv, stream, memory=False)
    for i in range(20):
        store.append(Batch.of([b"a", b"b", b"a"], [], [b"%d" % i] * 3), store.last_seq + 1, 1000 * i)
    store.delete(8)
    store.compact(5)
    store.side_put(2, b"id-1", b"\x01")
    store.side_put(2, b"", b"")
    store.save_machine_state(b"applied 17")
    return store


def test_the_cut_stays_while_the_source_goes_on(kv: Kv) -> None:
    store = filled(kv)
    state, messages = store.state, list(store.scan(b">", 1))
    chunks = store.export(100)
    first = next(chunks)
    store.purge()
    store.append(Batch.of([b"new"], [], [b""]), store.last_seq + 1, 10**6)
    store.side_delete(2, b"id-1")
    store.save_machine_state(b"applied 18")
    kv.commit()
    target_kv = MemKv()
    target = BlockStore(target_kv, 9, memory=False)
    target.append(Batch.of([b"old"], [], [b"to be replaced"]), 1, 1)
    target.save_machine_state(lambda: b"forgotten")
    target.import_begin()
    for chunk in [first, *chunks]:
        target.import_chunk(chunk)
    target.import_end()
    for opened in (target, BlockStore(target_kv, 9, memory=False)):
        assert opened.state == state
        assert list(opened.scan(b">", 1)) == messages
        assert opened.last_by_subject(b"old") is None
        assert opened.load_machine_state() == b"applied 17"
        assert list(opened.side_scan(2)) == [(b"", b""), (b"id-1", b"\x01")]
    target.append(Batch.of([b"a"], [], [b"on"]), target.last_seq + 1, 10**6)
    assert target.count_of(b"a") == sum(m.subject == b"a" for m in messages) + 1


@pytest.mark.parametrize("fed", [0, 1, 5, -1])
def test_a_crash_in_the_middle_leaves_an_empty_store_that_says_so(tmp_path: Path, fed: int) -> None:
    chunks = list(filled(MemKv()).export(200))
    kv = RocksKv(tmp_path)
    target = filled(kv, 9)
    neighbour = filled(kv, 10)
    kv.commit()
    target.import_begin()
    for chunk in chunks[:fed]:
        target.import_chunk(chunk)
    kv.flush_now()
    kv.close()
    kv = RocksKv(tmp_path)
    again = BlockStore(kv, 9, memory=False)
    assert again.incomplete
    assert again.state == BlockStore(MemKv(), 1, memory=False).state
    assert again.load_machine_state() is None
    assert list(again.side_scan(2)) == []
    assert BlockStore(kv, 10, memory=False).state == neighbour.state
    assert not BlockStore(kv, 9, memory=False).incomplete
    again.import_begin()
    for chunk in chunks:
        again.import_chunk(chunk)
    again.import_end()
    assert again.state == neighbour.state
    kv.close()


def test_missing_chunks_are_noticed() -> None:
    chunks = list(filled(MemKv()).export(200))
    for left_out in range(len(chunks)):
        target = BlockStore(MemKv(), 9, memory=False)
        target.import_begin()
        with pytest.raises(DamagedError):
            for i, chunk in enumerate(chunks):
                if i != left_out:
                    target.import_chunk(chunk)
            target.import_end()


def test_flipped_bits_are_noticed() -> None:
    (chunk,) = filled(MemKv()).export(1 << 20)
    for bit in range(0, len(chunk) * 8, 7):
        damaged = bytearray(chunk)
        damaged[bit // 8] ^= 1 << bit % 8
        target = BlockStore(MemKv(), 9, memory=False)
        target.import_begin()
        with pytest.raises(DamagedError):
            target.import_chunk(bytes(damaged))
            target.import_end()


def test_a_peer_cannot_write_outside_of_the_stream() -> None:
    kv = MemKv()
    other = filled(kv, 3)
    kv.commit()
    (chunk,) = filled(MemKv()).export(1 << 20)
    target = BlockStore(kv, 9, memory=False)
    target.import_begin()
    target.import_chunk(chunk)
    target.import_end()
    assert BlockStore(kv, 3, memory=False).state == other.state
    streams = {key[1 : keys.STREAM_PREFIX] for key, _ in kv.scan(b"", b"\xff")}
    assert streams == {(3).to_bytes(4, "big"), (9).to_bytes(4, "big")}
