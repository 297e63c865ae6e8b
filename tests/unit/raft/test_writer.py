from __future__ import annotations

import asyncio
import threading

from jetcluster.raft.writer import ThreadWriter
from testkit.twins.journal import InlineWriter
from testkit.twins.time import ManualTime


async def test_jobs_run_in_order_in_one_thread_and_report_on_the_loop() -> None:
    writer = ThreadWriter(asyncio.get_running_loop().call_soon_threadsafe)
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


async def test_closing_waits_for_what_was_submitted() -> None:
    writer = ThreadWriter(asyncio.get_running_loop().call_soon_threadsafe)
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
