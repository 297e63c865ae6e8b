"""`MemoryStorage`: the twin of a destination of backups, which fails where a test wants it to."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from jetcluster.backup.storage import PresentError, StoredFile


class DiedError(BaseException):
    """The process is gone, as after `kill -9`: nothing that it would do at its end happens either."""


class MemoryStorage:
    """A destination in memory. `die_at`: the number of the change (from 1) that does not happen any more, nor does one
    after it; `die_after`: the same for a change that happens before the process dies."""

    url = "memory:"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.changes = 0
        self.reads = 0
        self.die_at = 0
        self.die_after = 0

    def list(self, folder: str) -> Iterator[StoredFile]:
        self._alive()
        for path in sorted(self.files):
            if path.startswith(f"{folder}/"):
                data = self.files[path]
                yield StoredFile(path, len(data), f"{zlib.crc32(data):08x}")

    def read(self, path: str) -> bytes | None:
        self._alive()
        self.reads += 1
        return self.files.get(path)

    def write(self, path: str, data: bytes) -> None:
        self._change()
        self.files[path] = data
        self._changed()

    def create(self, path: str, data: bytes) -> None:
        self._alive()
        if path in self.files:
            raise PresentError(f"{path} is there")
        self._change()
        self.files[path] = data
        self._changed()

    def delete(self, path: str) -> None:
        self._change()
        self.files.pop(path, None)
        self._changed()

    def sweep(self) -> None:
        self._alive()

    def revive(self) -> None:
        """Lets the next process work; its changes are counted from 1."""
        self.changes = self.die_at = self.die_after = 0

    def _alive(self) -> None:
        if (self.die_at and self.changes >= self.die_at) or (self.die_after and self.changes >= self.die_after):
            raise DiedError

    def _change(self) -> None:
        self._alive()
        self.changes += 1
        if self.changes == self.die_at:
            raise DiedError

    def _changed(self) -> None:
        if self.changes == self.die_after:
            raise DiedError
