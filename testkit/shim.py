"""A wall clock and a disk that can be broken from outside: shim.c, compiled here and preloaded into each server.

A kill -9 leaves what was written in the page cache, so it proves nothing about fsync. `Shim.lose_unsynced` makes the
files of a killed node what they would be after a power cut at the worst moment: every byte written after the last sync
of its file is gone (zero where the file is preallocated or overwritten, cut off where it had grown). Not modelled: a
renamed or new file whose directory was not synced (it stays), what an overwritten place held before, and bytes that
happen to survive.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")


def why_not() -> str:
    """Why it cannot be had on this machine; "" when it can."""
    return "" if shutil.which("cc") else "needs a C compiler (cc) for testkit/shim.c"


def build(folder: Path) -> Path:
    """The shared object. Raises CalledProcessError."""
    target = folder / "shim.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(target), str(SOURCE), "-ldl"], check=True)
    return target


@dataclass(slots=True)
class _File:
    size: int | None = None
    """The size at its last sync; None: never synced."""
    dirty: list[tuple[int, int]] = field(default_factory=list)
    """(offset, length) of what was written since."""


class Shim:
    """The shim of one node: the environment that it is started with, and its two faults."""

    def __init__(self, library: Path, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._clock = folder / "clock"
        self._writes = folder / "writes"
        self.set_clock(0.0)
        self.env = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self._clock), "CHAOS_WRITES": str(self._writes)}

    def set_clock(self, seconds: float) -> None:
        """The node's wall clock is off by this much from now on. In place: the node has the file mapped."""
        with self._clock.open("r+b" if self._clock.exists() else "wb") as file:
            file.write(struct.pack("=q", int(seconds * 1e9)))

    def lose_unsynced(self, store: Path) -> int:
        """Takes the unsynced bytes out of the files of a dead node. Returns how many were lost; forgets the record."""
        files = self._read()
        self._writes.unlink(missing_ok=True)
        lost = 0
        for path in sorted(store.rglob("*")):
            if path.is_file() and not path.is_symlink():
                stat = path.stat()
                known = files.get((stat.st_dev, stat.st_ino))
                if known is not None and known.dirty:
                    lost += _cut(path, known)
        return lost

    def _read(self) -> dict[tuple[int, int], _File]:
        files: dict[tuple[int, int], _File] = defaultdict(_File)
        if not self._writes.exists():
            return files
        with self._writes.open() as lines:
            for line in lines:
                kind, device, inode, *numbers = line.split()
                file = files[int(device), int(inode)]
                if kind == "W":
                    file.dirty.append((int(numbers[0]), int(numbers[1])))
                else:
                    file.size = int(numbers[0])
                    file.dirty.clear()
        return files


def _cut(path: Path, known: _File) -> int:
    """Bytes written after the last sync become zeros, and growth goes."""
    before = path.stat().st_size
    if known.size is None:
        # Written by this record's processes and never synced. If it is older than the record, only what was written.
        start = min(offset for offset, _ in known.dirty)
        known.size = start
    with path.open("r+b") as file:
        for offset, length in known.dirty:
            file.seek(offset)
            file.write(bytes(max(0, min(length, before - offset))))
        if before > known.size:
            file.truncate(known.size)
    return sum(length for _, length in known.dirty)
