"""`HistoryFile`: points of figures in a file of fixed size, which holds the last day and overwrites the day before.

A point's place follows from its time, so there is no head that a crash could leave wrong: what was not written is a
gap. Each point has a checksum, so a torn one is a gap as well. Nothing is synced: figures of the last seconds may go.

    header   4096 bytes: MAGIC, then the columns, period and number of points as JSON, padded with zeros
    point    CRC-32 of the rest (u32), Unix seconds (u32), the columns (f64 each, NaN for unknown), little-endian
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from jetcluster.files import FILE_MODE, Files, exists
from jetcluster.records import NamedTuple

MAGIC: Final = b"jetcluster history 1\n"
HEADER_BYTES: Final = 4096
PERIOD_SECONDS: Final = 10
POINTS: Final = 24 * 3600 // PERIOD_SECONDS
ASIDE: Final = ".aside"
"""Suffix of a file that is not this server's history; an older one set aside is replaced."""


class Point(NamedTuple):
    """The figures of one period, which ends at `time` (Unix seconds)."""

    time: int
    values: tuple[float, ...]


class HistoryFile:
    """One server's history. All methods but `points` do I/O, so they belong into a thread."""

    def __init__(self, path: Path, columns: Sequence[str], files: Files = os) -> None:
        self.columns = tuple(columns)
        self._path, self._files = path, files
        self._point = struct.Struct(f"<II{len(self.columns)}d")
        self._size = HEADER_BYTES + POINTS * self._point.size
        self._header = self._encode_header()

    def _encode_header(self) -> bytes:
        shape = {"columns": self.columns, "period": PERIOD_SECONDS, "points": POINTS}
        header = MAGIC + json.dumps(shape).encode() + b"\n"
        assert len(header) <= HEADER_BYTES, "there are too many columns"
        return header.ljust(HEADER_BYTES, b"\0")

    def prepare(self) -> str:
        """Make the file unless it is there. Returns why an existing one was set aside, "" if none was: another
        program's or another version's, or one that was cut. Raises OSError."""
        reason = ""
        if exists(self._path, self._files):
            reason = self._misfit()
            if not reason:
                return ""
            self._files.replace(self._path, self._path.with_name(self._path.name + ASIDE))
        self._write(self._header, 0, os.O_CREAT)
        self._write(b"\0", self._size - 1)  # full size, without taking the space yet
        return reason

    def _misfit(self) -> str:
        descriptor = self._files.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = self._files.pread(descriptor, HEADER_BYTES, 0)
            size = self._files.fstat(descriptor).st_size
        finally:
            self._files.close(descriptor)
        if not found.startswith(MAGIC):
            return "it is not a history"
        if found != self._header:
            return "it has other columns"
        return "" if size == self._size else f"it has {size} bytes, not {self._size}"

    def write(self, point: Point) -> None:
        """Write a point over that of the day before. Raises OSError."""
        body = self._point.pack(0, point.time, *point.values)[4:]
        place = point.time // PERIOD_SECONDS % POINTS
        self._write(zlib.crc32(body).to_bytes(4, "little") + body, HEADER_BYTES + place * self._point.size)

    def _write(self, data: bytes, offset: int, flags: int = 0) -> None:
        descriptor = self._files.open(self._path, os.O_WRONLY | os.O_CLOEXEC | flags, FILE_MODE)
        try:
            if self._files.pwrite(descriptor, data, offset) != len(data):
                raise OSError(f"{self._path}: a short write")
        finally:
            self._files.close(descriptor)

    def read(self) -> bytes:
        """Return all points, encoded. Raises OSError."""
        descriptor = self._files.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return self._files.pread(descriptor, self._size - HEADER_BYTES, HEADER_BYTES)
        finally:
            self._files.close(descriptor)

    def points(self, encoded: bytes, since: int, until: int) -> Iterator[Point | None]:
        """Yield the points of `read` with since < time <= until, in their order, and None for each gap."""
        size = self._point.size
        for period in range(since // PERIOD_SECONDS + 1, until // PERIOD_SECONDS + 1):
            start = period % POINTS * size
            yield self._decode(encoded[start : start + size], period)

    def _decode(self, record: bytes, period: int) -> Point | None:
        if len(record) < self._point.size:
            return None
        crc, time, *values = self._point.unpack(record)
        if time // PERIOD_SECONDS != period or zlib.crc32(record[4:]) != crc:
            return None
        return Point(time, tuple(values))
