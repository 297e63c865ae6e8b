"""`Outdated`: what a data store is still to compact, so that older values of some keys leave the disk.

RocksDB keeps the value that was overwritten or deleted until a compaction happens to meet it. After an erasure it must
not stay so long, and it does not go with a restart: what is left to do is a record of the store itself (`RECORD`), in
the commit of the erasure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any, Final, Protocol

from jetcluster.store.kv import KvDamagedError, KvError

RECORD: Final = b"\x00outdated"
"""Key of what is left to do; its value: (bytes of start u16, bytes of end u16, start, end), ..."""
AT_ONCE: Final = 16
"""Ranges that a flush compacts: each rewrites a file of some levels."""
BYTES_AT_ONCE: Final = 128 << 20
"""Bytes of the files that a flush compacts, or those of the levels at one key: no other flush begins meanwhile."""
MAX_RANGES: Final = 256
"""Ranges kept apart, up to twice this until neighbours become one: that also rewrites what lies between them."""

Range = tuple[bytes, bytes]
"""Keys from the first one on, below the other one."""
_SIZES: Final = struct.Struct("<HH")
_WIDTH: Final = 24
"""Bytes of a key that tell how far it is from another one: more than those of a block's key."""


class Records(Protocol):
    """Single records of a store. `get` raises KvError."""

    def get(self, key: bytes) -> bytes | None: ...
    def put(self, key: bytes, value: bytes) -> None: ...
    def delete(self, key: bytes) -> None: ...


Tables = Callable[[], Iterable[Mapping[str, Any]]]
"""The table files, each with its `size`, `start_key` and `end_key`, as `rocksdict` tells of them."""


class Outdated:
    """Ranges of stored keys, the oldest first. `records`: those of the store itself."""

    def __init__(self) -> None:
        self._recalled = False
        """True once what a previous process left is among them."""
        self.changed = False
        """True when the record is not what it should be."""
        self.late = False
        """True when `take` left some for the next time."""
        self._waiting: dict[bytes, bytes] = {}
        """Start of a range -> its end, in the order in which they came."""
        self._taken: dict[bytes, bytes] = {}
        self._newest = b""
        """Start of the range that was added last."""

    def add(self, start: bytes, end: bytes = b"") -> None:
        """Add the keys from `start` on, below `end`, or `start` alone: their new values, or deletions, come into the
        store with the next commit. A range that goes on where the last one ended becomes one with it."""
        end = end or start + b"\0"
        if self._waiting.get(self._newest) == start:
            start = self._newest
        if end <= self._waiting.get(start, b""):
            return
        self._waiting[start] = end
        self._newest = start
        self.changed = True
        if len(self._waiting) > 2 * MAX_RANGES:
            self._waiting = _merged(self._waiting, MAX_RANGES)

    def take(self, records: Records, tables: Tables) -> list[Range]:
        """Return some of the ranges, ascending, to compact once all that was written until now is flushed; then call
        `done`, or `failed`."""
        self._recall(records)
        self._taken = _portion(self._waiting, tables) if self._waiting else {}
        left = {self._taken.get(start, start): end for start, end in self._waiting.items()}
        self._waiting = {start: end for start, end in left.items() if start < end}
        self.late = bool(self._waiting)
        return sorted(self._taken.items())

    def done(self) -> None:
        self.changed = self.changed or bool(self._taken)
        self._taken = {}

    def failed(self) -> None:
        """Put back what was taken: first, as it is the oldest."""
        self._waiting = _united(self._taken, self._waiting)
        self._taken = {}

    def save(self, records: Records) -> None:
        """Write the record, for the coming commit; later, when what it was cannot be read."""
        if not self._recall(records):
            return
        self.changed = False
        if left := _united(self._taken, self._waiting):
            records.put(RECORD, _encode(left))
        else:
            records.delete(RECORD)

    def _recall(self, records: Records) -> bool:
        if not self._recalled:
            try:
                record = records.get(RECORD) or b""
            except KvDamagedError:
                record = b""
            except KvError:
                return False
            self._recalled = True
            self._waiting = _united(_decode(record), self._waiting)
        return True


def _portion(waiting: dict[bytes, bytes], tables: Tables) -> dict[bytes, bytes]:
    """Return the first ranges, of which the last one may end early: where another file begins."""
    files = sorted((file["start_key"], file["end_key"], str(file["name"]), int(file["size"])) for file in tables())
    seen: set[str] = set()
    room = BYTES_AT_ONCE
    found: dict[bytes, bytes] = {}
    for start, end in list(waiting.items())[:AT_ONCE]:
        for first, last, name, size in files:
            if first >= end or last < start or name in seen:
                continue
            if room < size and (found or first > start):
                if first > start:
                    found[start] = first
                return found
            seen.add(name)
            room -= size
        found[start] = end
    return found


def _encode(ranges: dict[bytes, bytes]) -> bytes:
    return b"".join(_SIZES.pack(len(start), len(end)) + start + end for start, end in ranges.items())


def _decode(record: bytes) -> dict[bytes, bytes]:
    """Return the ranges of a record; one that is cut off counts as far as it goes."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at + _SIZES.size <= len(record):
        middle, size = _SIZES.unpack_from(record, at)
        at += _SIZES.size
        middle += at
        start, end = record[at:middle], record[middle : middle + size]
        at = middle + size
        if at <= len(record) and start < end:
            found[start] = end
    return found


def _united(older: dict[bytes, bytes], newer: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return both; of two ranges with one start the longer."""
    united = dict(older)
    for start, end in newer.items():
        united[start] = max(end, united.get(start, end))
    return united


def _merged(ranges: dict[bytes, bytes], most: int) -> dict[bytes, bytes]:
    """Return `most` ranges that cover the given ones, the oldest first: those closest to each other become one. Keys of
    one stream are closer to each other than to those of another one."""
    starts = sorted(ranges)
    reached = accumulate((ranges[start] for start in starts), max)
    gaps = [_place(after) - _place(end) for end, after in zip(reached, starts[1:], strict=False)]
    joined = set(sorted(range(len(gaps)), key=gaps.__getitem__)[: max(len(starts) - most, 0)])
    ages = {start: age for age, start in enumerate(ranges)}
    found: list[tuple[int, bytes, bytes]] = []
    for number, start in enumerate(starts):
        age, end = ages[start], ranges[start]
        if number - 1 in joined:
            age_before, first, end_before = found.pop()
            age, start, end = min(age, age_before), first, max(end, end_before)
        found.append((age, start, end))
    return {start: end for _, start, end in sorted(found)}


def _place(key: bytes) -> int:
    return int.from_bytes(key[:_WIDTH].ljust(_WIDTH, b"\0"))
