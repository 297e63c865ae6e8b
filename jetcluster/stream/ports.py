"""The store as the state machine sees it: messages plus the small things that live and commit beside them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Protocol

from jetcluster.store.api import MessageStore
from jetcluster.stream.results import Result
from jetcluster.stream.rules import StreamRules


class ReadStore(MessageStore, Protocol):
    """`MessageStore` with the cheap answers that its index holds in memory."""

    @property
    def messages(self) -> int: ...

    @property
    def byte_count(self) -> int:
        """StoreState.bytes."""
        ...

    @property
    def first_seq(self) -> int: ...

    @property
    def last_seq(self) -> int: ...

    @property
    def first_ts(self) -> int:
        """Time of the first message, 0 when there is none."""
        ...

    def last_seq_of(self, subject: bytes) -> int:
        """Last sequence of a literal subject, 0 when it holds no message."""
        ...

    def count_of(self, subject: bytes) -> int:
        """Messages of a literal subject."""
        ...

    def last_seqs(self, filter: bytes, up_to: int | None = None, limit: int | None = None) -> list[int]:
        """The last sequence (at or below `up_to`) of every matching subject, ascending; with a `limit` the search
        ends as soon as there are more."""
        ...

    def lasts(self, filters: Sequence[bytes], up_to: int | None, limit: int) -> Generator[None, None, list[int] | None]:
        """The last sequence (at or below `up_to`) of every subject that matches one of `filters`, ascending; None when
        there are more than `limit`. In steps between which the stream may change; as of their end."""
        ...

    def preparing(self, filters: Sequence[bytes], seq: int = 0) -> Generator[None, None, None]:
        """Does in steps what is long in answering what `filters` match, and how many from `seq` on (0: nobody asks)."""
        ...

    def subject_counts(self, filter: bytes) -> list[tuple[bytes, int]]: ...


class Slices(Protocol):
    """Removals in pieces (`store.slices`), of which the same commands make the same on every replica."""

    def cut(self, target: int) -> tuple[int, bool]:
        """Removes messages below `target`, oldest first: how many went, and whether that was all."""
        ...

    def newest(self, keep: int, end: int) -> int:
        """The lowest sequence of the `keep` newest messages below `end`; 0 when there are not more."""
        ...

    def spans_all(self, subject_filter: bytes) -> bool:
        """True when all subjects match, as far as it takes no look at each."""
        ...

    def survey(self, subject_filter: bytes, cursor: bytes) -> tuple[list[bytes], bytes | None]:
        """Matching subjects from `cursor` on, in byte order, and where to go on; None: there are no more."""
        ...

    def count(self, subjects: Sequence[bytes]) -> int:
        """Their messages."""
        ...

    def is_scattered(self, messages: int) -> bool:
        """True when it is cheaper to look so many messages up than to walk through all blocks."""
        ...

    def few(self, subjects: Sequence[bytes], end: int) -> list[int]:
        """All messages below `end` of subjects that have few, ascending."""
        ...

    def remove_few(self, seqs: list[int]) -> bool:
        """Removes the ascending live `seqs`, unless they take more than one piece."""
        ...

    def remove_subjects(
        self, subject_filter: bytes, cursor: bytes, seq: int, end: int
    ) -> tuple[list[int], bytes | None, int]:
        """Removes messages below `end` of the matching subjects, from subject `cursor` and its sequence `seq` on. What
        went, and where to go on."""
        ...

    def remove_matching(self, subject_filter: bytes, seq: int, end: int) -> tuple[list[int], int | None]:
        """Removes messages within seq..end-1 that match. What went, and where to go on."""
        ...

    def remove_excess(self, limit: int, seq: int, end: int) -> tuple[list[int], int | None]:
        """Removes messages within seq..end-1 whose subject has more than `limit`. What went, and where to go on."""
        ...

    def remove_unwanted(
        self, subject_filters: Sequence[bytes], seq: int, end: int, wanted: Callable[[int, bytes], bool], weight: int
    ) -> tuple[list[int], int | None]:
        """Removes messages within seq..end-1 that match one of the filters and are not `wanted` (sequence, subject).
        What went, and where to go on. One that is looked at counts for `weight`."""
        ...

    def nth_back(self, subject_filter: bytes, nth: int, end: int) -> tuple[int, int]:
        """Looks for the `nth` newest matching message below `end`. (0, its sequence), or (how many are still to be
        found, where to go on), with the sequence 0 when there are not so many."""
        ...


class MachineStore(ReadStore, Protocol):
    """All of it goes into the same open write batch as the messages, so after a crash the messages, the machine's
    state and the side tables are those of one applied index."""

    @property
    def slices(self) -> Slices: ...

    dirty: bool
    """The machine's state will be written in the next commit."""

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Messages, `byte_count`, first and last sequence."""
        ...

    @property
    def num_subjects(self) -> int: ...

    def cut_excess(self, max_msgs: int, max_bytes: int) -> tuple[int, bool]:
        """As `enforce` for limits of the whole stream, but at most one piece: how many went, whether that was all."""
        ...

    def enforce(
        self,
        max_msgs: int = -1,
        max_bytes: int = -1,
        max_per_subject: int = -1,
        touched_subjects: Sequence[bytes] = (),
    ) -> int:
        """Removes the oldest messages until the limits hold (<= 0: no limit), those per subject first and only of
        `touched_subjects`. Returns how many went."""
        ...

    def expire(self, before_ts: int) -> int:
        """Removes every message with a time < `before_ts`; returns how many."""
        ...

    def contains(self, seq: int) -> bool:
        """True when there is a message at `seq`."""
        ...

    def delete_all(self, seqs: Sequence[int]) -> int:
        """Removes the messages at the ascending `seqs`, as far as they are there; returns how many."""
        ...

    def load_machine_state(self) -> bytes | None: ...

    def save_machine_state(self, state: bytes | Callable[[], bytes]) -> None:
        """Writes `state` in the next commit; a callable is asked only then."""
        ...

    def find_lasts(self, filters: Iterable[bytes]) -> None:
        """`last_seq_matching` will be asked for these wildcards: looks for all of them at once."""
        ...

    def last_seq_matching(self, filter: bytes) -> int:
        """Last sequence of the subjects that match a wildcard, 0 when there is none."""
        ...

    def side_put(self, table: int, key: bytes, value: bytes) -> None: ...

    def side_get(self, table: int, key: bytes) -> bytes | None: ...

    def side_delete(self, table: int, key: bytes) -> None: ...

    def side_scan(self, table: int, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """(key, value) from key `start` on, in key order. Not to be continued after a write to the table."""
        ...


SIDE_CONFIG = 1
"""One row, key b"": the configuration in force, as in UPDATE_CONFIG."""
SIDE_DEDUPE = 2
"""Rows of `dedupe.DedupeWindow`."""
SIDE_BATCH_PARTS = 3
"""Rows of `atomic_parts.BatchParts`."""
SIDE_TTL = 4
"""`due_index.DueIndex`: when messages with a Nats-TTL expire."""
SIDE_NEVER = 5
"""One row, key b"", while messages may be stored that never expire (`Nats-TTL: never`): see `expiry`."""
SIDE_SCHEDULES = 6
"""`due_index.DueIndex`: when scheduled messages are due."""
SIDE_CONSUMERS = 7
"""A row per consumer, and one, key b"", with the next consumer id (`consumer.table`)."""
SIDE_PENDING = 8
"""Pages of `consumer.pending`."""
SIDE_WAITING = 9
"""Key consumer id | reply subject, empty value: the pulls that wait."""
SIDE_SESSIONS = 10
"""Rows of `consumer.sessions`."""
SIDE_EXHAUSTED = 11
"""Key consumer id | sequence, empty value: messages that are kept although they will not be delivered again."""

SIDE_SOURCES = 12
"""Rows of `sourced.Cursors`."""
SIDE_JOBS = 13
"""Rows of `jobs.Jobs`."""
SIDE_MEMBERS = 14
"""One row, key b"": the Raft configuration in force at the applied index (`replica.stream_replica`)."""
SIDE_ASKED = 15
"""Rows of `asked.Asked`."""
SIDE_FAST = 16
"""Rows of `fast_rows.FastRows`."""
SIDE_COUNTED = 17
"""One row, key b"": the stream counts what its sources have (`counters.tracks_sources`)."""


Message = tuple[bytes, bytes, bytes]
"""Subject, header block, payload."""
Sift = Callable[[Sequence[bytes], int, int], None]
"""Filters, and the lowest and highest sequence: among these may be messages that nobody wants any more."""


class Extension(Protocol):
    """Other state that lives in the stream's log, applied together with the messages (`consumer.table`)."""

    @property
    def public_count(self) -> int:
        """Consumers of the stream, without those of mirrors and sources."""
        ...

    def reload(self) -> None:
        """Reads its state from the store: at start and after a snapshot was installed. `configure` follows."""
        ...

    def flush(self) -> None:
        """Writes what has changed into its side tables: called once per commit of the store, at its start."""
        ...

    def apply(self, kind: int, ts: int, index: int, body: bytes, sift: Sift | None = None) -> Result:
        """Applies a command of kinds 18..31 at the stream's time `ts`, which never goes back; returns its outcome, with
        `digest_bytes` for the rolling hash when it is neither int nor ApiError. Raises CommandError, DamagedError.
        What nobody wants any more is left to `sift`; without it, all of it goes at once."""
        ...

    def configure(self, rules: StreamRules, sift: Sift | None = None) -> None:
        """The stream's configuration in force: after `reload` and whenever it changes. `sift` as with `apply`."""
        ...

    def wanted(self, seq: int, subject: bytes) -> bool:
        """In a stream with interest retention: the message at `seq` is for somebody."""
        ...

    def purged(self) -> None:
        """A purge without a filter has moved the first sequence."""
        ...

    def trimmed(self) -> None:
        """A command has moved the first sequence."""
        ...

    def removed(self, seqs: Sequence[int]) -> None:
        """Messages were deleted on purpose: those at `seqs`, or unknown ones when empty."""
        ...

    def stored(self, first_seq: int, last_seq: int) -> None:
        """New messages are in the store of a stream with interest retention; limits are not enforced yet. Removes what
        nobody will want."""
        ...
