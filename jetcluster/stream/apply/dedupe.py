"""`DedupeWindow`: the Nats-Msg-Ids of the last `duplicate_window`, exact on every replica and across restarts.

nats-server rebuilds its map after a restart from the messages still stored, and so loses the ids of deleted ones. Here
the ids have rows of their own, one per command:

    key u64 first sequence of the command (big-endian) -> u64 time | (u32 sequence - first, u16 length, id)*

An id's time is that of its command (its messages are nanoseconds apart). Expiry depends only on the rows, the window
and the command's time. Each command sweeps a bounded number of ids, so that the first publish after a pause does not
pay for a million of them.
"""

from __future__ import annotations

import struct
from typing import Final

from jetcluster.store.block_store import BlockStore
from jetcluster.stream.ports import SIDE_DEDUPE

_KEY: Final = struct.Struct(">Q")
_TIME: Final = struct.Struct("<Q")
_ID: Final = struct.Struct("<IH")

SWEEP_IDS: Final = 8192
"""Ids forgotten per command at most (plus one row); a command brings 4096, so sweeping always catches up."""


class DedupeWindow:
    """The message ids of a stream's window."""

    def __init__(self, store: BlockStore, window: int) -> None:
        """Loads the rows of `store`. `window` in nanoseconds; 0 switches deduplication off."""
        self._store = store
        self.window = window
        self._ids: dict[bytes, int] = {}
        self._times: list[int] = []
        self._firsts: list[int] = []
        self._row_ids: list[list[bytes]] = []
        self._head = 0
        """Rows before it are removed from the store."""
        self._live = 0
        """Rows before it are expired."""
        self._floor = 0
        """Ids with a lower sequence are expired."""
        for key, value in store.side_scan(SIDE_DEDUPE):
            self._load_row(_KEY.unpack(key)[0], value)

    def __len__(self) -> int:
        return len(self._ids)

    def advance(self, now: int, next_seq: int) -> None:
        """Moves the window to `now` (never back). `next_seq` is the sequence that the next message will get."""
        live, times = self._live, self._times
        limit = now - self.window
        while live < len(times) and times[live] <= limit:
            live += 1
        self._live = live
        self._floor = self._firsts[live] if live < len(times) else next_seq
        if self._head < live:
            self._sweep(live)

    def seq_of(self, msg_id: bytes) -> int | None:
        """Sequence of the message with this id inside the window, or None."""
        seq = self._ids.get(msg_id)
        return seq if seq is not None and seq >= self._floor else None

    def add(self, msg_id: bytes, seq: int) -> None:
        """Adds an id of the current command; `seal` follows before the next `advance`."""
        self._ids[msg_id] = seq

    def seal(self, ts: int, ids: list[tuple[int, bytes]]) -> None:
        """Writes the row of a command: its (sequence, id) pairs in order, at least one."""
        first = ids[0][0]
        parts = [_TIME.pack(ts)]
        for seq, msg_id in ids:
            parts += (_ID.pack(seq - first, len(msg_id)), msg_id)
        self._times.append(ts)
        self._firsts.append(first)
        self._row_ids.append([msg_id for _, msg_id in ids])
        self._store.side_put(SIDE_DEDUPE, _KEY.pack(first), b"".join(parts))

    def set_window(self, window: int) -> None:
        """Changes the window from the next `advance` on; ids swept under a shorter window stay forgotten."""
        self.window = window
        self._live = self._head
        if not window:
            for first in self._firsts[self._head :]:
                self._store.side_delete(SIDE_DEDUPE, _KEY.pack(first))
            self._ids.clear()
            del self._times[:], self._firsts[:], self._row_ids[:]
            self._head = self._live = 0

    def _load_row(self, first: int, value: bytes) -> None:
        (ts,) = _TIME.unpack_from(value)
        at = _TIME.size
        ids: list[bytes] = []
        while at < len(value):
            offset, size = _ID.unpack_from(value, at)
            at += _ID.size + size
            msg_id = value[at - size : at]
            ids.append(msg_id)
            self._ids[msg_id] = first + offset
        self._times.append(ts)
        self._firsts.append(first)
        self._row_ids.append(ids)

    def _sweep(self, live: int) -> None:
        known, floor = self._ids, self._floor
        head, budget = self._head, SWEEP_IDS
        while head < live and budget > 0:
            for msg_id in self._row_ids[head]:
                if known.get(msg_id, floor) < floor:  # a newer message may carry the same id by now
                    del known[msg_id]
            budget -= len(self._row_ids[head])
            self._row_ids[head] = []
            self._store.side_delete(SIDE_DEDUPE, _KEY.pack(self._firsts[head]))
            head += 1
        if head > 1024 and head * 2 > len(self._times):
            del self._times[:head], self._firsts[:head], self._row_ids[:head]
            self._live -= head
            head = 0
        self._head = head
