"""The bodies of commands that are more than a few numbers: runs of messages, SOURCED and REPLACE (little-endian).

Runs are messages that keep the sequences and times they have elsewhere, as a RESTORE or a mirror brings them. Each run:

    u64 sequence | i64 time | u32 length of what follows | an encoded batch

SOURCED, what a mirror or a source brings from its upstream (`sourced`); a mirror's messages are runs, those of a source
are u32 count, the upstream's sequences, one batch:

    u16 length of key | u8 length of identity | u8 0 | u32 lag | u64 after | u64 upto | key | identity | messages

REPLACE (`replacing`):

    u16 guards | u16 purges | guards: u64 sequence, u16 length, subject | purges: u16 length, filter | an encoded batch

JSON objects in the log: read alike by all replicas.

How deep Python's decoder can go depends on the calls that it is in, so two replicas could judge very deep JSON
differently. Nothing that the server writes is deeper than MAX_DEPTH; deeper text is refused unread.
"""

from __future__ import annotations

import json
import re
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from jetcluster.model.limits import FARTHEST_SEQ
from jetcluster.store.batch import MAX_COUNT, Batch

MAX_DEPTH: Final = 100

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_BRACKETS: Final = re.compile(rb"[\[\]{}]")


def load_object(raw: bytes) -> dict[str, Any]:
    """Raises ValueError for all that is no JSON object in UTF-8, and for one that is too deep."""
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _depth(raw) > MAX_DEPTH:
        raise ValueError(f"JSON deeper than {MAX_DEPTH}")
    found = json.loads(raw.decode())
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


def _depth(raw: bytes) -> int:
    """An upper bound of how deep the decoder goes before it is through or finds an error."""
    depth = deepest = 0
    for bracket in _BRACKETS.findall(_STRING.sub(b"", raw)):
        if bracket in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest


_RUN: Final = struct.Struct("<QqI")
_SOURCED: Final = struct.Struct("<HBxIQQ")
_U32: Final = struct.Struct("<I")
_COUNTS: Final = struct.Struct("<HH")
_GUARD: Final = struct.Struct("<QH")
_LENGTH: Final = struct.Struct("<H")
MAX_LAG: Final = 0xFFFFFFFF

LATEST_TIME: Final = (1 << 62) - 1
"""Unix nanoseconds, in the year 2116. No message out of an archive or of an upstream is later, or as long before
1970: two times are then never further apart than what a block can hold."""


class Run(NamedTuple):
    """Messages that follow each other: the k-th has sequence `seq + k` and time `ts + k`."""

    seq: int
    ts: int
    batch: Batch

    @property
    def in_bounds(self) -> bool:
        """True when what somebody else says of its messages is something that a stream can take over."""
        last = self.batch.count - 1
        return self.seq + last <= FARTHEST_SEQ and -LATEST_TIME <= self.ts <= LATEST_TIME - last


def encode_runs(runs: Sequence[Run]) -> bytes:
    return b"".join(_RUN.pack(run.seq, run.ts, run.batch.encoded_bytes) + run.batch.raw for run in runs)


def decode_runs(data: bytes, at: int) -> list[Run]:
    """From `at` to the end. Raises ValueError, struct.error or BatchError."""
    runs: list[Run] = []
    last = 0
    while at < len(data):
        seq, first_ts, size = _RUN.unpack_from(data, at)
        at += _RUN.size + size
        batch = Batch.decode(data[at - size : at], verify=False)
        if seq <= last:
            raise ValueError("runs out of order")
        last = seq + batch.count - 1
        runs.append(Run(seq, first_ts, batch))
    return runs


def cut(
    seqs: list[int], times: list[int], subjects: Sequence[bytes], headers: Sequence[bytes],
    payloads: Sequence[bytes],
) -> list[Run]:  # fmt: skip
    """The ascending messages as runs: as long as sequences and times go on by one, which they do in what one of our own
    streams took in as one batch."""
    return list(cutting(seqs, times, subjects, headers, payloads))


def cutting(
    seqs: list[int], times: list[int], subjects: Sequence[bytes], headers: Sequence[bytes],
    payloads: Sequence[bytes],
) -> Iterator[Run]:  # fmt: skip
    """As `cut`, one after the other."""
    start, count = 0, len(seqs)
    while start < count:
        end = _end(seqs, times, start, min(count, start + MAX_COUNT))
        blocks = headers[start:end]
        batch = Batch.of(subjects[start:end], blocks if any(blocks) else [], payloads[start:end])
        yield Run(seqs[start], times[start], batch)
        start = end


def _end(seqs: list[int], times: list[int], start: int, count: int) -> int:
    """Where the run that begins at `start` ends."""
    first_seq, first_ts = seqs[start], times[start]
    if seqs[count - 1] - first_seq == times[count - 1] - first_ts == count - 1 - start:
        size = count - start
        if seqs[start:count] == [*range(first_seq, first_seq + size)] and times[start:count] == [
            *range(first_ts, first_ts + size)
        ]:
            return count
    end = start + 1
    while end < count and seqs[end] - first_seq == times[end] - first_ts == end - start:
        end += 1
    return end


class Sourced(NamedTuple):
    ts: int
    key: bytes
    identity: bytes
    lag: int
    after: int
    upto: int
    """The upstream holds nothing else up to this sequence."""
    runs: list[Run]
    """Messages of a mirror, with their sequences and times."""
    seqs: Sequence[int]
    """Upstream sequences of the messages of `batch`, of a source."""
    batch: Batch | None


def encode_sourced(
    key: bytes, identity: bytes, lag: int, after: int, upto: int, runs: Sequence[Run] = (), seqs: Sequence[int] = (),
    batch: bytes = b"",
) -> bytes:  # fmt: skip
    """`batch` is an encoded one of as many messages as there are `seqs`; b"" for none."""
    head = _SOURCED.pack(len(key), len(identity), min(lag, MAX_LAG), after, upto) + key + identity
    if not batch:
        return head + encode_runs(runs)
    return head + _U32.pack(len(seqs)) + array("Q", seqs).tobytes() + batch


def decode_sourced(ts: int, command: bytes, at: int) -> Sourced:
    """Raises ValueError, struct.error or BatchError."""
    key_length, identity_length, lag, after, upto = _SOURCED.unpack_from(command, at)
    at += _SOURCED.size
    key = command[at : at + key_length]
    at += key_length
    identity = command[at : at + identity_length]
    at += identity_length
    if at > len(command):
        raise ValueError("cut off")
    if not key:
        return Sourced(ts, key, identity, lag, after, upto, decode_runs(command, at), (), None)
    if at == len(command):
        return Sourced(ts, key, identity, lag, after, upto, [], (), None)
    (count,) = _U32.unpack_from(command, at)
    at += _U32.size
    end = at + 8 * count
    seqs = array("Q")
    seqs.frombytes(command[at:end])
    batch = Batch.decode(command, end, verify=False)
    if batch.count != count:
        raise ValueError(f"{count} sequences, {batch.count} messages")
    return Sourced(ts, key, identity, lag, after, upto, [], seqs, batch)


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


def encode_replace(guards: Sequence[Guard], purges: Sequence[bytes], batch: bytes) -> bytes:
    """`batch`: an encoded `Batch`, b"" for none."""
    parts = [_COUNTS.pack(len(guards), len(purges))]
    for subject, seq in guards:
        parts += _GUARD.pack(seq, len(subject)), subject
    for subject_filter in purges:
        parts += _LENGTH.pack(len(subject_filter)), subject_filter
    return b"".join((*parts, batch))


def decode_replace(ts: int, raw: bytes, at: int) -> Replace:
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
