"""`RocksStore`: the database behind the twin of rocksdict: memtables, tables on a `SimDisk`, flushes and compactions.

All that it holds is read from memory; what a real one would read from its files for that is looked at only where the
disk has been tampered with or fails. Deleted ranges are deleted key by key, which reads the same.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import weakref
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jetcluster.files import read, sync, write
from testkit.twins.storage import rocks_tables
from testkit.twins.storage.rocks_tables import Record, RocksError, Table
from testkit.twins.storage.threads import Lock

if TYPE_CHECKING:
    from testkit.twins.storage.rocks_view import View
    from testkit.twins.storage.rocksdict import Options
    from testkit.twins.storage.sim_disk import SimDisk

ARENA: Final = 2_048
"""Bytes of an empty memtable."""
PER_RECORD: Final = 64
"""Bytes that a memtable takes for a record besides key and value."""
LEVEL0_TRIGGER: Final = 4
"""Number of tables at the top from which on they are compacted: RocksDB's default."""
BOTTOM: Final = 6


class RocksStore:
    def __init__(self, disk: SimDisk, path: str, options: Options, *, read_only: bool) -> None:
        """Opens or makes the database. Raises Exception with RocksDB's text."""
        self.values: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []
        """The keys of `values`, sorted."""
        self.changes = 0
        """Counts changes of `keys`, for iterators that remember a place in it."""
        self.views: weakref.WeakSet[View] = weakref.WeakSet()
        self.active: dict[bytes, bytes | None] = {}
        self.active_bytes = 0
        self.immutable: list[tuple[dict[bytes, bytes | None], int]] = []
        """Memtables that are to be flushed, the oldest first, with their bytes."""
        self.flushed: dict[bytes, bytes] = {}
        """The pairs that a loss of power would leave, as far as no file is damaged."""
        self.tables: list[Table] = []
        """The oldest first; those at the bottom before the others."""
        self.failed = ""
        """The error of a flush or a compaction: nothing is written from then on."""
        self.options = options
        self.read_only = read_only
        self._disk = disk
        self._files = disk.files
        self._path = Path(path)
        self._next = 1
        self._manifest = -1
        self._manifest_size = 0
        self._flush_planned = False
        self._flushing, self._compacting, self._editing = Lock(disk), Lock(disk), Lock(disk)
        """Locks of the memtables that are to be flushed, of compactions, and of the manifest. Whoever holds one of the
        first two takes the last one only."""
        self._tampered = disk.tampered
        self._bad = False
        self.live = True
        if not read_only:
            self._lock()
        try:
            self._open()
        except BaseException:
            self._unlock()
            raise

    # -- start and end

    def _lock(self) -> None:
        name = str(self._path / "LOCK")
        if name in self._disk.locked:
            raise RocksError(
                f"IO error: lock hold by current process, acquire time 1 acquiring thread 1: {name}: No locks available"
            )
        self._disk.locked[name] = self

    def _unlock(self) -> None:
        name = str(self._path / "LOCK")
        if self._disk.locked.get(name) is self:
            del self._disk.locked[name]

    def _open(self) -> None:
        files, path = self._files, self._path
        try:
            current = read(path / "CURRENT", files).decode(errors="replace").strip()
        except FileNotFoundError:
            if not self.options.creates:
                raise RocksError(f"Invalid argument: {path}: does not exist (create_if_missing is false)") from None
            current = ""
            if self.options.paranoid and any(name.endswith(".sst") for name in files.listdir(path)):
                raise RocksError("Corruption: While creating a new Db, wal_dir contains existing log file: ") from None
        except OSError as error:
            raise RocksError(_text(error)) from error
        try:
            if current:
                self._load(current)
            if not self.read_only:
                write(path / "LOCK", b"", files)
                write(path / "rocksdict-config.json", b'{"raw_mode":true}', files)
                self._new_manifest()
                self._remove_old()
        except OSError as error:
            raise RocksError(_text(error)) from error

    def _load(self, manifest: str) -> None:
        name = str(self._path / manifest)
        try:
            data = read(self._path / manifest, self._files)
        except FileNotFoundError:
            raise RocksError(f"Corruption: CURRENT file corresponds to manifest {manifest}, which is missing") from None
        found = rocks_tables.read_manifest(data, name)
        self._next = found["next"]
        self.tables = [Table(*fields) for fields in found["tables"]]
        merged: dict[bytes, bytes | None] = {}
        for table in self.tables:
            merged.update(self._load_table(table, name))
        self._bad = any(table.bad or table.broken for table in self.tables)
        self.values = {key: value for key, value in merged.items() if value is not None}
        self.keys = sorted(self.values)
        self.flushed = self.values.copy()

    def _load_table(self, table: Table, manifest: str) -> list[Record]:
        """The records of a table that can be read. Raises RocksError where a part is missing without which RocksDB does
        not open."""
        try:
            records = self._look(table)
        except FileNotFoundError:
            file = self._path / table.name
            missing = f"No such file or directory: While open a file for random read: {file}: No such file or directory"
            table.broken = f"IO error: {missing}"
            if self.options.paranoid:
                text = f"Corruption: Corruption: IO error: {missing}  The file {manifest} may be corrupted."
                raise RocksError(text) from None
            return []
        if table.broken and self.options.paranoid:
            raise RocksError(f"{table.broken}  The file {manifest} may be corrupted.")
        return records

    def _look(self, table: Table) -> list[Record]:
        """Reads its file: notes what is wrong in `bad` and `broken`. Raises OSError."""
        path = self._path / table.name
        data = read(path, self._files)
        table.seen = self._disk.file(path).tampered
        table.bad, table.broken = [], ""
        try:
            rocks_tables.read_index(table, data, str(path))
        except RocksError as error:
            table.broken = str(error)
            return []
        records: list[Record] = []
        for block in table.blocks:
            try:
                part = data[block.offset : block.offset + block.size]
                records += rocks_tables.read_block(block, part, str(path))
            except RocksError:
                table.bad.append(block)
        return records

    def _new_manifest(self) -> None:
        """Writes the manifest that each start has of its own, and which CURRENT names only once it is on the disk."""
        number, self._next = self._next, self._next + 1
        name = f"MANIFEST-{number:06d}"
        files, path = self._files, self._path
        data = rocks_tables.edit(self.tables, self._next)
        write(path / name, data, files)
        self._manifest = files.open(path / name, os.O_WRONLY | os.O_CLOEXEC)
        self._manifest_size = len(data)
        sync(path, files)
        write(path / f"{number:06d}.dbtmp", f"{name}\n".encode(), files)
        files.rename(path / f"{number:06d}.dbtmp", path / "CURRENT")
        sync(path, files)

    def _remove_old(self) -> None:
        live = {table.name for table in self.tables}
        newest = max((name for name in self._files.listdir(self._path) if name.startswith("MANIFEST-")), default="")
        for name in sorted(self._files.listdir(self._path)):
            old = name.endswith(".dbtmp") or (name.endswith(".sst") and name not in live)
            if old or (name.startswith("MANIFEST-") and name != newest):
                with contextlib.suppress(OSError):
                    self._files.unlink(self._path / name)

    def close(self) -> None:
        """Flushes, as there is no log. The lock is held for as long as there is a view. Raises Exception."""
        try:
            if not self.read_only:
                with self._compacting:
                    pass
                self.flush()
                with contextlib.suppress(OSError):
                    self._files.close(self._manifest)
        finally:
            self.live = False
            self.view_ends()

    def view_ends(self) -> None:
        if not self.live and not self.views:
            self._unlock()

    def get(self, key: bytes) -> bytes | None:
        """Raises Exception."""
        if self.may_be_bad() and key not in self.active and all(key not in memtable for memtable, _ in self.immutable):
            self.check(key, key)
        return self.values.get(key)

    # -- writing

    def write(self, operations: list[tuple[int, bytes, bytes]], *, may_wait: bool) -> None:
        """Writes in order: (0, key, value) puts, (1, key, "") deletes, (2, start, end) deletes a range. Raises
        Exception."""
        if self.read_only:
            raise RocksError("Not implemented: Not supported operation in read only mode.")
        if self.failed:
            raise RocksError(self.failed)
        if len(self.immutable) >= self.options.memtables - 1 and self.active_bytes >= self.options.memtable:
            if not may_wait:
                raise RocksError("Result incomplete: Write stall")
            self.flush_planned()
        for kind, key, value in operations:
            if kind == 0:
                self._put(key, value)
            elif kind == 1:
                self._delete(key)
                self._note(key, None)
            else:
                self.delete_range(key, value)
        if self.active_bytes >= self.options.memtable:
            self._switch()
            self._plan_flush()

    def _note(self, key: bytes, value: bytes | None) -> None:
        self.active[key] = value
        self.active_bytes += PER_RECORD + len(key) + len(value or b"")

    def _put(self, key: bytes, value: bytes) -> None:
        for view in self.views:
            view.before(key, self.values.get(key))
        if key not in self.values:
            if not self.keys or key > self.keys[-1]:
                self.keys.append(key)
            else:
                bisect.insort(self.keys, key)
                self.changes += 1
        self.values[key] = value
        self._note(key, value)

    def _delete(self, key: bytes) -> None:
        value = self.values.pop(key, None)
        if value is None:
            return
        for view in self.views:
            view.before(key, value)
        del self.keys[bisect.bisect_left(self.keys, key)]
        self.changes += 1

    def delete_range(self, start: bytes, end: bytes) -> None:
        if end < start:
            self.failed = "Invalid argument: end key comes before start key"
            raise RocksError(self.failed)
        low, high = bisect.bisect_left(self.keys, start), bisect.bisect_left(self.keys, end)
        gone = self.keys[low:high]
        for key in gone:
            value = self.values.pop(key)
            for view in self.views:
                view.before(key, value)
            self._note(key, None)
        del self.keys[low:high]
        self.changes += 1
        self.active_bytes += PER_RECORD + len(start) + len(end)

    # -- flushes

    def _switch(self) -> None:
        if self.active:
            self.immutable.append((self.active, self.active_bytes))
        self.active, self.active_bytes = {}, 0

    def _plan_flush(self) -> None:
        if not self._flush_planned:
            self._flush_planned = True
            self.options.background(self.flush_planned)

    def flush_planned(self) -> None:
        """Flushes in the background: an error is kept, and refuses the next write."""
        self._flush_planned = False
        with contextlib.suppress(Exception):
            self.flush_immutable()

    def flush(self) -> None:
        """All that is in memory, durable once this returns. Raises Exception."""
        self._disk.call()
        if self.failed:
            raise RocksError(self.failed)
        self._switch()
        self.flush_immutable()

    def flush_immutable(self) -> None:
        with self._flushing:
            self._flush_immutable()
        top = sum(table.level == 0 for table in self.tables)
        if self.options.compacts and top >= LEVEL0_TRIGGER and self._compacting.holder is None:
            with self._compacting:  # of files alone: what is in memory by now stays there
                self._compact(None, None)

    def _flush_immutable(self) -> None:
        if self.failed:
            raise RocksError(self.failed)
        while self.immutable:
            memtable = self.immutable[0][0]
            try:
                self._commit(self._write_table(0, sorted(memtable.items())))
            except OSError as error:
                raise self._fails(error) from error
            self.immutable.pop(0)
            for key, value in memtable.items():
                if value is None:
                    self.flushed.pop(key, None)
                else:
                    self.flushed[key] = value

    def _fails(self, error: OSError) -> RocksError:
        self.failed = _text(error)
        return RocksError(self.failed)

    def _write_table(self, level: int, records: list[Record]) -> Table:
        """Durable, and nobody's yet. Raises OSError."""
        number, self._next = self._next, self._next + 1
        table, data = rocks_tables.encode(number, level, records)
        path = self._path / table.name
        try:
            write(path, data, self._files)
            sync(self._path, self._files)
        except OSError:
            with contextlib.suppress(OSError):
                self._files.unlink(path)
            raise
        return table

    def _commit(self, new: Table | None, gone: Container[Table] = ()) -> None:
        """The manifest names `new` from here on, and those in `gone` no more. Raises OSError."""
        with self._editing:
            kept = [table for table in self.tables if table not in gone]
            added = [] if new is None else [new]
            tables = added + kept if new is not None and new.level == BOTTOM else kept + added
            data = rocks_tables.edit(tables, self._next)
            at = 0
            while at < len(data):
                at += self._files.pwrite(self._manifest, data[at:], self._manifest_size + at)
            self._files.fsync(self._manifest)
            self._manifest_size += len(data)
            old = [table for table in self.tables if table in gone]
            self.tables = tables
        for table in old:
            with contextlib.suppress(OSError):
                self._files.unlink(self._path / table.name)

    # -- compactions

    def compact(self, start: bytes | None, end: bytes | None) -> None:
        """Makes one table at the bottom of all tables with keys of [start, end], and of their keys in memory. A disk
        that is too full for that refuses this one; any other error refuses all that is written from then on."""
        self._disk.call()
        if self.failed:
            return
        if any(_within(key, start, end) for key in self.active):
            self._switch()
            self.flush_immutable()
        with self._compacting:
            self._compact(start, end)

    def _compact(self, start: bytes | None, end: bytes | None) -> None:
        chosen = [table for table in self.tables if table.overlaps(start, end) or table.broken]
        grown = True
        while grown and chosen:  # whatever overlaps what is moved down has to go with it
            low, high = min(t.first for t in chosen), max(t.last for t in chosen)
            wider = [t for t in self.tables if t in chosen or t.overlaps(low, high)]
            grown, chosen = len(wider) > len(chosen), wider
        if not chosen or (len(chosen) == 1 and chosen[0].level == BOTTOM and not chosen[0].deleted):
            return
        try:
            merged: dict[bytes, bytes | None] = {}
            for table in chosen:
                records = self._look(table)
                if table.broken or table.bad:
                    self.failed = table.broken or self._why(table, table.bad[0])
                    return
                merged.update(records)
            records = sorted((key, value) for key, value in merged.items() if value is not None)
            self._commit(self._write_table(BOTTOM, records) if records else None, chosen)
        except OSError as error:
            if error.errno != 28:
                self.failed = _text(error)

    # -- damage

    def may_be_bad(self) -> bool:
        disk = self._disk
        return bool(disk.faults) or disk.tampered != self._tampered or self._bad

    def check(self, start: bytes, end: bytes | None) -> None:
        """Looks at what a read of keys of [start, end] reads from the disk. Raises Exception."""
        disk = self._disk
        for table in self.tables:
            path = str(self._path / table.name)
            if disk.faults and (table.broken or table.blocks_over(start, end)):
                try:
                    disk.check("read", path)
                except OSError as error:
                    raise RocksError(_text(error, "While pread")) from error
            try:
                if not table.broken and disk.file(path).tampered != table.seen:
                    self._look(table)
            except OSError as error:
                table.broken = _text(error)
            if table.broken:
                raise RocksError(table.broken)
            for block in table.blocks_over(start, end) if table.bad else ():
                if block in table.bad:
                    raise RocksError(self._why(table, block))

    def _why(self, table: Table, block: rocks_tables.Block) -> str:
        path = self._path / table.name
        data = read(path, self._files)[block.offset : block.offset + block.size]
        try:
            rocks_tables.read_block(block, data, str(path))
        except RocksError as error:
            return str(error)
        return f"Corruption: block checksum mismatch in {path} offset {block.offset} size {block.size}"

    def property(self, name: str) -> int | None:
        """The value of a property that the product asks for, by RocksDB's name."""
        self._disk.call()
        if name == "rocksdb.num-entries-active-mem-table":
            return len(self.active)
        if name == "rocksdb.cur-size-active-mem-table":
            return ARENA + self.active_bytes
        if name in ("rocksdb.size-all-mem-tables", "rocksdb.cur-size-all-mem-tables"):
            return ARENA + self.active_bytes + sum(size for _, size in self.immutable)
        if name == "rocksdb.total-sst-files-size":
            return sum(table.size for table in self.tables)
        if name == "rocksdb.num-files-at-level0":
            return sum(table.level == 0 for table in self.tables)
        if name == "rocksdb.is-write-stopped":
            return int(len(self.immutable) >= self.options.memtables)
        if name == "rocksdb.background-errors":
            return int(bool(self.failed))
        return 0 if name in ("rocksdb.actual-delayed-write-rate", "rocksdb.block-cache-usage") else None


def _within(key: bytes, start: bytes | None, end: bytes | None) -> bool:
    return (start is None or key >= start) and (end is None or key <= end)


def _text(error: OSError, doing: str = "While appending to file") -> str:
    reason = os.strerror(error.errno or 0)
    return f"IO error: {reason}: {doing}: {error.filename}: {reason}"
