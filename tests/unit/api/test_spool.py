"""A file that holds what is sent (api/spool.py): it comes back, leaves nothing behind, takes no room from others."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from jetcluster.api import spool
from jetcluster.api.spool import Spool, SpoolError
from jetcluster.sealing.api import FILE_NAME
from testkit.twins.time import SeededRng


class Disk:
    """The operating system's files, of which some calls can be told to fail; notes what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.error: OSError | None = None
        self.free = 1.0
        """Part of the disk that is free."""
        self.short = False

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        if self.error is not None:
            raise self.error
        part = data[:10_000] if self.short else data
        self.written += part
        return os.pwrite(fd, part, offset)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        if self.error is not None:
            raise self.error
        return os.pread(fd, min(length, 10_000) if self.short else length, offset)

    def statvfs(self, path: Any) -> Any:
        class Found:
            f_frsize = 1
            f_blocks = 1000
            f_bavail = int(1000 * self.free)

        return Found


async def read(one: Spool) -> bytes:
    return b"".join([piece async for piece in one.pieces()])


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
async def test_what_was_appended_comes_back(tmp_path: Path, *, sealed: bool, short: bool) -> None:
    if sealed:
        (tmp_path / FILE_NAME).write_text("{}")
    disk = Disk()
    disk.short = short
    one = Spool(tmp_path, disk, SeededRng(1))
    whole = b""
    for number in range(40):
        data = b"%d what is sent " % number * 1500
        whole += data
        await one.append(data)
        assert one.held < spool.RECORD_BYTES
    assert await read(one) == whole
    assert await read(one) == whole, "as often as one likes"
    assert (b"what is sent" in disk.written) != sealed
    assert [path.name for path in tmp_path.iterdir()] == ([FILE_NAME] if sealed else []), "it has no name"
    before = len([*Path("/proc/self/fd").iterdir()])
    one.close()
    one.close()
    assert len([*Path("/proc/self/fd").iterdir()]) == before - 1


async def test_nothing_appended(tmp_path: Path) -> None:
    one = Spool(tmp_path, Disk(), SeededRng(1))
    assert await read(one) == b""
    one.close()


async def test_errors_of_the_disk(tmp_path: Path) -> None:
    disk = Disk()
    one = Spool(tmp_path, disk, SeededRng(1))
    await one.append(bytes(spool.RECORD_BYTES))
    disk.error = OSError(28, "No space left on device")
    with pytest.raises(SpoolError, match="set aside: No space left"):
        await one.append(bytes(spool.RECORD_BYTES))
    with pytest.raises(SpoolError, match="read back"):
        await read(one)
    one.close()
    with pytest.raises(SpoolError, match="cannot be set aside: No such file"):
        await Spool(tmp_path / "nowhere", Disk(), SeededRng(1)).append(bytes(spool.RECORD_BYTES))


async def test_a_part_of_the_disk_is_left_free(tmp_path: Path) -> None:
    disk = Disk()
    one = Spool(tmp_path, disk, SeededRng(1))
    await one.append(bytes(spool.RECORD_BYTES))
    disk.free = 0.04
    with pytest.raises(SpoolError, match="no room"):
        await one.append(bytes(spool.RECORD_BYTES))
    one.close()


async def test_a_file_that_is_closed_is_neither_written_nor_read(tmp_path: Path) -> None:
    """Its number may be that of another file by then."""
    one = Spool(tmp_path, Disk(), SeededRng(1))
    await one.append(bytes(spool.RECORD_BYTES))
    one.close()
    with pytest.raises(SpoolError, match="closed"):
        await read(one)
    writing, going = threading.Event(), threading.Event()

    class Slow(Disk):
        def pwrite(self, fd: int, data: Any, offset: int) -> int:
            writing.set()
            going.wait(5)
            return super().pwrite(fd, data, offset)

    late = Spool(tmp_path, Slow(), SeededRng(1))
    task = asyncio.create_task(late.append(bytes(spool.RECORD_BYTES)))
    await asyncio.to_thread(writing.wait, 5)
    closing = threading.Thread(target=late.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive(), "it waits for the write that is under way"
    going.set()
    await task
    closing.join(5)
    assert not closing.is_alive() and not late.is_open
