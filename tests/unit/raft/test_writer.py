"""The writer of the journal: entries that survive a power failure, and callers that wait for them."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from jetcluster import faults, native
from jetcluster.raft.journal.disk import FileDisk
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.journal.queued_writer import QueuedWriter
from jetcluster.raft.journal.writer import ThreadWriter, Writer
from testkit.twins.journal import InlineWriter
from testkit.twins.time import ManualTime, SeededRng
from tests.unit.raft.journal_rig import ABC, OPTIONS, Rig, barrier, fill, filled


def opened(kind: str) -> Writer:
    loop = asyncio.get_running_loop()
    return QueuedWriter(loop) if kind == "compiled" else ThreadWriter(loop.call_soon_threadsafe)


KINDS = ["python", pytest.param("compiled", marks=pytest.mark.skipif(bool(native.why_pure), reason=native.why_pure))]


@pytest.mark.parametrize("kind", KINDS)
async def test_jobs_run_in_order_in_one_thread_and_report_on_the_loop(kind: str) -> None:
    writer = opened(kind)
    ran: list[tuple[int, str]] = []
    told: list[tuple[int, str, str]] = []
    finished = asyncio.Event()

    def job(i: int) -> None:
        ran.append((i, threading.current_thread().name))
        if i == 2:
            raise OSError(28, "No space left on device")

    def done(i: int, error: BaseException | None) -> None:
        told.append((i, threading.current_thread().name, str(error)))
        if i == 4:
            finished.set()

    for i in range(5):
        writer.submit(lambda i=i: job(i), lambda error, i=i: done(i, error))  # type: ignore[misc]
    async with asyncio.timeout(5):
        await finished.wait()
    writer.close()
    assert [i for i, _ in ran] == [i for i, _, _ in told] == list(range(5))
    assert {name for _, name in ran} == {"jc-journal"}
    assert {name for _, name, _ in told} == {threading.current_thread().name}
    assert told[2][2] == "[Errno 28] No space left on device"


@pytest.mark.parametrize("kind", KINDS)
async def test_closing_waits_for_what_was_submitted(kind: str) -> None:
    writer = opened(kind)
    ran: list[int] = []
    for i in range(50):
        writer.submit(lambda i=i: ran.append(i), lambda error: None)  # type: ignore[misc]
    writer.close()
    assert ran == list(range(50))


async def test_who_waits_for_another_job_is_counted_and_for_how_long() -> None:
    time, go = ManualTime(), [threading.Event(), threading.Event()]
    writer = ThreadWriter(asyncio.get_running_loop().call_soon_threadsafe, clock=time)
    time.advance(1.0)
    writer.submit(lambda: None, lambda error: None)  # finds nothing under way
    async with asyncio.timeout(5):
        while not writer.waits.done:
            await asyncio.sleep(0.001)
    for event in go:
        writer.submit(lambda event=event: event.wait(5) and None, lambda error: None)  # type: ignore[misc]
    writer.submit(lambda: None, lambda error: None)
    async with asyncio.timeout(5):
        while writer.waits.begun < 2:
            await asyncio.sleep(0.001)
    assert (writer.waits.waiters, writer.waits.waits) == (2, 0)
    time.advance(2.0)
    go[0].set()
    async with asyncio.timeout(5):
        while writer.waits.waits < 1:
            await asyncio.sleep(0.001)
    time.advance(1.0)
    go[1].set()
    writer.close()
    waits = writer.waits
    assert (waits.waiters, waits.waits, waits.wait_ns, waits.max_wait_ns) == (0, 2, 5 * 10**9, 3 * 10**9)


def test_the_twin_works_at_once_and_reports_in_the_next_turn() -> None:
    time = ManualTime()
    writer = InlineWriter(time)
    seen: list[object] = []
    writer.submit(lambda: seen.append("job"), lambda error: seen.append(error))
    assert seen == ["job"]
    time.advance(0)
    assert seen == ["job", None]
    writer.close()


@pytest.mark.parametrize("kind", ["sync_interval", "memory"])
@pytest.mark.parametrize("when", ["open", "in flight", "written"])
def test_a_barrier_waits_until_what_was_appended_is_on_the_disk(kind: str, when: str) -> None:
    rig = Rig(sync_interval=120.0 if kind == "sync_interval" else None, segment_bytes=1 << 16)
    log = rig.log(durable=kind != "memory")
    rig.settle()
    fill(log, 5)
    if when == "in flight":
        rig.journal._kick()
    elif when == "written":
        rig.settle()
        assert log.durable_index == 5, "it counts, and would not outlive the power"
    called = barrier(rig, 1)
    assert called == []
    rig.settle()
    assert called == [1]
    assert rig.crash().groups[1].last_index == 5


def test_a_barrier_with_nothing_to_wait_for_ends_in_the_next_turn(rig: Rig) -> None:
    rig.fill(rig.log(), 5)
    writes = rig.journal.counters.batches
    called = barrier(rig, 1)
    rig.settle()
    assert called == [1]
    assert rig.journal.counters.batches == writes


def test_a_barrier_covers_the_segment_before() -> None:
    rig = Rig(sync_interval=120.0, segment_bytes=4_096)
    log = rig.log()
    for _ in range(12):
        rig.fill(log, 20)
    assert rig.journal.segment > 2
    called = barrier(rig, 1)
    rig.settle()
    assert called == [1]
    assert rig.crash().groups[1].last_index == 240


def test_a_barrier_does_not_wait_for_a_full_disk(rig: Rig) -> None:
    """A flush frees the journal's space."""
    log = rig.log()
    rig.settle()
    rig.disk.capacity = rig.disk.used()
    called: list[int] = []
    with faults.armed("journal.write", faults.fail(errno.ENOSPC)):
        fill(log, 5)
        rig.journal.barrier(lambda: called.append(1))
        rig.settle(0.05)
        assert rig.journal.stuck
        assert called == [1]
        rig.journal.barrier(lambda: called.append(2))
        rig.settle()
        assert called == [1, 2]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_a_repeated_write_that_hangs_is_seen(rig: Rig, code: int) -> None:
    """`RaftNode` sees by `in_flight` that a disk hangs, also when it had refused the write before."""
    log = rig.log()
    rig.settle()
    with faults.armed("journal.write", faults.fail(code)):
        fill(log, 5)
        rig.settle(0.01)
    assert log.durable_index == 0 and rig.journal.in_flight == 0
    rig.writer.hold()
    rig.settle(2.0)
    assert rig.journal.in_flight == rig.journal.seq - 1
    rig.writer.release()
    rig.settle()
    assert log.durable_index == 5 and rig.journal.in_flight == 0


def test_a_barrier_vouches_for_nothing_that_a_full_disk_refused() -> None:
    """A kill comes between the refusal and the next attempt: what never was on the disk is not missed."""
    rig, log = filled(5)
    synced = rig.journal.synced
    with faults.armed("journal.write", faults.fail(errno.ENOSPC)):
        fill(log, 5)
        rig.journal._kick()
        rig.settle(0.01)
        called = barrier(rig, 1)
        rig.settle(0.02)
        assert called == [1]
        assert (rig.journal.synced, log.durable_index) == (synced, 5)
        found = rig.crash()
    assert not found.damage
    assert found.groups[1].last_index == 5


def hanging(rig: Rig, seconds: float) -> list[int]:
    """A barrier behind entries for a disk that hangs for so long: none was called."""
    log = rig.log()
    rig.settle()
    rig.writer.hold()
    fill(log, 5)
    called = barrier(rig, 1)
    rig.settle(seconds)
    assert called == []
    return called


def test_a_barrier_waits_for_a_disk_that_hangs(rig: Rig) -> None:
    hanging(rig, 60.0)
    assert rig.journal.in_flight


def test_a_write_behind_a_sync_that_failed_is_not_called_durable(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may have dropped what it held."""
    rig.log()
    memory = rig.log(2, durable=False)
    rig.settle()
    rig.fill(memory, 5)
    synced, failing, sync = rig.journal.synced, [True], rig.disk.sync

    def fails_once(number: int) -> None:
        if failing and failing.pop():
            raise OSError(errno.EIO, "Input/output error")
        sync(number)

    monkeypatch.setattr(rig.disk, "sync", fails_once)
    rig.writer.hold()
    rig.journal.barrier(lambda: None)
    fill(rig.log(), 5)
    rig.settle()
    rig.writer.release()
    rig.settle()
    assert len(rig.fatal) == 1 and (rig.journal.synced, rig.log().durable_index) == (synced, 0)


def test_a_sync_behind_a_write_that_failed_makes_nothing_durable() -> None:
    rig = Rig(sync_interval=120.0, segment_bytes=1 << 16)
    log = rig.log()
    rig.settle()
    rig.fill(log, 5)
    synced = rig.journal.synced
    rig.writer.hold()
    fill(log, 5)
    rig.settle(121.0)
    with faults.armed("journal.write", faults.fail(errno.EIO)):
        rig.writer.release()
    rig.settle()
    assert len(rig.fatal) == 1 and rig.journal.synced == synced


@pytest.mark.parametrize("batches", [0, 1])
def test_a_close_writes_nothing_behind_a_batch_that_failed(rig: Rig, batches: int) -> None:
    """The loop has not been told yet. `batches`: those that the process has written before."""
    log = rig.log()
    if batches:
        rig.settle()
    before = rig.journal.synced

    def close() -> None:
        faults.disarm("journal.write")
        fill(log, 1)
        rig.journal.close()

    with faults.armed("journal.write", faults.fail(errno.EIO)):
        fill(log, 1)
        rig.time.call_soon(close)  # between the write and its end
        rig.settle()
    assert rig.mark.read() == before
    rig.open()
    assert not rig.found.damage


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_a_segment_that_cannot_be_made_is_waited_out_beside_a_barrier(tmp_path: Path, code: int) -> None:
    """Nothing else is to be written, and the file that the barrier would sync is not there yet."""
    time, fatal, called = ManualTime(), list[BaseException](), list[int]()
    disk = FileDisk(tmp_path / "journal")
    journal = Journal(disk, InlineWriter(time), time, SeededRng(1), OPTIONS, fatal.append)
    journal.open()
    log = journal.create(1, ABC, True)
    time.advance(0)
    segment = journal.segment
    with faults.armed("journal.create", faults.fail(code)):
        while journal.segment == segment:
            fill(log, 5)
            time.advance(0)
        fill(log, 1)
        time.advance(0.01)
        synced, durable = journal.synced, log.durable_index
        journal.barrier(lambda: called.append(1))
        time.advance(0.01)
        assert called == [1], "nobody waits for it"
        assert (journal.synced, log.durable_index) == (synced, durable), "what was not written is not vouched for"
        assert durable < log.last_index
    time.advance(1.0)
    assert log.durable_index == log.last_index and not fatal
    journal.barrier(lambda: called.append(2))
    time.advance(0)
    assert called == [1, 2]
    journal.close()


def test_a_sync_without_a_file_descriptor_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(sync_interval=120.0, segment_bytes=1 << 16)
    log = rig.log()
    rig.settle()
    rig.fill(log, 5)
    synced, called, sync = rig.journal.synced, list[int](), rig.disk.sync

    def none_left(number: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(rig.disk, "sync", none_left)
    rig.journal.barrier(lambda: called.append(1))
    rig.settle(0.05)
    assert called == [1] and rig.journal.synced == synced and rig.journal.failed is None
    monkeypatch.setattr(rig.disk, "sync", sync)
    rig.settle(0.2)
    assert rig.journal.synced == synced + 1
    assert rig.crash().groups[1].last_index == 5


def test_a_sync_that_fails_is_the_end() -> None:
    """After a failed fsync the kernel may have dropped the pages."""
    rig = Rig(sync_interval=120.0, segment_bytes=1 << 16)
    log = rig.log()
    rig.settle()
    rig.fill(log, 5)
    rig.disk.delete(rig.journal.segment)  # behind the journal's back
    rig.journal.barrier(lambda: None)
    rig.settle(0.05)
    assert isinstance(rig.journal.failed, OSError) and rig.fatal == [rig.journal.failed]


def test_nobody_waits_for_a_journal_that_is_closed(rig: Rig) -> None:
    """The last flush of a node that stops, beside a disk that hangs."""
    called = hanging(rig, 1.0)
    rig.journal.close()
    assert called == [1]
