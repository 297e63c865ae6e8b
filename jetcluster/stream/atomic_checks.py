"""`AtomicChecks`: may the messages of an atomic batch be stored, all of them? Decided in apply, before any is stored.

Every check looks at the stream as it is before the batch, plus what the earlier messages of the batch would do to it:
shared/reference/streams.md 3.5, in that order, message by message; the first failure refuses the batch. The order is
not that of ordinary publishes, and neither are some codes (10164, "batch rollup sub invalid"), hence a room of its own.
"""

from __future__ import annotations

import re
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.protocol.subjects import is_literal
from jetcluster.store.batch import Batch
from jetcluster.stream.dedupe import DedupeWindow
from jetcluster.stream.fields import nats_fields, number
from jetcluster.stream.ports import MachineStore
from jetcluster.stream.publish import MAX_HEADER
from jetcluster.stream.rules import StreamRules
from jetcluster.stream.ttl import parse_ttl

_INTEGER: Final = re.compile(rb"[+-]?[0-9]+")

_HEADER_TOO_LARGE: Final = errors.by_code(10097)
_TOO_LARGE: Final = errors.by_code(10054)
_SEALED: Final = errors.by_code(10109)
_DISABLED: Final = errors.by_code(10174)
_NO_LAST_MSG_ID: Final = errors.by_code(10177, header="Nats-Expected-Last-Msg-Id")
_NO_MSG_ID: Final = errors.by_code(10177, header="Nats-Msg-Id")
_WRONG_STREAM: Final = errors.by_code(10060)
_BAD_INCREMENT: Final = errors.by_code(10171)
_COUNTERS_DISABLED: Final = errors.by_code(10168)
_TTL_DISABLED: Final = errors.by_code(10166)
_INVALID_TTL: Final = errors.by_code(10165)
_SOURCE_HEADER: Final = errors.by_code(10227)
_SCHEDULES_DISABLED: Final = errors.by_code(10188)
_DUPLICATE: Final = errors.by_code(10201)
_WRONG_SEQUENCE: Final = errors.by_code(10164)
_MISSING_SEQUENCE: Final = errors.by_code(10193)
_ROLLUP_NOT_PERMITTED: Final = errors.by_code(10111, err="rollup not permitted")
_ROLLUP_SUB: Final = errors.by_code(10111, err="batch rollup sub invalid")
_ROLLUP_ALL: Final = errors.by_code(10111, err="batch rollup all invalid")
_MAX_MSGS: Final = errors.by_code(10077, err="maximum messages exceeded")
_MAX_BYTES: Final = errors.by_code(10077, err="maximum bytes exceeded")
_MAX_PER_SUBJECT: Final = errors.by_code(10077, err="maximum messages per subject exceeded")


class AtomicChecks:
    """The checks of one batch: made, asked once with `first_error`, thrown away."""

    __slots__ = (
        "_allow_msg_id",
        "_batch",
        "_bytes",
        "_dedupe",
        "_ids",
        "_name",
        "_rules",
        "_store",
        "_written",
    )

    def __init__(
        self,
        name: bytes,
        rules: StreamRules,
        store: MachineStore,
        dedupe: DedupeWindow,
        batch: Batch,
        *,
        allow_msg_id: bool,
    ) -> None:
        self._name = name
        self._rules = rules
        self._store = store
        self._dedupe = dedupe
        self._batch = batch
        self._allow_msg_id = allow_msg_id
        self._written: dict[bytes, int] = {}
        """Subject -> how many of the messages looked at so far are on it."""
        self._ids: set[bytes] = set()
        self._bytes = 0
        """What the messages looked at so far would add to the stream."""

    def first_error(self, *, plain: bool) -> ApiError | None:
        """Why the batch is refused; None when all of it may be stored. Changes nothing. `plain`: no message has a
        header that would have to be checked. Raises DamagedError."""
        rules = self._rules
        if rules.sealed:  # since it was proposed
            return _SEALED
        if not rules.allow_atomic:
            return _DISABLED
        if plain and not rules.discard_new and not rules.max_msg_size:
            return None
        for i in range(self._batch.count):
            error = self._check(i)
            if error is not None:
                return error
        return None

    def _check(self, i: int) -> ApiError | None:
        subject, headers, _ = self._batch.message(i)
        rules = self._rules
        if rules.max_msg_size and self._batch.size_of(i) > rules.max_msg_size:
            return _TOO_LARGE
        fields = nats_fields(headers)
        error = self._check_fields(i, subject, headers, fields)
        if error is None and rules.discard_new:
            error = self._check_room(i, subject, rollup=bool(fields.get(b"Nats-Rollup")))
        self._written[subject] = self._written.get(subject, 0) + 1
        return error

    def _check_fields(self, i: int, subject: bytes, headers: bytes, fields: dict[bytes, bytes]) -> ApiError | None:
        if fields.get(b"Nats-Expected-Last-Msg-Id"):
            return _NO_LAST_MSG_ID
        msg_id = fields.get(b"Nats-Msg-Id")
        if msg_id and not self._allow_msg_id:
            return _NO_MSG_ID
        if len(headers) > MAX_HEADER:
            return _HEADER_TOO_LARGE
        increment = fields.get(b"Nats-Incr")
        if increment:
            return _COUNTERS_DISABLED if _INTEGER.fullmatch(increment) else _BAD_INCREMENT
        stream = fields.get(b"Nats-Expected-Stream")
        if stream and stream != self._name:
            return _WRONG_STREAM
        ttl = fields.get(b"Nats-TTL")
        if ttl and (not self._rules.allow_msg_ttl or parse_ttl(ttl) is None):
            return _INVALID_TTL if self._rules.allow_msg_ttl else _TTL_DISABLED
        if msg_id and not self._is_new(msg_id):
            return _DUPLICATE
        if fields.get(b"Nats-Stream-Source"):
            return _SOURCE_HEADER
        return (
            self._check_last_sequence(i, fields.get(b"Nats-Expected-Last-Sequence"))
            or self._check_subject_sequence(subject, fields)
            or (_SCHEDULES_DISABLED if fields.get(b"Nats-Schedule") else None)
            or self._check_rollup(i, subject, fields.get(b"Nats-Rollup"))
        )

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
        message = self._store.last_by_subject(filter)
        return message.seq if message is not None else 0

    def _check_rollup(self, i: int, subject: bytes, value: bytes | None) -> ApiError | None:
        if not value:
            return None
        if not self._rules.allow_rollup_hdrs or self._rules.deny_purge:
            return _ROLLUP_NOT_PERMITTED
        kind = value.lower()
        if kind == b"sub":
            return _ROLLUP_SUB if subject in self._written else None
        if kind == b"all":
            return _ROLLUP_ALL if i else None
        return errors.by_code(10111, err=f'rollup value invalid: "{value.decode(errors="replace")}"')

    def _check_room(self, i: int, subject: bytes, *, rollup: bool) -> ApiError | None:
        """Discard new. Unlike for a single message, replacing the oldest of a subject makes no room here."""
        rules, store = self._rules, self._store
        if rules.max_msgs and store.messages + i >= rules.max_msgs:
            return _MAX_MSGS
        self._bytes += self._batch.record_size(i, memory=rules.memory)
        if rules.max_bytes and store.byte_count + self._bytes > rules.max_bytes:
            return _MAX_BYTES
        if rules.discard_new_per_subject and not rollup:
            held = self._written.get(subject, 0) + store.count_of(subject)
            if held >= rules.max_msgs_per_subject:
                return _MAX_PER_SUBJECT
        return None
