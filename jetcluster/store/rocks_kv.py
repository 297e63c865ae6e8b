"""`RocksKv`: the `Kv` of a node's file streams, on RocksDB.

One column family and no write-ahead log. RocksDB writes a batch into one memtable and flushes memtables in order,
each with a synced table file and a synced manifest record: so after any crash the content is that of some commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

from jetcluster.store import keys
from jetcluster.store.kv import (
    EAGER_COMMITS,
    HELD_BYTES,
    HELD_WRITES,
    Commits,
    KeyValue,
    KvDamagedError,
    KvError,
    KvFullError,
    OpenWrites,
    chunked,
)

MEMTABLE = 32 << 20
"""On a small disk less: a full memtable needs that much room to be flushed."""
TABLE_FILE = 64 << 20
"""On a small disk less, too: a compaction writes whole files anew before it deletes the old ones. One that finds the
disk full would leave RocksDB refusing all others that are as large as what is free, also those that free space."""
MEMTABLES = 3
BLOCK_CACHE = 32 << 20
"""Bounds of RocksDB's own memory: 3 x 32 MiB of writes under load, nearly nothing when idle, and 32 MiB of blocks
with index and filter blocks among them. jetcluster's own cache of decoded batches stands above (block_cache.py)."""

RESERVE = 64 << 20
"""Free bytes of the file system, or a tenth of it if that is less: the journal takes no publishes below. Commits and
flushes are refused only where a flush of all that is in memory might not fit any more, for they are what frees space
(a purge; the journal's segments). RocksDB, once it has run into a full disk, takes no more writes until it is opened
again; refusing early heals by itself when there is room again."""
MARGIN = 1 << 20
"""What a flush writes besides the data."""

COMPACTION = 512 << 20
"""A compaction writes anew what it reads before it deletes that: all there is, or about two levels of files, which is
not more than this."""
MAX_GARBAGE = 64
"""Key ranges remembered for a compaction that frees space."""
MAX_OUTDATED = 16
"""Keys per flush whose older values are compacted away: each one rewrites a file of some levels. Those of others go
when RocksDB compacts by itself."""

ROOM_CHECK = 1 << 20
"""The free space is looked up once per so many written bytes."""


class RocksSnapshot:
    """One iterator: RocksDB keeps what it saw when it was made. (rocksdict 0.3.29's own Snapshot shows later writes.)

    One scan at a time. It pins table files that compaction has replaced meanwhile; do not keep it for long.
    """

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def scan(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        if self._cursor is None:
            raise KvError("the database was closed")
        for pair in _pairs(self._cursor, None, start):
            if pair[0] >= end:
                return
            yield pair

    def close(self) -> None:
        """Scans raise KvError from here on."""
        self._cursor = None


class RocksKv(Commits):
    """Opens or makes the database in directory `path`. Raises KvError when that fails.

    `free_bytes` tells the free space of the file system, `total_bytes` its size; the default asks the operating system.
    """

    def __init__(
        self,
        path: Path,
        *,
        free_bytes: Callable[[], int] | None = None,
        total_bytes: int | None = None,
        salvage: bool = False,
    ) -> None:
        """`salvage`: only to be read; opens with whatever files are there, and says of each read whether it is good."""
        super().__init__()
        self._path = path
        import rocksdict  # here, as a server without file streams need not load it

        self._rocks = rocksdict
        self._open = OpenWrites()
        self._eager = 0
        no_wal: Any = rocksdict.WriteOptions()
        no_wal.disable_wal = True  # an attribute; the published stubs call it a method
        self._no_wal = no_wal
        self._flushing = asyncio.Lock()
        self._snapshots: WeakSet[RocksSnapshot] = WeakSet()
        self._free_bytes = free_bytes or (lambda: shutil.disk_usage(path).free)
        self._unchecked = ROOM_CHECK
        self._tight = False
        """Little free space is left: what is deleted is to be freed at once."""
        self._garbage: dict[bytes, tuple[bytes, bytes]] = {}
        """While space is tight. Kind and stream -> the keys among which something was deleted since the last flush."""
        self._outdated: set[bytes] = set()
        path.mkdir(parents=True, exist_ok=True)
        total = shutil.disk_usage(path).total if total_bytes is None else total_bytes
        self._reserve = min(RESERVE, total // 10)
        try:
            options = _options(rocksdict, *(min(most, max(total // 32, 1 << 20)) for most in (MEMTABLE, TABLE_FILE)))
            if salvage:
                options.set_paranoid_checks(False)
                options.set_disable_auto_compactions(True)
            self._db = self._connect(options)
        except Exception as error:
            raise type(_failure(error))(f"cannot open {path}: {error}") from error

    def _connect(self, options: Any) -> Any:
        return self._rocks.Rdict(str(self._path), options)

    def check_files(self) -> None:
        """Notes in `damage` a table file that is gone or has another size than it was written with: a look at each
        file, no reading."""
        for file in self._db.live_files():
            name, size = str(file["name"]).lstrip("/"), int(file["size"])
            try:
                found = (self._path / name).stat().st_size
            except FileNotFoundError:
                # Unless a compaction has just replaced it.
                found = size if all(str(f["name"]).lstrip("/") != name for f in self._db.live_files()) else 0
            if found != size:
                self.damage = self.damage or f"{name} has {found} bytes, {size} were written"

    def _failed(self, error: Exception) -> KvError:
        failure = _failure(error)
        if isinstance(failure, KvDamagedError):
            self.damage = self.damage or str(failure)
        return failure

    @property
    def open_bytes(self) -> int:
        return self._open.size if self._open else 0

    @property
    def pressing(self) -> bool:
        held = self._open
        return bool(
            self._eager
            or self._tight
            or held.searched
            or held.ranges
            or held.size >= HELD_BYTES
            or len(held.values) >= HELD_WRITES
        )

    def get(self, key: bytes) -> bytes | None:
        if self._open:
            values = self._open.values
            if key in values:
                return values[key]
            if self._open.in_range(key):
                return None
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise self._failed(error) from error
        return value

    def put(self, key: bytes, value: bytes) -> None:
        self._open.put(key, value)

    def put_new(self, keys: Iterable[bytes], value: bytes) -> None:
        self._open.put_new(keys, value)

    def delete(self, key: bytes) -> None:
        self._open.delete_each((key,))

    def delete_each(self, keys: Iterable[bytes]) -> None:
        self._open.delete_each(keys)

    def delete_range(self, start: bytes, end: bytes) -> None:
        if start < end:
            self._open.delete_range(start, end)

    def outdated(self, key: bytes) -> None:
        if len(self._outdated) < MAX_OUTDATED:
            self._outdated.add(key)

    def floor(self, key: bytes, low: bytes) -> KeyValue | None:
        stored = self._stored_floor(key, low)
        newer = self._open.floor(key, low) if self._open else None
        if newer is None or (stored is not None and stored[0] > newer):
            return stored
        return newer, self._open.present(newer)

    def ceiling(self, key: bytes, end: bytes) -> KeyValue | None:
        pairs = self._pairs(key, end)
        if not self._open:
            return next(pairs, None)
        covers = self._open.covers
        stored = next((pair for pair in pairs if not covers(pair[0])), None)
        newer = self._open.ceiling(key, end)
        if newer is None or (stored is not None and stored[0] < newer):
            return stored
        return newer, self._open.present(newer)

    def scan(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        pairs = self._pairs(start, end)
        if not self._open:
            return pairs
        # what hides stored pairs is copied: a commit during the scan empties the open writes, and the cursor still
        # shows what was there before them
        entries = self._open.span(start, end)
        hidden = {key for key, _ in entries}
        ranges = [(low, high) for low, high in self._open.ranges if low < end and start < high]
        newer: list[KeyValue] = [(key, value) for key, value in entries if value is not None]
        return _merge(newer, _without(pairs, hidden, ranges))

    def chunks(self, start: bytes, end: bytes) -> Iterator[list[KeyValue]]:
        if self._open or start >= end:
            return chunked(self.scan(start, end))
        return self._stored_chunks(start, end)

    def _stored_chunks(self, start: bytes, end: bytes) -> Iterator[list[KeyValue]]:
        """rocksdict's own iterator over pairs takes half the time of a cursor, but ends without a word where RocksDB
        fails: a cursor tells whether that was the end."""
        bounds = self._rocks.ReadOptions()
        bounds.set_iterate_upper_bound(end)
        try:
            pairs: Any = self._db.items(from_key=start, read_opt=bounds)
            for chunk in chunked(pairs):
                start = chunk[-1][0] + b"\0"
                yield chunk
        except Exception as error:
            raise self._failed(error) from error
        yield from chunked(self._pairs(start, end))

    def commit(self) -> int:
        self._run_hooks()
        if not self._open:
            return self.commits
        self._unchecked += self._open.size
        if self._unchecked >= ROOM_CHECK:
            self._check_room(self._open.size)
        batch = self._rocks.WriteBatch(raw_mode=True)
        for start, end in self._open.ranges:  # first: what was put after a range was deleted must stay
            batch.delete_range(start, end)
        for key, value in self._open.values.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        try:
            self._db.write(batch, self._no_wal)
        except Exception as error:
            self._open.written()
            raise self._failed(error) from error
        if self._tight:
            self._note_garbage()
        self._eager = EAGER_COMMITS if self._open.searched else max(self._eager - 1, 0)
        self._open.clear()
        self.commits += 1
        return self.commits

    def discard(self, stream: int) -> None:
        self._open.discard(keys.stream_prefix(0, stream)[1:])

    def snapshot(self) -> RocksSnapshot:
        self.commit()
        try:
            snapshot = RocksSnapshot(self._db.iter())
        except Exception as error:
            raise self._failed(error) from error
        self._snapshots.add(snapshot)
        return snapshot

    def pinned_bytes(self) -> int:
        return self._db.property_int_value("rocksdb.size-all-mem-tables") or 0

    @property
    def spare_bytes(self) -> int:
        unflushed = self._db.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
        return self._free_bytes() - self._reserve - unflushed - self._open.size - self.compaction_bytes() // 2

    async def reclaim(self, ranges: list[tuple[bytes, bytes]]) -> None:
        async with self._flushing:
            await self._flush_open()
            await asyncio.to_thread(self._compact, ranges)

    async def _flush_open(self) -> None:
        commit = self.commit()
        if commit > self.durable:
            await asyncio.to_thread(self._flush_memtable)
            self._set_durable(commit)

    async def flush(self) -> None:
        async with self._flushing:
            await self._flush_open()
            if self._outdated and not self._tight:
                outdated, self._outdated = self._outdated, set()
                await asyncio.to_thread(self._compact, [(key, key + b"\0") for key in sorted(outdated)])
            if self._garbage:
                garbage, self._garbage, self.wants_flush = self._garbage, {}, False
                if not await asyncio.to_thread(self._compact, list(garbage.values())):
                    # No room, says RocksDB for now: the next flush tries again.
                    self._garbage, self.wants_flush = garbage | self._garbage, True

    def flush_now(self) -> None:
        commit = self.commit()
        self._flush_memtable()
        self._set_durable(commit)

    def close(self) -> None:
        """Open writes are gone, as in a crash; what was committed RocksDB flushes here, as it has no log."""
        self._open.clear()
        for snapshot in list(self._snapshots):
            snapshot.close()  # RocksDB stays open, and locked, as long as there is an iterator
        try:
            self._db.close()
        except Exception as error:
            raise self._failed(error) from error

    def memory_bytes(self) -> int:
        """What RocksDB holds in memtables and its block cache."""
        names = ("rocksdb.cur-size-all-mem-tables", "rocksdb.block-cache-usage")
        return sum(self._db.property_int_value(name) or 0 for name in names)

    def _check_room(self, more: int) -> None:
        """Raises KvFullError unless what is in memory and `more` bytes could be flushed."""
        free = self._free_bytes()
        self._tight = free < 2 * (self._reserve + self.compaction_bytes())
        unflushed = self._db.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
        needed = min(self._reserve, unflushed + more + MARGIN)
        if free < needed:
            self._unchecked = ROOM_CHECK  # look again next time
            raise KvFullError(f"{free} bytes free, {needed} are needed")
        self._unchecked = 0

    def _flush_memtable(self) -> None:
        self._check_room(0)
        try:
            self._db.flush(True)
        except Exception as error:
            raise self._failed(error) from error

    def compaction_bytes(self) -> int:
        """Free space that a compaction may need. Where it is missing nothing that was deleted can be freed any more:
        the node refuses publishes before."""
        files: int = self._db.property_int_value("rocksdb.total-sst-files-size") or 0
        return min(files, COMPACTION)

    def _note_garbage(self) -> None:
        """Blocks only: what else is deleted is small and comes with every write."""
        deleted = [(key, key + b"\0") for key, value in self._open.values.items() if value is None]
        for start, end in self._open.ranges + deleted:
            if start[0] != keys.BLOCK:
                continue
            prefix = start[: keys.STREAM_PREFIX]
            known = self._garbage.get(prefix)
            self.wants_flush = True
            if known is not None:
                start, end = min(start, known[0]), max(end, known[1])
            elif len(self._garbage) >= MAX_GARBAGE:
                continue
            self._garbage[prefix] = start, end

    def _compact(self, ranges: list[tuple[bytes, bytes]]) -> bool:
        """RocksDB does not tell whether it did. A compaction takes what was flushed last from the top level."""
        before = self._level0()
        for start, end in ranges:
            with contextlib.suppress(Exception):
                self._db.compact_range(start, end)
        after = self._level0()
        return after == 0 or after < before

    def _level0(self) -> int:
        return int(self._db.property_value("rocksdb.num-files-at-level0") or 0)

    def _stored_floor(self, key: bytes, low: bytes) -> KeyValue | None:
        """Bounds are checked here: rocksdict 0.3.29 takes a lower bound for an upper one."""
        covers = self._open.covers if self._open else None
        try:
            cursor = self._db.iter()
            cursor.seek_for_prev(key)
            while cursor.valid():
                found: bytes = cursor.key()
                if found < low:
                    return None
                if covers is None or not covers(found):
                    return found, cursor.value()
                cursor.prev()
            cursor.status()
        except Exception as error:
            raise self._failed(error) from error
        return None

    def _pairs(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        """With a bound a seek stops at the range's end, also among the tombstones of what lies behind it."""
        if start >= end:
            return iter(())
        bounds = self._rocks.ReadOptions()
        bounds.set_iterate_upper_bound(end)
        try:
            cursor = self._db.iter(bounds)
        except Exception as error:
            raise self._failed(error) from error
        return _pairs(cursor, bounds, start, self._failed)


def _options(rocks: Any, memtable: int, table_file: int) -> Any:
    options = rocks.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(memtable)
    options.set_target_file_size_base(table_file)
    options.set_max_write_buffer_number(MEMTABLES)
    options.set_max_background_jobs(2)
    options.set_max_open_files(256)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_compression_type(rocks.DBCompressionType.lz4())
    options.set_level_compaction_dynamic_level_bytes(True)
    # a stream with limits leaves runs of tombstones at its head; have such files compacted early
    options.add_compact_on_deletion_collector_factory(1024, 512, 0.5)
    table = rocks.BlockBasedOptions()
    table.set_block_cache(rocks.Cache(BLOCK_CACHE))
    table.set_block_size(16 << 10)
    table.set_bloom_filter(10, False)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options.set_block_based_table_factory(table)
    return options


def _pairs(
    cursor: Any, bounds: Any, start: bytes, failed: Callable[[Exception], KvError] | None = None
) -> Iterator[KeyValue]:
    """`bounds` is only held: rocksdict's iterator points into it, and reads freed memory when it is gone first."""
    try:
        cursor.seek(start)
        valid, key, value, step = cursor.valid, cursor.key, cursor.value, cursor.next
        while valid():
            yield key(), value()
            step()
        cursor.status()
    except Exception as error:
        raise (failed or _failure)(error) from error


def _failure(error: Exception) -> KvError:
    """rocksdict raises bare exceptions with RocksDB's status as text."""
    text = str(error)
    if text.startswith("Corruption"):
        return KvDamagedError(text)
    return KvFullError(text) if "No space left" in text else KvError(text)


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
