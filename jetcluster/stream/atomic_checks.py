"""`AtomicChecks`: may the messages of an atomic batch be stored, all of them, and as what? Decided in apply, before any
is stored.

Every check (`checks`) looks at the stream as it is before the batch, plus what the earlier messages of the batch would
do to it, message by message; the first failure refuses the batch.

`BatchParts`: the parts of an atomic batch that is too long for one log entry, until its commit is applied.

The leader proposes parts and commit without anything in between, so in the log they stand next to each other in one
term. Where they do not (the leader went, or could not propose the rest), the commit will never come: the command that
is applied next makes the parts void. They are rows beside the messages, so a replica that restarts, or is rebuilt from
a peer, between a part and its commit has them.

    key u64 log index (big-endian) -> u64 term | u16 number | bytes of the batch
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from jetcluster.errors import ApiError
from jetcluster.protocol.subjects import is_literal
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream import checks
from jetcluster.stream.checks import EXPECTED_SUBJECT, CheckOrder, Publication
from jetcluster.stream.commands import BatchPart
from jetcluster.stream.dedupe import DedupeWindow
from jetcluster.stream.fields import nats_fields
from jetcluster.stream.ports import SIDE_BATCH_PARTS
from jetcluster.stream.rules import StreamRules
from jetcluster.stream.staging import Staging, record_size

_KEY: Final = struct.Struct(">Q")
_HEAD: Final = struct.Struct("<QH")


class BatchParts:
    def __init__(self, store: BlockStore) -> None:
        """Continues with the rows of `store`."""
        self._store = store
        self._indexes: list[int] = []
        self.pieces: list[bytes] = []
        """The parts that came so far."""
        self._term = 0
        for key, value in store.side_scan(SIDE_BATCH_PARTS):
            self._term, _ = _HEAD.unpack_from(value)
            self._indexes.append(_KEY.unpack(key)[0])
            self.pieces.append(value[_HEAD.size :])

    def add(self, index: int, term: int, part: BatchPart) -> None:
        if not self._continues(index, term) or part.number != len(self._indexes):
            self.clear()
        if part.number != len(self._indexes):
            return  # its start was made void: so is this
        self._term = term
        self._indexes.append(index)
        self.pieces.append(part.data)
        self._store.side_put(SIDE_BATCH_PARTS, _KEY.pack(index), _HEAD.pack(term, part.number) + part.data)

    def take(self, index: int, term: int, count: int) -> bytes | None:
        """The `count` parts right before the commit at `index`, joined; None when they are not there. Either way none
        are left."""
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


def store(staging: Staging, batch: Batch, first_seq: int, ts: int, checked: list[Publication] | None) -> None:
    """Stores a batch whose checks have passed; the first message as `first_seq` at the time `ts`."""
    if checked is None:
        staging.store_whole(batch, first_seq, ts, [])
        return
    staging.begin(batch, ts)
    for i, message in enumerate(checked):
        made = message.message
        staging.stage(i, made, message.fields, message.tally, changed=made != batch.message(i))
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
        selection: CheckOrder,
        whole: Sequence[checks.Early],
        *,
        allow_msg_id: bool,
    ) -> None:
        """`ts`: time of the batch, nanoseconds. `staging` is asked what messages look like when they are stored;
        `selection`: the checks of PublishKind.ATOMIC; `whole`: those of WHOLE_ATOMIC."""
        self.name = name
        self.rules = rules
        self.staging = staging
        self.time = ts
        self.takes_msg_ids = allow_msg_id
        self._checks = selection
        self._whole = whole
        self._store = store
        self._dedupe = dedupe
        self._batch = batch
        self._checked: list[Publication] = []
        self._written: dict[bytes, list[bytes]] = {}
        """Subject -> header blocks of the messages that have passed."""
        self._ids: set[bytes] = set()
        self._bytes = 0
        """Bytes that they would add to the stream."""

    def run(self, *, plain: bool) -> list[Publication] | ApiError | None:
        """The messages as they are to be stored, or why none may be. None: all may, as they came. `plain`: the leader
        saw no header that means anything here. Stores nothing. Raises DamagedError."""
        rules = self.rules
        if self._whole and (refused := checks.refused_by(self._whole, self)) is not None:
            return refused
        if plain and not (rules.discard_new or rules.max_msg_size or rules.allow_msg_counter):
            return None
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
