"""`MemoryMark` and `InlineWriter`: what a journal on a `MemoryDisk` needs besides."""

from __future__ import annotations

from jetcluster.clock import Timers
from jetcluster.raft.journal.writer import Done, Job


class MemoryMark:
    """Test twin of `FileMark`: survives a killed process."""

    def __init__(self) -> None:
        self.batch = 0

    def read(self) -> int:
        return self.batch

    def write(self, batch: int) -> None:
        self.batch = batch

    def close(self) -> None:
        pass


class InlineWriter:
    """Test twin: does the job at once, reports in the next turn. From `hold` to `release` the disk does nothing."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._held: list[tuple[Job, Done]] | None = None

    def hold(self) -> None:
        self._held = []

    def release(self) -> None:
        """Does the jobs that were held."""
        held, self._held = self._held or [], None
        for job, done in held:
            self.submit(job, done)

    def submit(self, job: Job, done: Done) -> None:
        if self._held is not None:
            self._held.append((job, done))
            return
        error: BaseException | None = None
        try:
            job()
        except Exception as e:
            error = e
        self._timers.call_soon(done, error)

    def close(self) -> None:
        pass
