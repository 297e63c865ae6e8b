"""The twin of rocksdict answers as the real one does, and fails as it does."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from jetcluster import files as node_files
from jetcluster.files import make_folder
from jetcluster.store.kv import KvDamagedError, KvError, KvFullError
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.seal import StoreSeal
from jetcluster.store.sealed_kv import SealedKv
from testkit.twins.encryption import store_seal
from testkit.twins.storage import RocksModule, SimDisk, SimWriter, differential
from testkit.twins.storage.rocks_store import RocksStore
from testkit.twins.storage.rocks_view import View
from testkit.twins.time import ManualTime, SeededRng

DATA = Path("/node/data")


class Machine:
    def __init__(self, seed: int = 1, seal: StoreSeal | None = None, **disk: int) -> None:
        self.seal = seal
        self.disk = SimDisk(SeededRng(seed), **disk)
        make_folder(DATA, self.disk.files)
        self.kv = self.open()

    def open(self, *, owner_flushes: bool = True, salvage: bool = False) -> RocksKv:
        make = RocksKv if self.seal is None else partial(SealedKv, seal=self.seal)
        rocks = RocksModule(self.disk)
        self.kv = make(DATA, owner_flushes=owner_flushes, salvage=salvage, files=self.disk.files, rocks=rocks)
        return self.kv

    def fill(self, count: int = 3_000, start: int = 0, size: int = 100) -> None:
        for i in range(start, start + count):
            self.kv.put(b"%06d" % i, b"v" * size)
        self.kv.commit()

    def table(self) -> str:
        """The newest."""
        return max(path for path, _ in self.disk.tree(DATA) if path.endswith(".sst"))

    def held(self) -> int:
        return len(list(self.kv.scan(b"", b"\xff")))


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.mark.parametrize("seed", range(4))
def test_random_operations_have_the_same_results(seed: int) -> None:
    done = differential.run(seed, 1_500).done
    assert done["write"] > 200 and sum(done.values()) >= 1_500


def _forgets_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RocksStore, "delete_range", lambda self, start, end: None)


def _sees_later_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(View, "before", lambda self, key, value: None)


def _flushes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RocksStore, "flush_immutable", lambda self: None)


def _keeps_what_was_not_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_again(side: differential.Side) -> None:
        side.close()
        side.open()

    monkeypatch.setattr(differential.TwinSide, "crash", start_again)


def _forgets_an_older_table(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RocksStore._commit
    monkeypatch.setattr(RocksStore, "_commit", lambda self, tables: real(self, tables[-2:]))


MISTAKES = [
    _forgets_ranges, _sees_later_writes, _flushes_nothing, _keeps_what_was_not_flushed, _forgets_an_older_table,
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_difference_is_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    with pytest.raises(differential.Mismatch):
        differential.run(7, 4_000)


@pytest.mark.parametrize("seal", [None, store_seal()], ids=["plain", "sealed"])
def test_a_power_cut_at_any_time_leaves_a_commit_that_was_whole(seal: StoreSeal | None) -> None:
    """A flush under way, or an opening, is cut off at any of its syncs: all of it is there, or nothing."""
    found: set[int] = set()
    for seed in range(150):
        machine = Machine(seed, seal, sector=512)
        machine.fill(50)
        machine.kv.flush_now()
        machine.fill(50, start=50)
        time = ManualTime()
        writer = SimWriter(machine.disk, time)
        if seed % 3:
            writer.submit(machine.kv.flush_now, lambda error: None)
        time.advance(machine.disk.rng.uniform(0.0, 0.05))
        writer.abandon()
        machine.disk.lose_power()
        with machine.disk.flight():
            machine.open()
        machine.disk.lose_power()
        machine.open()
        found.add(machine.held())
    assert found == {50, 100}


def test_rot_is_raised_as_rocksdb_raises_it(machine: Machine) -> None:
    machine.fill()
    machine.kv.flush_now()
    machine.disk.rot(machine.table(), 100_000)
    damaged = 0
    for i in range(3_000):
        try:
            assert machine.kv.get(b"%06d" % i) == b"v" * 100
        except KvDamagedError as error:
            damaged += 1
            assert str(error).startswith("Corruption: block checksum mismatch")
    assert 50 < damaged < 300, "one block"
    with pytest.raises(KvDamagedError):
        machine.held()
    machine.kv.put(b"x", b"y")
    machine.kv.commit()
    asyncio.run(machine.kv.reclaim([(b"", b"\xff")]))
    machine.kv.put(b"x", b"z")
    with pytest.raises(KvDamagedError, match="block checksum mismatch"):
        machine.kv.commit()  # a compaction has met it


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (lambda disk, table: disk.cut(table, 1_000), "Corruption: Sst file size mismatch"),
        (lambda disk, table: disk.files.unlink(table), "Corruption: IO error: No such file or directory"),
        (lambda disk, table: disk.rot(table, disk.file(table).size - 3), "Corruption: Footer"),
        (lambda disk, table: disk.rot(_manifest(disk), 40), "Corruption: checksum mismatch"),
    ],
)
def test_a_damaged_database_is_not_opened(harm: Callable[[SimDisk, str], None], text: str, machine: Machine) -> None:
    machine.fill(100)
    machine.kv.flush_now()
    machine.fill(100, start=1_000)
    machine.kv.close()
    harm(machine.disk, machine.table())
    with pytest.raises(KvDamagedError, match=text):
        machine.open()
    if "checksum" not in text:  # without the manifest nothing is known of the tables
        kv = machine.open(salvage=True)
        with pytest.raises(KvError, match=text.removeprefix("Corruption: ")):
            kv.get(b"001001")


def _manifest(disk: SimDisk) -> str:
    return max(path for path, _ in disk.tree(DATA) if "MANIFEST" in path)


def test_after_a_failed_flush_nothing_is_written_until_it_is_opened_again() -> None:
    for code, kind in ((errno.EIO, KvError), (errno.ENOSPC, KvFullError)):
        machine = Machine()
        machine.fill(10)
        machine.kv.flush_now()
        machine.fill(10, start=10)
        machine.disk.fail("write", code, within=".sst")
        with pytest.raises(kind, match=os.strerror(code)):
            machine.kv.flush_now()
        machine.disk.heal()
        machine.kv.put(b"x", b"y")
        for _ in range(2):
            with pytest.raises(kind, match=os.strerror(code)):
                machine.kv.commit()
        assert machine.kv.get(b"000015") == b"v" * 100, "it is read"
        machine.disk.kill_process()
        machine.open()
        assert machine.held() == 10
        machine.fill(10, start=10)
        machine.kv.flush_now()


def test_a_failed_sync_of_a_table_or_the_manifest_vouches_for_nothing() -> None:
    for within in (".sst", "MANIFEST"):
        for seed in range(30):
            machine = Machine(seed)
            machine.fill(10)
            machine.kv.flush_now()
            machine.fill(10, start=10)
            machine.disk.fail("sync", errno.EIO, within=within, times=1)
            with pytest.raises(KvError):
                machine.kv.flush_now()
            machine.disk.lose_power()
            machine.open()
            assert machine.held() == 10


def test_a_read_that_fails_says_so(machine: Machine) -> None:
    machine.fill(10)
    machine.kv.flush_now()
    machine.disk.fail("read", errno.EIO, within=".sst")
    with pytest.raises(KvError, match="IO error: Input/output error"):
        machine.kv.get(b"000001")
    with pytest.raises(KvError, match="IO error"):
        machine.held()
    machine.disk.heal()
    assert machine.held() == 10


def test_a_memtable_that_is_full_is_flushed_in_the_background(machine: Machine) -> None:
    machine.kv.close()
    waiting: list[Callable[[], None]] = []
    rocks = RocksModule(machine.disk, waiting.append)
    kv = machine.kv = RocksKv(DATA, total_bytes=32 << 20, files=machine.disk.files, rocks=rocks)
    for i in range(20):
        machine.fill(1_000, start=i * 1_000)
        for work in waiting:
            work()
        waiting.clear()
    machine.disk.lose_power()
    machine.open()
    assert 5_000 < machine.held() < 20_000 and machine.held() % 1_000 == 0
    assert kv.memory_bytes() > 0


def test_compaction_drops_what_was_deleted(machine: Machine) -> None:
    for _ in range(3):
        machine.fill()
        machine.kv.flush_now()
    machine.kv.delete_range(b"", b"002900")
    machine.kv.commit()
    before = machine.disk.used
    asyncio.run(machine.kv.reclaim([(b"", b"\xff")]))
    assert machine.disk.used < before / 10
    assert machine.held() == 100
    machine.disk.lose_power()
    machine.open()
    assert machine.held() == 100


def test_the_database_is_locked_until_its_process_ends(machine: Machine) -> None:
    with pytest.raises(KvError, match="another process has"):
        machine.open()
    machine.disk.kill_process()
    machine.open()


def test_files_are_checked_by_their_size(machine: Machine) -> None:
    machine.fill()
    machine.kv.flush_now()
    machine.kv.check_files()
    assert not machine.kv.damage
    machine.disk.cut(machine.table(), 100)
    machine.kv.check_files()
    assert "has 100 bytes" in machine.kv.damage
    assert node_files.exists(DATA / "LOCK", machine.disk.files)
