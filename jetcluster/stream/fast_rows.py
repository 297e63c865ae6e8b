"""`FastRows`: how far each fast-ingest batch (ADR-50) of a stream has come, the same on every replica.

The leader that takes over goes on from here: it knows what is stored of a batch whose publisher goes on sending. A row
beside the messages, part of every copy of the state:

    id  ->  u8 flags | u16 flow | u64 sequence in the batch | u64 stream sequence
            | u64 time | u64 index | u32 place | stem

A batch's row goes with its last message or, where it ends without one (EOB, a gap, an error), with a part that says so.
What is abandoned leaves its row; it goes when it is old, or when there are too many. Nothing but the time of commands
decides that.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from jetcluster.errors import DiskError
from jetcluster.model.times import SECOND
from jetcluster.ordered import OrderedSet
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.fast_parts import FastGate, FastPart, settle
from jetcluster.stream.ports import SIDE_FAST, PublishResult

MOST: Final = 1000
"""Rows of a stream: as many as it may have open batches unless configured otherwise."""
HOLD: Final = 60 * SECOND
"""Nanoseconds without a message after which a row may go; open batches end after seconds (`BatchLimits.timeout`)."""

_ROW: Final = struct.Struct("<BHQQQQI")
_GAP_OK: Final = 1
_ENDED: Final = 2


class FastRowError(DiskError):
    """A stored row is of another version or cut off."""


class FastRow:
    __slots__ = ("ended", "flow", "gap_ok", "index", "place", "seq", "stem", "stored", "ts")

    def __init__(self, flow: int, stem: bytes, *, gap_ok: bool) -> None:
        self.flow = flow
        self.stem = stem
        self.gap_ok = gap_ok
        self.ended = False
        """A message was refused, and the batch takes no gaps: nothing of it is stored any more."""
        self.seq = 0
        """Last sequence in the batch that is settled."""
        self.stored = 0
        """Stream sequence of the last message stored, 0: none was."""
        self.ts = 0
        """Time of the last command with messages of the batch, Unix nanoseconds."""
        self.index = 0
        self.place = 0
        """Place of that command in the log, and of the batch among those of the command: what orders the rows."""

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
    """`gate` before a command's messages are admitted, `note` after; `flush` once per commit of the store."""

    def __init__(self, store: BlockStore) -> None:
        """Continues where the store stands. Raises FastRowError."""
        self._store = store
        rows = [(key, FastRow.decode(row)) for key, row in store.side_scan(SIDE_FAST)]
        rows.sort(key=lambda pair: (pair[1].index, pair[1].place))
        self.by_id: dict[bytes, FastRow] = dict(rows)
        """Longest unused first, in the same order on every replica."""
        self._changed: OrderedSet[bytes] = OrderedSet()
        self._kept = set(self.by_id)
        """Batches that have a row in the store."""

    def gate(self, parts: Sequence[FastPart]) -> FastGate:
        return FastGate(parts, [not part.begins and self._has_ended(part.batch_id) for part in parts])

    def note(self, index: int, ts: int, parts: Sequence[FastPart], result: PublishResult) -> None:
        """The command at `index`, of the stream's time `ts`, was applied."""
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
        """The command at `index` could not be carried out as a whole."""
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
        """Writes what has changed."""
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
        """Called for any command: drops what is old, and what is too much."""
        rows = self.by_id
        while rows:
            batch_id, row = next(iter(rows.items()))
            if len(rows) <= MOST and row.ts + HOLD >= ts:
                return
            del rows[batch_id]
            self._changed.add(batch_id)
