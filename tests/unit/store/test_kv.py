"""Both kvs against a plain dict; what a crash leaves of RocksKv.

The side of a transfer that is in memory: what is put, replaced and deleted, and that a view stays as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jetcluster import faults
from jetcluster.store import keys
from jetcluster.store import kv as kv_module
from jetcluster.store.kv import KvError, KvFullError, MemRecords, MemSnapshot, OpenWrites
from jetcluster.store.rocks_kv import RocksKv
from testkit.twins import mem_kv
from testkit.twins.mem_kv import MemKv
from tests.unit.store.fake_rocks import Rocks

KEYS = st.binary(min_size=1, max_size=3)
END = b"\xff" * 4


class KvMachine(RuleBasedStateMachine):
    @initialize(rocks=st.booleans())
    def begin(self, rocks: bool) -> None:
        self.model: dict[bytes, bytes] = {}
        self.committed: dict[bytes, bytes] = {}
        self.new: list[bytes] = []
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(mem_kv, "BUCKET", 2)
        self.patch.setattr(kv_module, "CHUNK_PAIRS", 2)
        self.path = Path(tempfile.mkdtemp(prefix="jetcluster-kv-")) if rocks else None
        self.kv: RocksKv = RocksKv(self.path) if self.path else MemKv()

    @rule(key=KEYS, value=st.binary(max_size=4))
    def put(self, key: bytes, value: bytes) -> None:
        self.kv.put(key, value)
        self.model[key] = value

    @rule(count=st.integers(1, 3), value=st.binary(max_size=4))
    def put_new(self, count: int, value: bytes) -> None:
        """Longer than KEYS: none was there before."""
        keys = [b"new%d" % (len(self.new) + n) for n in range(count)]
        self.new += keys
        self.kv.put_new(dict.fromkeys(keys, value))
        self.model.update(dict.fromkeys(keys, value))

    @precondition(lambda self: hasattr(self, "kv") and self.new)
    @rule(data=st.data(), value=st.none() | st.binary(max_size=4))
    def change_new(self, data: st.DataObject, value: bytes | None) -> None:
        key = data.draw(st.sampled_from(self.new))
        self.kv.delete_each([key])
        self.model.pop(key, None)
        if value is not None:
            self.put(key, value)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        self.kv.delete(key)
        self.model.pop(key, None)

    @rule(start=KEYS, end=KEYS)
    def delete_range(self, start: bytes, end: bytes) -> None:
        self.kv.delete_range(start, end)
        for key in [key for key in self.model if start <= key < end]:
            del self.model[key]

    @rule()
    def commit(self) -> None:
        before = self.kv.commits
        changed = self.kv.open_bytes > 0
        assert self.kv.commit() == self.kv.commits >= before + changed
        assert self.kv.open_bytes == 0
        self.committed = dict(self.model)

    @rule()
    def close_without_commit(self) -> None:
        """Open writes are lost; RocksDB itself flushes what was committed when it closes."""
        if self.path is None:
            return
        self.kv.close()
        self.kv = RocksKv(self.path)
        self.model = dict(self.committed)

    @rule()
    def flush_and_reopen(self) -> None:
        if self.path is None:
            return
        self.commit()
        self.kv.flush_now()
        assert self.kv.durable == self.kv.commits
        self.kv.close()
        self.kv = RocksKv(self.path)

    @rule(start=KEYS, end=KEYS)
    def ask(self, start: bytes, end: bytes) -> None:
        keys = sorted(self.model)
        inside = [(key, self.model[key]) for key in keys if start <= key < end]
        assert list(self.kv.scan(start, end)) == inside
        chunks = list(self.kv.chunks(start, end))
        assert [pair for chunk in chunks for pair in chunk] == inside
        assert all(len(chunk) == 2 for chunk in chunks[:-1])
        assert self.kv.ceiling(start, end) == (inside[0] if inside else None)
        below = [(key, self.model[key]) for key in keys if start <= key <= end]
        assert self.kv.floor(end, start) == (below[-1] if below else None)
        assert self.kv.get(start) == self.model.get(start)

    @rule(key=KEYS, value=st.binary(max_size=4))
    def snapshot_stays(self, key: bytes, value: bytes) -> None:
        self.committed = dict(self.model)
        snapshot = self.kv.snapshot()
        before = sorted(self.model.items())
        self.put(key, value)
        self.delete_range(b"\x01", b"\x40")
        self.commit()
        assert list(snapshot.scan(b"", END)) == before
        assert list(snapshot.scan(b"\x20", b"\x60")) == [p for p in before if b"\x20" <= p[0] < b"\x60"]

    @rule(key=KEYS)
    def commit_during_scan(self, key: bytes) -> None:
        before = sorted(self.model.items())
        scan = self.kv.scan(b"", END)
        taken = [pair for pair in [next(scan, None)] if pair is not None]
        self.commit()
        assert taken + list(scan) == before

    @invariant()
    def same(self) -> None:
        if hasattr(self, "kv"):
            assert dict(self.kv.scan(b"", END)) == self.model

    def teardown(self) -> None:
        self.patch.undo()
        self.kv.close()
        if self.path:
            shutil.rmtree(self.path)


TestKv = KvMachine.TestCase
TestKv.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.fixture(params=["rocks", "mem"])
def kv(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RocksKv]:
    opened: RocksKv = RocksKv(tmp_path / "db") if request.param == "rocks" else MemKv()
    yield opened
    opened.close()


def test_what_is_new_and_deleted_again_is_never_written(tmp_path: Path) -> None:
    kv = RocksKv(tmp_path / "db")
    kv.put_new({b"a": b"value", b"b": b"value"})
    kv.put(b"a", b"longer value")
    kv.delete_each([b"a", b"b"])
    assert kv.get(b"a") is None and kv.open_bytes == 0
    assert kv.commit() == 0
    kv.put_new({b"a": b"value"})
    assert kv.commit() == 1
    kv.delete_each([b"a"])
    assert kv.commit() == 2  # this one has to be written
    assert kv.get(b"a") is None
    kv.close()


def test_a_failed_commit_may_have_written_what_was_new(tmp_path: Path) -> None:
    rocks = Rocks()
    kv = RocksKv(tmp_path / "db", rocks=rocks)
    kv.put_new({b"a": b"value"})

    class Written:
        """Writes, and says that it did not."""

        def write(self, *args: Any) -> None:
            rocks.real.write(*args)
            raise RuntimeError("IO error: after the fact")

    rocks.instead = Written()
    with pytest.raises(KvError):
        kv.commit()
    rocks.instead = None
    kv.delete_each([b"a"])
    kv.commit()
    assert kv.get(b"a") is None
    kv.close()


def test_a_commit_is_pressing_when_it_is_large_or_its_keys_were_searched(tmp_path: Path) -> None:
    kv = RocksKv(tmp_path / "db")
    kv.put(b"a", b"")
    assert not kv.writes.pressing
    kv.put(b"b", bytes(kv_module.PRESSING_BYTES))
    assert kv.writes.pressing
    kv.commit()
    assert not kv.writes.pressing
    kv.put_new({b"%d" % n: b"" for n in range(kv_module.PRESSING_WRITES)})
    assert kv.writes.pressing
    kv.commit()
    kv.delete_range(b"c", b"d")
    assert kv.writes.pressing
    kv.commit()
    for _ in range(kv_module.EAGER_COMMITS):
        kv.put(b"a", b"")
    assert kv.floor(b"b", b"a") is not None
    for _ in range(1 + kv_module.EAGER_COMMITS):
        assert kv.writes.pressing
        kv.put(b"a", b"")
        kv.commit()
    kv.put(b"a", b"")
    assert not kv.writes.pressing
    kv.close()


def test_hooks_run_once_in_the_next_commit(kv: RocksKv) -> None:
    calls = []

    def hook() -> None:
        calls.append(len(calls))
        kv.put(b"state", b"%d" % len(calls))

    kv.put(b"a", b"")
    kv.at_commit(hook)
    assert kv.commit() == 1
    assert kv.get(b"state") == b"1"
    kv.put(b"b", b"")
    assert kv.commit() == 2
    assert kv.commit() == 2, "nothing to write"
    assert calls == [0]


async def test_flush_tells_what_is_durable(kv: RocksKv) -> None:
    told: list[int] = []
    kv.on_durable(told.append)
    kv.put(b"a", b"1")
    kv.commit()
    kv.put(b"b", b"1")
    assert kv.durable == 0
    await kv.flush()
    assert (kv.durable, told) == (2, [2])
    await kv.flush()
    assert told == [2]
    kv.put(b"c", b"1")
    await asyncio.gather(kv.flush(), kv.flush())
    assert (kv.durable, told) == (3, [2, 3])


async def test_commits_during_a_flush_are_not_called_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = RocksKv(tmp_path)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def slow_thread(function: object, *args: object) -> None:
        entered.set()
        await leave.wait()
        assert callable(function)
        function(*args)

    monkeypatch.setattr(asyncio, "to_thread", slow_thread)
    kv.put(b"a", b"1")
    flushing = asyncio.create_task(kv.flush())
    await entered.wait()
    kv.put(b"b", b"1")
    kv.commit()
    leave.set()
    await flushing
    assert (kv.commits, kv.durable) == (2, 1)
    kv.close()


def test_a_failed_commit_keeps_the_open_writes(tmp_path: Path) -> None:
    kv = RocksKv(tmp_path)
    kv.put(b"a", b"1")
    kv.commit()
    kv.put(b"a", b"1")
    with faults.armed("store.write", faults.fail(errno.EIO)), pytest.raises(KvError):
        kv.commit()
    assert kv.get(b"a") == b"1"
    kv.commit()
    kv.flush_now()
    kv.close()
    again = RocksKv(tmp_path)
    assert again.get(b"a") == b"1"
    again.close()


def test_a_full_disk_refuses_writes_serves_reads_and_heals(tmp_path: Path) -> None:
    free = [1 << 40]
    kv = RocksKv(tmp_path, free_bytes=lambda: free[0])
    kv.put(b"a", b"1")
    kv.flush_now()
    free[0] = 1 << 20
    for i in range(3):
        kv.put(b"big%d" % i, bytes(1 << 20))
        with pytest.raises(KvFullError):
            kv.commit()
        with pytest.raises(KvFullError):
            kv.flush_now()
    assert (kv.get(b"a"), kv.get(b"big1")) == (b"1", bytes(1 << 20))
    assert (kv.commits, kv.durable) == (1, 1)
    free[0] = 1 << 40
    kv.flush_now()
    assert (kv.commits, kv.durable) == (2, 2)
    kv.close()


def test_what_may_still_be_filled_leaves_room_for_a_compaction_of_all_files(tmp_path: Path) -> None:
    """One that meets a full disk has RocksDB refuse those that would free some."""
    free = [40 << 20]
    kv = RocksKv(tmp_path, free_bytes=lambda: free[0], total_bytes=100 << 20)
    empty = kv.spare_bytes
    for i in range(8):
        kv.put(b"big%d" % i, os.urandom(1 << 20))
    kv.flush_now()
    files = sum(path.stat().st_size for path in tmp_path.glob("*.sst"))
    assert files > 8 << 20
    assert kv.spare_bytes <= empty - files + 4096, "4096: memtables that are empty"
    kv.close()


def test_a_second_opener_is_refused(tmp_path: Path) -> None:
    kv = RocksKv(tmp_path)
    with pytest.raises(KvError):
        RocksKv(tmp_path)
    kv.close()


CHILD = """
import os, sys
from pathlib import Path
from jetcluster.store import rocks_kv
rocks_kv.MEMTABLE_BYTES = 256 << 10  # so that RocksDB also flushes by itself
kv = rocks_kv.RocksKv(Path(sys.argv[1]))
n = 0
while True:
    n += 1
    kv.put(b"count", b"%d" % n)
    for stream in range(5):
        kv.put(b"s%d.%06d" % (stream, n), os.urandom(100))
    if n % 3 == 0:
        kv.delete_range(b"s0.%06d" % (n - 2), b"s0.%06d" % n)
    if n % 5 == 0:
        kv.delete(b"s1.%06d" % (n - 1))
    kv.commit()
    if n % 100 == 0:
        kv.flush_now()
        os.write(1, b"%d\\n" % n)
"""


def expected(n: int) -> set[bytes]:
    keys = {b"s%d.%06d" % (stream, i) for stream in range(5) for i in range(1, n + 1)}
    for i in range(3, n + 1, 3):
        keys -= {b"s0.%06d" % (i - 2), b"s0.%06d" % (i - 1)}
    return keys - {b"s1.%06d" % (i - 1) for i in range(5, n + 1, 5)}


@pytest.mark.parametrize("flushes", [1, 7])
def test_kill_leaves_exactly_the_state_of_one_commit(tmp_path: Path, flushes: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout is not None
    flushed = 0
    for _ in range(flushes):
        flushed = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    child.communicate()
    kv = RocksKv(tmp_path)
    count = int(kv.get(b"count") or 0)
    assert count >= flushed
    assert {key for key, _ in kv.scan(b"s", b"t")} == expected(count)
    kv.close()


def test_what_was_written_since_the_last_commit_is_taken_back_for_one_stream(kv: RocksKv) -> None:
    def rows() -> dict[bytes, bytes]:
        return {key[5:]: value for key, value in kv.scan(keys.stream_prefix(7, 0), keys.stream_end(7, 9))}

    def key(stream: int, name: bytes) -> bytes:
        return keys.stream_prefix(7, stream) + name

    for name in (b"a", b"b", b"c", b"d"):
        kv.put(key(1, name), b"old")
    kv.commit()
    kv.put(key(1, b"a"), b"new")
    kv.delete(key(1, b"b"))
    kv.put(key(1, b"b"), b"again")
    kv.put_new({key(1, b"e"): b"new", key(1, b"f"): b"new"})
    kv.delete_each([key(1, b"f")])
    kv.delete_range(key(1, b"c"), key(1, b"d"))
    kv.put(key(2, b"x"), b"other")
    kv.discard(1)
    assert rows() == {b"a": b"old", b"b": b"old", b"c": b"old", b"d": b"old", b"x": b"other"}
    kv.put_new({key(1, b"e"): b"once more"})
    kv.commit()
    kv.discard(1)
    assert rows() == {b"a": b"old", b"b": b"old", b"c": b"old", b"d": b"old", b"e": b"once more", b"x": b"other"}
    kv.delete(key(1, b"e"))
    kv.discard(1)
    kv.commit()
    assert rows()[b"e"] == b"once more"


async def test_one_failed_write_has_rocksdb_refuse_all_others_until_it_is_opened_anew(tmp_path: Path) -> None:
    kv = RocksKv(tmp_path / "data", owner_flushes=True)
    kv.put(b"\x00a", b"a")
    await kv.flush()
    assert kv.unwritable == ""
    kv.put(b"\x00b", os.urandom(4 << 20))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))  # a write error that is no full disk
    try:
        with pytest.raises(KvError):
            await kv.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await kv.probe()
    kv.put(b"\x00c", b"c")
    for attempt in (kv.commit, kv.flush_now):
        with pytest.raises(KvError):
            attempt()
    assert "IO error" in kv.unwritable
    with contextlib.suppress(KvError):
        kv.close()
    again = RocksKv(tmp_path / "data", owner_flushes=True)
    assert again.get(b"\x00a") == b"a" and again.get(b"\x00b") is None
    again.put(b"\x00c", b"c")
    await again.flush()
    assert again.unwritable == "" and not (tmp_path / "data" / "probe").exists()
    again.close()


async def test_a_disk_that_does_not_tell_its_free_space_is_trouble_of_the_store(tmp_path: Path) -> None:
    def fails() -> int:
        raise OSError(5, "Input/output error")

    kv = RocksKv(tmp_path / "data", owner_flushes=True, free_bytes=fails)
    kv.put(b"\x00a", b"a")
    with pytest.raises(KvError):
        await kv.flush()
    with pytest.raises(KvError):
        await kv.probe()
    assert "Input/output" in kv.failing
    kv.close()


def test_open_writes_that_a_range_deletes_have_no_size() -> None:
    writes = OpenWrites()
    writes.put(b"a", b"kept")
    writes.put_new({b"b": b"1234", b"c": b""})
    writes.put(b"d", None)
    assert writes.size == 5 + 5 + 1 + 1
    writes.delete_range(b"b", b"e")
    assert writes.size == 5 and list(writes.values) == [b"a"]
    writes.delete_range(b"", b"z")
    assert writes.size == 0 and not writes.values


def test_a_scan_gives_the_pairs_of_the_range_in_order() -> None:
    snapshot = MemSnapshot([(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"4")])
    assert list(snapshot.scan(b"b", b"d")) == [(b"b", b"2"), (b"c", b"3")]
    assert list(snapshot.scan(b"aa", b"\xff")) == [(b"b", b"2"), (b"c", b"3"), (b"d", b"4")]
    assert list(snapshot.scan(b"e", b"\xff")) == []


def test_a_snapshot_does_not_see_what_is_written_later() -> None:
    records = MemRecords()
    for key in (b"c", b"a", b"b"):
        records.put(key, key)
    before = records.snapshot()
    records.delete_range(b"a", b"c")
    records.put(b"d", b"new")
    assert list(before.scan(b"", b"\xff")) == [(b"a", b"a"), (b"b", b"b"), (b"c", b"c")]
    assert list(records.snapshot().scan(b"", b"\xff")) == [(b"c", b"c"), (b"d", b"new")]


def test_deleting_what_is_not_there_is_no_error() -> None:
    records = MemRecords()
    records.put(b"a", b"1")
    records.delete_each([b"x", b"a"])
    assert list(records.snapshot().scan(b"", b"\xff")) == []
