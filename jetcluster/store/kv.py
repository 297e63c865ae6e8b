"""`Kv`: ordered bytes to bytes with one open write batch, and what both implementations share.

Writes collect in memory and become visible to a crash in `commit`, all together. The owner of the node commits once
per event loop turn, *between* commands, so a crash never shows half a command. There is no write-ahead log below:
the Raft log is one. `flush` makes everything committed so far durable; after a crash exactly the state of some commit
at or behind the last flush is there, over all streams.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Protocol

KeyValue = tuple[bytes, bytes]


class KvError(Exception):
    """The store below failed: disk full, I/O error, or damage that it found itself. Nothing was lost from memory: a
    failed commit keeps the open writes and can be repeated."""


class KvDamagedError(KvError):
    """What lies on disk fails the checksum of the store below."""


class KvFullError(KvError):
    """The disk is too full to write; reads go on, and so do writes once there is room."""


class Snapshot(Protocol):
    def scan(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        """Pairs with start <= key < end as of the moment the snapshot was taken, ascending.
        One scan at a time."""
        ...


class Kv(Protocol):
    commits: int
    """How many commits have written something."""
    durable: int
    """The newest commit that a crash of the machine cannot undo; `commits` once a flush has caught up."""

    @property
    def open_bytes(self) -> int:
        """Size of the open writes; commit earlier than at the end of the turn when it grows large."""
        ...

    def get(self, key: bytes) -> bytes | None: ...
    def put(self, key: bytes, value: bytes) -> None: ...
    def delete(self, key: bytes) -> None: ...
    def delete_range(self, start: bytes, end: bytes) -> None:
        """Deletes start <= key < end."""
        ...

    def outdated(self, key: bytes) -> None:
        """What `key` held before its newest write is to leave the disk too: with one of the next flushes, or later when
        many are asked for or space is short."""
        ...

    def floor(self, key: bytes, low: bytes) -> KeyValue | None:
        """The pair with the greatest key in low..key, both included."""
        ...

    def ceiling(self, key: bytes, end: bytes) -> KeyValue | None:
        """The pair with the smallest key in key..end, `end` excluded."""
        ...

    def scan(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        """Pairs with start <= key < end, ascending. Writes made after the call may or may not show up in it."""
        ...

    wants_flush: bool
    """Space is short, and a flush would free some."""

    def at_commit(self, hook: Callable[[], None]) -> None:
        """Calls `hook` once, at the start of the next commit, to add what its owner left dirty."""
        ...

    def commit(self) -> int:
        """Writes the open batch; returns `commits`. Raises KvError and keeps the batch when that fails."""
        ...

    def discard(self, stream: int) -> None:
        """Takes the open writes of one stream back; those of the others stay."""
        ...

    def snapshot(self) -> Snapshot:
        """Commits, then a fixed view of everything. Only between commands."""
        ...

    async def flush(self) -> None:
        """Commits, then makes all committed data durable, off the event loop. Raises KvError."""
        ...

    def flush_now(self) -> None:
        """The same, blocking: shutdown and tests."""
        ...

    def on_durable(self, callback: Callable[[int], None]) -> None:
        """Calls `callback(commit)` whenever `durable` has advanced; owners then compact their Raft log."""
        ...

    def close(self) -> None: ...


class OpenWrites:
    """The open batch as an overlay: key -> value, None for a deleted key, over ranges that were deleted first.

    Reads in the middle of a command need its earlier writes, and committing them right there would let a crash see
    half a command, therefore this overlay.
    """

    __slots__ = ("_sorted", "_unsorted", "ranges", "size", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}
        self.ranges: list[tuple[bytes, bytes]] = []
        self.size = 0
        self._sorted: list[bytes] = []
        self._unsorted: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self.values or self.ranges)

    def put(self, key: bytes, value: bytes | None) -> None:
        if key not in self.values:
            self._unsorted.append(key)
        self.values[key] = value
        self.size += len(key) + (len(value) if value is not None else 0)

    def delete_range(self, start: bytes, end: bytes) -> None:
        keys = self.keys()
        low, high = bisect_left(keys, start), bisect_left(keys, end)
        for key in keys[low:high]:
            del self.values[key]
        del keys[low:high]
        self.ranges.append((start, end))

    def covers(self, key: bytes) -> bool:
        """True when the stored value of `key`, if there is one, no longer counts."""
        return key in self.values or self.in_range(key)

    def in_range(self, key: bytes) -> bool:
        return any(start <= key < end for start, end in self.ranges)

    def keys(self) -> list[bytes]:
        """All keys of `values`, ascending."""
        if self._unsorted:
            self._sorted += self._unsorted
            self._sorted.sort()  # timsort: linear, as the list is two runs or few
            self._unsorted.clear()
        return self._sorted

    def span(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes | None]]:
        """Overlay entries with start <= key < end, ascending."""
        keys = self.keys()
        return [(key, self.values[key]) for key in keys[bisect_left(keys, start) : bisect_left(keys, end)]]

    def floor(self, key: bytes, low: bytes) -> bytes | None:
        """The greatest key in low..key that is not deleted here."""
        keys = self.keys()
        at = bisect_right(keys, key) - 1
        while at >= 0 and keys[at] >= low:
            if self.values[keys[at]] is not None:
                return keys[at]
            at -= 1
        return None

    def ceiling(self, key: bytes, end: bytes) -> bytes | None:
        keys = self.keys()
        at = bisect_left(keys, key)
        while at < len(keys) and keys[at] < end:
            if self.values[keys[at]] is not None:
                return keys[at]
            at += 1
        return None

    def present(self, key: bytes) -> bytes:
        """Value of a key that `floor` or `ceiling` has found."""
        value = self.values[key]
        assert value is not None
        return value

    def discard(self, prefix: bytes) -> None:
        """Forgets entries whose key has `prefix` behind its first byte."""
        at = slice(1, 1 + len(prefix))
        for key in [key for key in self.values if key[at] == prefix]:
            del self.values[key]
        self.ranges = [(start, end) for start, end in self.ranges if start[at] != prefix]
        self._sorted = sorted(self.values)
        self._unsorted.clear()

    def clear(self) -> None:
        self.values.clear()
        self.ranges.clear()
        self._sorted.clear()
        self._unsorted.clear()
        self.size = 0


class Commits:
    """Hooks, counters and callbacks around `commit` and `flush`; one per Kv."""

    def __init__(self) -> None:
        self.commits = 0
        self.durable = 0
        self.wants_flush = False
        self._hooks: list[Callable[[], None]] = []
        self._callbacks: list[Callable[[int], None]] = []

    def at_commit(self, hook: Callable[[], None]) -> None:
        self._hooks.append(hook)

    def on_durable(self, callback: Callable[[int], None]) -> None:
        self._callbacks.append(callback)

    def _run_hooks(self) -> None:
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook()

    def _set_durable(self, commit: int) -> None:
        if commit > self.durable:
            self.durable = commit
            for callback in self._callbacks:
                callback(commit)
