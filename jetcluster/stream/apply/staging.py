"""`Staging`: the accepted messages of one command on their way into the store, and the effects of storing them.

Messages are stored in one step at the end of the command, or earlier when a rollup, the check of a wildcard or the last
room of a discard-new stream needs them stored. Storing a message can

- evict older ones (limits), purge its subject, the stream (Nats-Rollup) or a schedule (Nats-Schedule-Next: purge);
- schedule its own expiry (Nats-TTL) or a message to be produced (Nats-Schedule);
- call `on_append` (republish) and `on_stored`, which removes messages no consumer wants (interest retention).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from jetcluster.errors import ApiError
from jetcluster.model.times import SECOND
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.subjects import is_literal
from jetcluster.store.batch import FILE_HEADER_LENGTH, FILE_RECORD, MEMORY_RECORD, Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply import schedules
from jetcluster.stream.apply.counters import CounterTotals, Made, Tally, written
from jetcluster.stream.apply.dedupe import DedupeWindow
from jetcluster.stream.apply.expiry import Expiry
from jetcluster.stream.apply.guard import RetentionGuard
from jetcluster.stream.apply.schedules import Schedules
from jetcluster.stream.fields import KV_OPERATION, appended, parse_ttl
from jetcluster.stream.ports import Counted, Message
from jetcluster.stream.rules import StreamRules

MAX_BLOCK_BYTES: Final = 512 << 10
"""Bytes of a block, unless one message is longer. Ordinary commands (`ingest.BATCH_BYTES`) are shorter."""

MAX_STAGED_TOTALS_BYTES: Final = 8 << 20
"""Bytes of totals of sources in staged messages; more are stored before the next message is staged."""

OnAppend = Callable[[Batch, int, int], None]
"""Called with (batch, first sequence, time of the first message) right before a batch is stored."""
OnStored = Callable[[int, int], None]
"""Called with (first, last sequence) right after a batch was stored, before limits are enforced; it may remove them."""
Within = Callable[[Sequence[bytes]], list[bytes]]
RollUp = Callable[[bytes, int], bool]
"""Removes what the message (subject, sequence) rolls up, if it takes a job; returns whether it did."""


class Staging:
    """Stages one command after the other: `begin`, `stage` any number of messages, `finish`."""

    def __init__(
        self, rules: StreamRules, store: BlockStore, dedupe: DedupeWindow, expiry: Expiry, due: Schedules,
        guard: RetentionGuard,
        *, tracks: bool, last_msg_id: bytes, on_append: OnAppend | None, on_stored: OnStored | None,
    ) -> None:  # fmt: skip
        """`tracks`: `counters.tracks_sources`."""
        self._rules = rules
        self._store = store
        self._dedupe = dedupe
        self._expiry = expiry
        self._schedules = due
        self.guard = guard
        self.roll_up: RollUp | None = None
        """Set while a command is staged whose rollups may leave jobs."""
        self.has_effects = rules.allow_msg_ttl or rules.allow_msg_schedules or rules.allow_rollup_hdrs
        """Headers may have effects: an expiry, a schedule, a purge."""
        self._batch: Batch
        self._base = 0
        self._stored = 0
        """Messages of this command that are in the store already."""
        self._staged: list[int] = []
        """Places in the batch of the messages that are accepted and not in the store yet."""
        self._changed: dict[int, Message] = {}
        """Staged messages that differ from those of the batch, by place."""
        self._bytes = 0
        self._totals_bytes = 0
        """Bytes of totals of sources in staged messages."""
        self._last: dict[bytes, tuple[int, int]] = {}
        """Per subject of a staged message: its last sequence, and how many are staged."""
        self._ids: list[tuple[int, bytes]] = []
        self.totals = CounterTotals(store, tracks=tracks)
        self.next_seq = 0
        self.last_msg_id = last_msg_id
        """Nats-Msg-Id of the last message stored, b"" when it had none."""
        self.on_append, self._on_stored = on_append, on_stored
        self.within: Within | None = None
        """Set while there are jobs: returns the subjects whose limit must be enforced (`Jobs.within`)."""

    def begin(self, batch: Batch, base: int, first_seq: int = 0) -> None:
        """Begins a command; its k-th stored message gets time `base + k`, sequence `first_seq + k` (0: the next)."""
        self._batch, self._base, self._stored = batch, base, 0
        self._ids = []
        self.next_seq = first_seq or self._store.last_seq + 1

    def finish(self) -> int:
        """Stores the rest; returns how many messages of the command were stored."""
        self.flush()
        if self._ids:
            self._dedupe.seal(self._base, self._ids)
        self._expiry.seal()
        return self._stored

    def counted(self, message: Message, fields: dict[bytes, bytes], *, sourced: bool = False) -> Made | ApiError:
        """The message of a counter as it is stored (`CounterTotals.add`). Adds nothing to the totals."""
        self._settle()
        return self.totals.add(message, fields, self._rules.max_msg_size, sourced=sourced)

    def rewritten(
        self, subject: bytes, headers: bytes, payload: bytes, fields: dict[bytes, bytes]
    ) -> tuple[bytes, bytes, Tally | None] | ApiError:
        """Header block and payload as stored, and the counter's total, or its error; keeps `fields` in line."""
        tally: Tally | None = None
        if self._rules.allow_msg_counter:
            made = self.counted((subject, headers, payload), fields)
            if isinstance(made, ApiError):
                return made
            headers, payload, tally = made
        if fields:
            headers = self._raised(headers, fields)
            headers = schedules.with_rollup(headers, fields)
        return headers, payload, tally

    def stage(
        self, i: int, message: Message, fields: dict[bytes, bytes], tally: Tally | None = None, *, changed: bool = False
    ) -> int | Counted:
        """Stages message `i` of the batch, as `message`; `changed` if they differ."""
        subject, headers, _ = message
        seq = self.next_seq
        self.next_seq = seq + 1
        ts = self._base + self._stored + len(self._staged)
        self._staged.append(i)
        if changed:
            self._changed[i] = message
        if self._rules.max_bytes or self._rules.guard is not None:
            self._bytes += record_size(message, memory=self._rules.memory)
        self._last[subject] = (seq, self._last.get(subject, (0, 0))[1] + 1)
        if tally is not None:
            self.totals.stage(subject, tally)
            self._totals_bytes += len(tally.text)
        msg_id = fields.get(b"Nats-Msg-Id", b"")
        self.last_msg_id = msg_id
        if msg_id and self._dedupe.window:
            self._dedupe.add(msg_id, seq)
            self._ids.append((seq, msg_id))
        if self.has_effects and (fields or KV_OPERATION in headers):
            self._effects(seq, ts, message, fields)
        if tally is None:
            return seq
        if self._totals_bytes > MAX_STAGED_TOTALS_BYTES:
            self.flush()
        return Counted(seq, written(tally.total))

    def rollup(self, headers: bytes, fields: dict[bytes, bytes]) -> bytes:
        """Kind of purge that the message causes: b"sub", b"all", b"" for none, or the field's value in lower case."""
        value = fields.get(b"Nats-Rollup")
        if value:
            return value.lower()
        if self._rules.kv_purge and header_block.get(headers, b"KV-Operation") == b"PURGE":
            return b"sub"
        return b""

    def flush(self) -> None:
        """Stores the staged messages."""
        staged = self._staged
        if not staged:
            return
        self.store(self._selected(staged), self.next_seq - len(staged), self._base + self._stored)
        self._stored += len(staged)
        self._staged = []
        self._changed = {}
        self._bytes = self._totals_bytes = 0
        self._last = {}
        self.totals.clear()

    # -- the stream as checks see it, with the staged messages ----------------------------------------------------

    @property
    def messages(self) -> int:
        return self._store.messages + len(self._staged)

    @property
    def byte_count(self) -> int:
        return self._store.byte_count + self._bytes

    @property
    def pending(self) -> bool:
        """True when messages are staged."""
        return bool(self._staged)

    def count_of(self, subject: bytes) -> int:
        return self._last.get(subject, (0, 0))[1] + self._store.count_of(subject)

    def last_seq_of(self, subject: bytes) -> int:
        """Last sequence of a literal subject; 0 when it has no message."""
        self._settle()
        staged = self._last.get(subject)
        return staged[0] if staged is not None else self._store.last_seq_of(subject)

    def last_seq_matching(self, filter: bytes) -> int:
        """Last sequence of all subjects that match a wildcard; 0 when there is no message."""
        self.flush()
        return self._store.last_seq_matching(filter)

    def last_headers(self, subject: bytes) -> bytes | None:
        """Header block of the last message of a literal subject; None when it holds none."""
        self.flush()
        seq = self._store.last_seq_of(subject)
        message = self._store.get(seq) if seq else None
        return message.headers if message is not None else None

    def oldest(self, subject: bytes) -> Message | None:
        """The first stored message of a literal subject, or None."""
        message = self._store.queries.next_by_subject(subject, 0)
        return None if message is None else (message.subject, message.headers, message.payload)

    def holds_oldest(self, subject: bytes) -> bool:
        """True when the first stored message of a literal subject must not go: it waits for the retention guard."""
        if self._rules.guard is None:
            return False
        message = self._store.queries.next_by_subject(subject, 0)
        return message is not None and self.guard.holds(message.seq)

    def _settle(self) -> None:
        """Stores the staged messages if that might evict older ones, which a look at the store must not see."""
        rules = self._rules
        if not self._staged or not rules.evicts:
            return
        if (rules.max_msgs and self.messages > rules.max_msgs) or (
            rules.max_bytes and self.byte_count > rules.max_bytes
        ):
            self.flush()

    # -- storing --------------------------------------------------------------------------------------------------

    def _selected(self, staged: list[int]) -> Batch:
        batch, changed = self._batch, self._changed
        if not changed:
            return batch if len(staged) == batch.count else batch.select(staged)
        messages = [changed.get(i) or batch.message(i) for i in staged]
        subjects, headers, payloads = zip(*messages, strict=True)
        return Batch.of(subjects, headers, payloads)

    def store(self, batch: Batch, first_seq: int, ts: int, ids: list[tuple[int, bytes]] | None = None) -> None:
        """Stores a batch and enforces the limits. `ids`: the (sequence, Nats-Msg-Id) pairs of a whole command, whose
        headers have no other effect; None for staged messages, whose effects are under way."""
        within = self.within(batch.subjects) if self.within is not None else None
        seq = first_seq
        for piece in (batch,) if batch.encoded_bytes <= MAX_BLOCK_BYTES else _blocks(batch):
            if self.on_append is not None:
                self.on_append(piece, seq, ts)
            self._store.append(piece, seq, ts)
            seq += piece.count
            ts += piece.count
        if self._on_stored is not None:
            self._on_stored(first_seq, seq - 1)  # before the limits: an unwanted message must evict none
        if within is not None:
            self._store.enforce(0, 0, self._rules.kept_per_subject, within, below=self.guard.kept_from)
        elif self._rules.evicts:
            enforce(self._store, self._rules, batch.subjects, self.guard.kept_from)
        if ids is None:
            return
        self.last_msg_id = ids[-1][1] if ids and ids[-1][0] == seq - 1 else b""
        if ids and self._dedupe.window:
            for at, msg_id in ids:
                self._dedupe.add(msg_id, at)
            self._dedupe.seal(ts - batch.count, ids)

    def _effects(self, seq: int, ts: int, message: Message, fields: dict[bytes, bytes]) -> None:
        subject, headers, _ = message
        rules = self._rules
        ttl = fields.get(b"Nats-TTL")
        if ttl and rules.allow_msg_ttl:
            seconds = parse_ttl(ttl)
            if seconds is not None:
                self._expiry.note(seq, ts, seconds)
        if rules.allow_msg_schedules and fields.get(schedules.PATTERN):
            self._schedules.note(seq, ts, fields)
        if not rules.allow_rollup_hdrs or rules.deny_purge:
            return
        rollup = self.rollup(headers, fields)
        if rollup == b"sub" and self.count_of(subject) == 1 and is_literal(subject):
            rollup = b""  # nothing older to purge, as for markers and new keys
        if rollup:
            self.flush()
            if rollup != b"sub":
                self._store.purge(keep=1)
            elif self.roll_up is None or not self.roll_up(subject, seq):
                self._store.purge(subject, keep=1)
        if rules.allow_msg_schedules and fields.get(schedules.NEXT) == schedules.PURGE:
            self.flush()
            self._store.purge(fields[schedules.SCHEDULER])

    def _raised(self, headers: bytes, fields: dict[bytes, bytes]) -> bytes:
        """Raises a TTL below that of the markers: an older marker would outlive the message that it marks."""
        rules = self._rules
        value = fields.get(b"Nats-TTL")
        if not value or not rules.subject_delete_marker_ttl or rules.max_msgs_per_subject == 1:
            return headers
        least = rules.subject_delete_marker_ttl // SECOND
        seconds = parse_ttl(value)
        if seconds is None or not 0 < seconds < least:
            return headers
        fields[b"Nats-TTL"] = b"%d" % least
        return appended(header_block.remove(headers, b"Nats-TTL"), b"Nats-TTL", b"%d" % least)


def enforce(store: BlockStore, rules: StreamRules, subjects: list[bytes], below: int) -> int:
    """Evicts messages below `below` that are beyond the limits; in a discard-new stream only those of the limit per
    subject."""
    max_msgs = 0 if rules.discard_new else rules.max_msgs
    max_bytes = 0 if rules.discard_new else rules.max_bytes
    return store.enforce(max_msgs, max_bytes, rules.kept_per_subject, subjects, below=below)


def record_size(message: Message, *, memory: bool) -> int:
    """Bytes of the message in the store's count."""
    subject, headers, payload = message
    size = len(subject) + len(headers) + len(payload)
    return size + MEMORY_RECORD if memory else size + FILE_RECORD + (FILE_HEADER_LENGTH if headers else 0)


def _blocks(batch: Batch) -> Iterator[Batch]:
    """Splits a long batch into blocks: reading one message reads its whole block."""
    start, size = 0, 0
    for i in range(batch.count):
        size += batch.size_of(i)
        if size >= MAX_BLOCK_BYTES or i == batch.count - 1:
            yield batch.select(range(start, i + 1))
            start, size = i + 1, 0
