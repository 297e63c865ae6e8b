"""Keys of the data store: `kind u8 | stream id u32 | rest`, big-endian, so that byte order is numeric order.

Stream ids are never reused, so a late write to a deleted stream cannot appear in another one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import partial

BLOCK = 1
"""stream | first sequence -> check u32, time i64, the encoded batch."""
INFO = 2
"""stream | first sequence -> the block's row in memory: time, count, record bytes, bits of deleted messages."""
POSTING = 3
"""stream | u16 length of subject | subject | its first sequence in a block -> its other sequences in the block."""
STATE = 4
"""stream -> counters and the state machine's own bytes."""
SIDE = 5
"""stream | u8 table | key of the owner -> value of the owner."""
INSTALLING = 6
"""stream -> empty; present while an import is in progress."""
TABLE = 7
"""stream -> the subject table as of a sequence (`store.search.saved_table`); may be absent or outdated."""

MAX_SEQ = (1 << 64) - 1

_STREAM = struct.Struct(">BI")
_STREAM_SEQ = struct.Struct(">BIQ")
_STREAM_TABLE = struct.Struct(">BIB")
_STREAM_SUBJECT = struct.Struct(">BIH")
_SEQ = struct.Struct(">Q")

stream_prefix = _STREAM.pack
"""(kind, stream id) -> first 5 bytes of all such keys."""

STREAM_PREFIX = _STREAM.size


def stream_end(kind: int, stream: int) -> bytes:
    """Return the lowest key above all keys of this kind and stream."""
    return _STREAM.pack(kind, stream + 1) if stream < 0xFFFF_FFFF else bytes([kind + 1])


block = partial(_STREAM_SEQ.pack, BLOCK)
info = partial(_STREAM_SEQ.pack, INFO)
"""(stream id, first sequence) -> key."""


def seq_of(key: bytes) -> int:
    """Return the sequence at the end of a BLOCK, INFO or POSTING key."""
    seq: int = _SEQ.unpack_from(key, len(key) - 8)[0]
    return seq


posting_head = partial(_STREAM_SUBJECT.pack, POSTING)
"""(stream id, size of a subject) -> what precedes it in its postings' keys. By the size no two subjects' keys mix."""


def posting_prefix(stream: int, subject: bytes) -> bytes:
    """Return the prefix of a subject's postings."""
    return posting_head(stream, len(subject)) + subject


def postings(stream: int, subjects: Iterable[bytes], seqs: Iterable[int]) -> list[bytes]:
    """Return the posting keys of (subject, sequence) pairs."""
    heads: dict[int, bytes] = {}
    found = []
    for subject, seq in zip(subjects, seqs, strict=True):
        size = len(subject)
        head = heads.get(size)
        if head is None:
            head = heads[size] = posting_head(stream, size)
        found.append(head + subject + seq.to_bytes(8))
    return found


seq_suffix = _SEQ.pack
"""Sequence -> the last 8 bytes of a posting key."""


def posting_head_of(key: bytes) -> bytes:
    """Return the beginning of a posting's key up to its subject's end; b"" for a key that ends before."""
    if len(key) < _STREAM_SUBJECT.size:
        return b""
    end = _STREAM_SUBJECT.size + int.from_bytes(key[_STREAM_SUBJECT.size - 2 : _STREAM_SUBJECT.size])
    return key[:end] if len(key) >= end else b""


def posting_subject(key: bytes) -> bytes:
    return key[_STREAM_SUBJECT.size : -8]


def side(stream: int, table: int, key: bytes) -> bytes:
    return _STREAM_TABLE.pack(SIDE, stream, table) + key


def side_end(stream: int, table: int) -> bytes:
    if table < 0xFF:
        return _STREAM_TABLE.pack(SIDE, stream, table + 1)
    return stream_end(SIDE, stream)


SIDE_PREFIX = _STREAM_TABLE.size
