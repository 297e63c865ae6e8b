"""`MessageAdmission`: decides in apply, in log order, which messages of a PUBLISH command are stored, and in what form.

A batch that no limit can refuse, with no headers but the users' own and new message ids, is stored as it came, in one
step. Otherwise every message passes the checks (`checks`) and is staged (`staging`), with the effects of storing it.

REPLACE is here too: messages take the place of others in one step, if the stream is still as its proposer saw it. The
object service ends an upload with it: it stores the object's metadata, and removes the record of the upload, the older
metadata and the replaced object's chunks. No crash leaves half of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.model.transforms import TOO_LONG, SubjectTransform
from jetcluster.protocol.subjects import is_literal
from jetcluster.store.batch import MAX_SUBJECT, Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.keys import MAX_SEQ
from jetcluster.stream.apply import checks
from jetcluster.stream.apply.checks import EXPECTED_SUBJECT, MAX_HEADER_BYTES, CheckOrder, Publication, PublishKind
from jetcluster.stream.apply.dedupe import DedupeWindow
from jetcluster.stream.apply.staging import Staging
from jetcluster.stream.fields import FIELD, NO_FIELDS, nats_fields
from jetcluster.stream.log.bodies import Guard
from jetcluster.stream.log.fast_parts import FastGate
from jetcluster.stream.ports import PublishResult, Verdict
from jetcluster.stream.rules import StreamRules

EXHAUSTED: Final = errors.by_code(10077, err="stream sequence exhausted")
MAX_MAPPED_BYTES: Final = 64 << 20
"""Bytes of all subjects of a command after the transform, which may make long subjects of short ones."""

_MSG_ID: Final = b"\r\nNats-Msg-Id:"


class MessageAdmission:
    """Admits one command after the other. Built anew when the rules change."""

    def __init__(
        self, name: str, rules: StreamRules, store: BlockStore, dedupe: DedupeWindow, staging: Staging
    ) -> None:
        self.name = name.encode()
        self.rules = rules
        self.staging = staging
        self.time = 0
        """Time of the command, Unix nanoseconds."""
        self.whole = {kind: checks.early(order, rules) for kind, order in checks.WHOLE.items()}
        """Checks of a whole command."""
        self.refuses_own = self.refusal(PublishKind.OWN)
        """The reason why the stream makes no messages, or None."""
        self.selections = {kind: CheckOrder(kind, rules) for kind in PublishKind}
        self._takes_all = checks.takes_all(rules)
        self._store = store
        self._dedupe = dedupe
        self._batch: Batch
        self._gate: FastGate | None = None
        self._grown: frozenset[int] = frozenset()
        """Places of messages whose subject would become too long."""

    def refusal(self, kind: PublishKind) -> ApiError | None:
        """The reason to refuse a whole command with messages of this kind (`checks.WHOLE`), or None."""
        order = self.whole[kind]
        return checks.refused_by(order, self) if order else None

    def refusal_to_replace(self, guards: Sequence[Guard]) -> ApiError | None:
        """The reason to refuse a REPLACE, or None; 10071: a guard does not hold."""
        refused = self.refusal(PublishKind.REPLACING)
        if refused is not None:
            return refused
        for subject, seq in guards:
            actual = self._store.last_seq_of(subject)
            if actual != seq:
                return errors.by_code(errors.WRONG_LAST_SEQUENCE, seq=actual)
        return None

    def admit(self, batch: Batch, base: int, gate: FastGate | None = None) -> PublishResult:
        """Stores messages that pass, the k-th at `base + k`. `gate`: of fast-ingest batches. Raises DamagedError."""
        first_seq = self._store.last_seq + 1
        if first_seq + batch.count > MAX_SEQ:
            return PublishResult(first_seq, batch.count, [EXHAUSTED] * batch.count)
        if self.rules.subject_transform is not None:
            batch, self._grown = mapped(batch, self.rules.subject_transform, base)
        if self._dedupe.window and batch.has_headers:
            self._dedupe.advance(base, first_seq)
        fits = self._takes_all or self._fits_whole(batch, base)
        if fits and (gate is None or gate.open) and not self._grown:
            ids = self._new_ids(batch, first_seq) if batch.has_headers else []
            if ids is not None:
                self.staging.store(batch, first_seq, base, ids)
                return PublishResult(first_seq, batch.count, None)
        self._batch, self.time, self._gate = batch, base, gate
        if batch.has_headers and EXPECTED_SUBJECT in batch.raw:
            self._store.find_lasts(checks.expected_wildcards(batch))
        self.staging.begin(batch, base)
        if gate is None:
            verdicts = [self._admit_one(i) for i in range(batch.count)]
        else:
            verdicts = gate.verdicts(batch.count, self._admit_one)
        stored = self.staging.finish()
        if stored == batch.count and not self.rules.allow_msg_counter:
            return PublishResult(first_seq, batch.count, None)
        return PublishResult(first_seq, batch.count, verdicts)

    def store_own(self, batch: Batch, base: int, *, roomy: bool = False) -> int:
        """Stores messages made by the stream itself, unchecked; their headers have all their effects. Only a full
        discard-new stream refuses, unless `roomy`. Returns how many were stored."""
        self._batch, self.time = batch, base
        self.staging.begin(batch, base)
        kind = PublishKind.REPLACING if roomy else PublishKind.OWN
        for i in range(batch.count):
            self._admit_one(i, kind)
        return self.staging.finish()

    def admit_sourced(self, batch: Batch, base: int, first_seq: int = 0) -> tuple[int, ApiError | None]:
        """Stores messages of an upstream, with sequences from `first_seq` on, which may leave a gap, or the next ones
        (0). Headers are not checked, but may have effects. Returns how many were taken, and the error of the next."""
        rules, staging, store = self.rules, self.staging, self._store
        grown: frozenset[int] = frozenset()
        if rules.subject_transform is not None:
            batch, grown = mapped(batch, rules.subject_transform, base)
        dedupe = self._dedupe if self._dedupe.window and batch.has_headers else None
        if dedupe is not None:
            dedupe.advance(base, first_seq or store.last_seq + 1)
        inert = dedupe is None and not staging.has_effects
        if (
            self._fits_whole(batch, base)
            and not grown
            and (inert or not batch.has_headers or not batch.may_hold(FIELD))
        ):
            seq = first_seq or store.last_seq + 1
            last_id = nats_fields(batch.headers_of(batch.count - 1)).get(b"Nats-Msg-Id")
            staging.store(batch, seq, base, [(seq + batch.count - 1, last_id)] if last_id else [])
            return batch.count, None
        self._batch, self.time, self._grown = batch, base, grown
        staging.begin(batch, base, first_seq)
        taken, error = batch.count, None
        for i in range(batch.count):
            msg_id = nats_fields(batch.headers_of(i)).get(b"Nats-Msg-Id")
            if msg_id and dedupe is not None and not first_seq and dedupe.seq_of(msg_id) is not None:
                continue  # a source's duplicate; a mirror keeps all of its upstream
            verdict = self._admit_one(i, PublishKind.SOURCED)
            if isinstance(verdict, ApiError):
                taken, error = i, verdict
                break
        staging.finish()
        return taken, error

    def _fits_whole(self, batch: Batch, base: int) -> bool:
        rules, store = self.rules, self._store
        if rules.guard is not None and self.staging.guard.may_refuse(base, batch.record_bytes(memory=rules.memory)):
            return False
        return checks.fits_whole(rules, batch, store.messages, store.byte_count)

    def _new_ids(self, batch: Batch, first_seq: int) -> list[tuple[int, bytes]] | None:
        """(sequence, id) of the messages with a Nats-Msg-Id, if every message would be stored and none has another
        meaningful header; None if that needs the checks. Changes nothing."""
        if not batch.may_hold(FIELD) and batch.longest_headers <= MAX_HEADER_BYTES:
            return []
        ids: list[tuple[int, bytes]] = []
        seen: set[bytes] = set()
        seq_of = self._dedupe.seq_of
        for i in range(batch.count):
            headers = batch.headers_of(i)
            fields = headers.count(FIELD)
            if fields == 0 and len(headers) <= MAX_HEADER_BYTES:
                continue
            start = headers.find(_MSG_ID) + len(_MSG_ID)
            end = headers.find(b"\r\n", start)
            if fields != 1 or start < len(_MSG_ID) or end < 0 or len(headers) > MAX_HEADER_BYTES:
                return None
            msg_id = headers[start:end].strip(b" \t")
            if not msg_id:
                continue
            if msg_id in seen or seq_of(msg_id) is not None:
                return None
            seen.add(msg_id)
            ids.append((first_seq + i, msg_id))
        return ids

    def _admit_one(self, i: int, kind: PublishKind = PublishKind.PLAIN) -> Verdict:
        came = self._batch.message(i)
        message = Publication(i, *came, nats_fields(came[1]) if came[1] else NO_FIELDS)
        verdict = self.selections[kind].verdict(self, message)
        if verdict is not None:
            return verdict
        if message.headers is came[1] and message.payload is came[2]:
            return self.staging.stage(i, came, message.fields, message.tally)
        made = message.message
        return self.staging.stage(i, made, message.fields, message.tally, changed=made != came)

    # -- checks.CheckView ----------------------------------------------------------------------------------------------

    takes_msg_ids = True

    @property
    def last_seq(self) -> int:
        return self.staging.next_seq - 1

    @property
    def messages(self) -> int:
        return self.staging.messages

    @property
    def byte_count(self) -> int:
        return self.staging.byte_count

    def is_grown(self, place: int) -> bool:
        return place in self._grown

    def is_fast(self, place: int) -> bool:
        return self._gate is not None and self._gate.owns(place)

    def is_written(self, subject: bytes) -> bool:
        return False

    def seq_of_id(self, msg_id: bytes) -> int | None:
        return self._dedupe.seq_of(msg_id)

    def last_seq_of(self, subject_filter: bytes) -> int:
        staging = self.staging
        if is_literal(subject_filter):
            return staging.last_seq_of(subject_filter)
        return staging.last_seq_matching(subject_filter)

    def last_headers(self, subject: bytes) -> bytes | None:
        return self.staging.last_headers(subject)

    def count_of(self, subject: bytes) -> int:
        return self.staging.count_of(subject)


def mapped(batch: Batch, transform: SubjectTransform, base: int) -> tuple[Batch, frozenset[int]]:
    """Returns the batch with mapped subjects, and the places of messages that keep theirs because it would become
    longer than MAX_SUBJECT, or all together longer than MAX_MAPPED_BYTES. Subjects outside the transform's source stay.
    `random` is drawn from the time of the command and the message's place in it, so that replicas agree."""
    room = MAX_MAPPED_BYTES

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
