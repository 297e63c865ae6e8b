"""`FastRows`: the progress of each fast-ingest batch (ADR-50) of a stream, the same on every replica.

A new leader continues from it a batch whose publisher goes on sending. Rows are beside the messages, part of every copy
of the state:

    id  ->  u8 flags | u16 flow | u64 sequence in the batch | u64 stream sequence
            | u64 time | u64 index | u32 place | stem

A batch's row is removed with its last message or, if it ends without one (EOB, a gap, an error), with a part that ends
it. The row of an abandoned batch is removed when it is old, by the time of commands, or when there are too many rows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from jetcluster.errors import DiskError
from jetcluster.model.times import SECOND
from jetcluster.ordered import OrderedSet
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.log.fast_parts import FastGate, FastPart, settle
from jetcluster.stream.ports import SIDE_FAST, PublishResult

MAX_ROWS: Final = 1000
"""Rows of a stream: the default limit of its open batches."""
HOLD_NS: Final = 60 * SECOND
"""Time without a message after which a row is removed; open batches end after seconds (`BatchLimits.timeout`)."""

_ROW: Final = struct.Struct("<BHQQQQI")
_GAP_OK: Final = 1
_ENDED: Final = 2


class FastRowError(DiskError):
    """A stored row has another version or is cut off."""


class FastRow:
    """Progress of one batch."""

    __slots__ = ("ended", "flow", "gap_ok", "index", "place", "seq", "stem", "stored", "ts")

    def __init__(self, flow: int, stem: bytes, *, gap_ok: bool) -> None:
        self.flow = flow
        self.stem = stem
        self.gap_ok = gap_ok
        self.ended = False
        """A message was refused, and the batch takes no gaps: no more of it is stored."""
        self.seq = 0
        """Last settled sequence in the batch."""
        self.stored = 0
        """Stream sequence of the last stored message, or 0."""
        self.ts = 0
        """Time of the last command with messages of the batch, Unix nanoseconds."""
        self.index = 0
        self.place = 0
        """Index of that command, and place of the batch among those of the command: the order of the rows."""

    def encode(self) -> bytes:
        flags = (_GAP_OK if self.gap_ok else 0) | (_ENDED if self.ended else 0)
        fixed = _ROW.pack(flags, self.flow, self.seq, self.stored, self.ts, self.index, self.place)
        return fixed + self.stem

    @classmethod
    def decode(cls, raw: bytes) -> FastRow:
        if len(raw) < _ROW.size:
            raise FastRowError(f"fast batch of {len(raw)} bytes")
        flags, flow, seq, stored, ts, index, place = _ROW.unpack_from(raw)
        if flags & ~(_GAP_OK | _ENDED):
            raise FastRowError(f"fast batch with unknown flags {flags:#x}")
        row = cls(flow, raw[_ROW.size :], gap_ok=bool(flags & _GAP_OK))
        row.seq, row.stored, row.ts, row.index, row.place = seq, stored, ts, index, place
        row.ended = bool(flags & _ENDED)
        return row


class FastRows:
    """The rows of one stream: `gate` before a command is admitted, `note` after; `flush` once per commit."""

    def __init__(self, store: BlockStore) -> None:
        """Loads the rows of `store`. Raises FastRowError."""
        self._store = store
        rows = [(key, FastRow.decode(row)) for key, row in store.side_scan(SIDE_FAST)]
        rows.sort(key=lambda pair: (pair[1].index, pair[1].place))
        self.by_id: dict[bytes, FastRow] = dict(rows)
        """Least recently used first, in the same order on every replica."""
        self._changed: OrderedSet[bytes] = OrderedSet()
        self._kept = set(self.by_id)
        """Batches that have a row in the store."""

    def gate(self, parts: Sequence[FastPart]) -> FastGate:
        return FastGate(parts, [not part.begins and self._has_ended(part.batch_id) for part in parts])

    def note(self, index: int, ts: int, parts: Sequence[FastPart], result: PublishResult) -> None:
        """Notes that the command at `index`, of the stream's time `ts`, was applied."""
        for place, part in enumerate(parts):
            row = self.by_id.pop(part.batch_id, None)
            self._changed.add(part.batch_id)
            if part.commits or part.ends:
                continue
            if row is None or part.begins:
                row = FastRow(part.flow, part.stem, gap_ok=part.gap_ok)
            settled = settle(part, result)
            row.seq = settled.seq or row.seq
            row.stored = settled.stored or row.stored
            row.ended = row.ended or bool(settled.refused and not part.gap_ok)
            row.ts, row.index, row.place = ts, index, place
            self.by_id[part.batch_id] = row
        self.forget(ts)

    def refuse(self, index: int, ts: int, parts: Sequence[FastPart]) -> None:
        """Notes that the whole command at `index` was refused."""
        for place, part in enumerate(parts):
            if part.gap_ok and not part.ends:
                continue  # its messages are a gap
            row = self.by_id.pop(part.batch_id, None)
            self._changed.add(part.batch_id)
            if part.ends:
                continue
            if row is None or part.begins:
                row = FastRow(part.flow, part.stem, gap_ok=False)
            row.ended = True
            row.ts, row.index, row.place = ts, index, place
            self.by_id[part.batch_id] = row
        self.forget(ts)

    def flush(self) -> None:
        """Writes the changed rows."""
        for batch_id in self._changed:
            row = self.by_id.get(batch_id)
            if row is not None:
                self._store.side_put(SIDE_FAST, batch_id, row.encode())
                self._kept.add(batch_id)
            elif batch_id in self._kept:
                self._store.side_delete(SIDE_FAST, batch_id)
                self._kept.remove(batch_id)
        self._changed.clear()

    def _has_ended(self, batch_id: bytes) -> bool:
        row = self.by_id.get(batch_id)
        return row is not None and row.ended

    def forget(self, ts: int) -> None:
        """Removes old rows, and the oldest of too many. Called for every command."""
        rows = self.by_id
        while rows:
            batch_id, row = next(iter(rows.items()))
            if len(rows) <= MAX_ROWS and row.ts + HOLD_NS >= ts:
                return
            del rows[batch_id]
            self._changed.add(batch_id)
