"""`FolderStorage`: backups in a folder. A file is written under a temporary name, synced, and then appears at once."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jetcluster.backup.storage import BackupStorageError, PresentError, StoredFile

TEMPORARY: Final = ".tmp-"
LEFT_SECONDS: Final = 3600.0
"""Age of a temporary file that a killed process left."""
FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
"""A backup has what the account has: only its owner reads it."""


class FolderStorage:
    """A folder of a file system that has hard links, as all POSIX ones have."""

    def __init__(self, folder: str, *, private: bool = True) -> None:
        """`private`: only the owner may read what is written; otherwise those who may by the process's umask."""
        self._folder = Path(folder)
        self._file_mode, self._folder_mode = (FILE_MODE, FOLDER_MODE) if private else (0o666, 0o777)

    @property
    def url(self) -> str:
        return str(self._folder)

    def list(self, folder: str) -> Iterator[StoredFile]:
        for path in self._files(folder):
            if not path.name.startswith(TEMPORARY) and (found := self._stat(path)) is not None:
                version = f"{found.st_ino}-{found.st_mtime_ns}"
                yield StoredFile(path.relative_to(self._folder).as_posix(), found.st_size, version)

    def sweep(self) -> None:
        for path in self._files(""):
            found = self._stat(path) if path.name.startswith(TEMPORARY) else None
            if found is not None and time.time() - found.st_mtime > LEFT_SECONDS:
                self.delete(path.relative_to(self._folder).as_posix())

    def _files(self, folder: str) -> Iterator[Path]:
        """Yields the files below a folder; what vanishes meanwhile is left out."""
        try:
            for where, _, names in os.walk(self.at(folder), onerror=_raise):
                yield from (Path(where, name) for name in names)
        except OSError as error:
            raise self._refused(folder, error) from error

    def _stat(self, path: Path) -> os.stat_result | None:
        try:
            return path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._refused(str(path), error) from error

    def at(self, path: str) -> Path:
        """Returns the place of a file. Raises BackupStorageError for a path that leaves the folder, as the index of a
        damaged backup may have it."""
        if "\0" in path or path.startswith("/") or ".." in path.split("/"):
            raise BackupStorageError(f"{path!r} is no path of a backup")
        return self._folder / path

    def read(self, path: str) -> bytes | None:
        try:
            return self.at(path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._refused(path, error) from error

    def write(self, path: str, data: bytes) -> None:
        with self._written(path, data) as temporary:
            temporary.replace(self._folder / path)

    def create(self, path: str, data: bytes) -> None:
        with self._written(path, data) as temporary:
            try:
                os.link(temporary, self._folder / path)
            except FileExistsError:
                raise PresentError(f"{self._folder / path} is there") from None

    def delete(self, path: str) -> None:
        target = self.at(path)
        try:
            target.unlink(missing_ok=True)
            if target.parent.is_dir():
                _sync(target.parent)
        except OSError as error:
            raise self._refused(path, error) from error

    @contextlib.contextmanager
    def _written(self, path: str, data: bytes) -> Iterator[Path]:
        """A synced file with a temporary name, beside `path`. What was done with it is synced afterwards."""
        target = self.at(path)
        temporary = target.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
        try:
            self._make(target.parent)
            try:
                temporary.touch(self._file_mode, exist_ok=False)
                with temporary.open("r+b") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                yield temporary
            finally:
                temporary.unlink(missing_ok=True)
            _sync(target.parent)
        except OSError as error:
            raise self._refused(path, error) from error

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(self._folder_mode)
        _sync(folder.parent)

    def _refused(self, path: str, error: OSError) -> BackupStorageError:
        return BackupStorageError(f"{self._folder / path}: {error.strerror or error}")


def _raise(error: OSError) -> None:
    """Raises it, but for a folder that is not there, or not any more."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
