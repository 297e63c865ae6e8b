"""The journal's blocking work: one thread in production, the caller itself in unit tests."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from jetcluster.clock import Clock, SystemClock

Job = Callable[[], None]
Done = Callable[[BaseException | None], None]


class Writer(Protocol):
    """Runs work that blocks, one piece after the other, in the order in which it was handed over."""

    def submit(self, job: Job, done: Done) -> None:
        """Runs `job` (jobs run one at a time, in order), then calls `done` with its error on the event loop."""
        ...

    def close(self) -> None: ...


class WaitingWriter(Writer, Protocol):
    """A writer that says whether work waits for it."""

    @property
    def waits(self) -> DiskWaits: ...


class DiskWaits:
    """Jobs that came while another one was under way. The loop counts what comes, the thread what is done."""

    def __init__(self) -> None:
        self.came = self.begun = self.done = 0
        self.waits = 0
        self.wait_ns = 0
        """All of them together."""
        self.max_wait_ns = 0

    @property
    def waiters(self) -> int:
        return max(self.came - self.begun, 0)


class ThreadWriter:
    """One daemon thread: fsync happens off the GIL while the loop goes on."""

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
                waited = int((self._clock.monotonic() - since) * 1e9)
                waits.waits += 1
                waits.wait_ns += waited
                waits.max_wait_ns = max(waits.max_wait_ns, waited)
            error: BaseException | None = None
            try:
                job()
            except BaseException as e:  # noqa: BLE001 - the loop must hear of any failure: nothing may be acked
                error = e
            waits.done += 1
            try:
                self._call(done, error)
            except RuntimeError:  # the loop is closed: nobody is left to be told
                return

    def close(self) -> None:
        """Waits for what was submitted."""
        self._jobs.put(None)
        self._thread.join()
