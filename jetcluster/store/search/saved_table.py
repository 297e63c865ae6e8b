"""The subject table of a stream as one record on disk, so that a start need not read all postings.

The record says up to which sequence it counts, and has a digest of the blocks below. A message never changes and its
sequence is never used again, so the table is right exactly while those blocks have the live messages that they had: no
removal has to invalidate it. A table that is not right is not used, and the next flush may replace it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping
from typing import NamedTuple
from zlib import crc32

from jetcluster.store import keys

MIN_MESSAGES = 4096
"""Changes since the last record from which on it is written anew, if they are also twice the subjects."""
_HEAD = struct.Struct("<IQQII")
_BETWEEN = b"\n"
"""Between two subjects; no subject has it."""


class Covered(NamedTuple):
    """Live messages up to a sequence."""

    last_seq: int
    messages: int
    digest: int
    """CRC of their blocks' first sequences, times, live messages and sizes."""


def encode(key: bytes, covered: Covered, table: Mapping[bytes, int], room: int) -> bytes:
    """Returns the record; b"" when it would be larger than `room`. Takes 2 ms for each MB."""
    count = len(table)
    if 10 * count > room:
        return b""
    subjects = _BETWEEN.join(table)
    if _HEAD.size + len(subjects) + 8 * count > room or subjects.count(_BETWEEN) != max(count - 1, 0):
        return b""
    numbers = array("Q", table.values()).tobytes()
    rest = _HEAD.pack(0, *covered, count)[4:] + numbers + subjects
    return crc32(rest, crc32(key[keys.STREAM_PREFIX :])).to_bytes(4, "little") + rest


def decode(key: bytes, record: bytes) -> tuple[Covered, dict[bytes, int]] | None:
    """Returns what was encoded; None for a damaged record."""
    if len(record) < _HEAD.size:
        return None
    check, last_seq, messages, digest, count = _HEAD.unpack_from(record)
    if check != crc32(memoryview(record)[4:], crc32(key[keys.STREAM_PREFIX :])):
        return None
    end = _HEAD.size + 8 * count
    numbers = array("Q")
    numbers.frombytes(record[_HEAD.size : end])
    subjects = record[end:].split(_BETWEEN) if count else []
    if len(subjects) != count:
        return None
    return Covered(last_seq, messages, digest), dict(zip(subjects, numbers, strict=True))
