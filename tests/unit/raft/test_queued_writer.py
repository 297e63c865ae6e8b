"""The writer whose thread needs the interpreter's lock for nothing that is plain, and the journal on it."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import subprocess
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
from jetcluster.raft.journal.log import GroupLog
from jetcluster.raft.journal.queued_writer import QueuedWriter
from testkit import shim
from testkit.twins.journal import JournalDisk
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


def is_open(number: int) -> bool:
    return Path(f"/proc/self/fd/{number}").exists()


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


@pytest.mark.parametrize(
    "wrong", [(-1, [b"a"], 0), (1, [b"a"], -1), (1, [bytearray(b"a")], 0), (1, ["a"], 0), (1, [b"a", None], 0)]
)
def test_what_is_no_write_is_refused(wrong: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        native.Write(*wrong)


async def test_a_job_runs_once(writer: QueuedWriter, file: int) -> None:
    """The end of its first run would be taken for that of the second, before the bytes are on the disk."""
    job = native.Write(file, [b"a"], 0)
    assert await result(writer, job) is None
    with pytest.raises(ValueError, match="once"):
        writer.submit(job, lambda error: None)
    with pytest.raises(ValueError, match="once"):
        job()
    with pytest.raises(ValueError):
        job.__init__(file, [b"b"], 0)
    assert await result(writer, native.Write(file, [b"c"], 1)) is None, "the others are not held up"
    assert os.pread(file, 10, 0) == b"ac"


async def test_what_was_written_is_let_go(writer: QueuedWriter, file: int) -> None:
    part, folded = os.urandom(100), os.urandom(100)
    parts = [part, folded]
    before = sys.getrefcount(part), sys.getrefcount(folded)
    for n in range(500):
        ended = result(writer, native.Write(file, parts, n * 200))
        parts[1:] = [folded]  # the list is the caller's
        assert await ended is None
    for wrong in ([part, None], [part, "a"]):
        with pytest.raises(TypeError):
            native.Write(file, wrong, 0)
    del wrong
    assert (sys.getrefcount(part), sys.getrefcount(folded)) == before


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


@pytest.mark.parametrize("end", ["loop", "close"])
async def test_a_callback_that_raises_holds_nobody_up(file: int, end: str) -> None:
    loop = asyncio.get_running_loop()
    writer = QueuedWriter(loop)
    unhandled: list[Any] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context["exception"]))

    def raises(_: BaseException | None) -> None:
        time.sleep(0.05)  # the ends of both are read at once
        raise ValueError

    writer.submit(native.Write(file, [b"a"], 0), raises)
    ended = result(writer, native.Write(file, [b"b"], 1))
    if end == "loop":
        async with asyncio.timeout(5):
            assert await ended is None
    writer.close()
    assert ended.done() and [type(error) for error in unhandled] == [ValueError]


async def test_a_second_close_leaves_the_files_of_others_alone(file: int) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    writer = QueuedWriter(asyncio.get_running_loop())
    numbers = [int(fd.name) for fd in set(Path("/proc/self/fd").iterdir()) - before]
    writer.close()
    others = [os.dup2(file, number) for number in numbers if not is_open(number)]
    assert len(others) == 2
    writer.close()
    for number in others:
        os.fstat(number)
        os.close(number)


class Opened:
    """A journal with files and this writer."""

    def __init__(self, folder: Path) -> None:
        loop = asyncio.get_running_loop()
        self.folder = folder
        self.disk = FileDisk(folder / "journal")
        self.writer = QueuedWriter(loop)
        self.mark = FileMark(folder / "mark", "me")
        self.fatal: list[BaseException] = []
        self.journal = Journal(self.disk, self.writer, loop, SeededRng(1), OPTIONS, self.fatal.append, self.mark)
        self.found = self.journal.open()
        self.plain: list[Any] = []
        """The jobs of the batches so far, None for those that only the twin could write."""
        plain_write = self.disk.plain_write

        def noted(number: int, offset: int, chunks: list[bytes]) -> Any:
            self.plain.append(plain_write(number, offset, chunks))
            return self.plain[-1]

        self.disk.plain_write = noted  # type: ignore[method-assign]

    async def settled(self, log: GroupLog) -> None:
        """Waits until the log is on disk, and the look at the disk behind a new segment is over: a descriptor that
        leads elsewhere by then is not the segment any more, and the journal counts as lost."""
        waits = self.writer.waits
        await until(lambda: log.durable_gseq == log.gseq and waits.came == waits.done)

    @property
    def descriptor(self) -> int:
        """The descriptor of the segment that is written."""
        path = self.folder / "journal" / f"{self.journal.segment:016x}.wal"
        return next(int(fd.name) for fd in Path("/proc/self/fd").iterdir() if fd.resolve() == path.resolve())


@pytest.mark.parametrize("end", ["idle", "in flight"])
async def test_a_journal_on_it_is_whole_after_a_restart(tmp_path: Path, end: str) -> None:
    one = Opened(tmp_path)
    log = one.journal.create(1, ABC, True)
    await one.settled(log)
    for n in range(1, 30):
        fill(log, 5)
        await until(lambda n=n: log.durable_index == 5 * n)  # type: ignore[misc]
    assert len([job for job in one.plain if job]) >= 25, "all but the first of a segment"
    assert len(one.journal.sync_latency.fresh) >= 25
    fill(log, 5)
    if end == "in flight":
        await asyncio.sleep(0)  # it is at the writer, whose end reaches the loop only after the journal was closed
        assert one.journal.in_flight
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
    await one.settled(log)
    segment = journal.segment
    assert disk.plain_write(segment, 0, [b""]) is not None
    with faults.armed("journal.write", faults.fail(errno.ENOSPC)):
        assert disk.plain_write(segment, 0, [b""]) is None
        fill(log, 1)
        await until(lambda: journal.stuck)
    await until(lambda: log.durable_index == 1)
    assert disk.plain_write(segment + 1, 0, [b""]) is None, "there is no such file"
    disk.write(segment, 4000, [b"memory"], False)
    assert disk.plain_write(segment, 0, [b""]) is None, "earlier bytes are not durable yet"
    disk.sync(segment)
    assert disk.plain_write(segment, 0, [b""]) is not None
    journal.close()
    relaxed = FileDisk(tmp_path / "relaxed", always_sync=False)
    relaxed.create(1, 4096)
    assert relaxed.plain_write(1, 0, [b""]) is None, "its files are not open with O_DSYNC"
    relaxed.close()


def test_after_a_sync_that_failed_no_write_is_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FileDisk(tmp_path)
    disk.create(1, 4096)
    disk.create(2, 4096)
    assert disk.plain_write(2, 0, [b""]) is not None
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda fd: faults.fail(errno.EIO)())
        with pytest.raises(OSError):
            disk.sync(1)
    assert disk.plain_write(2, 0, [b""]) is None
    disk.close()


@pytest.mark.parametrize(("code", "device"), [(errno.EIO, "/proc/self/mem"), (errno.ENOSPC, "/dev/full")])
async def test_a_plain_write_that_fails_is_fatal_unless_the_disk_is_full(
    tmp_path: Path, code: int, device: str
) -> None:
    """The segment's descriptor leads to a device that answers the system call with the error."""
    one = Opened(tmp_path)
    log = one.journal.create(1, ABC, True)
    await one.settled(log)
    fd = one.descriptor
    kept, other = os.dup(fd), os.open(device, os.O_RDWR)
    os.dup2(other, fd)
    fill(log, 3)
    await until(lambda: bool(one.fatal) if code == errno.EIO else one.journal.stuck)
    os.dup2(kept, fd)
    assert one.plain[-1] is not None and log.durable_index == 0
    if code == errno.EIO:
        assert [error.errno for error in one.fatal if isinstance(error, OSError)] == [code]
        fill(log, 1)
        await asyncio.sleep(0.02)
        assert log.durable_index == 0, "the disk works again, which proves nothing"
    else:
        await until(lambda: log.durable_index == 3)
        assert not one.fatal and one.journal.counters.full_episodes == 1
    one.journal.close()
    os.close(kept)
    os.close(other)
    again = Opened(tmp_path)
    assert again.found.groups[1].last_index == log.durable_index and not again.found.damage
    again.journal.close()


async def test_a_failed_write_is_known_to_a_close_before_its_end_was_told(tmp_path: Path) -> None:
    one = Opened(tmp_path)
    log = one.journal.create(1, ABC, True)
    await one.settled(log)
    before = one.journal.synced
    fd = one.descriptor
    kept, other = os.dup(fd), os.open("/proc/self/mem", os.O_RDWR)
    os.dup2(other, fd)
    fill(log, 3)
    await asyncio.sleep(0)
    deadline = time.monotonic() + 5
    while not one.plain[-1].ended and time.monotonic() < deadline:
        pass
    assert one.plain[-1].ended and one.journal.in_flight
    os.dup2(kept, fd)
    fill(log, 2)  # a batch behind it, which must not be written over a gap
    one.journal.close()
    assert one.mark.read() == before and log.durable_index == 0
    os.close(kept)
    os.close(other)
    again = Opened(tmp_path)
    assert again.found.groups[1].last_index == 0 and not again.found.damage
    again.journal.close()


HANGING = """
import asyncio, sys
from pathlib import Path
from tests.unit.raft.journal_rig import ABC, fill
from tests.unit.raft.test_queued_writer import Opened, until

async def main():
    one, hang, loop = Opened(Path(sys.argv[1])), Path(sys.argv[2]), asyncio.get_running_loop()
    log = one.journal.create(1, ABC, True)
    await one.settled(log)
    hang.touch()
    fill(log, 3)
    slowest, end = 0.0, loop.time() + 0.3
    while (start := loop.time()) < end:
        await asyncio.sleep(0.001)
        slowest = max(slowest, loop.time() - start)
    seen = one.journal.in_flight, one.plain[-1] is not None, log.durable_index, one.journal.synced
    hang.unlink()
    await until(lambda: log.durable_index == 3)
    print(*seen, one.journal.in_flight, max(one.journal.sync_latency.fresh) > 0.25, slowest < 0.2)
    one.journal.close()

asyncio.run(main())
"""


def test_a_write_that_hangs_in_the_kernel_holds_no_loop_and_is_seen(tmp_path: Path) -> None:
    """`RaftNode` says that the node is not well while the same batch stays in flight."""
    if why_not := shim.why_not():
        pytest.skip(why_not)
    store, hang = tmp_path / "store", tmp_path / "hang"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "LD_PRELOAD": str(shim.build(tmp_path))}
    env |= {"CHAOS_HANG": str(hang), "CHAOS_HANG_IN": str(store)}
    store.mkdir()
    child = subprocess.run(
        [sys.executable, "-c", HANGING, store, hang], env=env, capture_output=True, text=True, timeout=30, check=False
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.split() == ["2", "True", "0", "1", "0", "True", "True"]


def test_a_disk_of_tests_is_never_passed_by() -> None:
    """All of its faults are in its own files, which a plain write would not reach."""
    disk = JournalDisk()
    disk.create(1, 4096)
    assert disk.plain_write(1, 0, [b"a"]) is None
