"""`SimWriter`: the journal's writer of a simulated process (`jetcluster.raft.journal.writer.Writer`)."""

from __future__ import annotations

import collections

from jetcluster.clock import Timers
from jetcluster.raft.journal.writer import DiskWaits, Done, Job
from testkit.twins.storage.sim_disk import SimDisk
from testkit.twins.storage.threads import Thread, Threads


class SimWriter:
    """Jobs run one at a time, in order, in a thread. What follows a job begins before the event loop hears of its
    end."""

    def __init__(self, disk: SimDisk, timers: Timers, threads: Threads | None = None) -> None:
        """`threads`: those of the process; without, it has no others."""
        self.waits = DiskWaits()
        self._disk = disk
        self._timers = timers
        self._threads = threads or Threads(disk, timers.call_later, disk.rng)
        self._jobs: collections.deque[tuple[Job, Done]] = collections.deque()
        self._thread: Thread | None = None
        """The thread while there are jobs."""
        self._ended = False

    def submit(self, job: Job, done: Done) -> None:
        self.waits.came += 1
        self._jobs.append((job, done))
        if self._thread is None and not self._ended:
            self._thread = self._threads.start(self._run)

    def _run(self) -> None:
        while self._jobs:
            job, done = self._jobs.popleft()
            self.waits.begun += 1
            error: BaseException | None = None
            try:
                job()
            except Exception as e:
                error = e
            self.waits.done += 1
            self._timers.call_soon(done, error)
        self._thread = None

    def close(self) -> None:
        """Waits for the end of what was submitted; on a disk that hangs, for nothing."""
        if self._thread is not None and not self._disk.hung:
            self._threads.finish(self._thread)
        self._ended = True

    def abandon(self) -> None:
        """The process is gone: nothing is reported, and what waits is not done."""
        self._ended = True
        self._jobs.clear()
        if self._thread is not None:
            self._threads.end_one(self._thread)
            self._thread = None
