"""`MessageAdmission`: which messages of a PUBLISH command are stored, and as what. Decided in apply, in log order.

A batch that no limit can refuse and that brings nothing but user's headers and new message ids is stored as it came,
in one step. Otherwise every message passes nats-server's checks, in the order of its
clustered streams (deduplication before expectations, so a retry is acked as a duplicate with any expectation); what
passes is staged (`staging`), with what storing it brings about.
"""

from __future__ import annotations

from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.model.transforms import TOO_LONG, SubjectTransform
from jetcluster.protocol.subjects import is_literal
from jetcluster.store.batch import MAX_SUBJECT, Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.keys import MAX_SEQ
from jetcluster.stream import schedules
from jetcluster.stream.counters import Tally, check_increment
from jetcluster.stream.dedupe import DedupeWindow
from jetcluster.stream.fast_parts import FastGate
from jetcluster.stream.fields import FIELD, KV_OPERATION, NOTHING, nats_fields, number
from jetcluster.stream.ports import Message
from jetcluster.stream.results import Duplicate, PublishResult, Verdict
from jetcluster.stream.rules import StreamRules
from jetcluster.stream.schedules import check_schedule
from jetcluster.stream.staging import Staging, record_size
from jetcluster.stream.ttl import check_ttl

MAX_HEADER: Final = 65_535
"""Longest header block of a stored message (10097)."""
EXHAUSTED: Final = errors.by_code(10077, err="stream sequence exhausted")
"""There are no more sequences."""
SUBJECT_TOO_LONG: Final = errors.by_code(10077, err="subject exceeds maximum length")
"""After the stream's transform."""

MAPPED_BYTES: Final = 64 << 20
"""Bytes of all subjects of a command together, after the transform: it may make much of little."""

EXPECTED_SUBJECT: Final = b"\r\nNats-Expected-Last-Subject-Sequence-Subject:"
_MSG_ID: Final = b"\r\nNats-Msg-Id:"
_RARE: Final = frozenset(
    {
        b"Nats-Incr",
        b"Nats-TTL",
        b"Nats-Batch-Id",
        b"Nats-Stream-Source",
        schedules.PATTERN,
        schedules.ZONE,
        schedules.NEXT,
        schedules.SCHEDULER,
    }
)
"""Fields that most messages with other `Nats-` fields do not have: one look instead of eight."""

_SEALED: Final = errors.by_code(10109)
_TOO_LARGE: Final = errors.by_code(10054)
_HEADER_TOO_LARGE: Final = errors.by_code(10097)
_WRONG_STREAM: Final = errors.by_code(10060)
_MISSING_SEQUENCE: Final = errors.by_code(10193)
_NO_BATCHES: Final = errors.by_code(10174)
_FOREIGN_SOURCE: Final = errors.by_code(10227)
_MAX_MSGS: Final = errors.by_code(10077, err="maximum messages exceeded")
_MAX_BYTES: Final = errors.by_code(10077, err="maximum bytes exceeded")
_MAX_PER_SUBJECT: Final = errors.by_code(10077, err="maximum messages per subject exceeded")
_ROLLUP_NOT_PERMITTED: Final = errors.by_code(10111, err="rollup not permitted")


class MessageAdmission:
    """`admit` one command after the other. Built anew when the rules change."""

    def __init__(
        self, name: str, rules: StreamRules, store: BlockStore, dedupe: DedupeWindow, staging: Staging
    ) -> None:
        self._name = name.encode()
        self.rules = self._rules = rules
        self._takes_all = not (
            rules.sealed or rules.max_msg_size or rules.allow_msg_counter or rules.kv_purge or rules.discard_new
        )
        """`_fits_whole` has nothing to look at."""
        self._store = store
        self._dedupe = dedupe
        self._staging = staging
        self._batch: Batch
        self._base = 0
        self._gate: FastGate | None = None
        self._grown: frozenset[int] = frozenset()
        """Messages of the batch whose subject would become too long."""

    def admit(self, batch: Batch, base: int, gate: FastGate | None = None) -> PublishResult:
        """Stores what may be stored; the k-th stored message gets the time `base + k`. `gate` when there are messages
        of fast-ingest batches. Raises DamagedError."""
        first_seq = self._store.last_seq + 1
        if first_seq + batch.count > MAX_SEQ:
            return PublishResult(first_seq, batch.count, [EXHAUSTED] * batch.count)
        if self._rules.subject_transform is not None:
            batch, self._grown = mapped(batch, self._rules.subject_transform, base)
        if self._dedupe.window and batch.has_headers:
            self._dedupe.advance(base, first_seq)
        fits = self._takes_all or self._fits_whole(batch)
        if fits and (gate is None or gate.open) and not self._grown:
            ids = self._new_ids(batch, first_seq) if batch.has_headers else []
            if ids is not None:
                self._staging.store_whole(batch, first_seq, base, ids)
                return PublishResult(first_seq, batch.count, None)
        self._batch, self._base, self._gate = batch, base, gate
        if batch.has_headers and EXPECTED_SUBJECT in batch.raw:
            self._store.find_lasts(expected_wildcards(batch))
        self._staging.begin(batch, base)
        if gate is None:
            verdicts = [self._admit_one(i) for i in range(batch.count)]
        else:
            verdicts = gate.verdicts(batch.count, self._admit_one)
        stored = self._staging.finish()
        if stored == batch.count and not self._rules.allow_msg_counter:
            return PublishResult(first_seq, batch.count, None)
        return PublishResult(first_seq, batch.count, verdicts)

    def store_own(self, batch: Batch, base: int, *, roomy: bool = False) -> int:
        """Stores messages that need no check: made by the stream itself. Their headers have all
        their effects. Only a full discard-new stream still refuses, unless `roomy`; returns how many were stored."""
        staging, rules = self._staging, self._rules
        self._batch, self._base = batch, base
        staging.begin(batch, base)
        for i in range(batch.count):
            subject, headers, payload = message = batch.message(i)
            fields = nats_fields(headers)
            rewritten = staging.rewritten(subject, headers, payload, fields)
            if isinstance(rewritten, ApiError):
                continue
            made: Message = (subject, *rewritten[:2])
            bounded = rules.discard_new and not roomy
            if bounded and self._check_room(made, staging.rollup(headers, fields)) is not None:
                continue
            staging.stage(i, made, fields, rewritten[2], changed=made != message)
        return staging.finish()

    def admit_sourced(self, batch: Batch, base: int, first_seq: int = 0) -> tuple[int, ApiError | None]:
        """Stores messages of an upstream: with sequences from `first_seq` on, which may leave a gap, or as what comes
        next (0). Their headers are the upstream's: nothing is checked against them, but they have their effects where
        this stream allows those. Returns how many were taken before one did not fit, and why it did not."""
        rules, staging, store = self._rules, self._staging, self._store
        grown: frozenset[int] = frozenset()
        if rules.subject_transform is not None:
            batch, grown = mapped(batch, rules.subject_transform, base)
        dedupe = self._dedupe if self._dedupe.window and batch.has_headers else None
        if dedupe is not None:
            dedupe.advance(base, first_seq or store.last_seq + 1)
        inert = dedupe is None and not staging.has_effects
        if self._fits_whole(batch) and not grown and (inert or not batch.has_headers or FIELD not in batch.raw):
            seq = first_seq or store.last_seq + 1
            last_id = nats_fields(batch.headers_of(batch.count - 1)).get(b"Nats-Msg-Id")
            staging.store_whole(batch, seq, base, [(seq + batch.count - 1, last_id)] if last_id else [])
            return batch.count, None
        self._batch, self._base = batch, base
        staging.begin(batch, base, first_seq)
        taken, error = batch.count, None
        for i in range(batch.count):
            message = batch.message(i)
            fields = nats_fields(message[1])
            msg_id = fields.get(b"Nats-Msg-Id")
            if msg_id and dedupe is not None and not first_seq and dedupe.seq_of(msg_id) is not None:
                continue
            made: Message | ApiError = message
            tally: Tally | None = None
            if i in grown:
                made = SUBJECT_TOO_LONG
            elif rules.allow_msg_counter and not first_seq:
                made, tally = self._counted(message, fields)
            error = made if isinstance(made, ApiError) else self._check_sourced(made, fields)
            if error is not None:
                taken = i
                break
            assert not isinstance(made, ApiError)
            staging.stage(i, made, fields, tally, changed=tally is not None)
        staging.finish()
        return taken, error

    def _counted(self, message: Message, fields: dict[bytes, bytes]) -> tuple[Message | ApiError, Tally | None]:
        """A source's message as a counter stores it."""
        counted = self._staging.counted(message, fields, sourced=True)
        if isinstance(counted, ApiError):
            return counted, None
        headers, payload, tally = counted
        return (message[0], headers, payload), tally

    def _check_sourced(self, message: Message, fields: dict[bytes, bytes]) -> ApiError | None:
        rules = self._rules
        if rules.max_msg_size and len(message[1]) + len(message[2]) > rules.max_msg_size:
            return _TOO_LARGE
        if not rules.discard_new:
            return None
        return self._check_room(message, self._staging.rollup(message[1], fields))

    def _fits_whole(self, batch: Batch) -> bool:
        rules = self._rules
        if rules.sealed or (rules.max_msg_size and not _each_at_most(batch, rules.max_msg_size)):
            return False
        # Storing a message without a `Nats-` header may still be more than that.
        if rules.allow_msg_counter or (rules.kv_purge and batch.has_headers and KV_OPERATION in batch.raw):
            return False
        if not rules.discard_new:
            return True
        if rules.discard_new_per_subject:
            return False
        store = self._store
        if rules.max_msgs and store.messages + batch.count > rules.max_msgs:
            return False
        return not rules.max_bytes or store.byte_count + batch.record_bytes(memory=rules.memory) <= rules.max_bytes

    def _new_ids(self, batch: Batch, first_seq: int) -> list[tuple[int, bytes]] | None:
        """(sequence, id) of the messages with a Nats-Msg-Id, when every message would be stored and none has another
        header that means something here; None when that takes a closer look. Changes nothing."""
        ids: list[tuple[int, bytes]] = []
        seen: set[bytes] = set()
        seq_of = self._dedupe.seq_of
        for i in range(batch.count):
            headers = batch.headers_of(i)
            fields = headers.count(FIELD)
            if fields == 0 and len(headers) <= MAX_HEADER:
                continue
            start = headers.find(_MSG_ID) + len(_MSG_ID)
            end = headers.find(b"\r\n", start)
            if fields != 1 or start < len(_MSG_ID) or end < 0 or len(headers) > MAX_HEADER:
                return None
            msg_id = headers[start:end].strip(b" \t")
            if not msg_id:
                continue
            if msg_id in seen or seq_of(msg_id) is not None:
                return None
            seen.add(msg_id)
            ids.append((first_seq + i, msg_id))
        return ids

    def _admit_one(self, i: int) -> Verdict:
        subject, headers, payload = message = self._batch.message(i)
        fields = nats_fields(headers) if headers else NOTHING
        rules, staging = self._rules, self._staging
        if rules.sealed:
            return _SEALED
        if i in self._grown:
            return SUBJECT_TOO_LONG
        if rules.max_msg_size and len(headers) + len(payload) > rules.max_msg_size:
            return _TOO_LARGE
        if len(headers) > MAX_HEADER:
            return _HEADER_TOO_LARGE
        rare = not _RARE.isdisjoint(fields)
        if fields and (verdict := self._check_message(i, fields, payload, rare=rare)) is not None:
            return verdict
        made: Message = message
        tally: Tally | None = None
        if rare or rules.allow_msg_counter:
            rewritten = staging.rewritten(subject, headers, payload, fields)
            if isinstance(rewritten, ApiError):
                return rewritten
            made, tally = (subject, *rewritten[:2]), rewritten[2]
        if fields and (error := self._check_stream(subject, fields, rare=rare)) is not None:
            return error
        if rules.discard_new and (error := self._check_room(made, staging.rollup(headers, fields))) is not None:
            return error
        expected = fields.get(b"Nats-Expected-Last-Msg-Id")
        if expected and expected != staging.last_msg_id:
            return errors.by_code(10070, id=staging.last_msg_id.decode(errors="replace"))
        return staging.stage(i, made, fields, tally, changed=made is not message and made != message)

    def _check_message(self, i: int, fields: dict[bytes, bytes], payload: bytes, *, rare: bool) -> Verdict | None:
        """Fault of the message itself, or that it is known already."""
        rules = self._rules
        error = check_increment(fields, payload, allowed=rules.allow_msg_counter) if rare else None
        if error is not None:
            return error
        stream = fields.get(b"Nats-Expected-Stream")
        if stream and stream != self._name:
            return _WRONG_STREAM
        if rare:
            error = check_ttl(fields, allowed=rules.allow_msg_ttl)
            if error is not None:
                return error
            if fields.get(b"Nats-Batch-Id") and not (self._gate is not None and self._gate.owns(i)):
                return _NO_BATCHES  # never stored as if the header meant nothing
        msg_id = fields.get(b"Nats-Msg-Id")
        if msg_id and self._dedupe.window:
            seq = self._dedupe.seq_of(msg_id)
            if seq is not None:
                return Duplicate(seq)
        return _FOREIGN_SOURCE if rare and fields.get(b"Nats-Stream-Source") else None

    def _check_stream(self, subject: bytes, fields: dict[bytes, bytes], *, rare: bool) -> ApiError | None:
        """Fault that lies in the stream's state."""
        last = fields.get(b"Nats-Expected-Last-Sequence")
        if last and number(last) != self._staging.next_seq - 1:
            return errors.by_code(10071, seq=self._staging.next_seq - 1)
        expected = fields.get(b"Nats-Expected-Last-Subject-Sequence")
        key = fields.get(b"Nats-Expected-Last-Subject-Sequence-Subject", b"")
        if expected:
            actual = self._last_of(key or subject)
            if number(expected) != actual:
                return errors.by_code(10071, seq=actual)
        elif key:
            return _MISSING_SEQUENCE
        if rare:
            error = check_schedule(self._rules, subject, fields, self._base, self._staging.last_headers)
            if error is not None:
                return error
        return check_rollup(self._rules, fields)

    def _last_of(self, filter: bytes) -> int:
        return self._staging.last_seq_of(filter) if is_literal(filter) else self._staging.last_seq_matching(filter)

    def _check_room(self, message: Message, rollup: bytes) -> ApiError | None:
        """Discard new: no room is an error, unless the message replaces the oldest one of its subject, and there are
        bytes enough for it."""
        rules, staging = self._rules, self._staging
        subject = message[0]
        if rules.discard_new_per_subject and not rollup and staging.count_of(subject) >= rules.max_msgs_per_subject:
            return _MAX_PER_SUBJECT
        full = self._no_room(message)
        if full is not None and rules.max_msgs_per_subject:
            if staging.pending:
                staging.flush()  # it may have replaced older messages: look again at what is really there
                full = self._no_room(message)
            if full is not None and self._store.count_of(subject) >= rules.max_msgs_per_subject:
                return _MAX_BYTES if self._outgrows(message) else None
        return full

    def _outgrows(self, message: Message) -> bool:
        """There is no room for the message's bytes, and the oldest one of its subject has fewer (nats-server's rule:
        what the two differ by is not looked at)."""
        rules = self._rules
        size = record_size(message, memory=rules.memory)
        if not rules.max_bytes or self._staging.byte_count + size <= rules.max_bytes:
            return False
        oldest = self._store.next_by_subject(message[0], 0)
        if oldest is None:
            return True
        old = oldest.subject, oldest.headers, oldest.payload
        return record_size(old, memory=rules.memory) < size

    def _no_room(self, message: Message) -> ApiError | None:
        rules, staging = self._rules, self._staging
        if rules.max_msgs and staging.messages >= rules.max_msgs:
            return _MAX_MSGS
        if rules.max_bytes and staging.byte_count + record_size(message, memory=rules.memory) > rules.max_bytes:
            return _MAX_BYTES
        return None


def expected_wildcards(batch: Batch) -> list[bytes]:
    """Wildcards of which messages of the batch ask the last sequence."""
    blocks = [headers for headers in map(batch.headers_of, range(batch.count)) if EXPECTED_SUBJECT in headers]
    keys = [nats_fields(headers).get(EXPECTED_SUBJECT[2:-1], b"") for headers in blocks]
    return [key for key in keys if key and not is_literal(key)]


def check_rollup(rules: StreamRules, fields: dict[bytes, bytes]) -> ApiError | None:
    value = fields.get(b"Nats-Rollup")
    if not value:
        return None
    if not rules.allow_rollup_hdrs or rules.deny_purge:
        return _ROLLUP_NOT_PERMITTED
    if value.lower() in (b"sub", b"all"):
        return None
    return errors.by_code(10111, err=f'rollup value invalid: "{value.lower().decode(errors="replace")}"')


def mapped(batch: Batch, transform: SubjectTransform, base: int) -> tuple[Batch, frozenset[int]]:
    """The batch with its subjects mapped; those that the source does not take stay. `random` is drawn from the time
    of the command and the message's place in it. And the messages whose subject would become too long, which stays:
    longer than MAX_SUBJECT, or too much for all of them together."""
    room = MAPPED_BYTES

    def made_of(subject: bytes, chance: int) -> bytes | None:
        nonlocal room
        made = transform.match(subject, chance)
        if made is None or len(made) > MAX_SUBJECT:
            return made
        room -= len(made)
        return made if room >= 0 else TOO_LONG

    subjects = [None if transform.random else made_of(subject, base) for subject in batch.subjects]
    if not transform.random and all(subject is None for subject in subjects):
        return batch, frozenset()
    new: list[bytes] = []
    grown: list[int] = []
    for i in range(batch.count):
        old = batch.subject_of(i)
        made = (made_of(old, base + i) if transform.random else subjects[batch.subject_number(i)]) or old
        if len(made) > MAX_SUBJECT:
            grown.append(i)
            made = old
        new.append(made)
    messages = list(batch.messages())
    headers = [headers for _, headers, _ in messages] if batch.has_headers else []
    return Batch.of(new, headers, [payload for _, _, payload in messages]), frozenset(grown)


def _each_at_most(batch: Batch, limit: int) -> bool:
    return batch.body_bytes <= limit or all(batch.size_of(i) <= limit for i in range(batch.count))
