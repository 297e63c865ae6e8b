"""`BackupStorage`: the port to a destination of backups, a few calls on named files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from jetcluster.backup.point import Blob
from jetcluster.backup.sequences import DamagedBackupError
from jetcluster.errors import CallerError, OperatorError, PassingError


class BackupStorageError(OperatorError):
    """The storage cannot be used: no room, no permission, no such bucket, an extra that is not installed."""


class StorageAwayError(PassingError):
    """The storage does not answer."""


class PresentError(CallerError):
    """A file that was to be created is there."""


class StoredFile(NamedTuple):
    """A file of a destination."""

    path: str
    size: int
    version: str = ""
    """Another one when another file has taken the place, as the destination tells without reading it."""


class BackupStorage(Protocol):
    """A destination. Paths are relative, with slashes. All raise BackupStorageError and StorageAwayError."""

    @property
    def url(self) -> str: ...

    def list(self, folder: str) -> Iterator[StoredFile]:
        """The files below `folder`, at any depth, in any order; none if there is no such folder."""
        ...

    def read(self, path: str) -> bytes | None:
        """The whole file; None if there is none."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Makes or replaces a file at once: nobody sees half of it, and it survives a power failure afterwards."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Like `write`. Raises PresentError if the file is there, also if it came a moment ago, unless this call has
        written it."""
        ...

    def delete(self, path: str) -> None:
        """A file that is not there is no error."""
        ...

    def sweep(self) -> None:
        """Removes what processes that were killed left of files that never appeared."""
        ...


def read_blob(storage: BackupStorage, blob: Blob) -> bytes:
    """Returns a blob's contents. Raises DamagedBackupError if it is missing or another one."""
    data = storage.read(blob.path)
    if data is None:
        raise DamagedBackupError(f"{storage.url}/{blob.path} is missing")
    if Blob.of(data) != blob:
        raise DamagedBackupError(f"{storage.url}/{blob.path} is damaged: its checksum is wrong")
    return data
