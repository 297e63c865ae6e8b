"""`MemKv`: the twin of `RocksKv` in memory, which never waits and never fails; and `CrashKv`, which does both when
asked, and survives a loss of power as far as it was flushed."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

from jetcluster.store import keys
from jetcluster.store.kv import Commits, KeyValue, KvDamagedError, KvError, KvFullError, MemSnapshot, chunked

BUCKET = 1_000
"""A bucket is cut in two when it holds twice as many keys: insertion then moves at most 16 KB of pointers."""


class SortedKeys:
    """Distinct keys in order, in buckets, so that adding one to a million does not move a million pointers."""

    __slots__ = ("_buckets", "_lasts")

    def __init__(self) -> None:
        self._buckets: list[list[bytes]] = []
        self._lasts: list[bytes] = []

    def add(self, key: bytes) -> None:
        """`key` must not be there yet."""
        if not self._buckets:
            self._buckets.append([key])
            self._lasts.append(key)
            return
        at = min(bisect_left(self._lasts, key), len(self._lasts) - 1)
        bucket = self._buckets[at]
        insort(bucket, key)
        if len(bucket) > 2 * BUCKET:
            self._buckets[at : at + 1] = [bucket[:BUCKET], bucket[BUCKET:]]
            self._lasts[at : at + 1] = [bucket[BUCKET - 1], bucket[-1]]
        else:
            self._lasts[at] = bucket[-1]

    def remove(self, key: bytes) -> None:
        at = bisect_left(self._lasts, key)
        bucket = self._buckets[at]
        del bucket[bisect_left(bucket, key)]
        if bucket:
            self._lasts[at] = bucket[-1]
        else:
            del self._buckets[at], self._lasts[at]

    def cut(self, start: bytes, end: bytes) -> list[bytes]:
        """Removes and returns the keys with start <= key < end."""
        removed: list[bytes] = []
        at = bisect_left(self._lasts, start)
        while at < len(self._buckets) and self._buckets[at][0] < end:
            bucket = self._buckets[at]
            low, high = bisect_left(bucket, start), bisect_left(bucket, end)
            removed += bucket[low:high]
            del bucket[low:high]
            if bucket:
                self._lasts[at] = bucket[-1]
                at += 1
            else:
                del self._buckets[at], self._lasts[at]
        return removed

    def floor(self, key: bytes) -> bytes | None:
        at = bisect_left(self._lasts, key)
        if at < len(self._buckets):
            bucket = self._buckets[at]
            inside = bisect_right(bucket, key)
            if inside:
                return bucket[inside - 1]
        return self._lasts[at - 1] if at else None

    def ceiling(self, key: bytes) -> bytes | None:
        at = bisect_left(self._lasts, key)
        if at == len(self._buckets):
            return None
        bucket = self._buckets[at]
        return bucket[bisect_left(bucket, key)]

    def range(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Ascending; finds its place again after every bucket, so the keys may change meanwhile."""
        while True:
            at = bisect_left(self._lasts, start)
            if at == len(self._buckets):
                return
            bucket = self._buckets[at]
            part = bucket[bisect_left(bucket, start) : bisect_left(bucket, end)]
            if not part:
                return
            yield from part
            start = part[-1] + b"\x00"


class MemKv(Commits):
    """Writes take effect at once: no crash can show half of them, as none survives the process. What they replaced is
    kept until the next commit, for `discard`."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[bytes, bytes] = {}
        self._keys = SortedKeys()
        self._dirty = False
        self._before: dict[bytes, bytes | None] = {}
        """The values at the last commit of the keys written since."""

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

    @property
    def open_bytes(self) -> int:
        return 0

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self._values:
            self._keys.add(key)
        self._before.setdefault(key, self._values.get(key))
        self._values[key] = value
        self._dirty = True

    def put_new(self, pairs: dict[bytes, bytes]) -> None:
        for key, value in pairs.items():
            self.put(key, value)

    def delete_each(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.delete(key)

    def delete(self, key: bytes) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self._keys.remove(key)
            self._before.setdefault(key, value)
        self._dirty = True

    def delete_range(self, start: bytes, end: bytes) -> None:
        for key in self._keys.cut(start, end):
            self._before.setdefault(key, self._values.pop(key))
        self._dirty = True

    def floor(self, key: bytes, low: bytes) -> KeyValue | None:
        found = self._keys.floor(key)
        return None if found is None or found < low else (found, self._values[found])

    def ceiling(self, key: bytes, end: bytes) -> KeyValue | None:
        found = self._keys.ceiling(key)
        return None if found is None or found >= end else (found, self._values[found])

    def scan(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        for key in self._keys.range(start, end):
            value = self._values.get(key)
            if value is not None:
                yield key, value

    def scan_after(self, key: bytes, end: bytes) -> Iterator[KeyValue]:
        return self.scan(key + b"\0", end)

    def chunks(self, start: bytes, end: bytes) -> Iterator[list[KeyValue]]:
        return chunked(self.scan(start, end))

    def commit(self) -> int:
        self._run_hooks()
        self._before.clear()
        if self._dirty:
            self._dirty = False
            self.commits += 1
        return self.commits

    def outdated(self, start: bytes, end: bytes = b"") -> None:
        """Nothing is left of it."""

    def discard(self, stream: int) -> None:
        prefix = keys.stream_prefix(0, stream)[1:]
        at = slice(1, 1 + len(prefix))
        for key in [key for key in self._before if key[at] == prefix]:
            value = self._before.pop(key)
            if value is not None:
                self.put(key, value)
            else:
                self.delete(key)
            self._before.pop(key, None)

    def snapshot(self) -> MemSnapshot:
        self.commit()
        return MemSnapshot([(key, self._values[key]) for key in self._keys.range(b"", b"\xff" * 16)])

    def check_files(self) -> None:
        """There are none."""

    def pinned_bytes(self) -> int:
        return 0

    @property
    def spare_bytes(self) -> int:
        return sys.maxsize

    async def reclaim(self, ranges: list[tuple[bytes, bytes]]) -> None:
        self.flush_now()

    async def flush(self) -> None:
        if self.before_flush is not None:
            await self.before_flush()
        self.flush_now()

    def flush_now(self) -> None:
        self._set_durable(self.commit())

    def close(self) -> None:
        self._values.clear()
        self._before.clear()
        self._keys = SortedKeys()


class CrashKv(MemKv):
    """A `MemKv` that remembers what was flushed: `crashed()` is what a restart after a power failure finds."""

    def __init__(self, values: dict[bytes, bytes] | None = None, rotten: set[bytes] | None = None) -> None:
        super().__init__()
        self.rotten = set(rotten or ())
        """Keys whose values on the disk fail their checksum."""
        self.broken = False
        """Commits and flushes fail, with `error`."""
        self.error: KvError = KvFullError("IO error: No space left on device")
        self.sick = False
        """The disk below takes nothing."""
        self.waiting = False
        """Commits have to wait, and what piles up is too much."""
        self.flushed: dict[bytes, bytes] = dict(values or {})
        for key, value in self.flushed.items():
            self._keys.add(key)
            self._values[key] = value

    def commit(self) -> int:
        if self.broken:
            self.unwritable = str(self.error)
            self.held()
            raise self.error
        self.unwritable = ""
        if self.waiting:
            self.held()
            return self.commits
        return super().commit()

    async def probe(self) -> None:
        if self.sick:
            raise KvError("IO error: Input/output error")

    @property
    def open_bytes(self) -> int:
        return int(self.waiting)

    @property
    def overloaded(self) -> bool:
        return self.waiting

    def flush_now(self) -> None:
        super().flush_now()
        self.flushed = dict(self._values)

    def crashed(self) -> CrashKv:
        return CrashKv(self.flushed, self.rotten)

    def get(self, key: bytes) -> bytes | None:
        self._check(key)
        return super().get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.rotten.discard(key)
        super().put(key, value)

    def scan(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        for key in self.rotten:
            if start <= key < end:
                self._check(key)
        return super().scan(start, end)

    def _check(self, key: bytes) -> None:
        if key in self.rotten:
            self.damage = "Corruption: block checksum mismatch"
            raise KvDamagedError(self.damage)

    def compaction_bytes(self) -> int:
        return 0

    def close(self) -> None:
        if not self.broken:
            self.flush_now()
        self._values, self._keys = {}, SortedKeys()
