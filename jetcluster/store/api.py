"""What a store of messages offers: types only, so that `stream` stays free of RocksDB.

Sequences are u64 and start at 1, times are Unix nanoseconds, subjects and payloads are bytes. `headers` is the
whole block from `NATS/1.0` to the empty line, b"" when the message has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from jetcluster.store.batch import Batch


class Msg(NamedTuple):
    seq: int
    ts: int
    subject: bytes
    headers: bytes
    payload: bytes


class Columns(NamedTuple):
    """Messages in ascending order, one list per field of `Msg`, all of one length."""

    seqs: list[int]
    times: list[int]
    subjects: list[bytes]
    headers: list[bytes]
    payloads: list[bytes]

    def head(self, count: int) -> Columns:
        """The first `count` messages."""
        return Columns(
            self.seqs[:count], self.times[:count], self.subjects[:count], self.headers[:count], self.payloads[:count]
        )


class SubjectState(NamedTuple):
    count: int  # type: ignore[assignment]  # hides tuple.count, on purpose
    first: int
    last: int


class StoreState(NamedTuple):
    messages: int
    bytes: int
    """Sum of record sizes as nats-server counts them: file 30 + subject + payload (+ 4 + header block when
    there is one), memory 16 + subject + header block + payload."""
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


class LostViewError(Exception):
    """Messages of a view were removed and could not be kept for it: what it gave so far is not all."""


class View(Protocol):
    """Some messages of a stream as they were when the view was made, read piece by piece (store/view.py)."""

    @property
    def ended(self) -> bool:
        """All messages were given."""
        ...

    @property
    def frozen(self) -> bool:
        """It keeps old data in memory and on disk: not for long, please."""
        ...

    def first(self) -> Msg | None:
        """The message that comes next, None when there is none. Right after the view was made only."""
        ...

    def take(self, want: int, size: int) -> Columns:
        """The following ones, ascending: at most `want`, about `size` bytes with OVERHEAD for each. None may come
        before `ended`, as a good moment to let others run: `hold` before that. Raises DamagedError, LostViewError."""
        ...

    def hold(self) -> None:
        """Others run now, who may change the stream. Only between commands; may be repeated."""
        ...

    def close(self) -> None:
        """Lets go of what it holds; nothing comes any more."""
        ...


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

    def view(self, filter: bytes, seq: int) -> View:
        """The messages from `seq` to the last one of now that match `filter`, as of now."""
        ...

    def view_of(self, seqs: Sequence[int]) -> View:
        """The messages at the ascending `seqs`, all of which are there, as of now."""
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
