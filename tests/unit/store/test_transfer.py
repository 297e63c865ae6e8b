"""Catch-up: a cut survives changes of its source, a crash in the middle of an import leaves nothing half done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetcluster.store import keys
from jetcluster.store.api import DamagedError
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.kv import Kv, KvFullError
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


async def test_an_import_gives_back_what_the_disk_cannot_hold(tmp_path: Path) -> None:
    """A disk of 24 MB that others use too: what was here goes before the new state comes, a state that is too large
    leaves nothing behind, and a small one comes after it."""
    total = 24 << 20

    def free() -> int:
        return total - sum(file.stat().st_size for file in tmp_path.iterdir() if file.is_file())

    def state(messages: int) -> list[bytes]:
        store = BlockStore(MemKv(), 1, memory=False)
        for i in range(messages):
            store.append(Batch.of([b"a"], [], [os.urandom(500_000)]), i + 1, i + 1)
        store.save_machine_state(b"applied")
        return list(store.export(512 << 10))

    async def take(chunks: list[bytes]) -> None:
        target.import_begin()
        for number, chunk in enumerate(chunks):
            if kv.spare_bytes < len(chunk):
                assert number
                await target.reclaim()
            if kv.spare_bytes < len(chunk):
                raise KvFullError("no room")
            target.import_chunk(chunk)
        target.import_end()
        await kv.flush()

    kv = RocksKv(tmp_path, free_bytes=free, total_bytes=total)
    filled(kv, 8)
    target = BlockStore(kv, 9, memory=False)
    for i in range(18):
        target.append(Batch.of([b"a"], [], [os.urandom(500_000)]), i + 1, i + 1)
    await kv.flush()
    await take(state(16))
    assert target.messages == 16, "the old state and the new one do not fit both"
    with pytest.raises(KvFullError):
        await take(state(60))
    target.import_begin()
    await target.reclaim()
    assert free() > total * 3 // 4, "the half of it is gone"
    kv.close()
    kv = RocksKv(tmp_path, free_bytes=free, total_bytes=total)
    target = BlockStore(kv, 9, memory=False)
    assert target.incomplete
    await take(state(5))
    assert target.messages == 5
    assert BlockStore(kv, 8, memory=False).messages == 55
    kv.close()
