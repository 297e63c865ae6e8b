"""`RocksKv`: the data store of a node, on RocksDB: ordered bytes to bytes, with one open write batch.

It has one column family and no write-ahead log. RocksDB writes a batch into one memtable and flushes memtables in
order, each with a synced table file and a synced manifest record: so after any crash the content is that of one commit.

rocksdict holds the interpreter's lock while it writes (not in a flush or a compaction), so a write that waits for a
disk stops the process, in whichever thread. A batch goes into memory and needs no disk, unless RocksDB begins a new
memtable by itself or makes writers wait. Neither happens when the owner flushes: this module keeps the memtable's only
limit, writes nothing while a flush begins, and has RocksDB refuse rather than wait. Refused writes stay open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

from jetcluster import faults
from jetcluster.files import Files, make_folder
from jetcluster.files import free_bytes as free_of
from jetcluster.files import total_bytes as size_of
from jetcluster.store import keys
from jetcluster.store.garbage import Garbage
from jetcluster.store.kv import (
    EAGER_COMMITS,
    MAX_OPEN_BYTES,
    MAX_OPEN_WRITES,
    Commits,
    KeyValue,
    KvDamagedError,
    KvError,
    KvFullError,
    chunked,
)
from jetcluster.store.outdated import Outdated
from jetcluster.store.progress import Progress, probe
from jetcluster.store.rocks import (
    MEMTABLE_BYTES,
    TABLE_FILE_BYTES,
    UNLIMITED_BYTES,
    RocksSnapshot,
    failure_of,
    options_of,
    pairs_of,
)

_SWITCH_POLL_SECONDS = 0.001
_STALL_POLL_SECONDS = 0.1
"""Intervals at which to check whether a flush has begun, and whether RocksDB takes writes again."""
_COMPACTION_START_SECONDS = 0.02
"""Time without commits after a compaction began: RocksDB first checks whether memory holds any of its keys."""

RESERVE_BYTES = 64 << 20
"""Free bytes of the file system, or a tenth of it if that is less, below which the journal takes no publishes. Commits
and flushes free space (a purge; the journal's segments), so they are refused only where a flush might not fit. RocksDB
takes no writes after a full disk until it is opened again; an early refusal ends once there is room."""
FLUSH_MARGIN_BYTES = 1 << 20
"""Bytes that a flush writes besides the data."""

MAX_COMPACTION_BYTES = 512 << 20
"""Most bytes that a compaction writes before it deletes what it read: all files, or about two levels of them."""

_FILLED = "rocksdb.num-entries-active-mem-table"
_WOULD_WAIT = "Result incomplete"
_LOCKED = ("While lock file", "lock hold by current process")
"""Parts of RocksDB's text when a database is open already, in another process and in this one."""
_STALLS = ("rocksdb.is-write-stopped", "rocksdb.actual-delayed-write-rate")
ROOM_CHECK_BYTES = 1 << 20
"""Written bytes after which the free space is looked up again."""


class RocksKv(Commits):
    """The database in directory `path`, opened or created. Raises KvError.

    `free_bytes` returns the free space of the file system, `total_bytes` is its size; the default asks `files`.
    `owner_flushes`: RocksDB flushes nothing by itself; the owner does, at the latest when `due`.
    `rocks`: the module `rocksdict`, imported here unless given: a server without file streams need not load it.
    """

    def __init__(
        self,
        path: Path,
        *,
        free_bytes: Callable[[], int] | None = None,
        total_bytes: int | None = None,
        salvage: bool = False,
        owner_flushes: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
        files: Files = os,
        rocks: Any = None,
    ) -> None:
        """`salvage`: open for reads only, even when files are missing; each read then succeeds or raises."""
        super().__init__()
        self._path = path
        self._files = files
        if rocks is None:
            import rocksdict as rocks
        self._rocks = rocks
        self._open = self.writes
        self.put_new = self._open.put_new
        self._eager = 0
        no_wal: Any = rocks.WriteOptions()
        no_wal.disable_wal = True  # an attribute; the published stubs call it a method
        no_wal.no_slowdown = owner_flushes
        self._no_wal = no_wal
        self._owner_flushes = owner_flushes
        self._progress = Progress(monotonic)
        self._stalled = False
        """True after RocksDB has refused a write that would have had to wait."""
        self._active = 0
        """Bytes of the memtable that is written to."""
        self._switching = self._begun = False
        """True while a flush begins: a write now might become part of it."""
        self._held_back = False  # a compaction begins, and might flush what is written now
        self._flushing = asyncio.Lock()
        self._snapshots: WeakSet[RocksSnapshot] = WeakSet()
        self._free_bytes = free_bytes or (lambda: free_of(path, files))
        self._unchecked = ROOM_CHECK_BYTES
        self._tight = False
        """True when little free space is left: deleted data must be freed at once."""
        self._garbage = Garbage()
        """While space is tight: what was deleted since the last flush."""
        self._outdated = Outdated()
        make_folder(path, files)
        total = size_of(path, files) if total_bytes is None else total_bytes
        self._reserve = min(RESERVE_BYTES, total // 10)
        self._memtable, table_file = (
            min(most, max(total // 32, 1 << 20)) for most in (MEMTABLE_BYTES, TABLE_FILE_BYTES)
        )
        try:
            options = options_of(rocks, UNLIMITED_BYTES if owner_flushes else self._memtable, table_file)
            if salvage:
                options.set_paranoid_checks(False)
                options.set_disable_auto_compactions(True)
            self._db = self._connect(options)
        except Exception as error:
            if any(part in str(error) for part in _LOCKED):
                raise KvError(f"another process has {path} open: is a server with this store still running?") from error
            raise type(failure_of(error))(f"cannot open {path}: {error}") from error

    def _connect(self, options: Any) -> Any:
        return self._rocks.Rdict(str(self._path), options)

    def check_files(self) -> None:
        """Note in `damage` a table file that is missing or has another size than was written. Reads no file."""
        for file in self._db.live_files():
            name, size = str(file["name"]).lstrip("/"), int(file["size"])
            try:
                found = self._files.stat(self._path / name).st_size
            except FileNotFoundError:
                # A compaction may have just replaced it.
                found = size if all(str(f["name"]).lstrip("/") != name for f in self._db.live_files()) else 0
            if found != size:
                self.damage = self.damage or f"{name} has {found} bytes, {size} were written"

    def _failed(self, error: Exception) -> KvError:
        failure = failure_of(error)
        if isinstance(failure, KvDamagedError):
            self.damage = self.damage or str(failure)
        return failure

    def _refused(self, error: Exception) -> KvError:
        failure = self._failed(error)
        self.unwritable = "" if isinstance(failure, KvDamagedError) else str(failure)
        return failure

    def _unreadable(self, error: Exception) -> KvError:
        failure = self._failed(error)
        self._progress.read_failed(failure)
        return failure

    @property
    def busy_since(self) -> float | None:
        """Monotonic seconds when the oldest flush or commit in progress began; None without one."""
        return self._progress.busy_since

    @property
    def failing(self) -> str:
        """Why the last commit, the last flush or a recent read failed; "" when none did."""
        return self._progress.failing

    async def probe(self) -> None:
        """Make a file durable beside those of the store. Raises KvError when the disk does not take it."""
        if self.spare_bytes <= 0:
            raise KvFullError("there is no room on the disk yet")
        try:
            await asyncio.to_thread(self._probe)
        except OSError as error:
            raise KvError(str(error)) from error

    def _probe(self) -> None:
        for name in ("store.read", "store.write", "store.flush"):
            faults.point(name)
        probe(self._path, self._files)

    def trouble(self) -> str:
        """Return, for the node's health, what fails or takes too long; "" for nothing."""
        return self._progress.trouble()

    @property
    def overloaded(self) -> bool:
        """True when too many writes wait for a commit: nothing more should be applied until one succeeds."""
        held = self._open
        return self._progress.held_since is not None and (
            held.size >= MAX_OPEN_BYTES or len(held.values) >= MAX_OPEN_WRITES
        )

    @property
    def due(self) -> bool:
        """True when the next flush should begin at once: commits will soon have to wait for it."""
        return self._owner_flushes and self._active >= self._memtable

    @property
    def open_bytes(self) -> int:
        """Size of the open writes; when it grows large, the owner commits before the end of the turn."""
        return self._open.size if self._open else 0

    def get(self, key: bytes) -> bytes | None:
        if self._open:
            values = self._open.values
            if key in values:
                return values[key]
            if self._open.in_range(key):
                return None
        try:
            faults.point("store.read")
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise self._unreadable(error) from error
        return value

    def put(self, key: bytes, value: bytes) -> None:
        self._open.put(key, value)

    def delete(self, key: bytes) -> None:
        self._open.delete_each((key,))

    def delete_each(self, keys: Iterable[bytes]) -> None:
        self._open.delete_each(keys)

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete keys with start <= key < end."""
        if start < end:
            self._open.delete_range(start, end)

    def outdated(self, start: bytes, end: bytes = b"") -> None:
        """Have coming flushes, also of a later process, remove from the disk the previous value of `start`, or those of
        the keys from there on below `end`."""
        self._outdated.add(start, end)

    def floor(self, key: bytes, low: bytes) -> KeyValue | None:
        """Return the pair with the greatest key in low..key."""
        stored = self._stored_floor(key, low)
        newer = self._open.floor(key, low) if self._open else None
        if newer is None or (stored is not None and stored[0] > newer):
            return stored
        return newer, self._open.present(newer)

    def ceiling(self, key: bytes, end: bytes) -> KeyValue | None:
        """Return the pair with the smallest key in key..end, `end` excluded."""
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
        """Return pairs with start <= key < end, ascending. Writes made after the call may or may not show."""
        pairs = self._pairs(start, end)
        return self._open.over(pairs, start, end) if self._open else pairs

    def scan_after(self, key: bytes, end: bytes) -> Iterator[KeyValue]:
        """Return the pairs of a `scan` that come after the one with `key`, which need not be there any more."""
        return self.scan(key + b"\0", end)

    def chunks(self, start: bytes, end: bytes) -> Iterator[list[KeyValue]]:
        """Return the pairs of `scan` as lists of up to CHUNK_PAIRS."""
        if self._open or start >= end:
            return chunked(self.scan(start, end))
        return self._stored_chunks(start, end)

    def _stored_chunks(self, start: bytes, end: bytes) -> Iterator[list[KeyValue]]:
        """Yield pairs by rocksdict's own iterator, which takes half the time of a cursor but ends silently where
        RocksDB fails: a cursor then checks that it was the end."""
        bounds = self._rocks.ReadOptions()
        bounds.set_iterate_upper_bound(end)
        try:
            pairs: Any = self._db.items(from_key=start, read_opt=bounds)
            for chunk in chunked(pairs):
                start = chunk[-1][0] + b"\0"
                yield chunk
        except Exception as error:
            raise self._unreadable(error) from error
        yield from chunked(self._pairs(start, end))

    def commit(self) -> int:
        """Write the open batch and return `commits`. Raises KvError and keeps the batch when the write fails. Keeps it
        too when RocksDB would wait for its disk: the owner must try again soon."""
        self._run_hooks()
        if self._outdated.changed:
            self._outdated.save(self)
        if not self._open:
            return self.commits
        if self._owner_flushes and self._must_wait():  # a write that waits would stop the process (see above)
            self._progress.held()
            self.held()
            return self.commits
        try:
            self._unchecked += self._open.size
            if self._unchecked >= ROOM_CHECK_BYTES:
                self._check_room(self._open.size)
            if not self._write():
                self._progress.held()
                self.held()
                return self.commits
        except KvError as error:
            self._progress.commit_failed(error)
            self.held()
            raise
        if self._tight and self._garbage.note(self._open):
            self.wants_flush = True
        self._eager = EAGER_COMMITS if self._open.searched else max(self._eager - 1, 0)
        self._open.clear()
        self._open.pressing = bool(self._eager or self._tight)
        self._progress.committed()
        self._active = self._size_active()
        self.commits += 1
        return self.commits

    def _write(self) -> bool:
        """Hand the open writes to RocksDB; False when it would have to wait. Raises KvError."""
        batch = self._rocks.WriteBatch(raw_mode=True)
        for start, end in self._open.ranges:  # first: values put after a range was deleted must stay
            batch.delete_range(start, end)
        for key, value in self._open.values.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        try:
            faults.point("store.write")
            self._db.write(batch, self._no_wal)
        except Exception as error:
            self._open.written()
            if self._owner_flushes and str(error).startswith(_WOULD_WAIT):
                self._stalled = True
                return False
            raise self._refused(error) from error
        self.unwritable = ""
        return True

    def _must_wait(self) -> bool:
        if self._held_back or (self._switching and not self._has_switched()):
            return True
        if self._stalled:  # checked first, or the batch would be built in vain
            self._stalled = any(self._db.property_int_value(name) for name in _STALLS)
        return self._stalled or 2 * self._active >= 3 * self._memtable

    def _has_switched(self) -> bool:
        """Return True when writes from now on are no part of the flush that began."""
        if self._switching and self._begun and not self._db.property_int_value(_FILLED):
            self._switching, self._active = False, 0
        return not self._switching

    def _size_active(self) -> int:
        return self._db.property_int_value("rocksdb.cur-size-active-mem-table") or 0

    def discard(self, stream: int) -> None:
        """Take back the open writes of one stream; those of other streams stay."""
        self._open.discard(keys.stream_prefix(0, stream)[1:])

    def snapshot(self) -> RocksSnapshot:
        """Commit, and return a fixed view of everything, including writes that stay open. Only between commands."""
        self.commit()
        newer = self._open.copy() if self._open else None
        try:
            snapshot = RocksSnapshot(self._db.iter(), newer)
        except Exception as error:
            raise self._failed(error) from error
        self._snapshots.add(snapshot)
        return snapshot

    def pinned_bytes(self) -> int:
        """Return the memory of writes that are not flushed yet, or that snapshots keep from being freed."""
        return self._db.property_int_value("rocksdb.size-all-mem-tables") or 0

    @property
    def spare_bytes(self) -> int:
        """Free space that something large may fill, without the reserve for flushes, the journal and a compaction of
        all files: after one that met a full disk, RocksDB refuses others of that size. Negative: that is in use."""
        unflushed = self._db.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
        return self._free() - self._reserve - unflushed - self._open.size - self.compaction_bytes()

    async def reclaim(self, ranges: list[tuple[bytes, bytes]]) -> None:
        """Flush, then free the deleted data in `ranges`, except what snapshots pin. Raises KvError."""
        async with self._flushing:
            await self._flush_open()
            await self._compact(ranges)

    async def _flush_open(self) -> None:
        with self._progress.flushing():
            while True:
                commit = self.commit()
                left = bool(self._open)  # the rest must wait for a flush
                if commit > self.durable:
                    await self._flush_committed()
                    self._set_durable(commit)
                elif left:
                    await asyncio.sleep(_STALL_POLL_SECONDS)
                if not left:
                    return

    async def _flush_committed(self) -> None:
        """Flush exactly what is committed: writes made meanwhile stay open until the flush has begun."""
        self._switching = self._owner_flushes
        try:
            if self.before_flush is not None:
                await self.before_flush()
            # An empty memtable is not switched, and shows nothing: what was written now would be flushed as well.
            self._begun = bool(self._db.property_int_value(_FILLED))
            flushing = asyncio.ensure_future(asyncio.to_thread(self._flush_memtable))
            while not flushing.done() and not self._has_switched():  # noqa: ASYNC110 - RocksDB has no event for it
                await asyncio.sleep(_SWITCH_POLL_SECONDS)
        finally:
            self._switching = self._begun = False
        await flushing
        self._active = self._size_active()

    async def flush(self) -> None:
        """Commit, then make all committed data durable, off the event loop. Raises KvError."""
        async with self._flushing:
            await self._flush_outdated()
            if self._garbage:
                garbage = self._garbage.take()
                done = False
                try:
                    done = await self._compact(list(garbage.values()))
                finally:
                    if not done:  # RocksDB had no room: the next flush tries again
                        self._garbage.put_back(garbage)
                        self.wants_flush = True
            self.wants_flush = bool(self._garbage) or (self._outdated.late and not self._tight)

    async def _flush_outdated(self) -> None:
        """Flush, and compact what was outdated before: a value that is outdated meanwhile may be open still, and then
        a compaction would leave the older one."""
        outdated = self._outdated.take(self, self._db.live_files)
        try:
            await self._flush_open()
            if self._tight:
                self._outdated.failed()
            elif outdated:
                await self._compact(outdated)
        except BaseException:
            self._outdated.failed()
            raise
        self._outdated.done()

    def flush_now(self) -> None:
        commit = self.commit()
        self._flush_memtable()
        self._active = self._size_active()
        self._set_durable(commit)
        if self._open and self.commit() == commit:
            raise KvError("the data store takes no writes for now")
        if self.commits > commit:
            self.flush_now()

    def close(self) -> None:
        """Drop open writes, as in a crash, and have RocksDB flush the committed ones, as it has no log."""
        self._open.clear()
        for snapshot in list(self._snapshots):
            snapshot.close()  # RocksDB stays open, and locked, as long as an iterator exists
        try:
            self._db.close()
        except Exception as error:
            raise self._failed(error) from error

    def memory_bytes(self) -> int:
        """Return the bytes that RocksDB holds in memtables and its block cache."""
        names = ("rocksdb.cur-size-all-mem-tables", "rocksdb.block-cache-usage")
        return sum(self._db.property_int_value(name) or 0 for name in names)

    def _free(self) -> int:
        try:
            return self._free_bytes()
        except OSError as error:
            raise KvError(str(error)) from error

    def _check_room(self, more: int) -> None:
        """Raise KvFullError unless the memtables and `more` bytes could be flushed."""
        free = self._free()
        self._tight = free < 2 * (self._reserve + self.compaction_bytes())
        if self._tight:
            self._open.pressing = True
        unflushed = self._db.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
        needed = min(self._reserve, unflushed + more + FLUSH_MARGIN_BYTES)
        if free < needed:
            self._unchecked = ROOM_CHECK_BYTES  # the next commit checks again
            raise KvFullError(f"{free} bytes free, {needed} are needed")
        self._unchecked = 0

    def _flush_memtable(self) -> None:
        self._check_room(0)
        try:
            self._db.flush(True)
            faults.point("store.flush")
        except Exception as error:
            raise self._refused(error) from error
        self.unwritable = ""

    def compaction_bytes(self) -> int:
        """Return the free space that a compaction needs to free deleted data: the node refuses publishes before."""
        files: int = self._db.property_int_value("rocksdb.total-sst-files-size") or 0
        return min(files, MAX_COMPACTION_BYTES)

    async def _compact(self, ranges: list[tuple[bytes, bytes]]) -> bool:
        """Compact `ranges`; True when RocksDB did. It reports nothing, but the top level then has fewer files."""
        before = self._level0()
        for start, end in ranges:
            await self._compact_range(start, end)
        after = self._level0()
        return after == 0 or after < before

    async def _compact_range(self, start: bytes, end: bytes) -> None:
        """Compact one range. RocksDB first flushes the whole memtable if that holds any of its keys. So, as before a
        flush, `before_flush` is awaited, and nothing is committed until RocksDB has checked the empty memtable."""
        begun = threading.Event()

        def run() -> None:
            begun.set()
            with contextlib.suppress(Exception):
                self._db.compact_range(start, end)

        self._held_back = self._owner_flushes
        try:
            if self.before_flush is not None:
                await self.before_flush()
            if self._held_back and self._db.property_int_value(_FILLED):
                with contextlib.suppress(KvError):  # a full disk: the compaction may be what frees it
                    await asyncio.to_thread(self._flush_memtable)
                    self._active = self._size_active()
            running = asyncio.ensure_future(asyncio.to_thread(run))
            while self._held_back and not (begun.is_set() or running.done()):  # noqa: ASYNC110 - set by a thread
                await asyncio.sleep(_SWITCH_POLL_SECONDS)
            if self._held_back:
                await asyncio.wait({running}, timeout=_COMPACTION_START_SECONDS)
        finally:
            self._held_back = False
        await running

    def _level0(self) -> int:
        return int(self._db.property_value("rocksdb.num-files-at-level0") or 0)

    def _stored_floor(self, key: bytes, low: bytes) -> KeyValue | None:
        """Return the stored pair. The bound is checked here: rocksdict 0.3.29 takes a lower bound for an upper one."""
        covers = self._open.covers if self._open else None
        try:
            faults.point("store.read")
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
            raise self._unreadable(error) from error
        return None

    def _pairs(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        """Yield stored pairs. With an upper bound a seek stops at the range's end, even among tombstones beyond it."""
        if start >= end:
            return iter(())
        bounds = self._rocks.ReadOptions()
        bounds.set_iterate_upper_bound(end)
        try:
            faults.point("store.read")
            cursor = self._db.iter(bounds)
        except Exception as error:
            raise self._unreadable(error) from error
        return pairs_of(cursor, bounds, start, self._unreadable)
