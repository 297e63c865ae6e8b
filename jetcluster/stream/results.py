"""Results of commands: the same on every replica, and part of the rolling hash."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from jetcluster.errors import ApiError


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
