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
        self._closed = False
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
        self._tell()

    def _tell(self) -> None:
        """Tell of each job that has ended. A callback that raises holds up none behind it, which nothing would wake."""
        waiting = self._waiting
        while waiting and waiting[0][0].ended:
            job, done, late = waiting.popleft()
            self.waits.ended(job.waited_ns if late else 0)
            try:
                done(OSError(job.error, os.strerror(job.error)) if job.error else job.raised)
            except Exception as error:  # noqa: BLE001 - handled as an event loop does
                text = "Exception in what waited for the journal's writer"
                self._loop.call_exception_handler({"message": text, "exception": error})

    def close(self) -> None:
        """Finish the submitted jobs. Another call does nothing: the pipe's numbers may be another file's by then."""
        if self._closed:
            return
        self._closed = True
        self._queue.close()
        self._thread.join()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.remove_reader(self._ends)
        self._tell()
        os.close(self._ends)
        os.close(self._wake)
