"""`Expiry`: removal of messages by age: max_age, Nats-TTL, and the delete markers that replace messages (ADR-43).

Messages expire when an EXPIRE command is applied, at the time stamped into it, on every replica alike. max_age without
TTLs and markers cuts the stream's beginning off; otherwise each message is looked at, at most MAX_MESSAGES per command.
Either way a command removes a bounded number, and the rest is due at once. Messages that never expire are passed once:
the sequence after them is stored, in the row that says that there are such messages (side table 5):

    (empty key)   ->   u8 1 | u64 place: below it only messages that never expire are left    (little-endian)

The row has no place until there is one.
"""

from __future__ import annotations

import struct
from typing import Final

from jetcluster.model import durations
from jetcluster.model.times import SECOND
from jetcluster.protocol import headers as header_block
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.due_index import DueIndex
from jetcluster.stream.apply.guard import RetentionGuard
from jetcluster.stream.fields import NEVER, is_delete_marker, parse_ttl
from jetcluster.stream.ports import SIDE_NEVER, SIDE_TTL
from jetcluster.stream.rules import StreamRules

MAX_MESSAGES: Final = 2048
"""Messages looked at per command, so that it takes tens of milliseconds at most; the next one follows at once."""
MAX_BYTES: Final = 16 << 20
"""Bytes of their headers and payloads; one message is always allowed."""
_NEVER: Final = struct.Struct("<BQ")
GRAIN_NS: Final = 1_000_000
"""Times of TTLs are rounded up to this, so that the messages of a command share a row of the index."""


class Expiry:
    """The expiry of one stream's messages."""

    def __init__(self, store: BlockStore, rules: StreamRules, guard: RetentionGuard) -> None:
        self._store = store
        self._guard = guard
        self.rules = rules
        """The machine sets it when the configuration changes."""
        self._ttls = DueIndex(store, SIDE_TTL)
        never = store.side_get(SIDE_NEVER, b"")
        self._never = never is not None
        self._place = _NEVER.unpack(never)[1] if never is not None and len(never) == _NEVER.size else 0
        """The stored place: the same on every replica."""
        self._floor = self._place
        """The same for this process, which may be further: used only where it does not change the result of apply."""
        self._noted: dict[int, list[int]] = {}

    @property
    def entries(self) -> int:
        """Entries of the index of TTLs, for monitoring."""
        return self._ttls.entries

    def note(self, seq: int, ts: int, seconds: int) -> None:
        """Notes a message stored at `ts` with a TTL (seconds, or NEVER); `seal` follows at the end of the command."""
        if seconds == NEVER:
            if not self._never:
                self._never = True
                self._store.side_put(SIDE_NEVER, b"", b"\1")
            return
        due = -(-(ts + seconds * SECOND) // GRAIN_NS) * GRAIN_NS
        self._noted.setdefault(due, []).append(seq)

    def seal(self) -> None:
        """Writes the notes of the command."""
        if self._noted:
            for due, seqs in self._noted.items():
                self._ttls.add(due, seqs)
            self._noted.clear()
            self._ttls.sweep(self._store.contains)

    @property
    def next_ttl(self) -> int | None:
        """Time at which the first TTL ends, Unix nanoseconds."""
        return self._ttls.next_due

    def next_due(self) -> int | None:
        """Time at which the leader should propose EXPIRE; None when nothing expires. May be early, never late."""
        due = self._ttls.next_due
        aged = self._next_aged()
        if due is None or aged is None:
            return aged if due is None else due
        return min(due, aged)

    def run(self, now: int) -> tuple[int, Batch | None]:
        """Removes one command's share of what is due at `now`. Returns how many, and the markers to store."""
        store, rules = self._store, self.rules
        if self._never and not store.messages:
            self._never = False
            self._place = 0
            store.side_delete(SIDE_NEVER, b"")
        bound = now - rules.max_age + 1 if 0 < rules.max_age <= now else 0
        doomed: list[int] = []
        removed = 0
        marking = bool(rules.subject_delete_marker_ttl) and not rules.sealed
        if bound and not marking and not self._never:
            removed = self._cut(bound)
        elif bound:
            doomed = self._next_piece(bound)
        doomed += self._ttls.take(now, MAX_MESSAGES)
        if not doomed:
            return removed, None
        doomed = sorted(set(doomed))
        markers = self._markers(doomed) if marking else None
        return removed + store.delete_all(doomed), markers

    def _cut(self, bound: int) -> int:
        store = self._store
        if not store.messages or store.first_ts >= bound:
            return 0
        target = min(store.seq_at_time(bound), self._guard.kept_from)
        return store.slices.cut(target)[0] if target > store.first_seq else 0

    def _next_aged(self) -> int | None:
        max_age, store = self.rules.max_age, self._store
        if not max_age or not store.messages:
            return None
        if not self._never:
            return None if self._guard.holds(store.first_seq) else store.first_ts + max_age
        oldest = store.queries.next_by_subject(b">", max(self._floor, 1))
        return oldest.ts + max_age if oldest is not None and not self._guard.holds(oldest.seq) else None

    def _next_piece(self, bound: int) -> list[int]:
        """Sequences of messages older than `bound` that may expire: one command's share, from the place on."""
        aged: list[int] = []
        size = 0
        behind = self._store.last_seq + 1
        kept_from = self._guard.kept_from
        for looked, message in enumerate(self._store.queries.scan(b">", max(self._place, 1))):
            if message.ts >= bound or message.seq >= kept_from or looked == MAX_MESSAGES or size >= MAX_BYTES:
                behind = message.seq
                break
            size += len(message.headers) + len(message.payload)
            if not _never_expires(message.headers):
                aged.append(message.seq)
        self._floor = max(self._floor, behind)
        if self._never and behind != self._place:
            self._place = behind
            self._store.side_put(SIDE_NEVER, b"", _NEVER.pack(1, behind))
        return aged

    def _markers(self, doomed: list[int]) -> Batch | None:
        """A marker for every subject that loses its last message, unless that message is a marker."""
        store = self._store
        left: dict[bytes, int] = {}
        subjects: list[bytes] = []
        for seq in doomed:
            message = store.get(seq)
            if message is None:
                continue
            count = left.get(message.subject)
            if count is None:
                count = store.count_of(message.subject)
            left[message.subject] = count - 1
            if count == 1 and not is_delete_marker(message.headers):
                subjects.append(message.subject)
        if not subjects:
            return None
        headers = marker_headers(self.rules.subject_delete_marker_ttl)
        return Batch.of(subjects, [headers] * len(subjects), [b""] * len(subjects))


def marker_headers(ttl: int) -> bytes:
    """Header block of the marker that follows an expired message; `ttl` in nanoseconds."""
    whole = ttl // SECOND * SECOND
    return header_block.build(
        (
            (b"Nats-Marker-Reason", b"MaxAge"),
            (b"Nats-TTL", durations.render(whole).encode()),
            (b"Nats-Rollup", b"sub"),
        )
    )


def _never_expires(headers: bytes) -> bool:
    if b"\r\nNats-TTL:" not in headers:
        return False
    value = header_block.get(headers, b"Nats-TTL")
    return bool(value) and parse_ttl(value or b"") == NEVER
