"""A file that holds what is sent (api/spool.py): it comes back, leaves nothing behind, takes no room from others."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
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
    await one.close()
    await one.close()
    assert len([*Path("/proc/self/fd").iterdir()]) == before - 1


async def test_nothing_appended(tmp_path: Path) -> None:
    one = Spool(tmp_path, Disk(), SeededRng(1))
    assert await read(one) == b""
    await one.close()


async def test_errors_of_the_disk(tmp_path: Path) -> None:
    disk = Disk()
    one = Spool(tmp_path, disk, SeededRng(1))
    await one.append(bytes(spool.RECORD_BYTES))
    disk.error = OSError(28, "No space left on device")
    with pytest.raises(SpoolError, match="set aside: No space left"):
        await one.append(bytes(spool.RECORD_BYTES))
    with pytest.raises(SpoolError, match="read back"):
        await read(one)
    await one.close()
    with pytest.raises(SpoolError, match="cannot be set aside: No such file"):
        await Spool(tmp_path / "nowhere", Disk(), SeededRng(1)).append(bytes(spool.RECORD_BYTES))


async def test_a_part_of_the_disk_is_left_free(tmp_path: Path) -> None:
    disk = Disk()
    one = Spool(tmp_path, disk, SeededRng(1))
    await one.append(bytes(spool.RECORD_BYTES))
    disk.free = 0.04
    with pytest.raises(SpoolError, match="no room"):
        await one.append(bytes(spool.RECORD_BYTES))
    await one.close()


async def test_a_file_that_is_closed_is_neither_written_nor_read(tmp_path: Path) -> None:
    """Its number may be that of another file by then."""
    one = Spool(tmp_path, Disk(), SeededRng(1))
    await one.append(bytes(spool.RECORD_BYTES))
    await one.close()
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
    closing = asyncio.create_task(late.close())
    done, _ = await asyncio.wait([closing], timeout=0.05)
    assert not done, "it waits for the write that is under way, and the loop goes on"
    going.set()
    await task
    await closing
    assert not late.is_open


@pytest.mark.parametrize("waits", [False, True])
async def test_a_file_is_closed_in_a_thread_also_when_that_is_cancelled(tmp_path: Path, *, waits: bool) -> None:
    """The end of a file of gigabytes takes a second. `waits`: for a thread, as all have something to do."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    busy, going = threading.Event(), threading.Event()

    def work() -> None:
        busy.set()
        going.wait(5)

    class Slow(Disk):
        def close(self, fd: int) -> None:
            work()
            os.close(fd)
            raise OSError(5, "Input/output error")

    one = Spool(tmp_path, Slow(), SeededRng(1))
    await one.append(bytes(spool.RECORD_BYTES))
    before = len([*Path("/proc/self/fd").iterdir()])
    other = asyncio.create_task(asyncio.to_thread(work)) if waits else None
    task = asyncio.create_task(one.close())
    async with asyncio.timeout(5):
        while not busy.is_set():
            await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    going.set()
    async with asyncio.timeout(5):
        while len([*Path("/proc/self/fd").iterdir()]) >= before:
            await asyncio.sleep(0.01)
    assert not one.is_open
    if other is not None:
        await other
