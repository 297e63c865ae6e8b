"""`JournalDisk`, `MemoryMark` and `InlineWriter`: what a journal of tests stands on, without files and threads."""

from __future__ import annotations

import copy
from pathlib import Path

from jetcluster.clock import Rng, Timers
from jetcluster.raft.journal.disk import FileDisk
from jetcluster.raft.journal.writer import DiskWaits, Done, Job
from testkit.twins.storage.sectors import SectorFile
from testkit.twins.storage.sim_disk import SimDisk
from testkit.twins.time import SeededRng

FOLDER = Path("/wal")
SECTOR = 64


class JournalDisk(FileDisk):
    """`FileDisk` on a simulated disk. `crash` forgets what was not synced; a write under way may leave any of its
    sectors."""

    def __init__(self, machine: SimDisk | None = None, folder: Path = FOLDER) -> None:
        self.machine = machine or SimDisk(SeededRng(0), sector=SECTOR)
        self.folder = folder
        self._open()

    def _open(self) -> None:
        super().__init__(self.folder, files=self.machine.files)

    @property
    def reported_free(self) -> int | None:
        """The free bytes that `look` finds, when a test wants a wrong one."""
        return self.machine.reported_free

    @reported_free.setter
    def reported_free(self, size: int | None) -> None:
        self.machine.reported_free = size

    def close(self) -> None:
        """The process is over; the next one finds the same files."""
        super().close()
        self._open()

    @property
    def capacity(self) -> int:
        """Bytes; may be changed."""
        return self.machine.capacity

    @capacity.setter
    def capacity(self, size: int) -> None:
        self.machine.capacity = size

    def used(self) -> int:
        return self.machine.used

    def crash(self, rng: Rng) -> None:
        """The power goes, and comes back."""
        self.machine.rng = rng
        self.machine.lose_power()
        self._open()

    def copy(self) -> JournalDisk:
        """The disk as it is at this moment."""
        return JournalDisk(copy.deepcopy(self.machine), self.folder)

    @property
    def unsynced(self) -> list[int]:
        """Segments of which a crash may lose something."""
        return [number for number in self.segments() if self._file(number).dirty]

    def lose_unsynced(self) -> None:
        """None of what was not synced has reached the platter by chance."""
        for number in self.unsynced:
            file = self._file(number)
            file.sectors, file.size, file.dirty = dict(file.stored), file.stored_size, {}

    def _file(self, number: int) -> SectorFile:
        return self.machine.file(self._path(number))

    def cut(self, number: int, size: int) -> None:
        """Makes the file shorter, behind everybody's back."""
        self.machine.cut(self._path(number), size)

    def vanish(self) -> None:
        """Deletes the folder under the process that has it open."""
        for number in self.segments():
            self.machine.files.unlink(self._path(number))
        self.machine.files.rmdir(self.folder)

    def corrupt(self, number: int, offset: int, data: bytes) -> None:
        """Overwrites bytes behind everybody's back (bit rot)."""
        self._file(number).overwrite(offset, data)


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
        self.waits = DiskWaits()
        self._timers = timers
        self._held: list[tuple[Job, Done]] | None = None
        self.submitted = 0
        """Jobs so far, those that wait included."""

    def hold(self) -> None:
        self._held = []

    def release(self) -> None:
        """Does the jobs that were held."""
        held, self._held = self._held or [], None
        for job, done in held:
            self._do(job, done)

    def submit(self, job: Job, done: Done) -> None:
        self.submitted += 1
        self._do(job, done)

    def _do(self, job: Job, done: Done) -> None:
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
