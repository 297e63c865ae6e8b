"""`SimFiles`: the functions of `os` on the files of a `SimDisk`, under their names (`jetcluster.files.Files`)."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from testkit.twins.storage.sectors import Folder, Node, SectorFile

if TYPE_CHECKING:
    from testkit.twins.storage.sim_disk import SimDisk

LOOKED_AT = 64 << 10
"""Bytes that are read at first when a hole is looked for."""
FIRST = 1_000
"""Descriptors are numbered from here, so that one is never taken for a real one."""


class _Open:
    __slots__ = ("node", "path", "synced")

    def __init__(self, node: Node, path: str, *, synced: bool) -> None:
        self.node = node
        self.path = path
        self.synced = synced
        """Opened with O_DSYNC."""


def _error(code: int, path: object = None) -> OSError:
    return OSError(code, os.strerror(code), None if path is None else str(path))


class SimFiles:
    def __init__(self, disk: SimDisk) -> None:
        self.most_open: int | None = None
        """Descriptors that may be open at a time; None: any number."""
        self._disk = disk
        self._open: dict[int, _Open] = {}
        self._numbers = FIRST

    # -- descriptors

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        self._disk.call()
        name = str(path)
        if self.most_open is not None and len(self._open) >= self.most_open:
            self._disk.note(name)
            raise _error(errno.EMFILE, path)
        node = self._opened(name, flags, mode)
        if isinstance(node, SectorFile):
            if flags & os.O_TRUNC and node.size:
                node.empty(self._disk.moment())
            node.opened += 1
        self._numbers += 1
        self._open[self._numbers] = _Open(node, name, synced=bool(flags & os.O_DSYNC))
        return self._numbers

    def _opened(self, name: str, flags: int, mode: int) -> Node:
        disk = self._disk
        if name == os.devnull:
            return SectorFile(0, 0o666, disk.sector)
        disk.check("open", name)
        try:
            node = disk.find(name)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            disk.check("create", name)
            return disk.make(name, stat.S_IFREG | mode)
        if flags & os.O_CREAT and flags & os.O_EXCL:
            raise _error(errno.EEXIST, name)
        if isinstance(node, Folder) and flags & (os.O_WRONLY | os.O_RDWR):
            raise _error(errno.EISDIR, name)
        if flags & os.O_DIRECTORY and not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, name)
        return node

    def close(self, fd: int) -> None:
        self._disk.call()
        closed = self._open.pop(fd, None)
        if closed is None:
            raise _error(errno.EBADF)
        self._closed(closed)

    def _closed(self, closed: _Open) -> None:
        if isinstance(closed.node, SectorFile):
            closed.node.opened -= 1
            self._disk.forget(closed.node)

    def close_all(self) -> None:
        """Closes every file, as the end of a process does."""
        for closed in self._open.values():
            self._closed(closed)
        self._open = {}
        self.most_open = None

    def exhaust(self, *, wanted: bool = True) -> None:
        """Others of the process have all descriptors, except those that files have now; or no more."""
        self.most_open = len(self._open) if wanted else None

    def _file(self, fd: int) -> tuple[_Open, SectorFile]:
        found = self._open.get(fd)
        if found is None:
            raise _error(errno.EBADF)
        if isinstance(found.node, Folder):
            raise _error(errno.EISDIR, found.path)
        return found, found.node

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        self._disk.call()
        found, file = self._file(fd)
        self._disk.check("read", found.path)
        return file.read(offset, length)

    def pwrite(self, fd: int, data: Any, offset: int, /) -> int:
        self._disk.call()
        found, file = self._file(fd)
        disk = self._disk
        disk.check("write", found.path)
        data = bytes(data)
        room = disk.grow(file, offset + len(data)) - offset
        if room <= 0 and data:
            raise _error(errno.ENOSPC, found.path)
        data = data[:room]
        changed = file.write(offset, data, disk.moment())
        if found.synced:
            self._sync(found, file, changed)
        return len(data)

    def pwritev(self, fd: int, buffers: Sequence[Any], offset: int, /) -> int:
        return self.pwrite(fd, b"".join(buffers), offset)

    def posix_fallocate(self, fd: int, offset: int, length: int, /) -> None:
        self._disk.call()
        found, file = self._file(fd)
        disk = self._disk
        disk.check("write", found.path)
        end = offset + length
        if end - file.allocated > disk.free:
            raise _error(errno.ENOSPC, found.path)
        disk.grow(file, end)
        file.grow(end, disk.moment())

    def fsync(self, fd: int) -> None:
        self._disk.call()
        found = self._open.get(fd)
        if found is None:
            raise _error(errno.EBADF)
        if isinstance(found.node, SectorFile):
            self._sync(found, found.node, None)
        else:
            self._disk.check("sync", found.path)
            self._disk.sync_folder(found.node)

    fdatasync = fsync

    def _sync(self, found: _Open, file: SectorFile, only: list[int] | None) -> None:
        try:
            self._disk.check("sync", found.path)
        except OSError:
            file.drop_unwritten()
            raise
        self._disk.sync_file(file, only)

    # -- names

    def fstat(self, fd: int) -> os.stat_result:
        self._disk.call()
        found = self._open.get(fd)
        if found is None:
            raise _error(errno.EBADF)
        return _stat(found.node)

    def lseek(self, fd: int, position: int, whence: int, /) -> int:
        """Knows data from holes, to a block of 512 bytes, as a file system does."""
        self._disk.call()
        _, file = self._file(fd)
        if whence == os.SEEK_DATA:
            found = file.data_from(position) - position
            if position + found >= file.size:
                raise _error(errno.ENXIO)
            return position + found - found % 512
        length = LOOKED_AT
        while True:  # mostly a hole follows soon, and a large one
            content = file.read(position, length)
            end = content.find(bytes(1024))
            if end >= 0 or len(content) < length:
                return position + (len(content) if end < 0 else end + 512 - end % 512)
            length *= 2

    def stat(self, path: Any) -> os.stat_result:
        self._disk.call()
        return _stat(self._disk.find(path))

    lstat = stat

    def statvfs(self, path: Any) -> os.statvfs_result:
        self._disk.call()
        disk = self._disk
        disk.find(path)
        free = (disk.free if disk.reported_free is None else disk.reported_free) // disk.sector
        return os.statvfs_result(
            (disk.sector, disk.sector, disk.capacity // disk.sector, free, free, 1 << 20, 1 << 20, 1 << 20, 0, 255)
        )

    def listdir(self, path: Any) -> list[str]:
        self._disk.call()
        node = self._disk.find(path)
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        return list(node.names)

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        self._disk.call()
        folder, name = self._disk.folder_of(path)
        if not name or name in folder.names:
            raise _error(errno.EEXIST, path)
        self._disk.check("create", str(path))
        self._disk.make(path, stat.S_IFDIR | mode)

    def rename(self, src: Any, dst: Any) -> None:
        self._disk.call()
        disk = self._disk
        disk.check("rename", str(src))
        node = disk.find(src)
        (old_folder, old), (new_folder, new) = disk.folder_of(src), disk.folder_of(dst)
        there = new_folder.names.get(new)
        if there is node:
            return
        if isinstance(there, Folder) and (not isinstance(node, Folder) or there.names):
            raise _error(errno.ENOTEMPTY if isinstance(node, Folder) else errno.EISDIR, dst)
        if isinstance(there, SectorFile) and isinstance(node, Folder):
            raise _error(errno.ENOTDIR, dst)
        disk.rename((new_folder, new, node), (old_folder, old, None))

    replace = rename

    def unlink(self, path: Any) -> None:
        self._disk.call()
        disk = self._disk
        disk.check("unlink", str(path))
        disk.file(path)
        folder, name = disk.folder_of(path)
        disk.rename((folder, name, None))

    def rmdir(self, path: Any) -> None:
        self._disk.call()
        disk = self._disk
        node = disk.find(path)
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        if node.names:
            raise _error(errno.ENOTEMPTY, path)
        folder, name = disk.folder_of(path)
        disk.rename((folder, name, None))

    def chmod(self, path: Any, mode: int) -> None:
        self._disk.call()
        self._disk.find(path).mode = mode


def _stat(node: Node) -> os.stat_result:
    if isinstance(node, Folder):
        return os.stat_result((stat.S_IFDIR | node.mode, node.number, 1, 2, 0, 0, 0, 0, 0, 0))
    mode = stat.S_IFREG | stat.S_IMODE(node.mode)
    return os.stat_result((mode, node.number, 1, node.links, 0, 0, node.size, 0, 0, 0))
