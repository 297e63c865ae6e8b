"""REPLACE: messages take the place of others in one step, if the stream is still as its proposer saw it.

The object service ends an upload with it: the object's metadata is stored, the record of the upload, the older
metadata and the replaced object's chunks go. No crash leaves half of that.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.checks import SEALED
from jetcluster.stream.rules import StreamRules

_COUNTS: Final = struct.Struct("<HH")
_GUARD: Final = struct.Struct("<QH")
_LENGTH: Final = struct.Struct("<H")

_PURGE_DENIED: Final = errors.by_code(errors.PURGE_FAILED, err="stream purge not permitted")

Guard = tuple[bytes, int]
"""A literal subject and its last sequence, 0 when it holds no message."""


class Replace(NamedTuple):
    ts: int
    guards: list[Guard]
    """All must hold, or nothing happens."""
    purges: list[bytes]
    """Filters: what matches goes."""
    batch: Batch | None
    """Messages that are stored then; None: none. No limit refuses them: they take the place of what went."""


def encode_body(guards: Sequence[Guard], purges: Sequence[bytes], batch: bytes) -> bytes:
    """`batch`: an encoded `Batch`, b"" for none."""
    parts = [_COUNTS.pack(len(guards), len(purges))]
    for subject, seq in guards:
        parts += _GUARD.pack(seq, len(subject)), subject
    for subject_filter in purges:
        parts += _LENGTH.pack(len(subject_filter)), subject_filter
    return b"".join((*parts, batch))


def decode_body(ts: int, raw: bytes, at: int) -> Replace:
    """Raises ValueError, struct.error, BatchError."""
    guard_count, purge_count = _COUNTS.unpack_from(raw, at)
    at += _COUNTS.size
    guards: list[Guard] = []
    for _ in range(guard_count):
        seq, length = _GUARD.unpack_from(raw, at)
        at += _GUARD.size + length
        guards.append((raw[at - length : at], seq))
    purges: list[bytes] = []
    for _ in range(purge_count):
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size + length
        purges.append(raw[at - length : at])
    if at > len(raw):
        raise ValueError("cut off")
    return Replace(ts, guards, purges, Batch.decode(raw, at, verify=False) if at < len(raw) else None)


def refusal(store: BlockStore, rules: StreamRules, command: Replace) -> ApiError | None:
    """Why it may not be: 10071 says that a guard does not hold."""
    if rules.sealed:
        return SEALED
    if rules.deny_purge:
        return _PURGE_DENIED
    for subject, seq in command.guards:
        actual = store.last_seq_of(subject)
        if actual != seq:
            return errors.by_code(errors.WRONG_LAST_SEQUENCE, seq=actual)
    return None
