"""A writer whose thread needs the interpreter's lock only for what is not a plain write (`native.WriteQueue`).

`ThreadWriter` is the twin. Its thread cannot begin a write before the event loop's turn ends, as that holds the lock,
and must get the lock again when it has ended; both cost switches between the threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from typing import Any, Final

from jetcluster import native
from jetcluster.raft.journal.writer import DiskWaits, Done, Job

_READ_BYTES: Final = 4096


class QueuedWriter:
    """One daemon thread. Ends of jobs reach the loop by a pipe, in their order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str = "jc-journal") -> None:
        self.waits = DiskWaits()
        self._loop = loop
        self._ends, self._wake = os.pipe()
        for end in (self._ends, self._wake):
            os.set_blocking(end, False)
        self._queue = native.WriteQueue(self._wake)
        self._waiting: deque[tuple[Any, Done, bool]] = deque()
        """Jobs that have not ended, or whose end the loop has not seen; what to call then; whether others were there
        before."""
        loop.add_reader(self._ends, self._ended)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job, done: Done) -> None:
        waits = self.waits
        late = waits.came != waits.done
        waits.came += 1
        if not late:
            waits.begun = waits.came
        queued = job if type(job) is native.Write else native.Job(job)
        self._waiting.append((queued, done, late))
        self._queue.put(queued)

    def _run(self) -> None:
        queue = self._queue
        while (job := queue.serve()) is not None:
            try:
                job.call()
            except BaseException as error:  # noqa: BLE001 - the loop must learn of any failure: nothing may be acked
                job.raised = error
            queue.finished(job)

    def _ended(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._ends, _READ_BYTES)
        waiting = self._waiting
        while waiting and waiting[0][0].ended:
            job, done, late = waiting.popleft()
            self.waits.ended(job.waited_ns if late else 0)
            try:
                done(OSError(job.error, os.strerror(job.error)) if job.error else job.raised)
            except BaseException:
                self._loop.call_soon(self._ended)  # nothing else wakes the loop for those behind it
                raise

    def close(self) -> None:
        """Finish the submitted jobs."""
        self._queue.close()
        self._thread.join()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.remove_reader(self._ends)
        self._ended()
        os.close(self._ends)
        os.close(self._wake)
