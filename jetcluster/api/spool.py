"""`Spool`: a file that holds what a client sends until it can be worked on, and that nobody else sees.

It has no name once it is open, so nothing of it is left when its server dies. In an encrypted store its records are
sealed, by a key that is nowhere but in memory.
"""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jetcluster.clock import Rng
from jetcluster.errors import DiskError
from jetcluster.files import FILE_MODE, Files, free_bytes, total_bytes
from jetcluster.sealing.api import is_sealed

if TYPE_CHECKING:
    from jetcluster.sealing.ciphers import Aead

RECORD_BYTES: Final = 256 * 1024
"""Bytes that are gathered for a record."""
RESERVED_PART: Final = 20
"""Fraction of the disk that is left free: a twentieth."""
_LENGTH: Final = struct.Struct("<I")
_NONCE_BYTES: Final = 12


class SpoolError(DiskError):
    """The file cannot be written or read, or would take the room that others need."""


class Spool:
    """A file in `folder`, written and then read, each from its beginning."""

    def __init__(self, folder: Path, files: Files, rng: Rng) -> None:
        self._folder = folder
        self._files = files
        self._rng = rng
        self._descriptor = -1
        self._using = threading.Lock()
        """Held while a thread uses the descriptor, whose number is another file's once it is closed."""
        self._cipher: Aead | None = None
        self._gathered = bytearray()
        self._size = 0
        self._records = 0

    @property
    def is_open(self) -> bool:
        """True while there is a file."""
        return self._descriptor >= 0

    @property
    def held(self) -> int:
        """Bytes that are gathered in memory."""
        return len(self._gathered)

    async def append(self, data: bytes) -> None:
        """Raises SpoolError."""
        self._gathered += data
        if len(self._gathered) >= RECORD_BYTES:
            await self._write()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Everything that was appended. Raises SpoolError."""
        if self._gathered:
            await self._write()
        at = 0
        for number in range(self._records):
            try:
                data, at = await asyncio.to_thread(self._read, number, at)
            except (OSError, struct.error, ValueError) as error:
                raise SpoolError(f"it cannot be read back: {error}") from error
            yield data

    async def close(self) -> None:
        """Ends the file, which needs no more than that. In a thread, as its end frees what may be gigabytes, and waits
        for a thread that writes; it goes on when this is cancelled."""
        if self._descriptor >= 0:
            await asyncio.shield(asyncio.to_thread(self._end))

    def _end(self) -> None:
        with self._using, suppress(OSError):  # which tells of writes that nobody will miss
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                self._files.close(descriptor)

    async def _write(self) -> None:
        data = bytes(self._gathered)
        self._gathered.clear()
        try:
            if self._descriptor < 0:
                self._open()
            await asyncio.to_thread(self._put, data)
        except OSError as error:
            raise SpoolError(f"it cannot be set aside: {error.strerror}") from error

    def _open(self) -> None:
        path = self._folder / f"spool-{self._rng.token(8).hex()}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = self._files.open(path, flags, FILE_MODE)
        self._files.unlink(path)
        if is_sealed(self._folder, self._files):
            from jetcluster.sealing.ciphers import AES, KEY_BYTES, aead

            self._cipher = aead(AES, self._rng.token(KEY_BYTES))

    def _put(self, data: bytes) -> None:
        if free_bytes(self._folder, self._files) < total_bytes(self._folder, self._files) // RESERVED_PART:
            raise SpoolError("the disk has no room to set it aside")
        if self._cipher is not None:
            data = self._cipher.encrypt(self._records.to_bytes(_NONCE_BYTES, "little"), data, None)
        record = memoryview(_LENGTH.pack(len(data)) + data)
        with self._using:
            while record and self._descriptor >= 0:
                written = self._files.pwrite(self._descriptor, record, self._size)
                self._size += written
                record = record[written:]
        self._records += 1

    def _read(self, number: int, at: int) -> tuple[bytes, int]:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, at))
        data = self._exactly(length, at + _LENGTH.size)
        if self._cipher is not None:
            data = self._cipher.decrypt(number.to_bytes(_NONCE_BYTES, "little"), data, None)
        return data, at + _LENGTH.size + length

    def _exactly(self, length: int, at: int) -> bytes:
        parts = bytearray()
        with self._using:
            while len(parts) < length:
                if self._descriptor < 0:
                    raise ValueError("it is closed")
                part = self._files.pread(self._descriptor, length - len(parts), at + len(parts))
                if not part:
                    raise ValueError("it is cut off")
                parts += part
        return bytes(parts)
