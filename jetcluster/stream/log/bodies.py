"""The bodies of larger commands: runs of messages, SOURCED, REPLACE (little-endian) and JSON.

Runs are messages with given sequences and times, as of a RESTORE or a mirror. Each run:

    u64 sequence | i64 time | u32 length of the batch | an encoded batch

SOURCED has messages of a mirror's or source's upstream (`sourced`): runs of a mirror; u32 count, the upstream's
sequences and one batch of a source:

    u16 length of key | u8 length of identity | u8 0 | u32 lag | u64 after | u64 upto | key | identity | messages

REPLACE (`publish`):

    u16 guards | u16 purges | guards: u64 sequence, u16 length, subject | purges: u16 length, filter | an encoded batch

The depth of JSON that Python's decoder can take depends on its call stack, so two replicas could judge very deep JSON
differently. The server writes none deeper than MAX_DEPTH; deeper text is refused without decoding.
"""

from __future__ import annotations

import json
import re
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final

from jetcluster.model.limits import FARTHEST_SEQ
from jetcluster.records import NamedTuple
from jetcluster.store.batch import MAX_COUNT, Batch

MAX_DEPTH: Final = 100

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_BRACKETS: Final = re.compile(rb"[\[\]{}]")


def load_object(raw: bytes) -> dict[str, Any]:
    """Decodes a JSON object in UTF-8. Raises ValueError for other text, and for a deeper object than MAX_DEPTH."""
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _depth(raw) > MAX_DEPTH:
        raise ValueError(f"JSON deeper than {MAX_DEPTH}")
    found = json.loads(raw.decode())
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


def _depth(raw: bytes) -> int:
    """An upper bound of the depth that the decoder reaches before it ends or finds an error."""
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
MAX_LAG_MESSAGES: Final = 0xFFFFFFFF

LATEST_TIME: Final = (1 << 62) - 1
"""Unix nanoseconds, in 2116. Times from elsewhere are at most as far from 1970, so that any two fit into a block."""


class Run(NamedTuple):
    """Consecutive messages: the k-th has sequence `seq + k` and time `ts + k`."""

    seq: int
    ts: int
    batch: Batch

    @property
    def in_bounds(self) -> bool:
        """True when a stream can store messages of these sequences and times, which come from elsewhere."""
        last = self.batch.count - 1
        return self.seq + last <= FARTHEST_SEQ and -LATEST_TIME <= self.ts <= LATEST_TIME - last


def encode_runs(runs: Sequence[Run]) -> bytes:
    return b"".join(_RUN.pack(run.seq, run.ts, run.batch.encoded_bytes) + run.batch.raw for run in runs)


def decode_runs(data: bytes, at: int) -> list[Run]:
    """Decodes runs from `at` to the end. Raises ValueError, struct.error or BatchError."""
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
    """The ascending messages as runs: within a batch that a stream of ours stored, sequences and times rise by 1."""
    return list(cutting(seqs, times, subjects, headers, payloads))


def cutting(
    seqs: list[int], times: list[int], subjects: Sequence[bytes], headers: Sequence[bytes],
    payloads: Sequence[bytes],
) -> Iterator[Run]:  # fmt: skip
    """Yields the runs of `cut` one by one."""
    start, count = 0, len(seqs)
    while start < count:
        end = _end(seqs, times, start, min(count, start + MAX_COUNT))
        blocks = headers[start:end]
        batch = Batch.of(subjects[start:end], blocks if any(blocks) else [], payloads[start:end])
        yield Run(seqs[start], times[start], batch)
        start = end


def _end(seqs: list[int], times: list[int], start: int, count: int) -> int:
    """The end (exclusive) of the run that begins at `start`."""
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
    """Store messages of an upstream (`sourced`)."""

    ts: int
    key: bytes
    identity: bytes
    lag: int
    after: int
    upto: int
    """The upstream has no other messages up to this sequence."""
    runs: list[Run]
    """Messages of a mirror, with their sequences and times."""
    seqs: Sequence[int]
    """Upstream sequences of the messages in `batch`, of a source."""
    batch: Batch | None


def encode_sourced(
    key: bytes, identity: bytes, lag: int, after: int, upto: int, runs: Sequence[Run] = (), seqs: Sequence[int] = (),
    batch: bytes = b"",
) -> bytes:  # fmt: skip
    """Encodes a body of SOURCED; `batch` is an encoded batch of one message per `seqs`, or b""."""
    head = _SOURCED.pack(len(key), len(identity), min(lag, MAX_LAG_MESSAGES), after, upto) + key + identity
    if not batch:
        return head + encode_runs(runs)
    return head + _U32.pack(len(seqs)) + array("Q", seqs).tobytes() + batch


def decode_sourced(ts: int, command: bytes, at: int) -> Sourced:
    """Decodes a SOURCED. Raises ValueError, struct.error or BatchError."""
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
"""A literal subject and its last sequence, 0 when it has no message."""


class Replace(NamedTuple):
    """Replace messages in one step."""

    ts: int
    guards: list[Guard]
    """Conditions that must all hold."""
    purges: list[bytes]
    """Filters of the messages to remove."""
    batch: Batch | None
    """Messages to store then, if any. No limit refuses them."""


def encode_replace(guards: Sequence[Guard], purges: Sequence[bytes], batch: bytes) -> bytes:
    """Encodes a body of REPLACE; `batch` is an encoded `Batch`, or b""."""
    parts = [_COUNTS.pack(len(guards), len(purges))]
    for subject, seq in guards:
        parts += _GUARD.pack(seq, len(subject)), subject
    for subject_filter in purges:
        parts += _LENGTH.pack(len(subject_filter)), subject_filter
    return b"".join((*parts, batch))


def decode_replace(ts: int, raw: bytes, at: int) -> Replace:
    """Decodes a REPLACE. Raises ValueError, struct.error or BatchError."""
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
