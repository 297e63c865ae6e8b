"""`AtomicChecks`: may the messages of an atomic batch be stored, all of them, and as what? Decided in apply, before any
is stored.

Every check looks at the stream as it is before the batch, plus what the earlier messages of the batch would do to it:
in nats-server's order, message by message; the first failure refuses the batch. The order is
not that of ordinary publishes, and neither are some codes (10164, "batch rollup sub invalid"), hence a room of its own.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.protocol.subjects import is_literal
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.counters import Tally, check_increment
from jetcluster.stream.dedupe import DedupeWindow
from jetcluster.stream.fields import nats_fields, number
from jetcluster.stream.ports import Message
from jetcluster.stream.publish import EXPECTED_SUBJECT, MAX_HEADER, expected_wildcards
from jetcluster.stream.rules import StreamRules
from jetcluster.stream.schedules import check_schedule
from jetcluster.stream.staging import Staging, record_size
from jetcluster.stream.ttl import check_ttl

_HEADER_TOO_LARGE: Final = errors.by_code(10097)
_TOO_LARGE: Final = errors.by_code(10054)
_SEALED: Final = errors.by_code(10109)
_DISABLED: Final = errors.by_code(10174)
_NO_LAST_MSG_ID: Final = errors.by_code(10177, header="Nats-Expected-Last-Msg-Id")
_NO_MSG_ID: Final = errors.by_code(10177, header="Nats-Msg-Id")
_WRONG_STREAM: Final = errors.by_code(10060)
_SOURCE_HEADER: Final = errors.by_code(10227)
_DUPLICATE: Final = errors.by_code(10201)
_WRONG_SEQUENCE: Final = errors.by_code(10164)
_MISSING_SEQUENCE: Final = errors.by_code(10193)
_ROLLUP_NOT_PERMITTED: Final = errors.by_code(10111, err="rollup not permitted")
_ROLLUP_SUB: Final = errors.by_code(10111, err="batch rollup sub invalid")
_ROLLUP_ALL: Final = errors.by_code(10111, err="batch rollup all invalid")
_MAX_MSGS: Final = errors.by_code(10077, err="maximum messages exceeded")
_MAX_BYTES: Final = errors.by_code(10077, err="maximum bytes exceeded")
_MAX_PER_SUBJECT: Final = errors.by_code(10077, err="maximum messages per subject exceeded")


class Checked(NamedTuple):
    """A message that may be stored."""

    message: Message
    """As it is to be stored."""
    changed: bool
    """That is not how it came."""
    fields: dict[bytes, bytes]
    tally: Tally | None
    """Total of a counter."""


def store(staging: Staging, batch: Batch, first_seq: int, ts: int, checked: list[Checked] | None) -> None:
    """Stores a batch whose checks have passed; the first message as `first_seq` at the time `ts`."""
    if checked is None:
        staging.store_whole(batch, first_seq, ts, [])
        return
    staging.begin(batch, ts)
    for i, (message, changed, fields, tally) in enumerate(checked):
        staging.stage(i, message, fields, tally, changed=changed)
    staging.finish()


class AtomicChecks:
    """The checks of one batch: made, `run` once, thrown away."""

    def __init__(
        self,
        name: bytes,
        rules: StreamRules,
        store: BlockStore,
        dedupe: DedupeWindow,
        staging: Staging,
        batch: Batch,
        ts: int,
        *,
        allow_msg_id: bool,
    ) -> None:
        """`ts`: time of the batch, nanoseconds. `staging` is asked what messages look like when they are stored."""
        self._name = name
        self._rules = rules
        self._store = store
        self._dedupe = dedupe
        self._staging = staging
        self._batch = batch
        self._ts = ts
        self._allow_msg_id = allow_msg_id
        self._written: dict[bytes, list[bytes]] = {}
        """Subject -> header blocks of the messages looked at so far."""
        self._ids: set[bytes] = set()
        self._bytes = 0
        """Bytes that the messages looked at so far would add to the stream."""

    def run(self, *, plain: bool) -> list[Checked] | ApiError | None:
        """The messages as they are to be stored, or why none may be. None: all may, as they came. `plain`: the leader
        saw no header that means anything here. Stores nothing. Raises DamagedError."""
        rules = self._rules
        if rules.sealed:  # since it was proposed
            return _SEALED
        if not rules.allow_atomic:
            return _DISABLED
        if plain and not (rules.discard_new or rules.max_msg_size or rules.allow_msg_counter):
            return None
        if self._batch.has_headers and EXPECTED_SUBJECT in self._batch.raw:
            self._store.find_lasts(expected_wildcards(self._batch))
        checked: list[Checked] = []
        try:
            for i in range(self._batch.count):
                result = self._check(i)
                if isinstance(result, ApiError):
                    return result
                checked.append(result)
        finally:
            self._staging.totals.clear()
        return checked

    def _check(self, i: int) -> Checked | ApiError:
        subject, headers, payload = message = self._batch.message(i)
        rules, staging = self._rules, self._staging
        if rules.max_msg_size and len(headers) + len(payload) > rules.max_msg_size:
            return _TOO_LARGE
        fields = dict(nats_fields(headers))
        error = self._check_message(headers, payload, fields)
        if error is not None:
            return error
        tally: Tally | None = None
        if rules.allow_msg_counter:
            rewritten = staging.rewritten(*message, fields)
            if isinstance(rewritten, ApiError):
                return rewritten
            headers, payload, tally = rewritten
            if tally is not None:
                staging.totals.stage(subject, tally)
        error = self._check_stream(i, subject, fields)
        if error is not None:
            return error
        if not rules.allow_msg_counter:
            rewritten = staging.rewritten(*message, fields)
            assert not isinstance(rewritten, ApiError), rewritten
            headers, payload, tally = rewritten
        made = subject, headers, payload
        rollup = staging.rollup(headers, fields)
        error = self._check_rollup(i, subject, rollup)
        if error is None and rules.discard_new:
            error = self._check_room(i, made, rollup=bool(rollup))
        if error is not None:
            return error
        self._written.setdefault(subject, []).append(headers)
        return Checked(made, made != message, fields, tally)

    def _check_message(self, headers: bytes, payload: bytes, fields: dict[bytes, bytes]) -> ApiError | None:
        """Fault of the message itself, or that it is known already."""
        if fields.get(b"Nats-Expected-Last-Msg-Id"):
            return _NO_LAST_MSG_ID
        msg_id = fields.get(b"Nats-Msg-Id")
        if msg_id and not self._allow_msg_id:
            return _NO_MSG_ID
        if len(headers) > MAX_HEADER:
            return _HEADER_TOO_LARGE
        error = check_increment(fields, payload, allowed=self._rules.allow_msg_counter)
        if error is not None:
            return error
        stream = fields.get(b"Nats-Expected-Stream")
        if stream and stream != self._name:
            return _WRONG_STREAM
        error = check_ttl(fields, allowed=self._rules.allow_msg_ttl)
        if error is not None:
            return error
        if msg_id and not self._is_new(msg_id):
            return _DUPLICATE
        return _SOURCE_HEADER if fields.get(b"Nats-Stream-Source") else None

    def _check_stream(self, i: int, subject: bytes, fields: dict[bytes, bytes]) -> ApiError | None:
        """Fault that lies in the stream's state."""
        error = self._check_last_sequence(i, fields.get(b"Nats-Expected-Last-Sequence"))
        if error is not None:
            return error
        error = self._check_subject_sequence(subject, fields)
        if error is not None:
            return error
        return check_schedule(self._rules, subject, fields, self._ts, self._last_headers)

    def _is_new(self, msg_id: bytes) -> bool:
        if not self._dedupe.window:
            return True
        if msg_id in self._ids or self._dedupe.seq_of(msg_id) is not None:
            return False
        self._ids.add(msg_id)
        return True

    def _check_last_sequence(self, i: int, expected: bytes | None) -> ApiError | None:
        if not expected:
            return None
        last = self._store.last_seq + i
        if number(expected) != last:
            return errors.by_code(10071, seq=last)
        return _WRONG_SEQUENCE if i else None

    def _check_subject_sequence(self, subject: bytes, fields: dict[bytes, bytes]) -> ApiError | None:
        expected = fields.get(b"Nats-Expected-Last-Subject-Sequence")
        key = fields.get(b"Nats-Expected-Last-Subject-Sequence-Subject")
        if not expected:
            return _MISSING_SEQUENCE if key else None
        key = key or subject
        if key in self._written:  # the exact subject: a wildcard over subjects of this batch passes, as upstream
            return _WRONG_SEQUENCE
        actual = self._last_of(key)
        return errors.by_code(10071, seq=actual) if number(expected) != actual else None

    def _last_of(self, filter: bytes) -> int:
        if is_literal(filter):
            return self._store.last_seq_of(filter)
        return self._store.last_seq_matching(filter)

    def _last_headers(self, subject: bytes) -> bytes | None:
        written = self._written.get(subject)
        return written[-1] if written else self._staging.last_headers(subject)

    def _check_rollup(self, i: int, subject: bytes, kind: bytes) -> ApiError | None:
        if not kind:
            return None
        if not self._rules.allow_rollup_hdrs or self._rules.deny_purge:
            return _ROLLUP_NOT_PERMITTED
        if kind == b"sub":
            return _ROLLUP_SUB if subject in self._written else None
        if kind == b"all":
            return _ROLLUP_ALL if i else None
        return errors.by_code(10111, err=f'rollup value invalid: "{kind.decode(errors="replace")}"')

    def _check_room(self, i: int, message: Message, *, rollup: bool) -> ApiError | None:
        """Discard new. Unlike for a single message, replacing the oldest of a subject makes no room here."""
        rules, store = self._rules, self._store
        if rules.max_msgs and store.messages + i >= rules.max_msgs:
            return _MAX_MSGS
        self._bytes += record_size(message, memory=rules.memory)
        if rules.max_bytes and store.byte_count + self._bytes > rules.max_bytes:
            return _MAX_BYTES
        if rules.discard_new_per_subject and not rollup:
            held = len(self._written.get(message[0], ())) + store.count_of(message[0])
            if held >= rules.max_msgs_per_subject:
                return _MAX_PER_SUBJECT
        return None
