"""`Files`: the operating system's calls about files, as a parameter, and functions that use them.

Names and signatures are those of `os`, the default everywhere; the simulation passes its disk instead
(testkit/twins/storage). A `Path` is only a name here: none of its methods reaches the file system.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
"""Modes of a server's own files and folders (see `file_modes`)."""
_CHUNK_BYTES: Final = 1 << 20
HOLE_CHECK_BYTES: Final = 1 << 16


class Files(Protocol):
    """The functions of `os` that a node uses; the module satisfies it. All raise OSError."""

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int: ...
    def close(self, fd: int) -> None: ...
    def pread(self, fd: int, length: int, offset: int, /) -> bytes: ...
    def pwrite(self, fd: int, data: Any, offset: int, /) -> int: ...
    def pwritev(self, fd: int, buffers: Sequence[Any], offset: int, /) -> int: ...
    def posix_fallocate(self, fd: int, offset: int, length: int, /) -> None: ...
    def lseek(self, fd: int, position: int, whence: int, /) -> int: ...
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
    """Return the sorted names in a folder, none if it does not exist. Raises OSError."""
    try:
        return sorted(files.listdir(folder))
    except FileNotFoundError:
        return []


def read(path: Path, files: Files = os) -> bytes:
    """Return the whole file. Raises OSError."""
    descriptor = files.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = files.fstat(descriptor).st_size
        parts: list[bytes] = []
        at = 0
        while part := files.pread(descriptor, max(size - at, _CHUNK_BYTES), at):
            parts.append(part)
            at += len(part)
        return b"".join(parts)
    finally:
        files.close(descriptor)


def read_beginning(path: Path, files: Files = os) -> tuple[bytes, int]:
    """Return what a preallocated file holds, up to where the file system knows of nothing but zeros, and its size.

    The zeros that follow at once are read and looked at: a file system that forgets what it was given there (it has
    happened) is not believed. Raises OSError.
    """
    descriptor = files.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = files.fstat(descriptor).st_size
        end = min(_data_end(descriptor, size, files) + HOLE_CHECK_BYTES, size)
        data = files.pread(descriptor, end, 0)
    finally:
        files.close(descriptor)
    if len(data) < end or (end < size and data[-HOLE_CHECK_BYTES:].strip(b"\0")):
        data = read(path, files)
        size = len(data)
    return data, size


def _data_end(descriptor: int, size: int, files: Files) -> int:
    """Return the end of the last data; `size` where the file system does not say."""
    end = 0
    try:
        while end < size:
            end = files.lseek(descriptor, files.lseek(descriptor, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as error:
        return end if error.errno == errno.ENXIO else size
    return size


def read_text(path: Path, files: Files = os, *, errors: str = "strict") -> str:
    return read(path, files).decode(errors=errors)


def make_folder(path: Path, files: Files = os) -> None:
    """Make a folder for this server's own files, and its missing parents, durably. Raises OSError."""
    missing = [one for one in (path, *path.parents) if not exists(one, files)]
    for one in reversed(missing):
        try:
            files.mkdir(one, FOLDER_MODE)
        except FileExistsError:
            continue  # made by another process meanwhile
        files.chmod(one, FOLDER_MODE)  # whatever the umask is
        sync(one.parent, files)
    if not is_folder(path, files):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def sync(path: Path, files: Files = os) -> None:
    """Make a file or a folder durable. Raises OSError."""
    descriptor = files.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        files.fsync(descriptor)
    finally:
        files.close(descriptor)


def write(path: Path, data: bytes, files: Files = os) -> None:
    """Write a file over an existing one, and sync its content but not its name. Raises OSError."""
    descriptor = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        at = 0
        while at < len(data):
            at += files.pwrite(descriptor, data[at:], at)
        files.fsync(descriptor)
    finally:
        files.close(descriptor)


def write_durably(path: Path, text: str, files: Files = os) -> None:
    """Write a small file atomically and durably: a crash leaves the old file or the new one, and after the return the
    new one. Raises OSError."""
    make_folder(path.parent, files)
    temporary = path.with_name(path.name + ".tmp")
    write(temporary, (text + "\n").encode(), files)
    files.replace(temporary, path)
    sync(path.parent, files)


def remove_tree(path: Path, files: Files = os) -> None:
    """Remove a folder and its content, as far as possible."""
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
    """Return the free bytes of the file system, for users other than root. Raises OSError."""
    found = files.statvfs(path)
    return found.f_bavail * found.f_frsize


def total_bytes(path: Path, files: Files = os) -> int:
    """Return the size of the file system in bytes. Raises OSError."""
    found = files.statvfs(path)
    return found.f_blocks * found.f_frsize
