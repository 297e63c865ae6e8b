"""`OpenWrites` and `Commits`: the open write batch of the data store (`RocksKv`), which maps bytes to bytes in order.

Writes collect in memory until `commit` hands them to RocksDB as one batch. The node commits once per turn of the event
loop, *between* commands, so a crash never shows half a command. A commit never waits for a disk: if it would have to,
the writes stay open, and all reads see them. The store keeps no write-ahead log: the Raft log is one. `flush` makes all
commits so far durable; after a crash the store holds, for all streams, the state of one commit, the last flushed one or
a later one.

`MemRecords` is either side of a transfer (`store.transfer`) of a state that is small enough for memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice

from jetcluster.errors import DiskError

KeyValue = tuple[bytes, bytes]
CHUNK_PAIRS = 8192

MAX_OPEN_BYTES = 8 << 20
MAX_OPEN_WRITES = 32_768
"""Open writes that could not be committed: from either bound on, nothing more is applied until a commit succeeds."""
PRESSING_BYTES = 1 << 20
PRESSING_WRITES = 4096
"""An open batch that reaches either bound is committed at the end of the turn: writing it takes some milliseconds."""
EAGER_COMMITS = 4
"""Turns that each end with a commit after a search of the open writes: it must sort them, so they are kept few."""


class KvError(DiskError):
    """RocksDB failed: disk full, I/O error or damage. A failed commit keeps the open writes and can be repeated."""


class KvDamagedError(KvError):
    """Bytes on disk that fail RocksDB's checksum, or a missing file of its own."""


class KvFullError(KvError):
    """The disk is too full to write; reads go on, and writes succeed again once there is room."""


class OpenWrites:
    """The open batch as an overlay: key -> value, None for a deleted key, over ranges that were deleted first.

    Reads in the middle of a command need its earlier writes, and a commit there would let a crash see half a command.
    """

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}
        self._new: set[bytes] = set()
        """Keys that RocksDB certainly does not hold: it needs no tombstone for them."""
        self.searched = False
        """True once the keys were needed in order."""
        self.ranges: list[tuple[bytes, bytes]] = []
        self.size = 0
        self.pressing = False
        """True when the writes should be committed at the end of this turn. Otherwise they may wait: what later turns
        delete or overwrite is then never written. Only the owner clears it."""
        self._sorted: list[bytes] = []
        self._unsorted: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self.values or self.ranges)

    def put(self, key: bytes, value: bytes | None) -> None:
        if key not in self.values:
            self._unsorted.append(key)
        self.values[key] = value
        self.size += len(key) + (len(value) if value is not None else 0)
        if self.size >= PRESSING_BYTES or len(self.values) >= PRESSING_WRITES:
            self.pressing = True

    def put_new(self, pairs: dict[bytes, bytes]) -> None:
        self.values.update(pairs)
        self._new.update(pairs)
        self._unsorted += pairs
        self.size += sum(map(len, pairs)) + sum(map(len, pairs.values()))
        if self.size >= PRESSING_BYTES or len(self.values) >= PRESSING_WRITES:
            self.pressing = True

    def delete_each(self, keys: Iterable[bytes]) -> None:
        values, new = self.values, self._new
        for key in keys:
            if key in new:
                value = values.pop(key, None)
                if value is not None:
                    self.size -= len(key) + len(value)
            else:
                if key not in values:
                    self._unsorted.append(key)
                values[key] = None
                self.size += len(key)
        if self.size >= PRESSING_BYTES or len(values) >= PRESSING_WRITES:
            self.pressing = True

    def written(self) -> None:
        """Note that RocksDB may hold any of the writes, as after a commit that failed halfway."""
        self._new.clear()

    def delete_range(self, start: bytes, end: bytes) -> None:
        keys = self.keys()
        low, high = bisect_left(keys, start), bisect_left(keys, end)
        for key in keys[low:high]:
            self.size -= len(key) + len(self.values.pop(key) or b"")
        del keys[low:high]
        self.ranges.append((start, end))
        self.pressing = True

    def covers(self, key: bytes) -> bool:
        """Return True when these writes replace or delete the stored value of `key`."""
        return key in self.values or self.in_range(key)

    def in_range(self, key: bytes) -> bool:
        return any(start <= key < end for start, end in self.ranges)

    def keys(self) -> list[bytes]:
        """Return all keys of `values`, ascending."""
        self.searched = self.pressing = True
        if self._unsorted:
            self._sorted += self._unsorted
            self._sorted.sort()  # timsort: linear for a list of few runs
            self._unsorted.clear()
        if len(self._sorted) > len(self.values):  # new keys were deleted again
            self._sorted = sorted(self.values)
        return self._sorted

    def span(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes | None]]:
        """Return overlay entries with start <= key < end, ascending."""
        keys = self.keys()
        return [(key, self.values[key]) for key in keys[bisect_left(keys, start) : bisect_left(keys, end)]]

    def floor(self, key: bytes, low: bytes) -> bytes | None:
        """Return the greatest key in low..key that has a value here."""
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
        """Return the value of a key that `floor` or `ceiling` has found."""
        value = self.values[key]
        assert value is not None
        return value

    def copy(self) -> OpenWrites:
        """Return a copy of what reads need."""
        copied = OpenWrites()
        copied.values = dict(self.values)
        copied.ranges = list(self.ranges)
        copied._unsorted = list(self.values)
        return copied

    def over(self, pairs: Iterator[KeyValue], start: bytes, end: bytes) -> Iterator[KeyValue]:
        """Return `pairs` (ascending, start <= key < end) as these writes leave them. Later writes do not show: a commit
        during the scan empties the overlay, and the cursor still shows the state before these writes."""
        entries = self.span(start, end)
        hidden = {key for key, _ in entries}
        ranges = [(low, high) for low, high in self.ranges if low < end and start < high]
        newer: list[KeyValue] = [(key, value) for key, value in entries if value is not None]
        return _merge(newer, _without(pairs, hidden, ranges))

    def discard(self, prefix: bytes) -> None:
        """Forget entries whose key has `prefix` after its first byte."""
        at = slice(1, 1 + len(prefix))
        for key in [key for key in self.values if key[at] == prefix]:
            value = self.values.pop(key)
            self.size -= len(key) + (len(value) if value is not None else 0)
        self.size = max(self.size, 0) if self.values else 0
        self.ranges = [(start, end) for start, end in self.ranges if start[at] != prefix]
        self._sorted = sorted(self.values)
        self._unsorted.clear()

    def clear(self) -> None:
        self.values.clear()
        self._new.clear()
        self.searched = False
        self.ranges.clear()
        self._sorted.clear()
        self._unsorted.clear()
        self.size = 0


def _without(pairs: Iterator[KeyValue], hidden: set[bytes], ranges: list[tuple[bytes, bytes]]) -> Iterator[KeyValue]:
    for pair in pairs:
        key = pair[0]
        if key not in hidden and not any(low <= key < high for low, high in ranges):
            yield pair


def _merge(newer: list[KeyValue], stored: Iterator[KeyValue]) -> Iterator[KeyValue]:
    """Merge two ascending sequences without a common key."""
    position = 0
    for pair in stored:
        while position < len(newer) and newer[position][0] < pair[0]:
            yield newer[position]
            position += 1
        yield pair
    yield from newer[position:]


def chunked(pairs: Iterator[KeyValue]) -> Iterator[list[KeyValue]]:
    while chunk := list(islice(pairs, CHUNK_PAIRS)):
        yield chunk


class Commits:
    """The hooks, counters and callbacks of one store's `commit` and `flush`."""

    unordered: frozenset[int] = frozenset()
    """Kinds of keys (`store.keys`) that are not stored in their order: those of a sealed store with names."""

    def __init__(self) -> None:
        self.writes = OpenWrites()
        """The open batch."""
        self.before_flush: Callable[[], Awaitable[None]] | None = None
        self.held: Callable[[], None] = lambda: None
        self.commits = 0
        """Number of commits that have written something."""
        self.durable = 0
        """The newest commit that a crash of the machine cannot undo; equals `commits` once a flush has caught up."""
        self.wants_flush = False
        """True when a flush would free space that is short, or go on with what the last one left."""
        self.damage = ""
        """Damage that RocksDB found in its files, "" for none. It affects all streams, and writes will soon fail."""
        self.unwritable = ""
        """Why RocksDB refused the last commit or flush, if not for damage; "" when it did not. Until it is opened
        again it may refuse all writes, even when the disk has recovered."""
        self._hooks: list[Callable[[], None]] = []
        self._callbacks: list[Callable[[int], None]] = []

    def serve(self, before_flush: Callable[[], Awaitable[None]], held: Callable[[], None]) -> None:
        """Have `flush` await `before_flush` before it makes commits durable; nothing is committed meanwhile. `held` is
        called when a commit is postponed or fails: writes may pile up."""
        self.before_flush, self.held = before_flush, held

    def at_commit(self, hook: Callable[[], None]) -> None:
        """Call `hook` once, at the start of the next commit, to write what its owner left dirty."""
        self._hooks.append(hook)

    def on_durable(self, callback: Callable[[int], None]) -> None:
        """Call `callback(commit)` whenever `durable` has advanced; owners then compact their Raft log."""
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


class MemSnapshot:
    """A fixed view of ascending `pairs`."""

    def __init__(self, pairs: list[KeyValue]) -> None:
        self._pairs = pairs

    def prepare(self, kind: int, stream: int) -> Iterator[None]:
        return iter(())

    def scan(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        low = bisect_left(self._pairs, start, key=lambda pair: pair[0])
        for at in range(low, len(self._pairs)):
            if self._pairs[at][0] >= end:
                return
            yield self._pairs[at]


class MemRecords:
    """The records of one state in memory, for a `transfer.Taker`."""

    overloaded = False
    unordered: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self._values[key] = value

    def delete_each(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._values.pop(key, None)

    def delete_range(self, start: bytes, end: bytes) -> None:
        self.delete_each([key for key in self._values if start <= key < end])

    def outdated(self, start: bytes, end: bytes = b"") -> None:
        """Nothing is left of it."""

    def commit(self) -> int:
        """Return 0: a state in memory has nothing to commit."""
        return 0

    def snapshot(self) -> MemSnapshot:
        return MemSnapshot(sorted(self._values.items()))
