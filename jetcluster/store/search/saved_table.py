"""The subject table of a stream as one record on disk, so that a start need not read all postings.

The record says up to which sequence it counts, and has a digest of the blocks below. A message never changes and its
sequence is never used again, so the table is right exactly while those blocks have the live messages that they had: no
removal has to invalidate it. A table that is not right is not used, and the next flush may replace it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping
from itertools import repeat
from operator import and_, rshift
from typing import NamedTuple

from jetcluster.checksum import crc32
from jetcluster.store import keys
from jetcluster.store.search.kept_filters import COUNT_BITS

MIN_MESSAGES = 4096
"""Changes since the last record from which on it is written anew, if they are also twice the subjects."""
GROWTH_PER_REMOVAL = 16
"""Messages added for each one removed since the last flush, below which a record is not worth its writing: the next
removal outdates it."""
SUBJECT_WORK, BLOCK_WORK, GAP_WORK = 28, 8, 240
"""Work of a record for each subject, block and dropped block, in bytes that take as long: 5 ms for each MB."""

LEAST_WIDTH = 14
"""Fewest bytes of a subject in the record."""
_NUMBERS = 12
_HEAD = struct.Struct("<IQQII")
_BETWEEN = b"\n"
"""Between two subjects; no subject has it."""
_FORMAT = crc32(b"last sequences, counts, subjects")
"""Where checks begin, so that no record of another form passes for one of this."""
_COUNT_MASK = (1 << COUNT_BITS) - 1


class Covered(NamedTuple):
    """Live messages up to a sequence."""

    last_seq: int
    messages: int
    digest: int
    """CRC of their blocks' first sequences, times, live messages and sizes."""


def joined(table: Mapping[bytes, int]) -> bytes:
    """Return the subjects as `encode` takes them; b"" when they cannot be in a record."""
    subjects = _BETWEEN.join(table)
    return subjects if subjects.count(_BETWEEN) == len(table) - 1 else b""


def size_of(count: int, subjects: bytes) -> int:
    """Return the bytes of the record of `count` subjects, `joined`."""
    return _HEAD.size + _NUMBERS * count + len(subjects)


def encode(key: bytes, covered: Covered, table: Mapping[bytes, int], subjects: bytes) -> bytes:
    """Return the record of a table (subject -> last sequence << COUNT_BITS | count) and its subjects, `joined`."""
    last_seqs = array("Q", map(rshift, table.values(), repeat(COUNT_BITS)))
    counts = array("I", map(and_, table.values(), repeat(_COUNT_MASK)))
    rest = _HEAD.pack(0, *covered, len(table))[4:] + last_seqs.tobytes() + counts.tobytes() + subjects
    return _check(key, rest).to_bytes(4, "little") + rest


def decode(key: bytes, record: bytes) -> tuple[Covered, dict[bytes, int]] | None:
    """Return what was encoded; None for a damaged record, or one of another version."""
    if len(record) < _HEAD.size:
        return None
    check, last_seq, messages, digest, count = _HEAD.unpack_from(record)
    if check != _check(key, memoryview(record)[4:]):
        return None
    last_seqs, counts = array("Q"), array("I")
    at, end = _HEAD.size + 8 * count, _HEAD.size + _NUMBERS * count
    if end > len(record):
        return None
    last_seqs.frombytes(record[_HEAD.size : at])
    counts.frombytes(record[at:end])
    subjects = record[end:].split(_BETWEEN) if count else []
    if len(subjects) != count:
        return None
    packed = [last << COUNT_BITS | number for last, number in zip(last_seqs, counts, strict=True)]
    return Covered(last_seq, messages, digest), dict(zip(subjects, packed, strict=True))


def _check(key: bytes, rest: bytes | memoryview) -> int:
    return crc32(rest, crc32(key[keys.STREAM_PREFIX :], _FORMAT))
