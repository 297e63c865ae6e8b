"""The commands in a stream's log: their bytes.

    u8 kind | u8 flags | u64 time, nanoseconds, stamped by the leader | body      (little-endian)

Every command carries the leader's time, because `apply` never reads a clock. A follower that does not know a kind, a
flag or a version must stop (`UnknownCommandError`), not skip the command: a newer version wrote it, and the others may
understand it. Malformed bytes of a known kind (`CommandError`) are refused by all replicas alike (`applier`). So a
later version may give a known kind another meaning only with a flag, which a leader sets when all replicas of the
stream understand it (`levels`).

The flag NAMED is on commands that must not be carried out twice: the number of the request, u64, precedes the body
(`asked`). GUARDED is on an UPDATE_CONFIG with a `retention_guard`, which a version without guards must not carry out.
ROLLS_UP is on a PUBLISH, a BATCH_COMMIT or a FAST_PUBLISH with a message that rolls up more than a piece of a job has:
what is beyond that a job removes. COUNTED is on a RESTORE with totals of sources, which a counter goes on with then.
NEWEST is on a CONSUMER_RESET after which `last_per_subject` means the messages of then.

A command that may remove many messages removes a bounded number, and leaves a job (`jobs`) that CONTINUE carries on.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jetcluster.errors import PeerError
from jetcluster.model import retention_guard
from jetcluster.records import NamedTuple
from jetcluster.store.batch import Batch, BatchError, UnknownBatchError
from jetcluster.stream.log import bodies
from jetcluster.stream.log.bodies import LATEST_TIME, Guard, Replace, Run, Sourced, decode_runs, load_object
from jetcluster.stream.log.fast_parts import FastPart, decode_parts, encode_parts

PUBLISH: Final = 1
PURGE: Final = 2
DELETE_MSG: Final = 3
EXPIRE: Final = 4
UPDATE_CONFIG: Final = 5
BATCH_PART: Final = 6
BATCH_COMMIT: Final = 7
SOURCED: Final = 8
FAST_PUBLISH: Final = 9
FIRE: Final = 10
RESTORE: Final = 16
RESTORE_END: Final = 17
REPLACE: Final = 32
CONTINUE: Final = 33
CONSUMER_CREATE: Final = 18
CONSUMER_DELETE: Final = 19
CONSUMER_TURN: Final = 20
CONSUMER_PAUSE: Final = 21
CONSUMER_RESET: Final = 22
CONSUMER_OWNER: Final = 23
FIRST_EXTENDED: Final = 18
LAST_EXTENDED: Final = 31
# 11..15 are free. 18..31 belong to the machine's extension (`consumer`).
KINDS: Final = frozenset(
    (
        *(PUBLISH, FAST_PUBLISH, PURGE, DELETE_MSG, EXPIRE, UPDATE_CONFIG, BATCH_PART, BATCH_COMMIT, SOURCED, FIRE),
        *(RESTORE, RESTORE_END, REPLACE, CONTINUE),
        *range(FIRST_EXTENDED, LAST_EXTENDED + 1),
    )
)
"""The kinds that this version knows; the extension knows its own."""

NAMED: Final = 1
GUARDED: Final = 2
ROLLS_UP: Final = 4
COUNTED: Final = 8
NEWEST: Final = 16
_MARKED: Final = frozenset(
    (
        *((GUARDED, UPDATE_CONFIG), (COUNTED, RESTORE)),
        *((ROLLS_UP, PUBLISH), (ROLLS_UP, BATCH_COMMIT), (ROLLS_UP, FAST_PUBLISH)),
        *((NEWEST, CONSUMER_RESET), (NEWEST | NAMED, CONSUMER_RESET)),
    )
)
_MAY_BE_NAMED: Final = frozenset((PURGE, REPLACE, CONSUMER_DELETE, CONSUMER_RESET))

HEAD: Final = struct.Struct("<BBQ")
_PURGE_BODY: Final = struct.Struct("<QQ")
_U64: Final = struct.Struct("<Q")
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_COMMIT_BODY: Final = struct.Struct("<BxH")
_FIRING: Final = struct.Struct("<QQQBB")
_RESTORE_END: Final = struct.Struct("<Qq")
_NO_ERASE: Final = b"\x01"
_PLAIN: Final = 1
_ALLOW_MSG_ID: Final = 2

PART_BYTES: Final = 4 << 20
"""Bytes above which an atomic batch goes into the log in parts: an entry may have 8 MiB."""


class CommandError(PeerError):
    """Malformed bytes of a known kind of command: all versions refuse them."""


class UnknownCommandError(CommandError):
    """A command of a newer version. The replica must stop, or it would diverge from those that know the command."""


class Publish(NamedTuple):
    """Messages published in one turn of the leader's loop."""

    ts: int
    batch: Batch
    rolls_up: bool = False
    """A job may remove what its messages roll up."""


class FastPublish(NamedTuple):
    """As `Publish`, with messages of fast-ingest batches."""

    ts: int
    batch: Batch | None
    """None: without messages, only to end batches."""
    parts: list[FastPart]
    rolls_up: bool = False
    """As of `Publish`."""


class Purge(NamedTuple):
    """Remove messages: those below `seq`, or all but the newest `keep`."""

    ts: int
    filter: bytes
    """b"" for the whole stream."""
    seq: int
    keep: int


class DeleteMsg(NamedTuple):
    """Remove one message."""

    ts: int
    seq: int
    erase: bool = True
    """Overwrite its bytes; else they stay until their block is compacted."""


class Expire(NamedTuple):
    """Remove what has expired at `ts`. Apply computes the bound from the `max_age` in force at this place of the log,
    so an expiry proposed before an update that lengthens it does no harm."""

    ts: int


class Continue(NamedTuple):
    """Go on with the oldest job."""

    ts: int


class UpdateConfig(NamedTuple):
    """Put a configuration in force."""

    ts: int
    config: dict[str, Any]
    revision: int = 0
    """Orders configurations: one older than that in force has no effect. 0 always has."""


class BatchPart(NamedTuple):
    """Bytes of an atomic batch too long for one entry. No effect until its BATCH_COMMIT, next in the same term."""

    ts: int
    number: int
    """0 for the first part."""
    data: bytes


class BatchCommit(NamedTuple):
    """Store an atomic batch: all of it or, when a check fails, nothing."""

    ts: int
    parts: int
    """Number of BATCH_PART entries right before this one, with the start of the batch."""
    body: Batch | bytes
    """The batch; its last bytes when there are parts."""
    plain: bool
    """The leader found no header that needs a check."""
    allow_msg_id: bool
    """The leader's `batch.allow_msg_id`, as replicas may be configured differently."""
    rolls_up: bool = False
    """As of `Publish`."""


class Firing(NamedTuple):
    """A schedule that is due."""

    seq: int
    """Sequence of its message."""
    due: int
    """Its time in the index, Unix nanoseconds; void when the index has it no more."""
    next_due: int
    """Its next time, Unix nanoseconds; 0 when it does not fire again."""
    planned_only: bool
    """Only sets the next time, as for a new schedule in a time zone; no message is produced."""
    next_text: bytes
    """Value of the produced message's Nats-Schedule-Next."""


class Fire(NamedTuple):
    """Fire the schedules that the leader found due at `ts`."""

    ts: int
    firings: list[Firing]


class Restore(NamedTuple):
    """Store messages of an archive (`restoring`), ascending. Those up to the stream's last sequence are skipped."""

    ts: int
    runs: list[Run]
    counted: bool = False
    """Messages may carry the totals of a counter's sources."""


class RestoreEnd(NamedTuple):
    """End a restore: the archived stream's last message was `last_seq`, at `last_ts`."""

    ts: int
    last_seq: int
    last_ts: int


class Extended(NamedTuple):
    """A command of the machine's extension, which decodes the body."""

    ts: int
    kind: int
    body: bytes


Command = (
    Publish
    | FastPublish
    | BatchPart
    | BatchCommit
    | Purge
    | DeleteMsg
    | Expire
    | Fire
    | UpdateConfig
    | Restore
    | RestoreEnd
    | Replace
    | Continue
    | Sourced
    | Extended
)


def encode_publish(ts: int, batch: bytes, *, rolls_up: bool = False) -> bytes:
    """Encodes a PUBLISH; `batch` is an encoded `store.batch.Batch`."""
    return HEAD.pack(PUBLISH, ROLLS_UP if rolls_up else 0, ts) + batch


def encode_fast(ts: int, parts: Sequence[FastPart], batch: bytes, *, rolls_up: bool = False) -> bytes:
    """Encodes a FAST_PUBLISH; `parts` assign messages to fast-ingest batches. `batch` may be b""."""
    marks = encode_parts(parts)
    return HEAD.pack(FAST_PUBLISH, ROLLS_UP if rolls_up else 0, ts) + _U32.pack(len(marks)) + marks + batch


def encode_atomic(ts: int, batch: bytes, *, plain: bool, allow_msg_id: bool, rolls_up: bool = False) -> list[bytes]:
    """The commands of an atomic batch, to be proposed in a row; one, unless it is longer than PART_BYTES."""
    count = (len(batch) - 1) // PART_BYTES  # the commit has the rest, at least one byte
    parts = [
        HEAD.pack(BATCH_PART, 0, ts) + _U16.pack(number) + batch[number * PART_BYTES : (number + 1) * PART_BYTES]
        for number in range(count)
    ]
    options = (_PLAIN if plain else 0) | (_ALLOW_MSG_ID if allow_msg_id else 0)
    rest = batch[count * PART_BYTES :] if count else batch
    return [*parts, HEAD.pack(BATCH_COMMIT, ROLLS_UP if rolls_up else 0, ts) + _COMMIT_BODY.pack(options, count) + rest]


def encode_purge(ts: int, filter: bytes = b"", seq: int = 0, keep: int = 0) -> bytes:
    return HEAD.pack(PURGE, 0, ts) + _PURGE_BODY.pack(seq, keep) + filter


def encode_delete_msg(ts: int, seq: int, *, erase: bool = True) -> bytes:
    return HEAD.pack(DELETE_MSG, 0, ts) + _U64.pack(seq) + (b"" if erase else _NO_ERASE)


def erases(command: bytes) -> bool:
    """True for a DELETE_MSG that must destroy the message's bytes."""
    return command[0] == DELETE_MSG and not command.startswith(_NO_ERASE, HEAD.size + _U64.size)


def encode_expire(ts: int) -> bytes:
    return HEAD.pack(EXPIRE, 0, ts)


def encode_continue(ts: int) -> bytes:
    return HEAD.pack(CONTINUE, 0, ts)


def encode_fire(ts: int, firings: Sequence[Firing]) -> bytes:
    parts = [HEAD.pack(FIRE, 0, ts)]
    for seq, due, next_due, planned_only, text in firings:
        parts += _FIRING.pack(seq, due, next_due, planned_only, len(text)), text
    return b"".join(parts)


def encode_replace(ts: int, guards: Sequence[Guard], purges: Sequence[bytes], batch: bytes = b"") -> bytes:
    """Encodes a REPLACE; `batch` is the encoded `Batch` to store, or b""."""
    return HEAD.pack(REPLACE, 0, ts) + bodies.encode_replace(guards, purges, batch)


def encode_restore(ts: int, runs: bytes, *, counted: bool = False) -> bytes:
    """Encodes a RESTORE; `runs` as from `bodies.encode_runs`. `counted`: see `Restore`."""
    return HEAD.pack(RESTORE, COUNTED if counted else 0, ts) + runs


def encode_restore_end(ts: int, last_seq: int, last_ts: int) -> bytes:
    return HEAD.pack(RESTORE_END, 0, ts) + _RESTORE_END.pack(last_seq, last_ts)


def encode_sourced(ts: int, body: bytes) -> bytes:
    """Encodes a SOURCED; `body` as from `bodies.encode_sourced`."""
    return HEAD.pack(SOURCED, 0, ts) + body


def encode_update_config(ts: int, config: Mapping[str, Any], revision: int = 0) -> bytes:
    flags = GUARDED if config.get(retention_guard.FIELD) is not None else 0
    return HEAD.pack(UPDATE_CONFIG, flags, ts) + _U64.pack(revision) + dump_config(config)


def encode_extended(ts: int, kind: int, body: bytes, flags: int = 0) -> bytes:
    assert FIRST_EXTENDED <= kind <= LAST_EXTENDED, kind
    return HEAD.pack(kind, flags, ts) + body


def named(command: bytes, request: int) -> bytes:
    """Adds the number of its request to a command without one."""
    assert not command[1] & NAMED
    head = bytes((command[0], command[1] | NAMED)) + command[2 : HEAD.size]
    return head + _U64.pack(request) + command[HEAD.size :]


def nameless(command: bytes) -> bytes:
    """Undoes `named`; returns any other command unchanged."""
    if not command[1] & NAMED:
        return command
    head = bytes((command[0], command[1] & ~NAMED)) + command[2 : HEAD.size]
    return head + command[HEAD.size + _U64.size :]


def request_of(command: bytes) -> int:
    """The request's number in a NAMED command that `decode` has accepted."""
    number: int = _U64.unpack_from(command, HEAD.size)[0]
    return number


def dump_config(config: Mapping[str, Any]) -> bytes:
    """Encodes a configuration: equal ones have the same bytes on every replica."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def load_config(raw: bytes) -> dict[str, Any]:
    """Undoes `dump_config`. Raises ValueError when the bytes are no JSON object."""
    return load_object(raw)


def whole_batch(raw: bytes) -> Batch:
    """Decodes the joined batch of a BATCH_COMMIT with parts. Raises CommandError."""
    try:
        return Batch.decode(raw, verify=False)
    except UnknownBatchError as error:
        raise UnknownCommandError(f"atomic batch in parts: {error}") from error
    except BatchError as error:
        raise CommandError(f"atomic batch in parts: {error}") from error


def decode(command: bytes) -> Command:
    """Decodes a command. Raises CommandError. The journal's and the wire's checksums cover that of the batch."""
    if len(command) < HEAD.size:
        raise CommandError(f"{len(command)} bytes")
    kind, flags, ts = HEAD.unpack_from(command)
    if kind not in KINDS:
        raise UnknownCommandError(f"kind {kind}")
    if ts > LATEST_TIME:
        raise CommandError(f"time {ts}")
    if flags and (flags, kind) not in _MARKED and (flags != NAMED or kind not in _MAY_BE_NAMED):
        raise UnknownCommandError(f"kind {kind} with unknown flags {flags:#x}")
    if flags & NAMED:
        if len(command) < HEAD.size + _U64.size:
            raise CommandError(f"kind {kind} without its request's number")
        command = nameless(command)
    try:
        if kind == PUBLISH:
            return Publish(ts, Batch(command, HEAD.size, False), flags == ROLLS_UP)
        if kind == CONSUMER_TURN:
            return Extended(ts, kind, command[HEAD.size :])
        return _decode_body(kind, ts, command)
    except UnknownBatchError as error:
        raise UnknownCommandError(f"kind {kind}: {error}") from error
    except (BatchError, struct.error, ValueError, IndexError) as error:
        raise CommandError(f"kind {kind}: {error}") from error


def _decode_body(kind: int, ts: int, command: bytes) -> Command:
    at = HEAD.size
    if kind == FAST_PUBLISH:
        return _decode_fast(ts, command)
    if kind == BATCH_COMMIT:
        return _decode_commit(ts, command)
    if kind == BATCH_PART:
        (number,) = _U16.unpack_from(command, at)
        return BatchPart(ts, number, command[at + _U16.size :])
    if kind == EXPIRE:
        if len(command) != at:
            raise ValueError("trailing bytes")
        return Expire(ts)
    if kind == PURGE:
        seq, keep = _PURGE_BODY.unpack_from(command, at)
        return Purge(ts, command[at + _PURGE_BODY.size :], seq, keep)
    if kind == DELETE_MSG:
        (seq,) = _U64.unpack_from(command, at)
        rest = command[at + _U64.size :]
        if rest not in (b"", _NO_ERASE):
            raise ValueError("trailing bytes")
        return DeleteMsg(ts, seq, erase=not rest)
    if kind == FIRE:
        return _decode_fire(ts, command)
    if kind == UPDATE_CONFIG:
        (revision,) = _U64.unpack_from(command, at)
        return UpdateConfig(ts, load_config(command[at + _U64.size :]), revision)
    if kind == RESTORE:
        return Restore(ts, decode_runs(command, at), command[1] == COUNTED)
    if kind == SOURCED:
        return bodies.decode_sourced(ts, command, at)
    if kind == REPLACE:
        return bodies.decode_replace(ts, command, at)
    if kind == CONTINUE:
        if len(command) != at:
            raise ValueError("trailing bytes")
        return Continue(ts)
    if kind == RESTORE_END:
        return RestoreEnd(ts, *_RESTORE_END.unpack(command[at:]))
    return Extended(ts, kind, command[at:])


def _decode_fast(ts: int, command: bytes) -> FastPublish:
    start = HEAD.size + _U32.size
    end = start + _U32.unpack_from(command, HEAD.size)[0]
    batch = Batch.decode(command, end, verify=False) if len(command) != end else None
    parts = decode_parts(command[start:end], 0, batch.count if batch is not None else 0)
    return FastPublish(ts, batch, parts, command[1] == ROLLS_UP)


def _decode_fire(ts: int, command: bytes) -> Fire:
    at = HEAD.size
    firings: list[Firing] = []
    while at < len(command):
        seq, due, next_due, planned_only, size = _FIRING.unpack_from(command, at)
        at += _FIRING.size + size
        if planned_only > 1 or at > len(command):
            raise ValueError("not a firing")
        firings.append(Firing(seq, due, next_due, bool(planned_only), command[at - size : at]))
    return Fire(ts, firings)


def _decode_commit(ts: int, command: bytes) -> BatchCommit:
    options, parts = _COMMIT_BODY.unpack_from(command, HEAD.size)
    if options & ~(_PLAIN | _ALLOW_MSG_ID):
        raise UnknownCommandError(f"unknown options {options:#x}")
    at = HEAD.size + _COMMIT_BODY.size
    body = command[at:] if parts else Batch.decode(command, at, verify=False)
    return BatchCommit(ts, parts, body, bool(options & _PLAIN), bool(options & _ALLOW_MSG_ID), command[1] == ROLLS_UP)
