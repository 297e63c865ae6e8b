"""Results of commands, the side tables of a stream's store, and the contract of other state in its log (`Extension`).

Results are the same on every replica, and part of the rolling hash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from jetcluster.errors import ApiError
from jetcluster.records import NamedTuple
from jetcluster.stream.rules import StreamRules


class Duplicate(NamedTuple):
    """The message has the id of the one stored as `seq`, and was not stored again."""

    seq: int


class Counted(NamedTuple):
    """The message of a counter was stored as `seq`, with the counter's `total` in digits."""

    seq: int
    total: bytes


Verdict = int | Counted | Duplicate | ApiError
"""Outcome of one message: stored (the sequence), a duplicate, or refused."""


class PublishResult(NamedTuple):
    """Outcome of a PUBLISH."""

    first_seq: int
    """Sequence of the first message stored, or that it would have."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed
    """Messages in the command."""
    verdicts: list[Verdict] | None
    """One per message; None: all were stored, as `first_seq`, `first_seq + 1`, ..."""
    waits: tuple[tuple[int, int], ...] = ()
    """(sequence, job) of stored messages that roll up more than one piece has: their acks wait for the end of it."""


class BatchResult(NamedTuple):
    """Outcome of an atomic batch, stored as a whole or not."""

    last_seq: int
    """Sequence of its last message; 0 when it was refused."""
    size: int
    """Messages stored."""
    error: ApiError | None
    wait: int = 0
    """Index of the command whose job removes the last of what its messages roll up; 0 where all is gone."""


class JobStep(NamedTuple):
    """Progress of a long command, which the next CONTINUE carries on unless it is done (`jobs`)."""

    job: int
    """Index of the command."""
    removed: int
    """Messages removed so far."""
    done: bool

    def digest_bytes(self) -> bytes:
        return b"j%d:%d:%d" % self


class Digestible(Protocol):
    """Result of a command of the machine's extension."""

    def digest_bytes(self) -> bytes:
        """Short, unambiguous bytes for the rolling hash."""


Result = PublishResult | BatchResult | int | ApiError | Digestible
"""PublishResult of PUBLISH; BatchResult of BATCH_COMMIT; 0 of BATCH_PART; number of messages removed by PURGE,
DELETE_MSG, EXPIRE and UPDATE_CONFIG; JobStep of CONTINUE (0 without a job) and of an unfinished PURGE; last sequence
stored by REPLACE, or messages removed if it stores none; ApiError of a refused command."""


def digest_bytes(result: Result) -> bytes:
    """Short, unambiguous bytes of a result, for the rolling hash."""
    if isinstance(result, PublishResult):
        if result.verdicts is None:
            return b"s%d+%d" % (result.first_seq, result.count)
        return b"v" + b",".join(map(_verdict_bytes, result.verdicts))
    if isinstance(result, BatchResult):
        return b"b%d+%d" % (result.last_seq, result.size) if result.error is None else _verdict_bytes(result.error)
    if isinstance(result, ApiError):
        return _verdict_bytes(result)
    if isinstance(result, int):
        return b"n%d" % result
    return b"x" + result.digest_bytes()


def _verdict_bytes(verdict: Verdict) -> bytes:
    if isinstance(verdict, int):
        return b"%d" % verdict
    if isinstance(verdict, Duplicate):
        return b"d%d" % verdict.seq
    if isinstance(verdict, Counted):
        return b"%d=%b" % verdict
    return b"e%d:%b" % (verdict.err_code, verdict.description.encode())


SIDE_CONFIG = 1
"""One row, key b"": the configuration in force, as in UPDATE_CONFIG."""
SIDE_DEDUPE = 2
"""Rows of `dedupe.DedupeWindow`."""
SIDE_BATCH_PARTS = 3
"""Rows of `atomic_checks.BatchParts`."""
SIDE_TTL = 4
"""`due_index.DueIndex` of messages with a Nats-TTL."""
SIDE_NEVER = 5
"""One row, key b"", while there may be messages that never expire (`Nats-TTL: never`): see `expiry`."""
SIDE_SCHEDULES = 6
"""`due_index.DueIndex` of schedules."""
SIDE_CONSUMERS = 7
"""A row per consumer, and one, key b"", with the next consumer id (`consumer.state.table`)."""
SIDE_PENDING = 8
"""Pages of `consumer.state.pending`."""
SIDE_WAITING = 9
"""Key consumer id | reply subject, empty value: waiting pulls."""
SIDE_SESSIONS = 10
"""Rows of `consumer.state.table`."""
SIDE_EXHAUSTED = 11
"""Key consumer id | sequence, empty value: kept messages that will not be delivered again."""
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
"""One row, key b"", when messages carry totals of sources (`counters.tracks_sources`)."""
SIDE_LETTERS = 18
"""Rows of `consumer.state.letters`."""
SIDE_GUARD = 19
"""One row, key b"", once a retention guard gave messages up (`guard.RetentionGuard`)."""

NAMED_TABLES: Final = {SIDE_WAITING: 4, SIDE_SESSIONS: 0, SIDE_SOURCES: 0, SIDE_FAST: 0}
"""Tables whose keys have subjects or names that somebody chose -> the bytes before them. Encryption at rest hides them
(`store.seal`); keys of other tables must have numbers only."""

Message = tuple[bytes, bytes, bytes]
"""Subject, header block, payload."""
Sift = Callable[[Sequence[bytes], int, int], None]
"""Called with filters and the lowest and highest sequence of messages that may be unwanted now."""


class Extension(Protocol):
    """Other state that lives in the stream's log, applied together with the messages (`consumer.state.table`)."""

    @property
    def public_count(self) -> int:
        """Number of consumers, without those of mirrors and sources."""

    def reload(self) -> None:
        """Loads its state from the store, as `StreamMachine.reload`. `configure` follows."""

    def flush(self) -> None:
        """Writes changes into its side tables; called at the start of each commit of the store."""

    def apply(self, kind: int, ts: int, index: int, body: bytes, sift: Sift) -> Result:
        """Applies a command of kinds 18..31 at the stream's time `ts`, which never goes back; returns its outcome, with
        `digest_bytes` for the rolling hash when it is neither int nor ApiError. Raises CommandError, DamagedError.
        `sift` removes messages that become unwanted."""

    def configure(self, rules: StreamRules, sift: Sift) -> None:
        """Sets the stream's configuration: after `reload` and when it changes. `sift` as in `apply`."""

    def floor_of(self, name: str) -> int | None:
        """Sequence up to which no message waits for the consumer: each was acknowledged or given up by it (also while
        its dead letter waits), or does not match its filters. None without such a consumer. Amortised O(1)."""

    def wanted(self, seq: int, subject: bytes) -> bool:
        """True when a consumer wants the message at `seq`, in a stream with interest retention."""

    def purged(self) -> None:
        """Called after a purge without a filter moved the first sequence."""

    def trimmed(self) -> None:
        """Called after a command moved the first sequence."""

    def removed(self, seqs: Sequence[int]) -> None:
        """Called after messages were deleted on purpose: those at `seqs`, or unknown ones when empty."""

    def stored(self, first_seq: int, last_seq: int) -> None:
        """Called after messages were stored, before limits are enforced (interest retention). Removes unwanted ones."""
