"""The journal's blocking work: one thread in production, the caller itself in unit tests; durable batches (`Syncs`)."""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from jetcluster.clock import Clock, SystemClock, Timers
from jetcluster.health.descriptors import SHORTAGE
from jetcluster.raft.journal.disk import Disk

Job = Callable[[], None]
Done = Callable[[BaseException | None], None]

RETRY_SECONDS: Final = 0.1
"""Pause before work that lacked a file descriptor is tried again."""


class Writer(Protocol):
    """Runs blocking jobs, one at a time, in the order in which they were submitted."""

    def submit(self, job: Job, done: Done) -> None:
        """Run `job`, then call `done` with its error, or None, on the event loop."""

    def close(self) -> None: ...


class WaitingWriter(Writer, Protocol):
    """A writer that counts waiting jobs."""

    @property
    def waits(self) -> DiskWaits: ...


class DiskWaits:
    """Counts jobs that were submitted while another one was running. The loop counts `came`; `ThreadWriter`'s thread
    counts the rest, and so does the loop for `QueuedWriter`."""

    def __init__(self) -> None:
        self.came = self.begun = self.done = 0
        self.waits = 0
        self.wait_ns = 0
        """Total time of all waits."""
        self.max_wait_ns = 0

    @property
    def waiters(self) -> int:
        return max(self.came - self.begun, 0)

    def ended(self, waited_ns: int) -> None:
        """Count the end of a job; the next one begins."""
        self.done += 1
        self.begun = min(self.done + 1, self.came)
        if waited_ns:
            self.waited(waited_ns)

    def waited(self, waited_ns: int) -> None:
        self.waits += 1
        self.wait_ns += waited_ns
        self.max_wait_ns = max(self.max_wait_ns, waited_ns)


class ThreadWriter:
    """One daemon thread: fsync happens off the GIL while the loop goes on. `QueuedWriter` is its compiled twin."""

    def __init__(
        self, call_soon_threadsafe: Callable[..., Any], name: str = "jc-journal", clock: Clock | None = None
    ) -> None:
        self.waits = DiskWaits()
        self._clock = clock or SystemClock()
        self._call = call_soon_threadsafe
        self._jobs: queue.SimpleQueue[tuple[Job, Done, float] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job, done: Done) -> None:
        waits = self.waits
        since = self._clock.monotonic() if waits.came != waits.done else 0.0
        waits.came += 1
        self._jobs.put((job, done, since))

    def _run(self) -> None:
        waits = self.waits
        while True:
            item = self._jobs.get()
            if item is None:
                return
            job, done, since = item
            waits.begun += 1
            if since:
                waits.waited(int((self._clock.monotonic() - since) * 1e9))
            error: BaseException | None = None
            try:
                job()
            except BaseException as e:  # noqa: BLE001 - the loop must learn of any failure: nothing may be acked
                error = e
            waits.done += 1
            try:
                self._call(done, error)
            except RuntimeError:  # the loop is closed
                return

    def close(self) -> None:
        """Finish the submitted jobs."""
        self._jobs.put(None)
        self._thread.join()


class Syncs:
    """The durable batches of one journal, and the callers that wait for more of them.

    Most batches are durable when their write returns. Those of memory streams, and all with a sync interval, are only
    written; a sync of the segment written last makes them durable, since the previous segment is synced before the
    first batch of a segment is written."""

    def __init__(
        self,
        disk: Disk,
        writer: Writer,
        timers: Timers,
        on_error: Callable[[BaseException], None],
        on_synced: Callable[[], None],
    ) -> None:
        """`on_error` is called when a sync has failed: nothing becomes durable any more. `on_synced` is called when a
        sync, not a write, has made batches durable."""
        self.synced = 0
        """The newest batch known to be durable."""
        self.written = 0
        """The newest batch written."""
        self.segment = 0
        """The segment of batch `written`."""
        self.closed = False
        self.failed = False
        """True once a write or a sync has failed: a sync that succeeds then proves nothing."""
        self._disk = disk
        self._writer = writer
        self._timers = timers
        self._on_error, self._on_synced = on_error, on_synced
        self.refused = False
        """True while the last sealed batch is not written, for lack of space or of file descriptors."""
        self._planned = False
        self.waiting: list[tuple[int, Callable[[], None]]] = []
        """(batch, callback once it is durable)."""

    def begin(self, seq: int) -> None:
        """Begin with the batches up to `seq`, which were found on the disk and synced."""
        self.synced = self.written = seq

    def write_ended(self) -> None:
        """Serve waiting callers after a write. Must be called if there are any, or a write was refused."""
        self.refused = False
        if not self.waiting:
            return
        if self.synced < self.written:
            self._sync()
        else:
            self._end()

    def write_refused(self) -> None:
        """Release the waiting callers: the last sealed batch could not be written, and is tried again."""
        self.refused = True
        self._end()

    def sync_within(self, seconds: float) -> None:
        """Sync after `seconds`, unless a sync is planned already."""
        if not self._planned:
            self._planned = True
            self._timers.call_later(seconds, self._sync)

    def barrier(self, seq: int, done: Callable[[], None], *, coming: bool) -> None:
        """Call `done` in a later turn, once batch `seq` is durable. `coming`: it will be written with a sync.

        If the disk is full or file descriptors are short, `done` is called at once, since flushed data frees journal
        space. Such data may be ahead of the journal after a power failure (`RaftNode._behind_its_state`)."""
        self.waiting.append((seq, done))
        if not coming and self.written == seq:
            self._sync()
        self._timers.call_soon(self._end)

    def close(self) -> None:
        self.closed = True
        self._end()

    def _sync(self) -> None:
        self._planned = False
        if not self.closed and self.written > self.synced:
            work = functools.partial(self._disk.sync, self.segment)
            self._writer.submit(work, functools.partial(self._returned, self.written))

    def _returned(self, seq: int, error: BaseException | None) -> None:
        if self.closed or self.failed:
            return
        if error is None:
            self.refused = False
            self.synced = max(self.synced, seq)
            self._on_synced()
            self._end()
        elif isinstance(error, OSError) and error.errno in SHORTAGE:  # raised before any request to the disk
            self.sync_within(RETRY_SECONDS)
            self.write_refused()
        else:
            self._on_error(error)

    def _end(self) -> None:
        waiting, self.waiting = self.waiting, []
        for seq, done in waiting:
            if seq <= self.synced or self.refused or self.closed:
                done()
            else:
                self.waiting.append((seq, done))
