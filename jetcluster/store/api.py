"""Values that a message store takes and returns (`block_store.BlockStore`), and its errors.

Sequences are u64 and start at 1, times are Unix nanoseconds, subjects and payloads are bytes. `headers` is the whole
block from `NATS/1.0` to the empty line, b"" when the message has none.
"""

from __future__ import annotations

from collections.abc import Sequence

from jetcluster.errors import DiskError, PassingError
from jetcluster.records import NamedTuple


class Msg(NamedTuple):
    """A stored message."""

    seq: int
    ts: int
    subject: bytes
    headers: bytes
    payload: bytes


class Columns(NamedTuple):
    """Messages in ascending order: one list per field of `Msg`, all of the same length."""

    seqs: list[int]
    times: list[int]
    subjects: list[bytes]
    headers: list[bytes]
    payloads: list[bytes]

    def head(self, count: int) -> Columns:
        """Return the first `count` messages."""
        return Columns(
            self.seqs[:count], self.times[:count], self.subjects[:count], self.headers[:count], self.payloads[:count]
        )

    def pick(self, indices: Sequence[int]) -> Columns:
        """Return the messages at `indices`, in that order."""
        seqs, times, subjects, blocks, payloads = self
        return Columns(
            [seqs[i] for i in indices],
            [times[i] for i in indices],
            [subjects[i] for i in indices],
            [blocks[i] for i in indices],
            [payloads[i] for i in indices],
        )


class SubjectState(NamedTuple):
    """Number of messages of one subject, its first and its last sequence."""

    count: int  # type: ignore[assignment]  # hides tuple.count, on purpose
    first: int
    last: int


class StoreState(NamedTuple):
    """Totals of a stream, as STREAM.INFO shows them."""

    messages: int
    bytes: int
    """Sum of record sizes as nats-server counts them: file 30 + subject + payload (+ 4 + header block when there is
    one), memory 16 + subject + header block + payload."""
    first_seq: int
    first_ts: int
    last_seq: int
    last_ts: int
    num_subjects: int
    num_deleted: int


class DamagedError(DiskError):
    """A stored record failed its checksum. It must never be answered as "not found" (promise 2)."""

    def __init__(self, first_seq: int, last_seq: int) -> None:
        super().__init__(f"damaged block holding sequences {first_seq}..{last_seq}")
        self.first_seq = first_seq
        self.last_seq = last_seq


class LostViewError(PassingError):
    """Messages of a view were removed and could not be kept for it: what it returned so far is incomplete."""
