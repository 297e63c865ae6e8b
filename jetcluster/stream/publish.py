"""`Admission`: which messages of a PUBLISH command are stored, and as what. Decided in apply, in log order.

A batch that no limit can refuse and that brings nothing but user's headers and new message ids is stored as it came,
in one step. Otherwise every message passes the checks of shared/reference/streams.md 4.2 and 4.3, in the order of the
clustered column (deduplication before expectations, so a retry is acked as a duplicate whatever it expects); what
passes is stored in one step at the end, or earlier when a later message of the same command depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.protocol.subjects import is_literal
from jetcluster.store.batch import Batch
from jetcluster.stream.dedupe import DedupeWindow
from jetcluster.stream.ports import MachineStore
from jetcluster.stream.results import Duplicate, PublishResult, Verdict
from jetcluster.stream.rules import StreamRules

MAX_HEADER: Final = 65_535
"""Longest header block of a stored message (10097)."""

MAX_BLOCK: Final = 512 << 10
"""Longest block stored, bytes, unless one message alone is longer. Ordinary commands are shorter anyway, atomic
batches need not be."""

_HEADER_FIELD: Final = b"\r\nNats-"
_MSG_ID: Final = b"\r\nNats-Msg-Id:"
_NOTHING: Final[dict[bytes, bytes]] = {}

_SEALED: Final = errors.by_code(10109)
_TOO_LARGE: Final = errors.by_code(10054)
_HEADER_TOO_LARGE: Final = errors.by_code(10097)
_WRONG_STREAM: Final = errors.by_code(10060)
_MISSING_SEQUENCE: Final = errors.by_code(10193)
_MAX_MSGS: Final = errors.by_code(10077, err="maximum messages exceeded")
_MAX_BYTES: Final = errors.by_code(10077, err="maximum bytes exceeded")
_MAX_PER_SUBJECT: Final = errors.by_code(10077, err="maximum messages per subject exceeded")
_ROLLUP_NOT_PERMITTED: Final = errors.by_code(10111, err="rollup not permitted")

_REFUSED_HEADERS: Final = (
    (b"Nats-Batch-Id", errors.by_code(10174)),
    (b"Nats-Incr", errors.by_code(10168)),
    (b"Nats-TTL", errors.by_code(10166)),
    (b"Nats-Schedule", errors.by_code(10188)),
    (b"Nats-Stream-Source", errors.by_code(10227)),
)
"""Features of a stream that is not configured for them: never stored as if the header meant nothing."""


def nats_fields(headers: bytes) -> dict[bytes, bytes]:
    """The fields of a header block whose name starts with `Nats-`: exact case, first occurrence, blanks around the
    value dropped."""
    if _HEADER_FIELD not in headers:
        return _NOTHING
    fields: dict[bytes, bytes] = {}
    for line in headers.split(b"\r\n"):
        if line.startswith(b"Nats-"):
            key, _, value = line.partition(b":")
            fields.setdefault(key, value.strip(b" \t"))
    return fields


class Admission:
    """`admit` one command after the other. Built anew when the rules change."""

    __slots__ = (
        "_base",
        "_batch",
        "_dedupe",
        "_ids",
        "_name",
        "_next_seq",
        "_rules",
        "_staged",
        "_staged_bytes",
        "_staged_last",
        "_store",
        "_stored",
        "last_msg_id",
    )

    def __init__(self, name: str, rules: StreamRules, store: MachineStore, dedupe: DedupeWindow) -> None:
        self._name = name.encode()
        self._rules = rules
        self._store = store
        self._dedupe = dedupe
        self._batch: Batch
        self._base = 0
        self._next_seq = 0
        self._stored = 0
        """Messages of this command that are in the store already."""
        self._staged: list[int] = []
        """Positions in the batch of what is accepted and not in the store yet."""
        self._staged_bytes = 0
        self._staged_last: dict[bytes, tuple[int, int]] = {}
        """Per subject of a staged message: its last sequence, how many are staged."""
        self._ids: list[tuple[int, bytes]] = []
        self.last_msg_id = b""
        """Nats-Msg-Id of the last message stored, b"" when it had none."""

    def admit(self, batch: Batch, base: int) -> PublishResult:
        """Stores what may be stored; the k-th stored message gets the time `base + k`."""
        first_seq = self._store.last_seq + 1
        if self._dedupe.window and batch.has_headers:
            self._dedupe.advance(base, first_seq)
        if self._fits_whole(batch):
            ids = self._new_ids(batch, first_seq) if batch.has_headers else []
            if ids is not None:
                self._store_whole(batch, first_seq, base, ids)
                return PublishResult(first_seq, batch.count, None)
        self._batch, self._base, self._next_seq, self._stored = batch, base, first_seq, 0
        self._ids = []
        verdicts = [self._admit_one(i) for i in range(batch.count)]
        self._flush()
        if self._ids:
            self._dedupe.seal(base, self._ids)
        if self._stored == batch.count:
            return PublishResult(first_seq, batch.count, None)
        return PublishResult(first_seq, batch.count, verdicts)

    def store_atomic(self, batch: Batch, base: int, *, plain: bool) -> int:
        """Stores all messages of an atomic batch: `AtomicChecks` has found that it may. `plain`: no message has a
        header that means something here. Returns the last sequence."""
        first_seq = self._store.last_seq + 1
        if plain:
            self._store_whole(batch, first_seq, base, [])
            return self._store.last_seq
        self._batch, self._base, self._next_seq, self._stored = batch, base, first_seq, 0
        self._ids = []
        for i in range(batch.count):
            subject, headers, _ = batch.message(i)
            fields = nats_fields(headers)
            self._stage(i, subject, fields.get(b"Nats-Msg-Id", b""), fields.get(b"Nats-Rollup", b"").lower())
        self._flush()
        if self._ids:
            self._dedupe.seal(base, self._ids)
        return self._store.last_seq

    def _fits_whole(self, batch: Batch) -> bool:
        rules = self._rules
        if rules.sealed or (rules.max_msg_size and not _each_at_most(batch, rules.max_msg_size)):
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
            fields = headers.count(_HEADER_FIELD)
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

    def _store_whole(self, batch: Batch, first_seq: int, ts: int, ids: list[tuple[int, bytes]]) -> None:
        self._append(batch, first_seq, ts)
        last = ids[-1] if ids else (0, b"")
        self.last_msg_id = last[1] if last[0] == first_seq + batch.count - 1 else b""
        if ids and self._dedupe.window:
            for seq, msg_id in ids:
                self._dedupe.add(msg_id, seq)
            self._dedupe.seal(ts, ids)

    def _append(self, batch: Batch, first_seq: int, ts: int) -> None:
        for piece in _blocks(batch):
            self._store.append(piece, first_seq, ts)
            first_seq += piece.count
            ts += piece.count
        if self._rules.evicts:
            enforce(self._store, self._rules, batch.subjects)

    def _admit_one(self, i: int) -> Verdict:
        subject, headers, _ = self._batch.message(i)
        fields = nats_fields(headers) if headers else _NOTHING
        rules = self._rules
        if rules.sealed:
            return _SEALED
        if rules.max_msg_size and self._batch.size_of(i) > rules.max_msg_size:
            return _TOO_LARGE
        if len(headers) > MAX_HEADER:
            return _HEADER_TOO_LARGE
        msg_id = b""
        rollup = b""
        if fields:
            verdict = self._check_fields(subject, fields)
            if verdict is not None:
                return verdict
            msg_id = fields.get(b"Nats-Msg-Id", b"")
            rollup = fields.get(b"Nats-Rollup", b"").lower()
        if rules.discard_new and (refusal := self._check_room(i, subject, rollup)) is not None:
            return refusal
        if b"Nats-Expected-Last-Msg-Id" in fields:
            expected = fields[b"Nats-Expected-Last-Msg-Id"]
            if expected and expected != self.last_msg_id:
                return errors.by_code(10070, id=self.last_msg_id.decode(errors="replace"))
        return self._stage(i, subject, msg_id, rollup)

    def _check_fields(self, subject: bytes, fields: dict[bytes, bytes]) -> Verdict | None:
        stream = fields.get(b"Nats-Expected-Stream")
        if stream and stream != self._name:
            return _WRONG_STREAM
        for key, error in _REFUSED_HEADERS:
            if fields.get(key):
                return error
        msg_id = fields.get(b"Nats-Msg-Id")
        if msg_id and self._dedupe.window:
            seq = self._dedupe.seq_of(msg_id)
            if seq is not None:
                return Duplicate(seq)
        last = fields.get(b"Nats-Expected-Last-Sequence")
        if last and number(last) != self._next_seq - 1:
            return errors.by_code(10071, seq=self._next_seq - 1)
        expected = fields.get(b"Nats-Expected-Last-Subject-Sequence")
        key = fields.get(b"Nats-Expected-Last-Subject-Sequence-Subject", b"")
        if expected:
            actual = self._last_of_subject(key or subject)
            if number(expected) != actual:
                return errors.by_code(10071, seq=actual)
        elif key:
            return _MISSING_SEQUENCE
        return self._check_rollup(fields.get(b"Nats-Rollup"))

    def _check_rollup(self, value: bytes | None) -> ApiError | None:
        if not value:
            return None
        if not self._rules.allow_rollup_hdrs or self._rules.deny_purge:
            return _ROLLUP_NOT_PERMITTED
        if value.lower() in (b"sub", b"all"):
            return None
        return errors.by_code(10111, err=f'rollup value invalid: "{value.decode(errors="replace")}"')

    def _last_of_subject(self, filter: bytes) -> int:
        """Last sequence of the subjects matching `filter` (0: none), what is staged included."""
        if self._staged and self._rules.evicts and not self._room_for_staged():
            self._flush()
        if is_literal(filter):
            staged = self._staged_last.get(filter)
            if staged is not None:
                return staged[0]
            return self._store.last_seq_of(filter)
        self._flush()
        message = self._store.last_by_subject(filter)
        return message.seq if message is not None else 0

    def _room_for_staged(self) -> bool:
        """False when storing what is staged might push out older messages of any subject."""
        rules, store = self._rules, self._store
        if rules.max_msgs and store.messages + len(self._staged) > rules.max_msgs:
            return False
        return not rules.max_bytes or store.byte_count + self._staged_bytes <= rules.max_bytes

    def _check_room(self, i: int, subject: bytes, rollup: bytes) -> ApiError | None:
        """Discard new: no room is an error, unless the message replaces the oldest one of its subject."""
        rules = self._rules
        if rules.discard_new_per_subject and not rollup:
            staged = self._staged_last.get(subject, (0, 0))[1]
            if staged + self._store.count_of(subject) >= rules.max_msgs_per_subject:
                return _MAX_PER_SUBJECT
        full = self._no_room(i)
        if full is not None and rules.max_msgs_per_subject:
            if self._staged:
                self._flush()  # it may have replaced older messages: look again at what is really there
                full = self._no_room(i)
            if full is not None and self._store.count_of(subject) >= rules.max_msgs_per_subject:
                return None
        return full

    def _no_room(self, i: int) -> ApiError | None:
        rules, store = self._rules, self._store
        if rules.max_msgs and store.messages + len(self._staged) >= rules.max_msgs:
            return _MAX_MSGS
        if rules.max_bytes:
            size = self._batch.record_size(i, memory=rules.memory)
            if store.byte_count + self._staged_bytes + size > rules.max_bytes:
                return _MAX_BYTES
        return None

    def _stage(self, i: int, subject: bytes, msg_id: bytes, rollup: bytes) -> int:
        seq = self._next_seq
        self._next_seq = seq + 1
        self._staged.append(i)
        rules = self._rules
        if rules.max_bytes:
            self._staged_bytes += self._batch.record_size(i, memory=rules.memory)
        self._staged_last[subject] = (seq, self._staged_last.get(subject, (0, 0))[1] + 1)
        self.last_msg_id = msg_id
        if msg_id and self._dedupe.window:
            self._dedupe.add(msg_id, seq)
            self._ids.append((seq, msg_id))
        if rollup:
            self._flush()
            self._store.purge(subject if rollup == b"sub" else b">", keep=1)
        return seq

    def _flush(self) -> None:
        staged = self._staged
        if not staged:
            return
        batch = self._batch if len(staged) == self._batch.count else self._batch.select(staged)
        self._append(batch, self._next_seq - len(staged), self._base + self._stored)
        self._stored += len(staged)
        self._staged = []
        self._staged_bytes = 0
        self._staged_last = {}


def enforce(store: MachineStore, rules: StreamRules, subjects: list[bytes]) -> int:
    """Evicts what the limits say; discard-new streams refuse instead and never evict to make room for the stream."""
    max_msgs = 0 if rules.discard_new else rules.max_msgs
    max_bytes = 0 if rules.discard_new else rules.max_bytes
    per_subject = 0 if rules.discard_new_per_subject else rules.max_msgs_per_subject
    return store.enforce(max_msgs, max_bytes, per_subject, subjects)


def _blocks(batch: Batch) -> Iterator[Batch]:
    """The batch in pieces that are good to store: reading one message reads its block."""
    if batch.encoded_bytes <= MAX_BLOCK:
        yield batch
        return
    start, size = 0, 0
    for i in range(batch.count):
        size += batch.size_of(i)
        if size >= MAX_BLOCK or i == batch.count - 1:
            yield batch.select(range(start, i + 1))
            start, size = i + 1, 0


def _each_at_most(batch: Batch, limit: int) -> bool:
    return batch.body_bytes <= limit or all(batch.size_of(i) <= limit for i in range(batch.count))


def number(text: bytes) -> int:
    """A sequence in a header: decimal digits only; -1, which matches none, for anything else."""
    return int(text) if text.isdigit() and len(text) <= 20 else -1
