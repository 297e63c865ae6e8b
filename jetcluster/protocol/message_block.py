"""The message blocks of nats-server's file store, as archives of format V1 have them: not encrypted, not compressed.

A block is a row of records, little-endian:

    u32 length of the record, top bit: with headers | u64 sequence | i64 time, nanoseconds | u16 length of subject
    | subject | with headers: u32 length of headers, headers | payload | u64 checksum

The two top bits of a sequence say that the message was erased, or that the record is a tombstone: the message of that
sequence, which may be in an earlier block, was deleted. The checksums (HighwayHash, by a key of the stream's name and
the block's number) are not verified; the frames around the archive have checksums of their own, which are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from jetcluster.protocol.stream_archive import ArchiveError
from jetcluster.records import NamedTuple

HEAD: Final = struct.Struct("<IQqH")
CHECKSUM_BYTES: Final = 8
MAX_RECORD_BYTES: Final = 32 << 20
"""nats-server's bound of a record."""
WITH_HEADERS: Final = 1 << 31
ERASED: Final = 1 << 63
TOMBSTONE: Final = 1 << 62
SEQUENCE: Final = TOMBSTONE - 1
_HEADERS_LENGTH: Final = struct.Struct("<I")
_COMPRESSED: Final = b"cmp\x01"


class BlockRecord(NamedTuple):
    """One record; only of a message that was not erased are there more than the first three."""

    marked: int
    """The sequence, with its two bits."""
    ts: int
    size: int
    """Bytes of the record."""
    subject: bytes = b""
    headers: bytes = b""
    payload: bytes = b""


class RecordReader:
    """Reads one block in pieces of any size; holds at most one incomplete record."""

    def __init__(self, name: str, size: int, *, whole: bool) -> None:
        """`whole`: with the messages, not only their sequences and times."""
        self._name = name
        self._size = size
        self._whole = whole
        self._pending = bytearray()
        self._passed = 0
        """Bytes of the records that were read."""
        self.checksum = bytes(CHECKSUM_BYTES)
        """That of the last record; zeros before there is one."""

    @property
    def held(self) -> int:
        return len(self._pending)

    def feed(self, data: bytes) -> Iterator[BlockRecord]:
        """The records that `data` completes. Raises ArchiveError."""
        pending = self._pending
        pending += data
        at = 0
        try:
            while len(pending) - at >= HEAD.size:
                length, marked, ts, subject_size = HEAD.unpack_from(pending, at)
                head = subject_size + (_HEADERS_LENGTH.size if length & WITH_HEADERS else 0)
                with_headers, length = length & WITH_HEADERS, length & ~WITH_HEADERS
                self._check(pending, at, head, length)
                end = at + length
                if end > len(pending):
                    return
                self.checksum = bytes(pending[end - CHECKSUM_BYTES : end])
                if self._whole and not marked & (ERASED | TOMBSTONE):
                    yield self._record(pending, at, end, with_headers)
                else:
                    yield BlockRecord(marked, ts, length)
                at = end
        finally:
            del pending[:at]
            self._passed += at

    def end(self) -> None:
        """Must be called at the end of the block. Raises ArchiveError when a record is cut off."""
        if self._pending:
            raise ArchiveError(f"{self._name} ends within a message")

    def _check(self, pending: bytearray, at: int, head: int, length: int) -> None:
        left = self._size - self._passed - at
        if HEAD.size + head + CHECKSUM_BYTES <= length <= min(left, MAX_RECORD_BYTES):
            return
        if not self._passed + at and pending.startswith(_COMPRESSED):
            raise ArchiveError(f"{self._name} is compressed, which it is in no archive of nats-server")
        raise ArchiveError(f"{self._name} is damaged, or encrypted, at byte {self._passed + at}")

    def _record(self, pending: bytearray, at: int, end: int, with_headers: int) -> BlockRecord:
        _, seq, ts, subject_size = HEAD.unpack_from(pending, at)
        length = end - at
        at += HEAD.size
        subject = bytes(pending[at : at + subject_size])
        at += subject_size
        end -= CHECKSUM_BYTES
        headers = b""
        if with_headers:
            (size,) = _HEADERS_LENGTH.unpack_from(pending, at)
            at += _HEADERS_LENGTH.size
            if size > end - at:
                raise ArchiveError(f"{self._name} is damaged: headers longer than their message, {seq}")
            headers = bytes(pending[at : at + size])
            at += size
        return BlockRecord(seq, ts, length, subject, headers, bytes(pending[at:end]))
