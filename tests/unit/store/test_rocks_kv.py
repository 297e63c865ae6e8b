"""A data store that flushes only when its owner says so: it never waits for its disk (store/rocks_kv.py)."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from jetcluster import faults
from jetcluster.store import rocks_kv
from jetcluster.store.kv import KvError
from jetcluster.store.rocks_kv import RocksKv
from testkit import shim
from tests.unit.store.fake_rocks import END, Rocks, flushing


@pytest.fixture
def rocks() -> Rocks:
    return Rocks()


@pytest.fixture
def kv(tmp_path: Path, rocks: Rocks) -> Iterator[RocksKv]:
    opened = RocksKv(tmp_path / "db", owner_flushes=True, rocks=rocks)
    yield opened
    opened.close()


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            found[path.name] = path.stat().st_size, path.stat().st_mtime_ns
    return found


@contextmanager
def after_a_power_failure(kv: RocksKv, path: Path) -> Iterator[RocksKv]:
    """The files as they are now, opened elsewhere."""
    folder = kv._path
    while True:
        before = _files(folder)
        with suppress(shutil.Error):
            shutil.copytree(folder, path)
            if _files(folder) == before:
                break
        shutil.rmtree(path)  # a compaction has replaced some meanwhile: no moment had these files
    copy = RocksKv(path)
    yield copy
    copy.close()
    shutil.rmtree(path)


async def test_what_is_written_while_a_flush_begins_stays_open_and_is_read(kv: RocksKv, tmp_path: Path) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def before() -> None:
        asked.set()
        await go_on.wait()

    kv.serve(before, lambda: None)
    for key in (b"a", b"b", b"c"):
        kv.put(key, b"1")
    task = asyncio.create_task(kv.flush())
    await asked.wait()
    kv.put(b"a", b"2")
    kv.delete_range(b"b", b"c")
    kv.put(b"d", b"2")
    assert kv.commit() == 1 and kv.open_bytes, "it might still get into what is flushed"
    now = [(b"a", b"2"), (b"c", b"1"), (b"d", b"2")]
    snapshot = kv.snapshot()
    assert list(kv.scan(b"", END)) == list(snapshot.scan(b"", END)) == now
    assert (kv.get(b"b"), kv.floor(b"b", b""), kv.ceiling(b"b", END)) == (None, now[0], now[1])
    assert kv.durable == 0 and kv.busy_since is not None
    with after_a_power_failure(kv, tmp_path / "before") as copy:
        assert not list(copy.scan(b"", END)), "nothing was flushed before it was allowed"
    go_on.set()
    await task
    assert (kv.commits, kv.durable) == (1, 1)
    with after_a_power_failure(kv, tmp_path / "flushed") as copy:
        assert list(copy.scan(b"", END)) == [(key, b"1") for key in (b"a", b"b", b"c")], "and nothing but that"
    assert kv.commit() == 2 and not kv.open_bytes
    kv.put(b"e", b"3")
    kv.commit()
    assert list(snapshot.scan(b"", END)) == now and list(snapshot.scan(b"b", b"d")) == now[1:2]


async def test_a_flush_makes_durable_what_had_to_wait_when_it_was_called(kv: RocksKv, tmp_path: Path) -> None:
    kv.put(b"a", b"1")
    async with flushing(kv):
        kv._active = 1 << 40  # no more fits
        kv.put(b"b", b"2")
        kv.commit()
        assert kv.open_bytes
        second = asyncio.create_task(kv.flush())
    await second
    assert not kv.open_bytes and (kv.commits, kv.durable) == (2, 2)
    with after_a_power_failure(kv, tmp_path / "copy") as copy:
        assert list(copy.scan(b"", END)) == [(b"a", b"1"), (b"b", b"2")]


async def test_a_full_memtable_asks_for_a_flush_and_has_commits_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocks_kv, "MAX_OPEN_BYTES", 3 << 20)
    rocks = Rocks()
    kv = RocksKv(tmp_path / "db", owner_flushes=True, total_bytes=256 << 20, rocks=rocks)
    number = 0

    def put_one() -> None:
        nonlocal number
        kv.put(b"%06d" % number, random.randbytes(256 << 10))
        number += 1
        kv.commit()

    told: list[int] = []
    kv.serve(kv.before_flush, lambda: told.append(number))
    while not kv.due:
        put_one()
    assert 30 <= number <= 33 and not kv.open_bytes
    assert not told
    while not kv.open_bytes:
        put_one()
    assert told == [number], "at once"
    assert 44 <= number <= 49 and not kv.overloaded
    while not kv.overloaded:
        put_one()
    assert kv.open_bytes == pytest.approx(3 << 20, rel=0.1)
    commits = kv.commits
    await kv.flush()
    assert kv.durable == kv.commits == commits + 1 and not (kv.due or kv.overloaded or kv.open_bytes)
    assert sum(1 for _ in kv.scan(b"", END)) == number
    assert int(rocks.real.property_value("rocksdb.num-files-at-level0") or 0) == 2, "nobody else flushed"
    kv.close()


async def test_a_flush_that_hangs_stops_nothing(kv: RocksKv, tmp_path: Path) -> None:
    kv.put(b"a", b"1")
    async with flushing(kv):
        for number in range(100):
            kv.put(b"b", b"%d" % number)
            assert kv.commit() == number + 2
        assert kv.durable == 0
    assert kv.durable == 1
    with after_a_power_failure(kv, tmp_path / "copy") as copy:
        assert list(copy.scan(b"", END)) == [(b"a", b"1")]


async def test_a_write_that_would_have_to_wait_is_put_off(kv: RocksKv, rocks: Rocks) -> None:
    class Stalled:
        """RocksDB while compactions do not keep up."""

        writes = 0

        def write(self, *args: Any) -> None:
            self.writes += 1
            raise RuntimeError("Result incomplete: Write stall")

        def property_int_value(self, name: str) -> int:
            return 1 if name.endswith("is-write-stopped") else int(rocks.real.property_int_value(name))

    stalled = rocks.instead = Stalled()
    kv.put_new({b"a": b"1"})
    assert kv.commit() == kv.commit() == 0
    assert kv.open_bytes and stalled.writes == 1, "no batch is made in vain"
    assert kv.busy_since is not None and not kv.failing
    rocks.instead = None
    kv.delete_each([b"a"])
    kv.put(b"b", b"2")
    assert kv.commit() == 1 and list(kv.scan(b"", END)) == [(b"b", b"2")]
    assert kv.busy_since is None


@pytest.mark.parametrize("reclaims", [True, False])
async def test_a_compaction_flushes_nothing_that_flushes_wait_for(kv: RocksKv, rocks: Rocks, reclaims: bool) -> None:
    """It would flush what was committed meanwhile among its keys, and with that everything else. Commits go on while
    it works, all the same."""
    inner = rocks.real
    allowed: list[int] = []
    found: list[tuple[int, int]] = []
    during: list[int] = []
    done = asyncio.Event()

    class Watched:
        def compact_range(self, start: bytes, end: bytes) -> None:
            entries = inner.property_int_value("rocksdb.num-entries-active-mem-table")
            found.append((entries, kv.commits - allowed[-1]))
            inner.compact_range(start, end)
            now = kv.commits
            threading.Event().wait(0.2)
            during.append(kv.commits - now)

    rocks.instead = Watched()

    async def before() -> None:
        await asyncio.sleep(0.01)
        allowed.append(kv.commits)

    async def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            kv.put(b"k%d" % (number % 5), b"%d" % number)
            kv.commit()
            await asyncio.sleep(0)

    kv.serve(before, lambda: None)
    kv.put(b"k1", b"0")
    writer = asyncio.create_task(write())
    if reclaims:
        await kv.reclaim([(b"k0", b"k3"), (b"k3", b"k9")])
    else:
        kv.outdated(b"k1")
        kv.outdated(b"k2")
        await kv.flush()
    done.set()
    await writer
    assert found == [(0, 0)] * 2, "nothing in memory, and nothing committed since the journal was synced"
    assert min(during) > 10, "commits go on"


class Compactions:
    """In the place of those of a database: which there were."""

    def __init__(self) -> None:
        self.found: list[bytes] = []

    def compact_range(self, start: bytes, end: bytes) -> None:
        assert end == start + b"\0"
        self.found.append(start)


async def test_what_is_to_be_compacted_is_not_forgotten_when_the_journal_cannot_be_synced(
    kv: RocksKv, rocks: Rocks
) -> None:
    failing = True
    calls = 0

    async def before() -> None:
        nonlocal calls
        calls += 1
        if failing and calls > 1:
            raise KvError("the journal")

    compactions = rocks.instead = Compactions()
    kv.serve(before, lambda: None)
    kv.put(b"a", b"1")
    kv.outdated(b"a")
    with pytest.raises(KvError, match="the journal"):
        await kv.flush()
    assert not compactions.found
    kv.put(b"b", b"1")
    assert kv.commit() == 2, "commits go on"
    failing = False
    await kv.flush()
    await kv.flush()
    assert compactions.found == [b"a"]


async def test_all_that_is_outdated_is_compacted_some_at_each_flush(kv: RocksKv, rocks: Rocks) -> None:
    compactions = rocks.instead = Compactions()
    keys = [b"%03d" % number for number in range(40)]
    for key in keys:
        kv.put(key, b"")
        kv.outdated(key)
    counts: list[int] = []
    while not counts or kv.wants_flush:
        await kv.flush()
        counts.append(len(compactions.found))
    assert compactions.found == keys and counts == [16, 32, 40]
    await kv.flush()
    assert len(compactions.found) == 40


@pytest.mark.parametrize("seed", range(6))
async def test_any_order_of_writes_commits_flushes_failures_and_crashes(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads always see everything; a crash leaves exactly what the newest `durable` commit held."""
    rng = random.Random(seed)
    kv = RocksKv(tmp_path / "db", owner_flushes=True)
    model: dict[bytes, bytes] = {}
    states: list[dict[bytes, bytes]] = [{}]
    """Content of the store after each commit."""
    snapshots: list[tuple[Any, list[tuple[bytes, bytes]]]] = []
    flushes: list[asyncio.Task[None]] = []
    gate = asyncio.Event()
    kv.serve(gate.wait, lambda: None)  # type: ignore[arg-type]

    def key() -> bytes:
        return b"%d" % rng.randrange(20)

    def commit() -> None:
        before = kv.commits
        kv.commit()
        assert kv.commits - before in (0, 1)
        if kv.commits > before:
            assert not kv.open_bytes
            states.append(dict(model))

    def flushed_state(durable: int) -> None:
        with after_a_power_failure(kv, tmp_path / "copy") as copy:
            assert dict(copy.scan(b"", END)) in states[durable : durable + 1 + bool(flushes)]

    for _ in range(300):
        match rng.randrange(12):
            case 0 | 1 | 2:
                where, value = key(), rng.randbytes(3)
                kv.put(where, value)
                model[where] = value
            case 3:
                where = key()
                kv.delete(where)
                model.pop(where, None)
            case 4:
                low, high = sorted((key(), key()))
                kv.delete_range(low, high)
                model = {k: v for k, v in model.items() if not low <= k < high}
            case 5 | 6:
                commit()
            case 7 if len(flushes) < 2:
                before = kv.commits
                flushes.append(asyncio.create_task(kv.flush()))
                await asyncio.sleep(0)  # it commits
                if kv.commits > before:
                    states.append(dict(model))
            case 8:
                gate.set()
                before = kv.commits
                while flushes:  # where something had to wait it commits again, what is there by then
                    await flushes.pop(0)
                states += [dict(model)] * (kv.commits - before)
                gate.clear()
            case 9:
                with faults.armed("store.write", faults.fail(errno.EIO)):
                    if not kv._switching and kv.open_bytes:
                        with pytest.raises(KvError):
                            kv.commit()
            case 10:
                before = kv.commits
                snapshots.append((kv.snapshot(), sorted(model.items())))
                if kv.commits > before:
                    states.append(dict(model))
                del snapshots[:-3]
            case 11 if not flushes:
                flushed_state(kv.durable)
        assert list(kv.scan(b"", END)) == sorted(model.items())
        where = key()
        assert kv.get(where) == model.get(where)
        below = [pair for pair in sorted(model.items()) if pair[0] <= where]
        assert kv.floor(where, b"") == (below[-1] if below else None)
        assert len(states) == kv.commits + 1
        for snapshot, then in snapshots:
            assert list(snapshot.scan(b"", END)) == then
    gate.set()
    await asyncio.gather(*flushes)
    kv.close()


CHILD = """
import asyncio, os, sys, threading, time
from operator import attrgetter
from pathlib import Path
from jetcluster.store import rocks_kv
rocks_kv.MEMTABLE_BYTES = 1 << 20
rocks_kv.MAX_OPEN_BYTES = 1 << 20
kv = rocks_kv.RocksKv(Path(os.environ["CHAOS_HANG_IN"]), owner_flushes=True)
hang = Path(os.environ["CHAOS_HANG"])

async def main():
    kv.put(b"a", b"1")
    await kv.flush()
    hang.touch()
    number, slowest, flush, waited = 0, 0.0, None, False
    end = time.monotonic() + 7.0
    while time.monotonic() < end:
        if not kv.overloaded:
            kv.put(b"%06d" % number, os.urandom(100_000))
            number += 1
        start = time.monotonic()
        kv.commit()
        slowest = max(slowest, time.monotonic() - start)
        if kv.due and flush is None:
            flush = asyncio.create_task(kv.flush())
        waited |= kv.overloaded
        await asyncio.sleep(0.02)
    assert waited and not flush.done() and kv.durable == 1
    hang.unlink()
    await flush
    await kv.flush()
    assert sum(1 for _ in kv.scan(b"0", b"9")) == number and kv.durable == kv.commits
    print(number, slowest)

asyncio.run(main())
os._exit(0)
"""


def test_a_disk_that_hangs_in_the_kernel_delays_no_commit(tmp_path: Path) -> None:
    """For longer than the 5 s after which RocksDB writes to its log file; more is written than memory may hold."""
    why_not = shim.why_not()
    if why_not:
        pytest.skip(why_not)
    library, data = shim.build(tmp_path), tmp_path / "data"
    hang = {"LD_PRELOAD": str(library), "CHAOS_HANG": str(tmp_path / "hang"), "CHAOS_HANG_IN": str(data)}
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **hang}
    child = subprocess.run([sys.executable, "-c", CHILD], env=env, capture_output=True, timeout=60, check=False)
    assert child.returncode == 0, child.stderr.decode()
    number, slowest = child.stdout.split()
    assert 20 <= int(number) <= 60, "one memtable, half another one, and the open writes"
    assert float(slowest) < 1.0


def test_a_store_that_is_open_already_is_called_so(tmp_path: Path) -> None:
    first = RocksKv(tmp_path / "db")
    told = "another process has .*db open: is a server with this store still running"
    try:
        with pytest.raises(KvError, match=told):
            RocksKv(tmp_path / "db")
        code = "import pathlib, sys, jetcluster.store.rocks_kv as kv; kv.RocksKv(pathlib.Path(sys.argv[1]))"
        command = [sys.executable, "-c", code, str(tmp_path / "db")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "another process has" in done.stderr.splitlines()[-1]
    finally:
        first.close()
    RocksKv(tmp_path / "db").close()


def test_writes_wait_also_where_nothing_shows_that_a_flush_has_begun(tmp_path: Path) -> None:
    """Before a compaction RocksDB writes what it holds, and the next flush begins with an empty memtable. What is put
    into that before its journal is vouched for must not go to the disk with it."""
    kv = RocksKv(tmp_path / "db", owner_flushes=True)
    kv.put(b"a", b"1")
    kv.commit()
    attrgetter("_flush_memtable")(kv)()

    async def vouch() -> None:
        kv.put(b"b", b"2")
        assert kv.commit() == 1 and kv.open_bytes

    kv.before_flush = vouch
    asyncio.run(kv.flush())
    assert kv.durable == 1
    assert kv.commit() == 2
    with after_a_power_failure(kv, tmp_path / "copy") as copy:
        assert (copy.get(b"a"), copy.get(b"b")) == (b"1", None)
    kv.close()
