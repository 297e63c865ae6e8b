"""Tables beside the messages in a `BlockStore`, and the contract of other state in the same log (`Extension`).

Results of commands: the same on every replica, and part of the rolling hash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from jetcluster.errors import ApiError
from jetcluster.stream.rules import StreamRules


class Duplicate(NamedTuple):
    """The message carries the id of one that is stored already, as `seq`; it was not stored again."""

    seq: int


class Counted(NamedTuple):
    """The message of a counter was stored as `seq`, and `total` is the counter's value with it, in digits."""

    seq: int
    total: bytes


Verdict = int | Counted | Duplicate | ApiError
"""Outcome of one message: stored (the sequence), a duplicate, or refused."""


class PublishResult(NamedTuple):
    first_seq: int
    """Sequence of the first message of the command that was stored (or would have been)."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    """Messages in the command."""
    verdicts: list[Verdict] | None
    """One per message; None: all were stored, as `first_seq`, `first_seq + 1`, ..."""


class BatchResult(NamedTuple):
    """Outcome of an atomic batch: all of it stored, or nothing."""

    last_seq: int
    """Sequence of its last message; 0 when it was refused."""
    size: int
    """Messages stored."""
    error: ApiError | None


class JobStep(NamedTuple):
    """A long command has come so far, and goes on with the next CONTINUE unless it is done (`jobs`)."""

    job: int
    """Index of the command."""
    removed: int
    """Messages so far."""
    done: bool

    def digest_bytes(self) -> bytes:
        return b"j%d:%d:%d" % self


class Digestible(Protocol):
    """Result of a command of the machine's extension."""

    def digest_bytes(self) -> bytes:
        """Short, unambiguous bytes for the rolling hash."""
        ...


Result = PublishResult | BatchResult | int | ApiError | Digestible
"""PublishResult of PUBLISH; BatchResult of BATCH_COMMIT; 0 of BATCH_PART; number of messages removed by PURGE,
DELETE_MSG and EXPIRE (and by UPDATE_CONFIG, 0); JobStep of CONTINUE (0 when there is no job), and of a PURGE that is
not done yet; REPLACE gives the sequence of the last message stored, or removed
messages when it stores none; ApiError when the command was refused."""


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
"""Rows of `atomic_parts.BatchParts`."""
SIDE_TTL = 4
"""`due_index.DueIndex`: when messages with a Nats-TTL expire."""
SIDE_NEVER = 5
"""One row, key b"", while messages may be stored that never expire (`Nats-TTL: never`): see `expiry`."""
SIDE_SCHEDULES = 6
"""`due_index.DueIndex`: when scheduled messages are due."""
SIDE_CONSUMERS = 7
"""A row per consumer, and one, key b"", with the next consumer id (`consumer.state.table`)."""
SIDE_PENDING = 8
"""Pages of `consumer.state.pending`."""
SIDE_WAITING = 9
"""Key consumer id | reply subject, empty value: the pulls that wait."""
SIDE_SESSIONS = 10
"""Rows of `consumer.state.table`."""
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
    """Other state that lives in the stream's log, applied together with the messages (`consumer.state.table`)."""

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

    def apply(self, kind: int, ts: int, index: int, body: bytes, sift: Sift) -> Result:
        """Applies a command of kinds 18..31 at the stream's time `ts`, which never goes back; returns its outcome, with
        `digest_bytes` for the rolling hash when it is neither int nor ApiError. Raises CommandError, DamagedError.
        What nobody wants any more is left to `sift`."""
        ...

    def configure(self, rules: StreamRules, sift: Sift) -> None:
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
