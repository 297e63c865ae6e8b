"""`DueIndex`: the times at which messages are due, in a side table of the store.

Memory holds only the earliest time and two counts, however many messages there are. Integers are big-endian in keys and
little-endian in values:

    u64 due, nanoseconds | u64 first sequence -> (u32 sequence - first)*
    (empty key)                               -> u64 sequences in all rows | the row where the next sweep goes on

The entry of a deleted message stays until it is due or swept. Sweeping starts when most entries must be of deleted
messages, and does a bounded share of the table per command. The table is part of the replicated state: all replicas
sweep the same rows at the same command.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from jetcluster.store.block_store import BlockStore

_KEY: Final = struct.Struct(">QQ")
_COUNT: Final = struct.Struct("<Q")
_META: Final = b""
_LAST: Final = b"\xff" * _KEY.size
_MAX_OFFSET: Final = 2**32 - 1
MAX_DUE: Final = 2**64 - 1

SWEEP_SLACK: Final = 4096
"""Entries of deleted messages that are always allowed."""
SWEEP_ROWS: Final = 64
SWEEP_ENTRIES: Final = 4096
"""Rows and entries looked at per command while sweeping, whichever comes first."""


class DueIndex:
    """The index in side table `table`."""

    def __init__(self, store: BlockStore, table: int) -> None:
        self._store = store
        self._table = table
        self.entries = 0
        """Sequences in the table, those of deleted messages included."""
        self._cursor = b""
        meta = store.side_get(table, _META)
        if meta is not None:
            (self.entries,) = _COUNT.unpack_from(meta)
            self._cursor = meta[_COUNT.size :]
        self._floor = _KEY.pack(0, 0)
        """No row is before this key. A scan from further back would pass all rows removed since the last flush."""
        self._next: int | None = None
        self._look()

    @property
    def next_due(self) -> int | None:
        """Earliest time of any entry, Unix nanoseconds; None when there is no entry."""
        return self._next

    def add(self, due: int, seqs: Sequence[int]) -> None:
        """Adds ascending sequences, at least one, that have no entry at `due` yet."""
        due = max(0, min(due, MAX_DUE))
        first = seqs[0]
        assert seqs[-1] - first <= _MAX_OFFSET
        key = _KEY.pack(due, first)
        self._store.side_put(self._table, key, array("I", [seq - first for seq in seqs]).tobytes())
        self._floor = min(self._floor, key)
        self.entries += len(seqs)
        self._save()
        if self._next is None or due < self._next:
            self._next = due

    def has(self, due: int, first: int) -> bool:
        """True when a row of `due` starts with sequence `first`."""
        return self._store.side_get(self._table, _KEY.pack(due, first)) is not None

    def due(self, now: int, limit: int) -> list[tuple[int, int]]:
        """(due, sequence) of the entries due at `now`, by time, at most `limit`. Changes nothing."""
        found: list[tuple[int, int]] = []
        if self._next is None or self._next > now:
            return found
        for key, value in self._store.side_scan(self._table, self._floor):
            due, first = _KEY.unpack(key)
            if due > now or len(found) >= limit:
                break
            found += [(due, first + offset) for offset in array("I", value)]
        return found[:limit]

    def take(self, now: int, limit: int) -> list[int]:
        """Removes due rows until they hold `limit` sequences; returns the sequences by time."""
        taken: list[int] = []
        if self._next is None or self._next > now:
            return taken
        rows: list[bytes] = []
        for key, value in self._store.side_scan(self._table, self._floor):
            due, first = _KEY.unpack(key)
            if due > now or len(taken) >= limit:
                break
            rows.append(key)
            taken += [first + offset for offset in array("I", value)]
        for key in rows:
            self._store.side_delete(self._table, key)
            self._floor = key
        self.entries -= len(taken)
        self._save()
        self._look()
        return taken

    def remove(self, due: int, first: int) -> None:
        """Removes a row that `has` found."""
        key = _KEY.pack(due, first)
        value = self._store.side_get(self._table, key)
        assert value is not None, (due, first)
        self._store.side_delete(self._table, key)
        self.entries -= len(value) // 4
        self._save()
        if due == self._next:
            self._look()

    def sweep(self, is_live: Callable[[int], bool]) -> None:
        """Removes entries of deleted messages, a share per call, if there must be many. A message that is staged, and
        above the last one, is not deleted: its effects come before it is stored."""
        if self.entries <= 2 * self._store.messages + SWEEP_SLACK:
            return
        start = self._cursor or _KEY.pack(0, 0)
        rows = list(islice(self._store.side_scan(self._table, start), SWEEP_ROWS + 1))
        self._cursor = rows[SWEEP_ROWS][0] if len(rows) > SWEEP_ROWS else b""
        looked = 0
        for key, value in rows[:SWEEP_ROWS]:
            looked += len(value) // 4
            self._sweep_row(key, array("I", value), is_live)
            if looked >= SWEEP_ENTRIES:
                self._cursor = key + b"\0"  # the next key
                break
        self._save()
        self._look()

    def _sweep_row(self, key: bytes, offsets: array[int], is_live: Callable[[int], bool]) -> None:
        due, first = _KEY.unpack(key)
        last = self._store.last_seq
        live = [seq for seq in (first + offset for offset in offsets) if seq > last or is_live(seq)]
        if len(live) == len(offsets):
            return
        self._store.side_delete(self._table, key)
        self.entries -= len(offsets) - len(live)
        if live:
            kept = array("I", [seq - live[0] for seq in live]).tobytes()
            self._store.side_put(self._table, _KEY.pack(due, live[0]), kept)

    def _look(self) -> None:
        """Finds the earliest row."""
        row = next(self._store.side_scan(self._table, self._floor), None)
        self._floor = row[0] if row is not None else _LAST
        self._next = _KEY.unpack(row[0])[0] if row is not None else None

    def _save(self) -> None:
        if self.entries:
            self._store.side_put(self._table, _META, _COUNT.pack(self.entries) + self._cursor)
        else:
            self._cursor = b""
            self._store.side_put(self._table, _META, _COUNT.pack(0))
