"""`Files`: the calls to the operating system about files, as a parameter, and what is made of them.

The names and signatures are those of `os`, which is the default everywhere; the simulation passes its disk instead
(testkit/twins/storage). Paths are only names here: nothing is asked of a `Path` itself.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

FOLDER: Final = 0o700
FILE: Final = 0o600
"""Modes of what a server makes for itself; `file_modes` says why, and what is for others."""
_CHUNK: Final = 1 << 20


class Files(Protocol):
    """The functions of `os` that a node uses; the module satisfies it. All raise OSError."""

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int: ...
    def close(self, fd: int) -> None: ...
    def pread(self, fd: int, length: int, offset: int, /) -> bytes: ...
    def pwrite(self, fd: int, data: Any, offset: int, /) -> int: ...
    def pwritev(self, fd: int, buffers: Sequence[Any], offset: int, /) -> int: ...
    def posix_fallocate(self, fd: int, offset: int, length: int, /) -> None: ...
    def fsync(self, fd: int) -> None: ...
    def fdatasync(self, fd: int) -> None: ...
    def fstat(self, fd: int) -> os.stat_result: ...
    def stat(self, path: Any) -> os.stat_result: ...
    def lstat(self, path: Any) -> os.stat_result: ...
    def statvfs(self, path: Any) -> os.statvfs_result: ...
    def listdir(self, path: Any) -> list[str]: ...
    def mkdir(self, path: Any, mode: int = 0o777) -> None: ...
    def rename(self, src: Any, dst: Any) -> None: ...
    def replace(self, src: Any, dst: Any) -> None: ...
    def unlink(self, path: Any) -> None: ...
    def rmdir(self, path: Any) -> None: ...
    def chmod(self, path: Any, mode: int) -> None: ...


def exists(path: Path, files: Files = os) -> bool:
    return _mode(path, files) is not None


def is_folder(path: Path, files: Files = os) -> bool:
    mode = _mode(path, files)
    return mode is not None and stat.S_ISDIR(mode)


def _mode(path: Path, files: Files) -> int | None:
    try:
        return files.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def names_in(folder: Path, files: Files = os) -> list[str]:
    """Sorted; none where there is no such folder. Raises OSError."""
    try:
        return sorted(files.listdir(folder))
    except FileNotFoundError:
        return []


def read(path: Path, files: Files = os) -> bytes:
    """The whole file. Raises OSError."""
    descriptor = files.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = files.fstat(descriptor).st_size
        parts: list[bytes] = []
        at = 0
        while part := files.pread(descriptor, max(size - at, _CHUNK), at):
            parts.append(part)
            at += len(part)
        return b"".join(parts)
    finally:
        files.close(descriptor)


def read_text(path: Path, files: Files = os, *, errors: str = "strict") -> str:
    return read(path, files).decode(errors=errors)


def make_folder(path: Path, files: Files = os) -> None:
    """A folder for this server's own files, with those above it that are missing. Its name survives a crash. Raises
    OSError."""
    missing = [one for one in (path, *path.parents) if not exists(one, files)]
    for one in reversed(missing):
        try:
            files.mkdir(one, FOLDER)
        except FileExistsError:
            continue  # made by another process meanwhile
        files.chmod(one, FOLDER)  # not what the umask leaves of it
        sync(one.parent, files)
    if not is_folder(path, files):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def sync(path: Path, files: Files = os) -> None:
    """A file or a folder: durable once this returns. Raises OSError."""
    descriptor = files.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        files.fsync(descriptor)
    finally:
        files.close(descriptor)


def write(path: Path, data: bytes, files: Files = os) -> None:
    """The file in place of one that is there, on the disk, but not its name. Raises OSError."""
    descriptor = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE)
    try:
        at = 0
        while at < len(data):
            at += files.pwrite(descriptor, data[at:], at)
        files.fsync(descriptor)
    finally:
        files.close(descriptor)


def write_durably(path: Path, text: str, files: Files = os) -> None:
    """A small file. Atomic and durable: after a crash there is the old file or the new one, and once this returns, the
    new one. Raises OSError."""
    make_folder(path.parent, files)
    temporary = path.with_name(path.name + ".tmp")
    write(temporary, (text + "\n").encode(), files)
    files.replace(temporary, path)
    sync(path.parent, files)


def remove_tree(path: Path, files: Files = os) -> None:
    """A folder with all that is in it, as far as it can be removed."""
    try:
        for name in files.listdir(path):
            one = path / name
            if stat.S_ISDIR(files.lstat(one).st_mode):
                remove_tree(one, files)
            else:
                files.unlink(one)
        files.rmdir(path)
    except OSError:
        return


def free_bytes(path: Path, files: Files = os) -> int:
    """Free bytes of the file system, for a user who is not root. Raises OSError."""
    found = files.statvfs(path)
    return found.f_bavail * found.f_frsize


def total_bytes(path: Path, files: Files = os) -> int:
    """Size of the file system. Raises OSError."""
    found = files.statvfs(path)
    return found.f_blocks * found.f_frsize
