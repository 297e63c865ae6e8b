"""The writer whose thread needs the interpreter's lock for nothing that is plain, and the journal on it."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jetcluster import faults, native
from jetcluster.raft.journal.disk import FileDisk, FileMark
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.journal.queued_writer import QueuedWriter
from testkit.twins.time import SeededRng
from tests.unit.raft.journal_rig import ABC, OPTIONS, fill

pytestmark = pytest.mark.skipif(bool(native.why_pure), reason=native.why_pure)


@pytest.fixture
async def writer() -> AsyncIterator[QueuedWriter]:
    opened = QueuedWriter(asyncio.get_running_loop())
    yield opened
    opened.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | os.O_DSYNC)
    yield fd
    os.close(fd)


def result(writer: QueuedWriter, job: Callable[[], Any]) -> asyncio.Future[BaseException | None]:
    future: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    writer.submit(job, future.set_result)
    return future


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_write_begins_and_ends_while_the_loop_is_busy(writer: QueuedWriter, file: int) -> None:
    """With its twin a thread waits until the loop's turn is over."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    try:
        job = native.Write(file, [b"ab", b"", b"c"], 5)
        ended = result(writer, job)
        deadline = time.monotonic() + 5
        while not job.ended and time.monotonic() < deadline:
            pass
    finally:
        sys.setswitchinterval(before)
    assert job.ended and not ended.done()
    assert await ended is None
    assert os.pread(file, 100, 0) == bytes(5) + b"abc"
    assert (job.error, 0 < job.seconds < 5) == (0, True)


async def test_any_order_of_writes_and_other_jobs_is_kept(writer: QueuedWriter, file: int) -> None:
    """A write is as long as several system calls take."""
    many = [b"%07d" % n for n in range(2_500)]
    seen: list[int] = []
    ends: list[str] = []
    for n in range(40):
        if n % 3:
            writer.submit(native.Write(file, many, n * 17_500), lambda error, n=n: ends.append(f"write {n} {error}"))  # type: ignore[misc]
        else:
            writer.submit(
                lambda: seen.append(os.fstat(file).st_size), lambda error, n=n: ends.append(f"job {n} {error}")
            )  # type: ignore[misc]
    await until(lambda: len(ends) == 40)
    assert ends == [f"{'write' if n % 3 else 'job'} {n} None" for n in range(40)]
    assert seen == [0] + [17_500 * n for n in range(3, 40, 3)]
    assert os.pread(file, 17_500, 17_500 * 38) == b"".join(many)


@pytest.mark.parametrize("where", ["queue", "caller"])
async def test_a_write_that_stops_early_goes_on_and_says_what_stopped_it(
    writer: QueuedWriter, file: int, where: str
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_003, before[1]))  # the first system call writes a part
    try:
        job = native.Write(file, [b"x" * 4_000] * 5, 0)
        if where == "caller":
            with pytest.raises(OSError) as raised:
                job()
            error: BaseException | None = raised.value
        else:
            error = await result(writer, job)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert isinstance(error, OSError) and error.errno == errno.EFBIG and "File too large" in str(error)
    assert os.fstat(file).st_size == 10_003
    assert await result(writer, native.Write(file, [b"y"], 0)) is None


@pytest.mark.parametrize("wrong", [(-1, [b"a"], 0), (1, [b"a"], -1), (1, [bytearray(b"a")], 0), (1, ["a"], 0)])
def test_what_is_no_write_is_refused(wrong: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        native.Write(*wrong)


async def test_who_waits_for_another_job_is_counted_and_for_how_long(writer: QueuedWriter, file: int) -> None:
    waits, go = writer.waits, threading.Event()
    assert await result(writer, native.Write(file, [b"a"], 0)) is None
    assert (waits.came, waits.done, waits.waiters, waits.waits) == (1, 1, 0, 0)
    first = result(writer, lambda: go.wait(5))
    others = [result(writer, native.Write(file, [b"a"], n)) for n in range(3)]
    assert (waits.waiters, waits.waits) == (3, 0)
    await asyncio.sleep(0.02)
    go.set()
    await asyncio.gather(first, *others)
    assert (waits.waiters, waits.waits, waits.done) == (0, 3, 5)
    assert waits.max_wait_ns >= 20_000_000 and waits.wait_ns >= 60_000_000


async def test_a_callback_that_raises_holds_nobody_up(writer: QueuedWriter, file: int) -> None:
    loop = asyncio.get_running_loop()
    unhandled: list[Any] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context["exception"]))

    def raises(_: BaseException | None) -> None:
        time.sleep(0.05)  # the ends of both are read at once
        raise ValueError

    writer.submit(native.Write(file, [b"a"], 0), raises)
    ended = result(writer, native.Write(file, [b"b"], 1))
    async with asyncio.timeout(5):
        assert await ended is None
    assert [type(error) for error in unhandled] == [ValueError]


class Opened:
    """A journal with files and this writer."""

    def __init__(self, folder: Path) -> None:
        loop = asyncio.get_running_loop()
        self.disk = FileDisk(folder / "journal")
        self.writer = QueuedWriter(loop)
        self.mark = FileMark(folder / "mark", "me")
        self.fatal: list[BaseException] = []
        self.journal = Journal(self.disk, self.writer, loop, SeededRng(1), OPTIONS, self.fatal.append, self.mark)
        self.found = self.journal.open()
        self.plain: list[int] = []
        plain_write = self.disk.plain_write

        def counted(number: int, offset: int, chunks: list[bytes]) -> Any:
            job = plain_write(number, offset, chunks)
            self.plain.append(job is not None)
            return job

        self.disk.plain_write = counted  # type: ignore[method-assign]


@pytest.mark.parametrize("end", ["idle", "in flight"])
async def test_a_journal_on_it_is_whole_after_a_restart(tmp_path: Path, end: str) -> None:
    one = Opened(tmp_path)
    log = one.journal.create(1, ABC, True)
    await until(lambda: log.durable_gseq == log.gseq)
    for n in range(1, 30):
        fill(log, 5)
        await until(lambda n=n: log.durable_index == 5 * n)  # type: ignore[misc]
    assert sum(one.plain) >= 25, "all but the first of a segment"
    assert len(one.journal.sync_latency.fresh) >= 25
    fill(log, 5)
    if end == "in flight":
        one.journal._kick()  # its end reaches the loop only after the journal was closed
        await asyncio.to_thread(lambda: None)
    else:
        await until(lambda: log.durable_index == 150)
    last = one.journal.in_flight or one.journal.synced
    one.journal.close()
    assert one.mark.read() == last, "the durable mark knows it"
    again = Opened(tmp_path)
    assert again.found.groups[1].last_index == 150 and not again.found.damage
    again.journal.close()


async def test_what_is_not_plain_is_written_by_the_twin(tmp_path: Path) -> None:
    one = Opened(tmp_path)
    disk, journal = one.disk, one.journal
    log = journal.create(1, ABC, True)
    await until(lambda: log.durable_gseq == log.gseq)
    segment = journal.segment
    assert disk.plain_write(segment, 0, [b""]) is not None
    with faults.armed("journal.write", faults.fail(errno.ENOSPC)):
        assert disk.plain_write(segment, 0, [b""]) is None
        fill(log, 1)
        await until(lambda: journal.stuck)
    await until(lambda: log.durable_index == 1)
    assert disk.plain_write(segment + 1, 0, [b""]) is None, "there is no such file"
    disk._unsynced.add(segment)
    assert disk.plain_write(segment, 0, [b""]) is None, "earlier bytes are not durable yet"
    disk._unsynced.clear()
    disk._sync_failed = True
    assert disk.plain_write(segment, 0, [b""]) is None
    disk._sync_failed = False
    journal.close()
    relaxed = FileDisk(tmp_path / "relaxed", always_sync=False)
    relaxed.create(1, 4096)
    assert relaxed.plain_write(1, 0, [b""]) is None, "its files are not open with O_DSYNC"
    relaxed.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
async def test_a_plain_write_that_fails_is_fatal_unless_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    one = Opened(tmp_path)
    log = one.journal.create(1, ABC, True)
    await until(lambda: log.durable_gseq == log.gseq)
    submit = one.writer.submit
    failing = [True]

    def fails(job: Any, done: Any) -> None:
        if type(job) is native.Write and failing.pop():
            done(OSError(code, os.strerror(code)))
        else:
            submit(job, done)

    monkeypatch.setattr(one.writer, "submit", fails)
    fill(log, 3)
    if code == errno.EIO:
        await until(lambda: bool(one.fatal))
        assert log.durable_index == 0
    else:
        await until(lambda: log.durable_index == 3)
        assert not one.fatal and one.journal.counters.full_episodes == 1
    one.journal.close()
