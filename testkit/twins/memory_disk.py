"""`MemoryDisk`: the twin of `raft.journal.disk.FileDisk` in memory."""

from __future__ import annotations

from jetcluster import faults
from jetcluster.clock import Rng


class MemoryDisk:
    """Test twin of `FileDisk`. `crash` forgets what was not synced; a write under way may leave any of its sectors."""

    SECTOR = 64

    def __init__(self, capacity: int = 1 << 40) -> None:
        self.capacity = capacity
        self.reported_free: int | None = None
        """The answer of `free_bytes`, when a test wants a wrong one."""
        self.hold_sync = False
        """Syncs do nothing: the power is going."""
        self._files: dict[int, bytearray] = {}
        self._synced: dict[int, bytearray] = {}
        self.unsynced: list[tuple[int, int, int]] = []
        """The bytes that a crash may lose: segment, start, end."""

    def segments(self) -> list[int]:
        return sorted(self._files)

    def used(self) -> int:
        return sum(map(len, self._files.values()))

    def create(self, number: int, size: int) -> None:
        faults.point("journal.create")
        if self.used() + size > self.capacity:
            raise OSError(28, "No space left on device")
        self._files[number] = bytearray(size)
        self._synced[number] = bytearray(size)

    def write(self, number: int, offset: int, chunks: list[bytes], sync: bool) -> None:
        if faults.active:
            faults.point("journal.write")
        data = b"".join(chunks)
        file = self._files[number]
        end = offset + len(data)
        if end > len(file):
            if self.used() + end - len(file) > self.capacity:
                fits = max(0, len(file) - offset)
                file[offset : offset + fits] = data[:fits]  # as a full file system does: part of it is there
                raise OSError(28, "No space left on device")
            file.extend(bytes(end - len(file)))
        file[offset:end] = data
        self.unsynced.append((number, offset, end))
        if sync:
            self.sync(number)
        if faults.active:
            faults.point("journal.synced")

    def sync(self, number: int) -> None:
        if number not in self._files:
            raise OSError(2, "No such file or directory")
        if self.hold_sync:
            return
        kept: list[tuple[int, int, int]] = []
        for item in self.unsynced:
            if item[0] == number:
                self._harden(*item)
            else:
                kept.append(item)
        self.unsynced = kept

    def _harden(self, number: int, start: int, end: int) -> None:
        target = self._synced[number]
        if len(target) < end:
            target.extend(bytes(end - len(target)))
        target[start:end] = self._files[number][start:end]

    def rewrite(self, number: int, offset: int, length: int) -> None:
        self.unsynced.append((number, offset, offset + length))
        self.sync(number)

    def wipe(self, number: int, offset: int) -> None:
        if number not in self._files:
            raise OSError(2, "No such file or directory")
        for files in (self._files, self._synced):
            file = files[number]
            file[offset:] = bytes(max(len(file) - offset, 0))

    def cut(self, number: int, size: int) -> None:
        """Makes the file shorter, behind everybody's back."""
        for files in (self._files, self._synced):
            del files[number][size:]

    def read(self, number: int, offset: int, length: int) -> bytes:
        faults.point("journal.read")
        if number not in self._files:
            raise OSError(2, "No such file or directory")
        return bytes(self._files[number][offset : offset + length])

    def load(self, number: int) -> bytes:
        return bytes(self._files[number])

    def delete(self, number: int) -> None:
        self._files.pop(number, None)
        self._synced.pop(number, None)

    def free_bytes(self) -> int:
        return self.capacity - self.used() if self.reported_free is None else self.reported_free

    def close(self) -> None:
        pass

    def crash(self, rng: Rng) -> None:
        """Loses what was not synced, except sectors that happened to reach the platter."""
        for number, start, end in self.unsynced:
            if number not in self._synced:
                continue
            survives = rng.random()
            for at in range(start, end, self.SECTOR):
                if rng.random() < survives:
                    self._harden(number, at, min(at + self.SECTOR, end))
        self.unsynced = []
        self._files = {number: bytearray(data) for number, data in self._synced.items()}

    def corrupt(self, number: int, offset: int, data: bytes) -> None:
        """Overwrites bytes behind everybody's back (bit rot)."""
        for files in (self._files, self._synced):
            files[number][offset : offset + len(data)] = data
