"""`AtomicChecks`: decides in apply whether all messages of an atomic batch are stored, before any is.

Every check (`checks`) sees the stream before the batch with the effects of the batch's earlier messages. The first
failure refuses the batch.

`BatchParts`: the parts of an atomic batch that is too long for one log entry, until its commit is applied. The leader
proposes parts and commit in a row, so they are adjacent in the log and of one term. Where they are not (the leader
changed, or could not propose the rest), the commit never comes, and the next command makes the parts void. They are
rows beside the messages, so that a replica that restarts or is rebuilt between a part and its commit has them:

    key u64 log index (big-endian) -> u64 term | u16 number | bytes of the batch
"""

from __future__ import annotations

import struct
from typing import Final

from jetcluster.errors import ApiError
from jetcluster.protocol.subjects import is_literal
from jetcluster.records import NamedTuple
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply import checks
from jetcluster.stream.apply.checks import EXPECTED_SUBJECT, MAX_HEADER_BYTES, Publication, PublishKind
from jetcluster.stream.apply.dedupe import DedupeWindow
from jetcluster.stream.apply.publish import MessageAdmission
from jetcluster.stream.apply.staging import Staging, record_size
from jetcluster.stream.fields import FIELD, nats_fields
from jetcluster.stream.log.commands import BatchPart
from jetcluster.stream.ports import SIDE_BATCH_PARTS

_KEY: Final = struct.Struct(">Q")
_HEAD: Final = struct.Struct("<QH")


class BatchParts:
    """The parts of the one batch whose commit has not been applied. Loads the rows of `store`."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._indexes: list[int] = []
        self.pieces: list[bytes] = []
        """The parts so far, in order."""
        self._term = 0
        for key, value in store.side_scan(SIDE_BATCH_PARTS):
            self._term, _ = _HEAD.unpack_from(value)
            self._indexes.append(_KEY.unpack(key)[0])
            self.pieces.append(value[_HEAD.size :])

    def add(self, index: int, term: int, part: BatchPart) -> None:
        if not self._continues(index, term) or part.number != len(self._indexes):
            self.clear()
        if part.number != len(self._indexes):
            return  # its first parts are void, and so is this one
        self._term = term
        self._indexes.append(index)
        self.pieces.append(part.data)
        self._store.side_put(SIDE_BATCH_PARTS, _KEY.pack(index), _HEAD.pack(term, part.number) + part.data)

    def take(self, index: int, term: int, count: int) -> bytes | None:
        """Removes all parts. Returns the `count` parts right before the commit at `index`, joined, or None."""
        whole = self._continues(index, term) and len(self._indexes) == count
        joined = b"".join(self.pieces) if whole else None
        self.clear()
        return joined

    def clear(self) -> None:
        for index in self._indexes:
            self._store.side_delete(SIDE_BATCH_PARTS, _KEY.pack(index))
        self._indexes.clear()
        self.pieces.clear()

    def _continues(self, index: int, term: int) -> bool:
        return not self._indexes or (term == self._term and index == self._indexes[-1] + 1)


_LAST_SEQUENCE: Final = b"Nats-Expected-Last-Sequence"
_AT_ENDS: Final = frozenset(
    {b"Nats-Batch-Id", b"Nats-Batch-Sequence", b"Nats-Batch-Commit", b"Nats-Msg-Id", _LAST_SEQUENCE}
)
"""Fields of the first and the last message with which a batch is stored as it came."""
_OF_EACH: Final = b"\r\nNats-Batch-Id:", b"\r\nNats-Batch-Sequence:"
"""Fields that each message of a batch has."""
_KV_OPERATION: Final = b"KV-Operation:"
"""A field that may purge. `headers.get` finds it behind a bare line feed, too."""


class Passed(NamedTuple):
    """A batch that is stored as it came."""

    ids: list[tuple[int, bytes]]
    """(place, Nats-Msg-Id) of the messages that have one."""


def store(staging: Staging, batch: Batch, first_seq: int, ts: int, checked: list[Publication] | Passed) -> None:
    """Stores a batch that has passed; its first message gets `first_seq` and `ts`. `checked` as returned by `run`."""
    if isinstance(checked, Passed):
        staging.store(batch, first_seq, ts, [(first_seq + place, msg_id) for place, msg_id in checked.ids])
        return
    staging.begin(batch, ts)
    for i, message in enumerate(checked):
        made = message.message
        staging.stage(i, made, message.fields, message.tally, changed=made != batch.message(i))
    staging.finish()


class AtomicChecks:
    """The checks of one batch; `run` once."""

    def __init__(
        self, admission: MessageAdmission, store: BlockStore, dedupe: DedupeWindow, batch: Batch, ts: int
    ) -> None:
        """`ts`: time of the batch, Unix nanoseconds."""
        self.name = admission.name
        self.rules = admission.rules
        self.staging = admission.staging
        self.time = ts
        self.takes_msg_ids = True
        self._whole = admission.whole[PublishKind.ATOMIC]
        self._checks = admission.selections[PublishKind.ATOMIC]
        self._store = store
        self._dedupe = dedupe
        self._batch = batch
        self._checked: list[Publication] = []
        self._written: dict[bytes, list[bytes]] = {}
        """Header blocks of the messages that have passed, by subject."""
        self._ids: set[bytes] = set()
        self._bytes = 0
        """Bytes that the messages that have passed add to the stream."""

    def run(self, *, plain: bool) -> list[Publication] | Passed | ApiError:
        """Returns the messages in their stored form, or that all are stored as they came, or the error that refuses the
        batch. `plain`: the leader saw no meaningful header. Stores nothing. Raises DamagedError."""
        rules = self.rules
        if self._whole and (refused := checks.refused_by(self._whole, self)) is not None:
            return refused
        if not (rules.refuses_when_full or rules.max_msg_size or rules.allow_msg_counter):
            if plain:
                return Passed([])
            if self._meaning_at_ends():
                return self._check_ends()
        if self._batch.has_headers and EXPECTED_SUBJECT in self._batch.raw:
            self._store.find_lasts(checks.expected_wildcards(self._batch))
        try:
            for i in range(self._batch.count):
                refused = self._check(i)
                if refused is not None:
                    return refused
        finally:
            self.staging.totals.clear()
        return self._checked

    def _meaning_at_ends(self) -> bool:
        """True when only the first and the last message have fields that need a check, and none has another effect: the
        batch of a writer that fences it, or knows it again by its ids. It saves the others their checks."""
        batch = self._batch
        count = batch.count
        if count < 2 or batch.longest_headers > MAX_HEADER_BYTES:
            return False
        raw = batch.raw
        if _KV_OPERATION in raw or any(raw.count(field) != count for field in _OF_EACH):
            return False
        first, last = batch.headers_of(0), batch.headers_of(count - 1)
        if raw.count(FIELD) != first.count(FIELD) + last.count(FIELD) + len(_OF_EACH) * (count - 2):
            return False
        fields = nats_fields(last)
        return (
            _AT_ENDS.issuperset(nats_fields(first)) and _AT_ENDS.issuperset(fields) and not fields.get(_LAST_SEQUENCE)
        )

    def _check_ends(self) -> Passed | ApiError:
        for i in (0, self._batch.count - 1):
            refused = self._check(i)
            if refused is not None:
                return refused
        places = (0, self._batch.count - 1)
        ids = [(place, one.fields.get(b"Nats-Msg-Id", b"")) for place, one in zip(places, self._checked, strict=True)]
        return Passed([(place, msg_id) for place, msg_id in ids if msg_id])

    def _check(self, i: int) -> ApiError | None:
        subject, headers, payload = self._batch.message(i)
        message = Publication(i, subject, headers, payload, nats_fields(headers))
        verdict = self._checks.verdict(self, message)
        if verdict is not None:
            assert isinstance(verdict, ApiError), verdict
            return verdict
        if message.tally is not None:
            self.staging.totals.stage(subject, message.tally)
        self._checked.append(message)
        self._written.setdefault(subject, []).append(message.headers)
        if msg_id := message.fields.get(b"Nats-Msg-Id"):
            self._ids.add(msg_id)
        self._bytes += record_size(message.message, memory=self.rules.memory)
        return None

    # -- checks.CheckView ----------------------------------------------------------------------------------------------

    @property
    def last_seq(self) -> int:
        return self._store.last_seq + len(self._checked)

    @property
    def messages(self) -> int:
        return self._store.messages + len(self._checked)

    @property
    def byte_count(self) -> int:
        return self._store.byte_count + self._bytes

    def is_grown(self, place: int) -> bool:
        return False

    def is_fast(self, place: int) -> bool:
        return False

    def is_written(self, subject: bytes) -> bool:
        return subject in self._written

    def seq_of_id(self, msg_id: bytes) -> int | None:
        return 0 if msg_id in self._ids else self._dedupe.seq_of(msg_id)

    def last_seq_of(self, subject_filter: bytes) -> int:
        if is_literal(subject_filter):
            return self._store.last_seq_of(subject_filter)
        return self._store.last_seq_matching(subject_filter)

    def last_headers(self, subject: bytes) -> bytes | None:
        written = self._written.get(subject)
        return written[-1] if written else self.staging.last_headers(subject)

    def count_of(self, subject: bytes) -> int:
        return len(self._written.get(subject, ())) + self._store.count_of(subject)
