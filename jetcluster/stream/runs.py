"""Runs: messages that keep the sequences and times they have elsewhere, as a RESTORE or a mirror brings them.

u64 sequence | i64 time | u32 length of what follows | an encoded batch      (each run, little-endian)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from jetcluster.model.limits import FARTHEST_SEQ
from jetcluster.store.batch import MAX_COUNT, Batch

_RUN: Final = struct.Struct("<QqI")

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
