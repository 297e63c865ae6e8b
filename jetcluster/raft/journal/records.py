"""The journal's bytes: segments of batches of records.

    segment = header, batch*            one file, preallocated, zero beyond the last batch
    batch   = header, record*           one write (and one fsync); all or nothing
    record  = crc u32, magic u16, kind u8, entry type u8, length u32, gid u32, gseq u32, index u64, term u64, body

Three numbers make damage provable after a crash:

- `seq` counts batches; a batch's header names the newest batch known to be durable when it was written (`synced`). So a
  bad batch that a later header calls durable is *damage*; any other bad batch is a *torn tail*.
- `gseq` counts the records of one group (mod 2**32): a gap shows that the group has lost records.
- every segment starts with a STATE of every group, whose `log_crc` (over the terms of the retained entries) proves
  that the log read so far is complete, and makes older segments deletable.

CRCs are seeded with the segment's number and a random nonce of its header: a segment under a wrong name does not
validate, and no client can send a message that looks like a record.

With encryption at rest the bodies of records are sealed (`seals`), and the head of a segment says with which key. All
checksums are of the sealed bytes.
"""

from __future__ import annotations

import struct

from jetcluster.checksum import crc32
from jetcluster.errors import OperatorError
from jetcluster.raft.membership import Config, decode_config, encode_config
from jetcluster.records import NamedTuple

STATE, ENTRY, TRUNCATE, TERM, COMPACT, HINT, CARRY, REMOVE = range(1, 9)

NODE_GID = 0
"""No group: its REMOVE lists all removed groups (`RemovedGroups`)."""
DURABLE_FLAG, DAMAGED_FLAG, RESET_FLAG, FETCHING_FLAG, RELAXED_FLAG, JOINING_FLAG = 1, 2, 4, 8, 16, 32
KEPT_FLAG, CREDIT_FLAG = 64, 128

RECORD_MAGIC = 0x4AC7
_RECORD_MAGIC_BYTES = struct.pack("<H", RECORD_MAGIC)
BATCH_MAGIC = 0x4C57434A  # "JCWL"
_BATCH_MAGIC_BYTES = struct.pack("<I", BATCH_MAGIC)
_SEGMENT_MAGIC = b"jcwal\x00\x00\x01"
VERSION = 4
SEALED_VERSION = 5
"""The format of segments with sealed bodies."""

_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<HBBIIIQQ")  # a record after its crc
_BATCH_BODY = struct.Struct("<QQIII")  # a batch header after magic and crc: seq, synced, length, count, top gid
_BATCH_START = struct.Struct("<II")
_SEGMENT = struct.Struct("<8sIIQQQ")  # magic, crc, version, number, nonce, bytes it was made with
_STATE = struct.Struct("<QQQQIBB")  # last index, last term, current term, commit, log crc, flags, vote length

RECORD_HEAD_BYTES = _CRC.size + _HEAD.size
BATCH_HEAD_BYTES = _BATCH_START.size + _BATCH_BODY.size
_SEGMENT_COPY_BYTES = 64
SEAL_BYTES = 20
"""Bytes of `SegmentHead.seal` in the head of a sealed segment."""
SEGMENT_HEAD_BYTES = 2 * _SEGMENT_COPY_BYTES
"""The header is written twice: without its nonce no record of the segment validates."""
GSEQ_MASK = 0xFFFF_FFFF
UNKNOWN_GID = 0xFFFF_FFFF
"""The highest group id in a batch's header while it is unknown after damage."""
MAX_BODY_BYTES = 96 << 20
"""Above `codec.MAX_ENTRY_BYTES`."""


class Record(NamedTuple):
    """One record of a batch, as read."""

    kind: int
    entry_type: int
    gid: int
    gseq: int
    log_index: int
    term: int
    body: bytes
    offset: int
    """Offset of the body in the segment."""


class JournalBatch(NamedTuple):
    """One batch, as read. `seq` is its number, `synced` that of the newest durable batch when it was written."""

    seq: int
    synced: int
    end: int
    top: int
    """The highest group id ever created when it was written."""
    record_count: int
    records: list[Record] | None
    """None when a record of the batch does not validate."""


class State(NamedTuple):
    """The state of one log, recorded at the start of each segment."""

    last_index: int
    last_term: int
    term: int
    commit: int
    log_crc: int
    flags: int
    vote: str | None
    config: Config


def salt(number: int, nonce: int) -> int:
    """Return the seed of every CRC in the segment."""
    return crc32(struct.pack("<QQ", number, nonce))


def record_head(
    kind: int, entry_type: int, gid: int, gseq: int, index: int, term: int, body: bytes, seed: int
) -> bytes:
    head = _HEAD.pack(RECORD_MAGIC, kind, entry_type, len(body), gid, gseq & GSEQ_MASK, index, term)
    return _CRC.pack(crc32(body, crc32(head, seed))) + head


def bound_to(kind: int, entry_type: int, gid: int, gseq: int, index: int, term: int, length: int) -> bytes:
    """Return the part of a record's head that is bound to its sealed body of `length` bytes."""
    return _HEAD.pack(RECORD_MAGIC, kind, entry_type, length, gid, gseq & GSEQ_MASK, index, term)


def batch_head(seq: int, synced: int, length: int, count: int, seed: int, top: int = 0) -> bytes:
    """Encode a batch header. `length`: bytes of all records; `top`: the highest group id ever created."""
    body = _BATCH_BODY.pack(seq, synced, length, count, top)
    return _BATCH_START.pack(BATCH_MAGIC, crc32(body, seed)) + body


class FormatError(OperatorError):
    """The journal was written by a version whose format this one does not read."""


class SegmentHead(NamedTuple):
    """The head of a segment: the seed of its checksums, its size, and its cipher."""

    nonce: int
    size: int
    """Bytes of the file when it was made; a shorter file was truncated from outside."""
    seal: bytes
    """`sealing.segments.SegmentCipher.head`; b"" where the bodies are plain."""


def segment_head(number: int, nonce: int, size: int, seal: bytes = b"") -> bytes:
    version = SEALED_VERSION if seal else VERSION
    crc = _head_crc(version, number, nonce, size, seal)
    head = _SEGMENT.pack(_SEGMENT_MAGIC, crc, version, number, nonce, size) + seal
    return head.ljust(_SEGMENT_COPY_BYTES, b"\0") * 2


def _head_crc(version: int, number: int, nonce: int, size: int, seal: bytes) -> int:
    return crc32(seal, crc32(struct.pack("<IQQQ", version, number, nonce, size)))


def read_segment_head(data: bytes, number: int) -> SegmentHead | None:
    """Read the head from either copy; return None when both are unusable."""
    for at in (0, _SEGMENT_COPY_BYTES):
        if at + _SEGMENT.size > len(data):
            break
        magic, crc, version, named, nonce, size = _SEGMENT.unpack_from(data, at)
        if magic != _SEGMENT_MAGIC or named != number:
            continue
        seal_at = at + _SEGMENT.size
        seal = data[seal_at : seal_at + SEAL_BYTES] if version == SEALED_VERSION else b""
        if version in (VERSION, SEALED_VERSION) and crc == _head_crc(version, named, nonce, size, seal):
            return SegmentHead(nonce, size, seal)
    return None


def check_format(data: bytes, number: int) -> None:
    """Raise FormatError for a segment without a usable head that another version has written. Both copies of its head
    then have the same version number, which damage would not cause."""
    if (
        data[: _SEGMENT.size] != data[_SEGMENT_COPY_BYTES : _SEGMENT_COPY_BYTES + _SEGMENT.size]
        or len(data) < SEGMENT_HEAD_BYTES
    ):
        return
    magic, _, version, named, _, _ = _SEGMENT.unpack_from(data)
    if magic == _SEGMENT_MAGIC and named == number and version not in (VERSION, SEALED_VERSION):
        raise FormatError(
            f"the journal is of format {version}, and this version of jetcluster reads format {VERSION}: start the "
            "version that wrote it, make a backup there, and restore that here into a new store"
        )


def encode_state(state: State) -> bytes:
    vote = (state.vote or "").encode()
    return (
        _STATE.pack(state.last_index, state.last_term, state.term, state.commit, state.log_crc, state.flags, len(vote))
        + vote
        + encode_config(state.config)
    )


def decode_state(body: bytes) -> State:
    last_index, last_term, term, commit, log_crc, flags, length = _STATE.unpack_from(body)
    at = _STATE.size + length
    vote = body[_STATE.size : at].decode() or None
    return State(last_index, last_term, term, commit, log_crc, flags, vote, decode_config(body[at:]))


def read_record(data: bytes, at: int, end: int, seed: int) -> Record | None:
    """Return the record at `at` of a segment's bytes, or None when no valid one ends by `end`."""
    if at + RECORD_HEAD_BYTES > end:
        return None
    magic, kind, entry_type, length, gid, gseq, index, term = _HEAD.unpack_from(data, at + _CRC.size)
    body_at = at + RECORD_HEAD_BYTES
    if magic != RECORD_MAGIC or length > MAX_BODY_BYTES or body_at + length > end:
        return None
    body = data[body_at : body_at + length]
    crc = crc32(body, crc32(data[at + _CRC.size : body_at], seed))
    if crc != _CRC.unpack_from(data, at)[0]:
        return None
    return Record(kind, entry_type, gid, gseq, index, term, body, body_at)


def read_batch(data: bytes, at: int, seed: int) -> JournalBatch | None:
    """Return the batch at `at`; None if its header does not validate, `records` is None if its records do not."""
    if at + BATCH_HEAD_BYTES > len(data):
        return None
    magic, crc = _BATCH_START.unpack_from(data, at)
    body = data[at + _BATCH_START.size : at + BATCH_HEAD_BYTES]
    if magic != BATCH_MAGIC or crc32(body, seed) != crc:
        return None
    seq, synced, length, count, top = _BATCH_BODY.unpack(body)
    position = at + BATCH_HEAD_BYTES
    end = position + length
    if end > len(data):
        return JournalBatch(seq, synced, len(data), top, count, None)
    records: list[Record] = []
    while position < end:
        record = read_record(data, position, end, seed)
        if record is None:
            return JournalBatch(seq, synced, end, top, count, None)
        records.append(record)
        position = record.offset + len(record.body)
    if len(records) != count:
        return JournalBatch(seq, synced, end, top, count, None)
    return JournalBatch(seq, synced, end, top, count, records)


def salvage(data: bytes, at: int, end: int, seed: int) -> list[Record]:
    """Return the records of a damaged batch between `at` and `end` that still validate, in order."""
    found: list[Record] = []
    while at < end:
        record = read_record(data, at, end, seed)
        if record is not None:
            found.append(record)
            at = record.offset + len(record.body)
            continue
        magic = data.find(_RECORD_MAGIC_BYTES, at + _CRC.size + 1, end)
        if magic < 0:
            break
        at = magic - _CRC.size
    return found


def find_batch(data: bytes, at: int, seed: int) -> int:
    """Return the offset of the next batch whose header validates, from `at` on, or -1."""
    while True:
        at = data.find(_BATCH_MAGIC_BYTES, at)
        if at < 0:
            return -1
        if read_batch(data, at, seed) is not None:
            return at
        at += 1


def find_batch_magic(data: bytes, at: int) -> int:
    """Return the offset of the next bytes that look like a batch header, valid or not, or -1."""
    return data.find(_BATCH_MAGIC_BYTES, at)


_ZEROS = bytes(1 << 16)


def is_zero(data: bytes, at: int) -> bool:
    """True when all bytes from `at` on are zero. It compares blocks: a segment is mostly preallocated zeros."""
    size = len(_ZEROS)
    while at < len(data):
        block = data[at : at + size]
        if block != _ZEROS and block != _ZEROS[: len(block)]:
            return False
        at += size
    return True
