"""What a store of messages offers: types only, so that `stream` stays free of RocksDB.

Sequences are u64 and start at 1, times are Unix nanoseconds, subjects and payloads are bytes. `headers` is the
whole block from `NATS/1.0` to the empty line, b"" when the message has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from jetcluster.store.batch import Batch


class Msg(NamedTuple):
    seq: int
    ts: int
    subject: bytes
    headers: bytes
    payload: bytes


class SubjectState(NamedTuple):
    count: int  # type: ignore[assignment]  # hides tuple.count, on purpose
    first: int
    last: int


class StoreState(NamedTuple):
    messages: int
    bytes: int
    """Sum of record sizes as nats-server counts them: file 30 + subject + payload (+ 4 + header block when
    there is one), memory 16 + subject + header block + payload (shared/reference/streams.md 4.4)."""
    first_seq: int
    first_ts: int
    last_seq: int
    last_ts: int
    num_subjects: int
    num_deleted: int


class DamagedError(Exception):
    """A stored record failed its checksum. Never to be answered as "not found" (promise 2)."""

    def __init__(self, first_seq: int, last_seq: int) -> None:
        super().__init__(f"damaged block holding sequences {first_seq}..{last_seq}")
        self.first_seq = first_seq
        self.last_seq = last_seq


class MessageStore(Protocol):
    """The messages of one stream. Mutations go into the node's open write batch (`Kv.commit` makes them
    visible to a crash, all together); reads always see them at once. Everything is deterministic."""

    @property
    def state(self) -> StoreState: ...

    def append(self, batch: Batch, first_seq: int, ts: int) -> None:
        """Stores all messages of `batch` as sequences `first_seq`, `first_seq + 1`, ... with times `ts`,
        `ts + 1`, ... `first_seq` must be above the last sequence (a gap counts as deleted only if `first_seq` of
        the state is set)."""
        ...

    def get(self, seq: int) -> Msg | None: ...

    def last_by_subject(self, filter: bytes, up_to: int | None = None) -> Msg | None:
        """Highest sequence (at or below `up_to`) whose subject matches `filter` (wildcards allowed)."""
        ...

    def next_by_subject(self, filter: bytes, seq: int) -> Msg | None:
        """Lowest sequence >= `seq` whose subject matches `filter`."""
        ...

    def seq_at_time(self, ts: int) -> int:
        """First sequence with time >= `ts`; last_seq + 1 when there is none."""
        ...

    def scan(self, filter: bytes, seq: int) -> Iterator[Msg]:
        """Messages from `seq` upward whose subject matches. The store may be mutated between steps: messages
        that vanished are stepped over, those appended are found."""
        ...

    def count(self, filter: bytes, seq: int) -> int:
        """How many messages >= `seq` match `filter`."""
        ...

    def subject(self, subject: bytes) -> SubjectState | None:
        """State of one literal subject; None when it holds no message."""
        ...

    def subjects(self, filter: bytes) -> Iterator[tuple[bytes, SubjectState]]: ...

    def deleted(self, limit: int) -> list[int]:
        """Interior deleted sequences, ascending, at most `limit`."""
        ...

    def delete(self, seq: int) -> bool:
        """Removes one message; False when it was not there."""
        ...

    def purge(self, filter: bytes = b">", before: int | None = None, keep: int = 0) -> int:
        """Removes matching messages below `before` (all when None), or all but the newest `keep`; returns
        how many."""
        ...

    def compact(self, first_seq: int) -> int:
        """Removes everything below `first_seq` and makes it the first sequence (also beyond the last one: then
        the next message gets `first_seq`); returns how many messages went."""
        ...
