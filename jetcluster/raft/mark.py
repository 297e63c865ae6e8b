"""The durable mark: how far the journal was known to be on the disk, kept outside of it.

A journal whose end is gone looks like one that was never written so far: batches vouch for those before them, and
nobody vouches for the last ones. Two replicas that each lack what the other has could then elect a leader without what
was acknowledged. So the number of the newest batch that is durable is written to a file of its own, about once per
second and when the server ends, each time with a sync, which is one of many where much is written. It is never ahead of
the disk, and it need not be up to date: what it names and the journal lacks was lost.

    mark = slot, slot       the newer one that validates counts: a crash tears one of them at most
    slot = magic u32, crc u32 (over what follows), batch u64, owner 16 bytes
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Protocol

from jetcluster.files import FILE, Files, read, sync

_HEAD = struct.Struct("<II")
_BODY = struct.Struct("<Q16s")
_MAGIC = 0x4D4A434A  # "JCJM"
SLOT = 64
"""Bytes from one slot to the next."""


class Mark(Protocol):
    """`read` at the start, `write` in the journal's writer thread. Both raise OSError."""

    def read(self) -> int:
        """The newest batch that was durable; 0 when nothing is known."""
        ...

    def write(self, batch: int) -> None:
        """Durable once this returns."""
        ...

    def close(self) -> None: ...


class FileMark:
    """A file beside `journal/` and `data/`. `owner`: this node's peer id; another one's mark says nothing."""

    def __init__(self, path: Path, owner: str, files: Files = os) -> None:
        self._files = files
        self._path = path
        self._owner = owner.encode()[:16].ljust(16, b"\0")
        self._fd: int | None = None
        self._slot = 0

    def read(self) -> int:
        try:
            data = read(self._path, self._files)
        except FileNotFoundError:
            return 0
        found = [self._decode(data[at : at + SLOT]) for at in (0, SLOT)]
        self._slot = 1 - found.index(max(found))
        return max(found)

    def write(self, batch: int) -> None:
        if self._fd is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_DSYNC
            self._fd = self._files.open(self._path, flags, FILE)
            sync(self._path.parent, self._files)
        body = _BODY.pack(batch, self._owner)
        self._files.pwrite(self._fd, _HEAD.pack(_MAGIC, zlib.crc32(body)) + body, self._slot * SLOT)
        self._slot = 1 - self._slot

    def close(self) -> None:
        if self._fd is not None:
            self._files.close(self._fd)
            self._fd = None

    def _decode(self, slot: bytes) -> int:
        if len(slot) < _HEAD.size + _BODY.size:
            return 0
        magic, crc = _HEAD.unpack_from(slot)
        body = slot[_HEAD.size : _HEAD.size + _BODY.size]
        batch, owner = _BODY.unpack(body)
        return int(batch) if magic == _MAGIC and crc == zlib.crc32(body) and owner == self._owner else 0


class NoMark:
    """Test twin, and of a journal that nobody votes with: knows nothing."""

    def read(self) -> int:
        return 0

    def write(self, batch: int) -> None:
        pass

    def close(self) -> None:
        pass
