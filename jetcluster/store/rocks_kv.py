"""`RocksKv`: the data store of a node, on RocksDB: ordered bytes to bytes with one open write batch.

One column family and no write-ahead log. RocksDB writes a batch into one memtable and flushes memtables in order,
each with a synced table file and a synced manifest record: so after any crash the content is that of some commit.

rocksdict holds the interpreter's lock while it writes, so a write that waits for a disk stops the process, whichever
thread does it. (A flush and a compaction give the lock back.) A batch goes into memory, which takes no disk, unless
RocksDB begins a new memtable by itself or has writers wait. Neither happens to a store whose owner flushes: the only
limit of its memtable is kept here, nothing is written while a flush begins, and RocksDB is told to refuse rather than
to wait. What cannot be written for now stays open.
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
from jetcluster.store.kv import (
    EAGER_COMMITS,
    MOST_OPEN_BYTES,
    MOST_OPEN_WRITES,
    Commits,
    KeyValue,
    KvDamagedError,
    KvError,
    KvFullError,
    chunked,
)
from jetcluster.store.progress import Progress, probe
from jetcluster.store.rocks import MEMTABLE, NO_LIMIT, TABLE_FILE, RocksSnapshot, failure_of, options_of, pairs_of

_SWITCH_LOOK = 0.001
_STALL_LOOK = 0.1
"""Seconds between two looks whether a flush has begun, and whether RocksDB takes writes again."""
_COMPACTION_LOOK = 0.02
"""For how long nothing is committed once RocksDB compacts: it first looks whether memory holds any of the keys."""

RESERVE = 64 << 20
"""Free bytes of the file system, or a tenth of it if that is less: the journal takes no publishes below. Commits and
flushes are refused only where a flush of all that is in memory might not fit any more, for they are what frees space
(a purge; the journal's segments). RocksDB, once it has run into a full disk, takes no more writes until it is opened
again; refusing early heals by itself when there is room again."""
MARGIN = 1 << 20
"""Bytes that a flush writes besides the data."""

COMPACTION = 512 << 20
"""A compaction writes anew what it reads before it deletes that: all there is, or about two levels of files, which is
not more than this."""
MAX_GARBAGE = 64
"""Key ranges remembered for a compaction that frees space."""
MAX_OUTDATED = 16
"""Keys per flush whose older values are compacted away: each one rewrites a file of some levels. Those of others go
when RocksDB compacts by itself."""

_WOULD_WAIT = "Result incomplete"
_STALLS = ("rocksdb.is-write-stopped", "rocksdb.actual-delayed-write-rate")
ROOM_CHECK = 1 << 20
"""The free space is looked up once per so many written bytes."""


class RocksKv(Commits):
    """Opens or makes the database in directory `path`. Raises KvError when that fails.

    `free_bytes` tells the free space of the file system, `total_bytes` its size; the default asks `files`.
    `owner_flushes`: RocksDB flushes nothing by itself, the owner does, not later than when `due`.
    `rocks`: the module `rocksdict`, loaded here unless given, as a server without file streams need not load it.
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
        """`salvage`: only to be read; opens with the files that are there, and says of each read whether it is good."""
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
        """RocksDB has refused a write, as it would have had to wait."""
        self._active = 0
        """Bytes of the memtable that is written to."""
        self._switching = False
        """A flush begins: what is written now might still get into it."""
        self._held_back = False  # a compaction begins, and might flush what is written now
        self._flushing = asyncio.Lock()
        self._snapshots: WeakSet[RocksSnapshot] = WeakSet()
        self._free_bytes = free_bytes or (lambda: free_of(path, files))
        self._unchecked = ROOM_CHECK
        self._tight = False
        """Little free space is left: what is deleted is to be freed at once."""
        self._garbage: dict[bytes, tuple[bytes, bytes]] = {}
        """While space is tight. Kind and stream -> the keys among which something was deleted since the last flush."""
        self._outdated: set[bytes] = set()
        make_folder(path, files)
        total = size_of(path, files) if total_bytes is None else total_bytes
        self._reserve = min(RESERVE, total // 10)
        self._memtable, table_file = (min(most, max(total // 32, 1 << 20)) for most in (MEMTABLE, TABLE_FILE))
        try:
            options = options_of(rocks, NO_LIMIT if owner_flushes else self._memtable, table_file)
            if salvage:
                options.set_paranoid_checks(False)
                options.set_disable_auto_compactions(True)
            self._db = self._connect(options)
        except Exception as error:
            raise type(failure_of(error))(f"cannot open {path}: {error}") from error

    def _connect(self, options: Any) -> Any:
        return self._rocks.Rdict(str(self._path), options)

    def check_files(self) -> None:
        """Notes in `damage` a table file that is gone or has another size than it was written with: a look at each
        file, no reading."""
        for file in self._db.live_files():
            name, size = str(file["name"]).lstrip("/"), int(file["size"])
            try:
                found = self._files.stat(self._path / name).st_size
            except FileNotFoundError:
                # Unless a compaction has just replaced it.
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
        """Monotonic seconds when the oldest flush or commit that is under way began; None: none is."""
        return self._progress.busy_since

    @property
    def failing(self) -> str:
        """Why the last commit, the last flush, or a read of the last seconds failed; "" when none did."""
        return self._progress.failing

    async def probe(self) -> None:
        """Makes something durable beside the files of the store. Raises KvError when the disk does not take it."""
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
        """Trouble of the moment, for the node's health: what fails, or has taken too long. "" when nothing is."""
        return self._progress.trouble()

    @property
    def overloaded(self) -> bool:
        """Writes pile up that cannot be committed for now: nothing more should be applied until a commit succeeds."""
        held = self._open
        return self._progress.held_since is not None and (
            held.size >= MOST_OPEN_BYTES or len(held.values) >= MOST_OPEN_WRITES
        )

    @property
    def due(self) -> bool:
        """So much was committed since the last flush that the next one should come at once: commits will have to wait
        for it soon."""
        return self._owner_flushes and self._active >= self._memtable

    @property
    def open_bytes(self) -> int:
        """Size of the open writes; commit earlier than at the end of the turn when it grows large."""
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
        """Deletes start <= key < end."""
        if start < end:
            self._open.delete_range(start, end)

    def outdated(self, key: bytes) -> None:
        """Has what `key` held before its newest write leave the disk too: with one of the next flushes, or later when
        many are asked for or space is short."""
        if len(self._outdated) < MAX_OUTDATED:
            self._outdated.add(key)

    def floor(self, key: bytes, low: bytes) -> KeyValue | None:
        """The pair with the greatest key in low..key."""
        stored = self._stored_floor(key, low)
        newer = self._open.floor(key, low) if self._open else None
        if newer is None or (stored is not None and stored[0] > newer):
            return stored
        return newer, self._open.present(newer)

    def ceiling(self, key: bytes, end: bytes) -> KeyValue | None:
        """The pair with the smallest key in key..end, `end` excluded."""
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
        """Pairs with start <= key < end, ascending. Writes made after the call may or may not show up in it."""
        pairs = self._pairs(start, end)
        return self._open.over(pairs, start, end) if self._open else pairs

    def chunks(self, start: bytes, end: bytes) -> Iterator[list[KeyValue]]:
        """As `scan`, for very many pairs at once: lists of up to CHUNK."""
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
            raise self._unreadable(error) from error
        yield from chunked(self._pairs(start, end))

    def commit(self) -> int:
        """Writes the open batch; returns `commits`. Raises KvError and keeps the batch when that fails. Keeps it, too,
        where the store would have to wait for its disk (`open_bytes`): it is to be tried again soon."""
        self._run_hooks()
        if not self._open:
            return self.commits
        if self._owner_flushes and self._must_wait():
            self._progress.held()
            self.on_held()
            return self.commits
        try:
            self._unchecked += self._open.size
            if self._unchecked >= ROOM_CHECK:
                self._check_room(self._open.size)
            if not self._write():
                self._progress.held()
                self.on_held()
                return self.commits
        except KvError as error:
            self._progress.commit_failed(error)
            self.on_held()
            raise
        if self._tight:
            self._note_garbage()
        self._eager = EAGER_COMMITS if self._open.searched else max(self._eager - 1, 0)
        self._open.clear()
        self._open.pressing = bool(self._eager or self._tight)
        self._progress.committed()
        self._active = self._size_active()
        self.commits += 1
        return self.commits

    def _write(self) -> bool:
        """Hands the open writes to RocksDB. False: it would have to wait. Raises KvError."""
        batch = self._rocks.WriteBatch(raw_mode=True)
        for start, end in self._open.ranges:  # first: what was put after a range was deleted must stay
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
        if self._stalled:  # looked up first, as the batch would be made in vain
            self._stalled = any(self._db.property_int_value(name) for name in _STALLS)
        return self._stalled or 2 * self._active >= 3 * self._memtable

    def _has_switched(self) -> bool:
        """True when what is written from now on is not part of the flush that began."""
        if self._switching and not self._db.property_int_value("rocksdb.num-entries-active-mem-table"):
            self._switching, self._active = False, 0
        return not self._switching

    def _size_active(self) -> int:
        return self._db.property_int_value("rocksdb.cur-size-active-mem-table") or 0

    def discard(self, stream: int) -> None:
        """Takes the open writes of one stream back; those of the others stay."""
        self._open.discard(keys.stream_prefix(0, stream)[1:])

    def snapshot(self) -> RocksSnapshot:
        """Commits, then a fixed view of everything, what stays open included. Only between commands."""
        self.commit()
        newer = self._open.copy() if self._open else None
        try:
            snapshot = RocksSnapshot(self._db.iter(), newer)
        except Exception as error:
            raise self._failed(error) from error
        self._snapshots.add(snapshot)
        return snapshot

    def pinned_bytes(self) -> int:
        """Memory of writes that are not flushed yet, or that snapshots keep from being freed."""
        return self._db.property_int_value("rocksdb.size-all-mem-tables") or 0

    @property
    def spare_bytes(self) -> int:
        """Free space that something large may fill: what is kept for flushes, for the journal and for a compaction that
        frees what was deleted is not among it. Negative when that is touched already."""
        unflushed = self._db.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
        return self._free() - self._reserve - unflushed - self._open.size - self.compaction_bytes() // 2

    async def reclaim(self, ranges: list[tuple[bytes, bytes]]) -> None:
        """Flushes; then what was deleted within `ranges` leaves the disk, as far as nobody reads it. Raises KvError."""
        async with self._flushing:
            await self._flush_open()
            await self._compact(ranges)

    async def _flush_open(self) -> None:
        with self._progress.flushing():
            while True:
                commit = self.commit()
                left = bool(self._open)  # it has to wait for a flush
                if commit > self.durable:
                    await self._flush_committed()
                    self._set_durable(commit)
                elif left:
                    await asyncio.sleep(_STALL_LOOK)
                if not left:
                    return

    async def _flush_committed(self) -> None:
        """Exactly what is committed: what comes meanwhile stays open until the flush has begun."""
        self._switching = self._owner_flushes
        try:
            if self.before_flush is not None:
                await self.before_flush()
            flushing = asyncio.ensure_future(asyncio.to_thread(self._flush_memtable))
            while not flushing.done() and not self._has_switched():  # noqa: ASYNC110 - RocksDB has no event for it
                await asyncio.sleep(_SWITCH_LOOK)
        finally:
            self._switching = False
        await flushing
        self._active = self._size_active()

    async def flush(self) -> None:
        """Commits, then makes all committed data durable, off the event loop. Raises KvError."""
        async with self._flushing:
            await self._flush_open()
            if self._outdated and not self._tight:
                outdated, self._outdated = self._outdated, set()
                try:
                    await self._compact([(key, key + b"\0") for key in sorted(outdated)])
                except BaseException:
                    self._outdated |= outdated
                    raise
            if self._garbage:
                garbage, self._garbage, self.wants_flush = self._garbage, {}, False
                done = False
                try:
                    done = await self._compact(list(garbage.values()))
                finally:
                    if not done:  # no room, says RocksDB for now: the next flush tries again
                        self._garbage, self.wants_flush = garbage | self._garbage, True

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
        """Open writes are gone, as in a crash; what was committed RocksDB flushes here, as it has no log."""
        self._open.clear()
        for snapshot in list(self._snapshots):
            snapshot.close()  # RocksDB stays open, and locked, as long as there is an iterator
        try:
            self._db.close()
        except Exception as error:
            raise self._failed(error) from error

    def memory_bytes(self) -> int:
        """Bytes that RocksDB holds in memtables and its block cache."""
        names = ("rocksdb.cur-size-all-mem-tables", "rocksdb.block-cache-usage")
        return sum(self._db.property_int_value(name) or 0 for name in names)

    def _free(self) -> int:
        try:
            return self._free_bytes()
        except OSError as error:
            raise KvError(str(error)) from error

    def _check_room(self, more: int) -> None:
        """Raises KvFullError unless what is in memory and `more` bytes could be flushed."""
        free = self._free()
        self._tight = free < 2 * (self._reserve + self.compaction_bytes())
        if self._tight:
            self._open.pressing = True
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
            faults.point("store.flush")
        except Exception as error:
            raise self._refused(error) from error
        self.unwritable = ""

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

    async def _compact(self, ranges: list[tuple[bytes, bytes]]) -> bool:
        """RocksDB does not tell whether it did. A compaction takes what was flushed last from the top level."""
        before = self._level0()
        for start, end in ranges:
            await self._compact_range(start, end)
        after = self._level0()
        return after == 0 or after < before

    async def _compact_range(self, start: bytes, end: bytes) -> None:
        """A compaction flushes the whole memtable when that holds anything of its keys. So it waits for what flushes
        wait for, and finds nothing in memory: nothing is committed until it has looked."""
        begun = threading.Event()

        def run() -> None:
            begun.set()
            with contextlib.suppress(Exception):
                self._db.compact_range(start, end)

        self._held_back = self._owner_flushes
        try:
            if self.before_flush is not None:
                await self.before_flush()
            if self._held_back and self._db.property_int_value("rocksdb.num-entries-active-mem-table"):
                with contextlib.suppress(KvError):  # a full disk: the compaction may be what frees it
                    await asyncio.to_thread(self._flush_memtable)
                    self._active = self._size_active()
            running = asyncio.ensure_future(asyncio.to_thread(run))
            while self._held_back and not (begun.is_set() or running.done()):  # noqa: ASYNC110 - set by a thread
                await asyncio.sleep(_SWITCH_LOOK)
            if self._held_back:
                await asyncio.wait({running}, timeout=_COMPACTION_LOOK)
        finally:
            self._held_back = False
        await running

    def _level0(self) -> int:
        return int(self._db.property_value("rocksdb.num-files-at-level0") or 0)

    def _stored_floor(self, key: bytes, low: bytes) -> KeyValue | None:
        """Bounds are checked here: rocksdict 0.3.29 takes a lower bound for an upper one."""
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
        """With a bound a seek stops at the range's end, also among the tombstones of what lies behind it."""
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
