"""Threads of a simulated process: where they stand, what runs in between, and how they end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from jetcluster.files import read, sync, write
from testkit.twins.storage import RocksModule, SimDisk, SimWriter
from testkit.twins.storage.threads import Lock, Threads
from testkit.twins.time import ManualTime, SeededRng


class Process:
    def __init__(self, seed: int = 1, *, cuts: float = 1.0) -> None:
        self.time = ManualTime()
        self.disk = SimDisk(SeededRng(seed))
        self.disk.files.mkdir("/d")
        sync(Path("/"), self.disk.files)
        self.threads = Threads(self.disk, self.time.call_later, SeededRng(seed), cuts=cuts)
        self.said: list[str] = []

    def writes(self, name: str, times: int = 5) -> None:
        fd = self.disk.files.open(f"/d/{name}", 0o102)
        for at in range(times):
            self.disk.files.pwrite(fd, b"x", at)
            self.said.append(f"{name}{at}")
        self.disk.files.close(fd)


def order(seed: int, **options: float) -> list[str]:
    process = Process(seed, **options)
    for name in "ab":
        process.threads.start(lambda name=name: process.writes(name))  # type: ignore[misc]
    for at in range(40):
        process.time.advance(0.0001)
        process.said.append(f"loop{at}")
    process.time.advance(1.0)
    return process.said


def test_threads_and_the_loop_go_on_in_turns_and_a_seed_says_in_which() -> None:
    mixed = among = 0
    for seed in range(20):
        found = order(seed)
        calls = [said for said in found if "loop" not in said]
        assert sorted(calls) == sorted(f"{name}{at}" for name in "ab" for at in range(5))
        mixed += [call[0] for call in calls] not in (list("aaaaabbbbb"), list("bbbbbaaaaa"))
        among += any("loop" in said for said in found[found.index(calls[0]) : found.index(calls[-1])])
        assert found == order(seed)
    assert mixed > 3 and among > 10


def test_a_thread_that_is_never_cut_runs_in_one_piece() -> None:
    calls = [said for said in order(3, cuts=0.0) if "loop" not in said]
    assert calls in ([f"{n}{at}" for n in first for at in range(5)] for first in ("ab", "ba"))


def test_a_sync_takes_time_and_is_lost_with_the_power_before_it_ends() -> None:
    kept = set()
    for seed in range(40):
        process = Process(seed, cuts=0.0)
        disk = process.disk
        write(Path("/d/f"), b"old", disk.files)
        sync(Path("/d"), disk.files)
        ended: list[bool] = []

        def work(process: Process = process, ended: list[bool] = ended) -> None:
            write(Path("/d/f"), b"new", process.disk.files)
            ended.append(True)

        process.threads.start(work)
        process.time.advance(disk.rng.uniform(0.0, 0.004) if seed % 2 else 1.0)
        process.threads.end()
        disk.lose_power()
        assert not ended or read(Path("/d/f"), disk.files) == b"new"
        kept.add((bool(ended), read(Path("/d/f"), disk.files) == b"new"))
    assert {(True, True), (False, False)} <= kept


def test_what_a_disk_that_hangs_was_asked_for_ends_once_it_is_released() -> None:
    process = Process(cuts=0.0)
    process.disk.hang()
    process.threads.start(lambda: (write(Path("/d/f"), b"x", process.disk.files), process.said.append("written"))[1])
    process.time.advance(100.0)
    assert process.said == []
    process.disk.release()
    process.time.advance(1.0)
    assert process.said == ["written"]


@pytest.mark.parametrize("steps", range(1, 9))
def test_a_process_that_is_killed_touches_nothing_any_more(steps: int) -> None:
    """Not even by what its threads do at the end (`finally`)."""
    process = Process(2)
    files = process.disk.files

    def work() -> None:
        try:
            process.writes("a", 100)
        except BaseException:
            files.unlink("/d/a")
            raise
        finally:
            write(Path("/d/left"), b"x", files)

    process.threads.start(work)
    process.time.advance(0.03 + 0.0001 * steps)
    before = list(process.said)
    process.threads.end()
    process.disk.kill_process()
    process.time.advance(10.0)
    assert before == process.said and len(before) < 100
    assert "left" not in files.listdir("/d")
    assert process.threads.count == 0


def test_threads_of_a_process_that_stands_still_do_so_as_well() -> None:
    process = Process(2)
    process.threads.start(lambda: process.writes("a"))
    process.threads.pause()
    process.time.advance(10.0)
    assert process.said == []
    process.threads.resume()
    process.time.advance(10.0)
    assert len(process.said) == 5


def test_a_lock_keeps_threads_apart_and_the_loop_waits_for_who_holds_it() -> None:
    for seed in range(30):
        process = Process(seed)
        lock, inside = Lock(process.disk), []

        def work(name: str, process: Process = process, lock: Lock = lock, inside: list[str] = inside) -> None:
            with lock:
                inside.append(name)
                process.writes(name)
                assert inside == [name]
                inside.clear()

        for name in "abc":
            process.threads.start(lambda name=name, work=work: work(name))  # type: ignore[misc]
        process.time.advance(random.Random(seed).uniform(0.0, 0.03))
        with lock:  # whoever is in there goes on until it is not
            assert inside == []
        process.time.advance(10.0)
        assert len(process.said) == 15


def test_the_loop_waits_for_a_thread_that_waits_for_another() -> None:
    process = Process(2)
    lock = Lock(process.disk)

    def work(name: str) -> None:
        with lock:
            process.writes(name)

    first = process.threads.start(lambda: work("a"))
    process.time.advance(0.0201)
    second = process.threads.start(lambda: work("b"))
    process.threads.finish(second)
    assert len(process.said) == 10 and first.greenlet.dead


def test_the_database_is_closed_while_it_is_flushed_and_compacted_at_any_step() -> None:
    """All that was written before is there, whatever of the two was under way in threads."""
    under_way = 0
    for seed in range(60):
        process = Process(seed, cuts=0.5)
        rocks = RocksModule(process.disk)
        options = rocks.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(1 << 40)
        writes = rocks.WriteOptions()
        writes.disable_wal = True

        def put(db: object, *keys: int, rocks: RocksModule = rocks, writes: object = writes) -> None:
            batch = rocks.WriteBatch(raw_mode=True)
            for key in keys:
                batch.put(b"%04d" % key, b"v%d" % key)
            db.write(batch, writes)  # type: ignore[attr-defined]

        process.disk.files.mkdir("/d/db")
        db = rocks.Rdict("/d/db", options)
        for part in range(3):
            put(db, *range(10 * part, 10 * part + 10))
            db.flush(True)
        put(db, *range(30, 40))
        works = [lambda db=db: db.flush(True), lambda db=db: db.compact_range(b"0000", b"0040")]
        random.Random(seed).shuffle(works)
        for work in works:
            process.threads.start(work)
        for key in range(40, 50):
            process.time.advance(random.Random(seed * 100 + key).uniform(0.0, 0.004))
            put(db, key)
        under_way += process.threads.count > 0
        db.close()
        again = rocks.Rdict("/d/db", options)
        assert [key for key, _ in again.items()] == [b"%04d" % key for key in range(50)]
        again.close()
    assert under_way > 10


def test_the_writer_goes_on_to_the_next_job_before_the_loop_hears_of_the_end() -> None:
    process = Process(cuts=0.0)
    said = process.said
    soon: list[str] = []

    class Timers(ManualTime):
        def call_soon(self, callback: object, *args: object) -> object:  # type: ignore[override]
            soon.append(str(callback))
            return super().call_soon(callback, *args)  # type: ignore[arg-type]

    time = Timers()
    writer = SimWriter(process.disk, time, Threads(process.disk, time.call_later, SeededRng(1), cuts=0.0))
    for name in ("one", "two"):
        writer.submit(lambda name=name: said.append(f"does {name}"), lambda error, name=name: said.append(name))  # type: ignore[misc]
    time.advance(1.0)
    assert said == ["does one", "does two", "one", "two"]
    assert (writer.waits.came, writer.waits.begun, writer.waits.done, len(soon)) == (2, 2, 2, 2)
