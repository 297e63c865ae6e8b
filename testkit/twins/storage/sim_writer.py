"""`SimWriter`: who does blocking work on a simulated machine, in simulated time and in no thread.

One serves the journal (`jetcluster.raft.journal.writer.Writer`), others what the node hands to threads. A piece of work
is done at once, as far as the running process sees it; it hears that it is done when the disk is through with it, and
only then is it sure to outlive the power."""

from __future__ import annotations

import collections

from jetcluster.clock import Timers
from jetcluster.raft.journal.writer import DiskWaits, Done, Job
from testkit.twins.storage.sectors import Flight
from testkit.twins.storage.sim_disk import SimDisk


class SimWriter:
    """Jobs run one at a time, in order."""

    def __init__(self, disk: SimDisk, timers: Timers) -> None:
        self.waits = DiskWaits()
        self._disk = disk
        self._timers = timers
        self._jobs: collections.deque[tuple[Job, Done]] = collections.deque()
        self._under_way: tuple[Flight, BaseException | None, Done] | None = None
        self._ended = False

    def submit(self, job: Job, done: Done) -> None:
        self.waits.came += 1
        self._jobs.append((job, done))
        if self._under_way is None:
            self._begin()

    def _begin(self) -> None:
        if not self._jobs or self._ended:
            return
        job, done = self._jobs.popleft()
        self.waits.begun += 1
        error: BaseException | None = None
        with self._disk.flight() as flight:
            try:
                job()
            except Exception as e:
                error = e
        self._under_way = flight, error, done
        self._timers.call_later(self._disk.seconds(), self._landed, flight)

    def _landed(self, flight: Flight) -> None:
        if self._under_way is None or self._under_way[0] is not flight:
            return
        if self._disk.hung:
            self._disk.when_released(lambda: self._landed(flight))
            return
        _, error, done = self._under_way
        self._disk.land(flight)
        self._under_way = None
        self.waits.done += 1
        self._begin()
        done(error)

    def close(self) -> None:
        """Does at once what was submitted, as it cannot be waited for; on a disk that hangs, nothing."""
        while not self._disk.hung and (self._under_way is not None or self._jobs):
            if self._under_way is None:
                self._begin()
                continue
            flight, error, done = self._under_way
            self._disk.land(flight)
            self._under_way = None
            self.waits.done += 1
            self._timers.call_soon(done, error)
        self._ended = True

    def abandon(self) -> None:
        """The process is gone: nothing is reported, and what waits is not done."""
        self._ended = True
        self._under_way = None
        self._jobs.clear()
