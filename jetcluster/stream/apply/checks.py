"""The checks of published messages: one table of the checks with their error codes, and one order per kind of publish.

Checks run in apply, in log order, so that each sees the effects of the messages before it. The orders are those of
nats-server's clustered streams: duplicates come before expectations, so that a retry is acknowledged as a duplicate
with any expectation. Messages of fast-ingest batches are plain ones; their gate (`fast_parts`) holds back the messages
after a refused one. A leader refuses some messages before they enter the log, by the same functions (EARLY,
EARLY_ATOMIC, EARLY_FAST). Some commands are refused, or of no effect, as a whole, before their messages are looked at
(WHOLE).

To change a rule, change its function; to add one, add a function, a row, and its name to the orders that have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Protocol

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.protocol.subjects import is_literal
from jetcluster.records import NamedTuple
from jetcluster.store.batch import MAX_SUBJECT, Batch
from jetcluster.stream.apply import schedules
from jetcluster.stream.apply.counters import Tally, check_increment
from jetcluster.stream.apply.schedules import check_schedule
from jetcluster.stream.apply.staging import Staging, record_size
from jetcluster.stream.fields import KV_OPERATION, check_ttl, nats_fields, number
from jetcluster.stream.ports import Duplicate, Message, Verdict
from jetcluster.stream.rules import StreamRules

MAX_HEADER_BYTES: Final = 65_535
"""Longest header block of a stored message, bytes (10097)."""
EXPECTED_SUBJECT: Final = b"\r\nNats-Expected-Last-Subject-Sequence-Subject:"

SEALED: Final = errors.by_code(errors.STREAM_SEALED)
PURGE_DENIED: Final = errors.by_code(errors.PURGE_FAILED, err="stream purge not permitted")
SUBJECT_TOO_LONG: Final = errors.by_code(10077, err="subject exceeds maximum length")
_TOO_LARGE: Final = errors.by_code(10054)
_HEADER_TOO_LARGE: Final = errors.by_code(10097)
_ATOMIC_DISABLED: Final = errors.by_code(10174)
_FAST_DISABLED: Final = errors.by_code(10205)
_WRONG_STREAM: Final = errors.by_code(10060)
_MISSING_SEQUENCE: Final = errors.by_code(10193)
_SEQUENCE_IN_BATCH: Final = errors.by_code(10164)
_FOREIGN_SOURCE: Final = errors.by_code(10227)
_DUPLICATE_IN_BATCH: Final = errors.by_code(10201)
_NO_LAST_MSG_ID: Final = errors.by_code(10177, header="Nats-Expected-Last-Msg-Id")
_NO_MSG_ID: Final = errors.by_code(10177, header="Nats-Msg-Id")
_MAX_MSGS: Final = errors.by_code(10077, err="maximum messages exceeded")
_MAX_BYTES: Final = errors.by_code(10077, err="maximum bytes exceeded")
_MAX_PER_SUBJECT: Final = errors.by_code(10077, err="maximum messages per subject exceeded")
_ROLLUP_NOT_PERMITTED: Final = errors.by_code(10111, err="rollup not permitted")
_ROLLUP_SUB: Final = errors.by_code(10111, err="batch rollup sub invalid")
_ROLLUP_ALL: Final = errors.by_code(10111, err="batch rollup all invalid")


class Publication:
    """A message under check."""

    __slots__ = ("fields", "headers", "payload", "place", "subject", "tally")

    def __init__(self, place: int, subject: bytes, headers: bytes, payload: bytes, fields: dict[bytes, bytes]) -> None:
        """Message number `place` of its command, with the `Nats-` fields of its header block."""
        self.place = place
        self.subject = subject
        self.headers = headers
        self.payload = payload
        self.fields = fields
        self.tally: Tally | None = None
        """The counter's total with this message. `as_stored` sets it, and the headers and payload to store."""

    @property
    def message(self) -> Message:
        return self.subject, self.headers, self.payload


class Ruled(Protocol):
    """An object that has the configuration in force."""

    @property
    def rules(self) -> StreamRules: ...


class CheckView(Ruled, Protocol):
    """The stream as the next message of a command finds it, with the effects of the messages before it."""

    @property
    def staging(self) -> Staging: ...
    @property
    def name(self) -> bytes: ...
    @property
    def time(self) -> int:
        """Time of the command, Unix nanoseconds."""

    @property
    def takes_msg_ids(self) -> bool:
        """True when an atomic batch may have Nats-Msg-Id: the leader's setting, which is in the command."""

    @property
    def last_seq(self) -> int: ...
    @property
    def messages(self) -> int: ...
    @property
    def byte_count(self) -> int: ...
    def is_grown(self, place: int) -> bool:
        """True when the stream's transform would make the subject too long."""

    def is_fast(self, place: int) -> bool:
        """True when the message belongs to a fast-ingest batch."""

    def is_written(self, subject: bytes) -> bool:
        """True when an earlier message of the same atomic batch has this subject."""

    def seq_of_id(self, msg_id: bytes) -> int | None:
        """Sequence of the message with this id inside the window, or None; 0 for one of the same atomic batch."""

    def last_seq_of(self, subject_filter: bytes) -> int: ...
    def last_headers(self, subject: bytes) -> bytes | None: ...
    def count_of(self, subject: bytes) -> int: ...


# -- the functions: each returns the reason of a refusal, or None ----------------------------------------------------


def sealed(view: Ruled, message: Publication) -> ApiError | None:
    return SEALED if view.rules.sealed else None


def subject_length(view: Ruled, message: Publication) -> ApiError | None:
    """Refuses a longer subject than a batch can hold; the protocol's line permits it."""
    return SUBJECT_TOO_LONG if len(message.subject) > MAX_SUBJECT else None


def purge_permitted(view: Ruled, message: Publication) -> ApiError | None:
    """Refuses to remove the messages that REPLACE replaces."""
    return PURGE_DENIED if view.rules.deny_purge else None


def size(view: Ruled, message: Publication) -> ApiError | None:
    """Refuses header block and payload above `max_msg_size` together."""
    most = view.rules.max_msg_size
    return _TOO_LARGE if most and len(message.headers) + len(message.payload) > most else None


def atomic_enabled(view: Ruled, message: Publication) -> ApiError | None:
    return None if view.rules.allow_atomic else _ATOMIC_DISABLED


def fast_enabled(view: Ruled, message: Publication) -> ApiError | None:
    return None if view.rules.allow_batched else _FAST_DISABLED


def mapped_length(view: CheckView, message: Publication) -> ApiError | None:
    """Refuses a subject that the stream's transform made too long."""
    return SUBJECT_TOO_LONG if view.is_grown(message.place) else None


def header_size(view: CheckView, message: Publication) -> ApiError | None:
    return _HEADER_TOO_LARGE if len(message.headers) > MAX_HEADER_BYTES else None


def last_msg_id_in_batch(view: CheckView, message: Publication) -> ApiError | None:
    return _NO_LAST_MSG_ID if message.fields.get(b"Nats-Expected-Last-Msg-Id") else None


def msg_id_in_batch(view: CheckView, message: Publication) -> ApiError | None:
    return _NO_MSG_ID if message.fields.get(b"Nats-Msg-Id") and not view.takes_msg_ids else None


def increment(view: CheckView, message: Publication) -> ApiError | None:
    return check_increment(message.fields, message.payload, allowed=view.rules.allow_msg_counter)


def expected_stream(view: CheckView, message: Publication) -> ApiError | None:
    stream = message.fields.get(b"Nats-Expected-Stream")
    return _WRONG_STREAM if stream and stream != view.name else None


def ttl(view: CheckView, message: Publication) -> ApiError | None:
    return check_ttl(message.fields, allowed=view.rules.allow_msg_ttl)


def batch_id(view: CheckView, message: Publication) -> ApiError | None:
    """Refuses an atomic batch's message outside of a batch, rather than store it as a plain one."""
    return _ATOMIC_DISABLED if message.fields.get(b"Nats-Batch-Id") and not view.is_fast(message.place) else None


def duplicate(view: CheckView, message: Publication) -> Duplicate | None:
    msg_id = message.fields.get(b"Nats-Msg-Id")
    seq = view.seq_of_id(msg_id) if msg_id else None
    return None if seq is None else Duplicate(seq)


def duplicate_in_batch(view: CheckView, message: Publication) -> ApiError | None:
    return None if duplicate(view, message) is None else _DUPLICATE_IN_BATCH


def foreign_source(view: CheckView, message: Publication) -> ApiError | None:
    return _FOREIGN_SOURCE if message.fields.get(b"Nats-Stream-Source") else None


def as_stored(view: CheckView, message: Publication) -> ApiError | None:
    """Adds a counter's total, a raised TTL, a schedule's rollup for later checks. Only counter streams refuse."""
    made = view.staging.rewritten(message.subject, message.headers, message.payload, message.fields)
    if isinstance(made, ApiError):
        return made
    message.headers, message.payload, message.tally = made
    return None


def as_counted(view: CheckView, message: Publication) -> ApiError | None:
    """Turns a source's message into the one that a counter stores."""
    made = view.staging.counted(message.message, message.fields, sourced=True)
    if isinstance(made, ApiError):
        return made
    message.headers, message.payload, message.tally = made
    return None


def last_sequence(view: CheckView, message: Publication) -> ApiError | None:
    expected = message.fields.get(b"Nats-Expected-Last-Sequence")
    if not expected:
        return None
    last = view.last_seq
    return None if number(expected) == last else errors.by_code(10071, seq=last)


def last_sequence_in_batch(view: CheckView, message: Publication) -> ApiError | None:
    """Refuses the expectation in all messages of an atomic batch but the first."""
    return _SEQUENCE_IN_BATCH if message.place and message.fields.get(b"Nats-Expected-Last-Sequence") else None


def subject_sequence_in_batch(view: CheckView, message: Publication) -> ApiError | None:
    """Refuses an expectation about a subject of the same batch; a wildcard over it passes, as in nats-server."""
    fields = message.fields
    if not fields.get(b"Nats-Expected-Last-Subject-Sequence"):
        return None
    subject = fields.get(b"Nats-Expected-Last-Subject-Sequence-Subject") or message.subject
    return _SEQUENCE_IN_BATCH if view.is_written(subject) else None


def last_subject_sequence(view: CheckView, message: Publication) -> ApiError | None:
    expected = message.fields.get(b"Nats-Expected-Last-Subject-Sequence")
    subject = message.fields.get(b"Nats-Expected-Last-Subject-Sequence-Subject")
    if not expected:
        return _MISSING_SEQUENCE if subject else None
    actual = view.last_seq_of(subject or message.subject)
    return None if number(expected) == actual else errors.by_code(10071, seq=actual)


def schedule(view: CheckView, message: Publication) -> ApiError | None:
    return check_schedule(view.rules, message.subject, message.fields, view.time, view.last_headers)


def rollup(view: CheckView, message: Publication) -> ApiError | None:
    value = message.fields.get(b"Nats-Rollup")
    if not value:
        return None
    if not view.rules.allow_rollup_hdrs or view.rules.deny_purge:
        return _ROLLUP_NOT_PERMITTED
    if value.lower() in (b"sub", b"all"):
        return None
    return errors.by_code(10111, err=f'rollup value invalid: "{value.lower().decode(errors="replace")}"')


def rollup_in_batch(view: CheckView, message: Publication) -> ApiError | None:
    kind = view.staging.rollup(message.headers, message.fields)
    if kind == b"sub":
        return _ROLLUP_SUB if view.is_written(message.subject) else None
    return _ROLLUP_ALL if kind and message.place else None


def room(view: CheckView, message: Publication) -> ApiError | None:
    """Refuses a message without room (discard new), unless it replaces the oldest of its subject and its bytes fit."""
    refused = _subject_room(view, message)
    if refused is not None:
        return refused
    full = _stream_room(view, message)
    most = view.rules.max_msgs_per_subject
    if full is None or not most:
        return full
    if view.staging.pending:
        view.staging.flush()  # staged messages may replace older ones: look again after they have
        full = _stream_room(view, message)
    if full is None or view.count_of(message.subject) < most or view.staging.holds_oldest(message.subject):
        return full
    return _MAX_BYTES if _outgrows(view, message) else None


def room_in_batch(view: CheckView, message: Publication) -> ApiError | None:
    """As `room`, but replacing the oldest of a subject makes no room."""
    full = _stream_room(view, message)
    return _subject_room(view, message) if full is None else full


def guard_room(view: CheckView, message: Publication) -> ApiError | None:
    """Refuses a message while the retention guard holds back as much, or as long, as it may."""
    need = record_size(message.message, memory=view.rules.memory)
    return view.staging.guard.refusal(view.time, view.byte_count, need)


def last_msg_id(view: CheckView, message: Publication) -> ApiError | None:
    expected = message.fields.get(b"Nats-Expected-Last-Msg-Id")
    last = view.staging.last_msg_id
    return None if not expected or expected == last else errors.by_code(10070, id=last.decode(errors="replace"))


def _subject_room(view: CheckView, message: Publication) -> ApiError | None:
    rules = view.rules
    if not rules.discard_new_per_subject or view.staging.rollup(message.headers, message.fields):
        return None
    return _MAX_PER_SUBJECT if view.count_of(message.subject) >= rules.max_msgs_per_subject else None


def _stream_room(view: CheckView, message: Publication) -> ApiError | None:
    rules = view.rules
    if rules.max_msgs and view.messages >= rules.max_msgs:
        return _MAX_MSGS
    if rules.max_bytes and view.byte_count + record_size(message.message, memory=rules.memory) > rules.max_bytes:
        return _MAX_BYTES
    return None


def _outgrows(view: CheckView, message: Publication) -> bool:
    """True when the message does not fit, and the oldest one of its subject is smaller, as in nats-server."""
    rules = view.rules
    need = record_size(message.message, memory=rules.memory)
    if not rules.max_bytes or view.byte_count + need <= rules.max_bytes:
        return False
    oldest = view.staging.oldest(message.subject)
    return oldest is None or record_size(oldest, memory=rules.memory) < need


# -- the table --------------------------------------------------------------------------------------------------------


Refusal = Callable[[CheckView, Publication], Verdict | None]


class Check(NamedTuple):
    """A row of the table."""

    refusal: Refusal
    codes: tuple[int, ...]
    """Codes of its errors (`errors`); () for a check that only makes a duplicate known or changes the message."""
    reads: frozenset[bytes] = frozenset()
    """Header fields, one of which a message needs for the check to apply; empty: it applies to every message."""
    under: Callable[[StreamRules], object] = lambda rules: True
    """True for the configurations in which the check applies."""

    @property
    def name(self) -> str:
        return self.refusal.__name__


def _fields(*names: bytes) -> frozenset[bytes]:
    return frozenset(names)


_SCHEDULES: Final = _fields(schedules.PATTERN, schedules.ZONE, schedules.NEXT, schedules.SCHEDULER)
_SUBJECT_SEQUENCE: Final = _fields(
    b"Nats-Expected-Last-Subject-Sequence", b"Nats-Expected-Last-Subject-Sequence-Subject"
)

CHECKS: Final = (
    Check(sealed, (10109,), under=lambda rules: rules.sealed),
    Check(size, (10054,), under=lambda rules: rules.max_msg_size),
    Check(atomic_enabled, (10174,), under=lambda rules: not rules.allow_atomic),
    Check(fast_enabled, (10205,), under=lambda rules: not rules.allow_batched),
    Check(subject_length, (10077,)),
    Check(purge_permitted, (10110,), under=lambda rules: rules.deny_purge),
    Check(mapped_length, (10077,), under=lambda rules: rules.subject_transform is not None),
    Check(header_size, (10097,)),
    Check(last_msg_id_in_batch, (10177,), _fields(b"Nats-Expected-Last-Msg-Id")),
    Check(msg_id_in_batch, (10177,), _fields(b"Nats-Msg-Id")),
    Check(increment, (10168, 10169, 10170, 10171), _fields(b"Nats-Incr")),
    Check(expected_stream, (10060,), _fields(b"Nats-Expected-Stream")),
    Check(ttl, (10165, 10166), _fields(b"Nats-TTL")),
    Check(batch_id, (10174,), _fields(b"Nats-Batch-Id")),
    Check(duplicate, (), _fields(b"Nats-Msg-Id"), lambda rules: rules.duplicate_window),
    Check(duplicate_in_batch, (10201,), _fields(b"Nats-Msg-Id"), lambda rules: rules.duplicate_window),
    Check(foreign_source, (10227,), _fields(b"Nats-Stream-Source")),
    Check(as_stored, (10054, 10169, 10171, 10172), under=lambda rules: rules.allow_msg_counter),
    Check(as_stored, (), _fields(b"Nats-TTL", schedules.PATTERN), lambda rules: not rules.allow_msg_counter),
    Check(as_counted, (10054, 10169, 10171, 10172), under=lambda rules: rules.allow_msg_counter and not rules.mirror),
    Check(last_sequence, (10071,), _fields(b"Nats-Expected-Last-Sequence")),
    Check(last_sequence_in_batch, (10164,), _fields(b"Nats-Expected-Last-Sequence")),
    Check(subject_sequence_in_batch, (10164,), _SUBJECT_SEQUENCE),
    Check(last_subject_sequence, (10071, 10193), _SUBJECT_SEQUENCE),
    Check(schedule, (10166, 10188, 10189, 10190, 10191, 10192, 10203, 10212, 10223), _SCHEDULES),
    Check(rollup, (10111,), _fields(b"Nats-Rollup", schedules.PATTERN)),
    Check(rollup_in_batch, (10111,)),
    Check(room, (10077,), under=lambda rules: rules.discard_new),
    Check(room_in_batch, (10077,), under=lambda rules: rules.discard_new),
    Check(guard_room, (10077,), under=lambda rules: rules.guard is not None and rules.guard.refuses),
    Check(last_msg_id, (10070,), _fields(b"Nats-Expected-Last-Msg-Id")),
)


class PublishKind(Enum):
    """The origin of a message to store."""

    PLAIN = "plain"
    """PUBLISH, and FAST_PUBLISH."""
    ATOMIC = "atomic"
    """A message of an atomic batch."""
    SOURCED = "sourced"
    """A message of a mirror's or source's upstream, whose headers are not checked."""
    OWN = "own"
    """Made by the stream itself: by a schedule, or as a marker."""
    REPLACING = "replacing"
    """Stored by REPLACE in place of others."""


ORDER: Final = {
    PublishKind.PLAIN: (
        sealed, mapped_length, size, header_size, increment, expected_stream, ttl, batch_id, duplicate, foreign_source,
        as_stored, last_sequence, last_subject_sequence, schedule, rollup, room, guard_room,
        last_msg_id,
    ),
    PublishKind.ATOMIC: (
        size, last_msg_id_in_batch, msg_id_in_batch, header_size, increment, expected_stream, ttl, duplicate_in_batch,
        foreign_source, as_stored, last_sequence, last_sequence_in_batch, subject_sequence_in_batch,
        last_subject_sequence, schedule, rollup, rollup_in_batch, room_in_batch, guard_room,
    ),
    PublishKind.SOURCED: (mapped_length, as_counted, size, room, guard_room),
    PublishKind.OWN: (as_stored, room),
    PublishKind.REPLACING: (as_stored,),
}  # fmt: skip
"""The first check that refuses decides."""

EARLY: Final = (subject_length,)
"""The leader's checks of every message when it arrives."""
EARLY_ATOMIC: Final = (sealed, size, atomic_enabled)
EARLY_FAST: Final = (sealed, size, fast_enabled)
"""The leader's checks of a batch's message after those."""

WHOLE: Final = {
    PublishKind.ATOMIC: (sealed, atomic_enabled),
    PublishKind.SOURCED: (sealed,),
    PublishKind.OWN: (sealed,),
    PublishKind.REPLACING: (sealed, purge_permitted),
}
"""Apply's checks of a whole BATCH_COMMIT, SOURCED, FIRE or REPLACE: the stream may have changed since the leader
proposed it."""


_READ: Final = frozenset().union(*(row.reads for row in CHECKS))
MAX_COMBINATIONS: Final = 256
"""Combinations of header fields whose checks a CheckOrder remembers."""


class CheckOrder:
    """The checks of one kind of message that apply in a configuration."""

    def __init__(self, kind: PublishKind, rules: StreamRules) -> None:
        self._rows = [row for refusal in ORDER[kind] for row in CHECKS if row.refusal is refusal and row.under(rules)]
        self._bare = tuple([row.refusal for row in self._rows if not row.reads])
        """For messages without `Nats-` fields."""
        self._by_fields: dict[tuple[bytes, ...], tuple[Refusal, ...]] = {}

    def verdict(self, view: CheckView, message: Publication) -> Verdict | None:
        """The verdict of the first check that has one, or None: the message may be stored. Raises DamagedError."""
        fields = message.fields
        if fields:
            names = tuple(fields)
            checks = self._by_fields.get(names) or self._reading(names)
        else:
            checks = self._bare
        for check in checks:
            if (verdict := check(view, message)) is not None:
                return verdict
        return None

    def _reading(self, names: tuple[bytes, ...]) -> tuple[Refusal, ...]:
        found = tuple([row.refusal for row in self._rows if not row.reads or not row.reads.isdisjoint(names)])
        if _READ.issuperset(names):  # others are the clients' own: any number, of any length
            if len(self._by_fields) >= MAX_COMBINATIONS:
                self._by_fields.clear()
            self._by_fields[names] = found
        return found


Early = Callable[[Ruled, Publication], ApiError | None]


def early(checks: Sequence[Early], rules: StreamRules) -> tuple[Early, ...]:
    """The checks, of EARLY_ATOMIC, EARLY_FAST or WHOLE, that apply in a configuration: mostly none."""
    silent = {row.refusal for row in CHECKS if not row.under(rules)}
    return tuple([check for check in checks if check not in silent])


def refused_by(
    checks: Sequence[Early], ruled: Ruled, headers: bytes = b"", payload: bytes = b"", subject: bytes = b""
) -> ApiError | None:
    """The first refusal, or None, of checks that need only the configuration and the bytes."""
    message = Publication(0, subject, headers, payload, {})
    for check in checks:
        if (refused := check(ruled, message)) is not None:
            return refused
    return None


# -- whole commands ---------------------------------------------------------------------------------------------------


def takes_all(rules: StreamRules) -> bool:
    """True when every message without a meaningful `Nats-` field is stored, unchanged."""
    full = rules.refuses_when_full
    return not (rules.sealed or rules.max_msg_size or rules.allow_msg_counter or rules.kv_purge or full)


def fits_whole(rules: StreamRules, batch: Batch, messages: int, byte_count: int) -> bool:
    """True for a batch when that holds for it in a stream of this size; False: its messages need a check each."""
    if rules.sealed or rules.allow_msg_counter or (rules.max_msg_size and not _each_at_most(batch, rules.max_msg_size)):
        return False
    if rules.kv_purge and batch.has_headers and KV_OPERATION in batch.raw:
        return False
    if not rules.discard_new:
        return True
    if rules.discard_new_per_subject or (rules.max_msgs and messages + batch.count > rules.max_msgs):
        return False
    return not rules.max_bytes or byte_count + batch.record_bytes(memory=rules.memory) <= rules.max_bytes


def _each_at_most(batch: Batch, most: int) -> bool:
    return batch.body_bytes <= most or all(batch.size_of(i) <= most for i in range(batch.count))


def expected_wildcards(batch: Batch) -> list[bytes]:
    """Wildcard filters whose last sequence messages of the batch expect."""
    blocks = [headers for headers in map(batch.headers_of, range(batch.count)) if EXPECTED_SUBJECT in headers]
    keys = [nats_fields(headers).get(EXPECTED_SUBJECT[2:-1], b"") for headers in blocks]
    return [key for key in keys if key and not is_literal(key)]
