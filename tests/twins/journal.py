"""`MemoryMark` and `InlineWriter`: what a journal on a `MemoryDisk` needs besides."""

from __future__ import annotations

from jetcluster.clock import Timers
from jetcluster.raft.writer import Done, Job


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
    """Test twin: does the job at once, reports in the next turn."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    def submit(self, job: Job, done: Done) -> None:
        error: BaseException | None = None
        try:
            job()
        except Exception as e:
            error = e
        self._timers.call_soon(done, error)

    def close(self) -> None:
        pass
