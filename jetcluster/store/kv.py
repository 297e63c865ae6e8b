"""`Kv`: ordered bytes to bytes with one open write batch, and what both implementations share.

Writes collect in memory and become visible to a crash in `commit`, all together. The owner of the node commits once
per event loop turn, *between* commands, so a crash never shows half a command. A commit never waits for a disk: where
it would have to, the writes stay open, and all reads see them. There is no write-ahead log below: the Raft log is one.
`flush` makes everything committed so far durable; after a crash exactly the state of some commit at or behind the last
flush is there, over all streams.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import Protocol

KeyValue = tuple[bytes, bytes]
CHUNK = 8192

MOST_OPEN_BYTES = 8 << 20
MOST_OPEN_WRITES = 32_768
"""Open writes that could not be committed: with more of them than either nothing more is to be applied for now."""
HELD_BYTES = 1 << 20
HELD_WRITES = 4096
"""An open batch as large as either is committed at the end of the turn: to write it takes some milliseconds."""
EAGER_COMMITS = 4
"""After a search among the open writes, which has to sort them, so many turns each end with a commit: where searches
come all the time there is little to sort. A single one, such as a stream that is deleted, is over soon."""


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

    @property
    def pressing(self) -> bool:
        """The open writes should be committed at the end of this turn. Else that may wait a while, for what later turns
        delete or overwrite again is then never written."""
        ...

    @property
    def overloaded(self) -> bool:
        """Writes pile up that cannot be committed for now: nothing more should be applied until a commit succeeds."""
        ...

    @property
    def due(self) -> bool:
        """So much was committed since the last flush that the next one should come at once: commits will have to wait
        for it soon."""
        ...

    before_flush: Callable[[], Awaitable[None]] | None
    """Awaited by `flush` before what was committed is made durable. Nothing is committed meanwhile."""

    @property
    def busy_since(self) -> float | None:
        """Monotonic seconds when the oldest flush or commit that is under way began; None: none is."""
        ...

    @property
    def failing(self) -> str:
        """Why the last commit, the last flush, or a read of the last seconds failed; "" when none did."""
        ...

    unwritable: str
    """Why the store below did not take the last commit or flush, if not for damage; "" when it did. It may go on
    refusing all writes when the disk is well again, until it is opened anew."""

    async def probe(self) -> None:
        """Makes something durable beside the files of the store. Raises KvError when the disk does not take it."""
        ...

    def trouble(self) -> str:
        """What is wrong at the moment, for the node's health: what fails, or has taken too long. "" when nothing is."""
        ...

    def get(self, key: bytes) -> bytes | None: ...
    def put(self, key: bytes, value: bytes) -> None: ...
    def put_new(self, pairs: dict[bytes, bytes]) -> None:
        """As `put` of each, for keys that were never there before, neither open nor committed. What is deleted again
        before it is committed is then never written at all."""
        ...

    def delete(self, key: bytes) -> None: ...
    def delete_each(self, keys: Iterable[bytes]) -> None:
        """As `delete` of each."""
        ...

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

    def chunks(self, start: bytes, end: bytes) -> Iterator[list[KeyValue]]:
        """As `scan`, for very many pairs at once: lists of up to CHUNK."""
        ...

    wants_flush: bool
    """Space is short, and a flush would free some."""

    damage: str
    """What the store below has found damaged in its own files, "" while nothing is. Other streams than the one that was
    read are in these files too, and writes will fail before long."""

    def check_files(self) -> None:
        """Looks whether the files of the store below are there and whole in size; see `damage`."""
        ...

    def at_commit(self, hook: Callable[[], None]) -> None:
        """Calls `hook` once, at the start of the next commit, to add what its owner left dirty."""
        ...

    def commit(self) -> int:
        """Writes the open batch; returns `commits`. Raises KvError and keeps the batch when that fails. Keeps it, too,
        where the store would have to wait for its disk (`open_bytes`): it is to be tried again soon."""
        ...

    def discard(self, stream: int) -> None:
        """Takes the open writes of one stream back; those of the others stay."""
        ...

    def snapshot(self) -> Snapshot:
        """Commits, then a fixed view of everything, what stays open included. Only between commands."""
        ...

    def pinned_bytes(self) -> int:
        """Memory of writes that are not flushed yet, or that snapshots keep from being freed."""
        ...

    @property
    def spare_bytes(self) -> int:
        """Free space that something large may fill: what is kept for flushes, for the journal and for a compaction that
        frees what was deleted is not among it. Negative when that is touched already."""
        ...

    async def reclaim(self, ranges: list[tuple[bytes, bytes]]) -> None:
        """Flushes; then what was deleted within `ranges` leaves the disk, as far as nobody reads it. Raises KvError."""
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

    __slots__ = ("_new", "_sorted", "_unsorted", "ranges", "searched", "size", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}
        self._new: set[bytes] = set()
        """Keys that the store below does not hold, for sure: nothing has to be deleted there."""
        self.searched = False
        """The keys were asked for in order."""
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

    def put_new(self, pairs: dict[bytes, bytes]) -> None:
        self.values.update(pairs)
        self._new.update(pairs)
        self._unsorted += pairs
        self.size += sum(map(len, pairs)) + sum(map(len, pairs.values()))

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

    def written(self) -> None:
        """The store below may hold everything from here on, as after a commit that failed halfway."""
        self._new.clear()

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
        self.searched = True
        if self._unsorted:
            self._sorted += self._unsorted
            self._sorted.sort()  # timsort: linear, as the list is two runs or few
            self._unsorted.clear()
        if len(self._sorted) > len(self.values):  # new ones were deleted again
            self._sorted = sorted(self.values)
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

    def copy(self) -> OpenWrites:
        """Of what reads need."""
        copied = OpenWrites()
        copied.values = dict(self.values)
        copied.ranges = list(self.ranges)
        copied._unsorted = list(self.values)
        return copied

    def over(self, pairs: Iterator[KeyValue], start: bytes, end: bytes) -> Iterator[KeyValue]:
        """`pairs` (ascending, start <= key < end) as these writes leave them. What is written later does not show: a
        commit during the scan empties the open writes, and the cursor still shows what was there before them."""
        entries = self.span(start, end)
        hidden = {key for key, _ in entries}
        ranges = [(low, high) for low, high in self.ranges if low < end and start < high]
        newer: list[KeyValue] = [(key, value) for key, value in entries if value is not None]
        return _merge(newer, _without(pairs, hidden, ranges))

    def discard(self, prefix: bytes) -> None:
        """Forgets entries whose key has `prefix` behind its first byte."""
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
    """Both ascending and without a key in common."""
    position = 0
    for pair in stored:
        while position < len(newer) and newer[position][0] < pair[0]:
            yield newer[position]
            position += 1
        yield pair
    yield from newer[position:]


def chunked(pairs: Iterator[KeyValue]) -> Iterator[list[KeyValue]]:
    while chunk := list(islice(pairs, CHUNK)):
        yield chunk


class Commits:
    """Hooks, counters and callbacks around `commit` and `flush`; one per Kv. The properties are those of a store that
    never waits and never fails."""

    def __init__(self) -> None:
        self.before_flush: Callable[[], Awaitable[None]] | None = None
        self.commits = 0
        self.durable = 0
        self.wants_flush = False
        self.damage = ""
        self.unwritable = ""
        self._hooks: list[Callable[[], None]] = []
        self._callbacks: list[Callable[[int], None]] = []

    @property
    def overloaded(self) -> bool:
        return False

    @property
    def due(self) -> bool:
        return False

    @property
    def busy_since(self) -> float | None:
        return None

    @property
    def failing(self) -> str:
        return ""

    def trouble(self) -> str:
        return ""

    async def probe(self) -> None:
        """There is no disk."""

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
