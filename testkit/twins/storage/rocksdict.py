"""Twin of the package `rocksdict`, as far as the data store uses it (`jetcluster.store.rocks_kv`), on a `SimDisk`.

`RocksModule` is in the place of the module. Names and errors are rocksdict's; what differs is that nothing runs in a
thread. Held against the real one by `testkit.twins.storage.differential`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from testkit.twins.storage.rocks_store import RocksStore
from testkit.twins.storage.rocks_view import View

if TYPE_CHECKING:
    from testkit.twins.storage.sim_disk import SimDisk

Background = Callable[[Callable[[], None]], Any]
"""Does some work later, or at once."""


class DbClosedError(Exception):
    pass


class Options:
    def __init__(self, raw_mode: bool = False) -> None:
        assert raw_mode, "only bytes are kept here"
        self.creates = False
        self.paranoid = True
        self.compacts = True
        self.memtable = 64 << 20
        self.memtables = 2
        self.background: Background = _at_once

    def create_if_missing(self, wanted: bool) -> None:
        self.creates = wanted

    def set_write_buffer_size(self, size: int) -> None:
        self.memtable = size

    def set_max_write_buffer_number(self, count: int) -> None:
        self.memtables = count

    def set_paranoid_checks(self, wanted: bool) -> None:
        self.paranoid = wanted

    def set_disable_auto_compactions(self, wanted: bool) -> None:
        self.compacts = not wanted

    def _ignored(self, *values: Any) -> None:
        """Options of speed, memory or the log, which have no meaning here."""

    set_target_file_size_base = set_max_background_jobs = set_max_open_files = _ignored
    set_keep_log_file_num = set_max_log_file_size = set_stats_dump_period_sec = _ignored
    set_compression_type = set_level_compaction_dynamic_level_bytes = _ignored
    add_compact_on_deletion_collector_factory = set_block_based_table_factory = _ignored


class BlockBasedOptions:
    def _ignored(self, *values: Any) -> None:
        """Options of speed and memory, which have no meaning here."""

    set_block_cache = set_block_size = set_bloom_filter = _ignored
    set_cache_index_and_filter_blocks = set_pin_l0_filter_and_index_blocks_in_cache = _ignored


class Cache:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity


class DBCompressionType:
    @staticmethod
    def lz4() -> str:
        return "lz4"


class AccessType:
    def __init__(self, name: str) -> None:
        self.name = name

    @staticmethod
    def read_write() -> AccessType:
        return AccessType("read_write")

    @staticmethod
    def read_only() -> AccessType:
        return AccessType("read_only")


class WriteOptions:
    def __init__(self) -> None:
        self.disable_wal = False
        self.no_slowdown = False


class ReadOptions:
    def __init__(self) -> None:
        self.upper: bytes | None = None

    def set_iterate_upper_bound(self, key: bytes) -> None:
        self.upper = key


class WriteBatch:
    def __init__(self, raw_mode: bool = False) -> None:
        assert raw_mode, "only bytes are kept here"
        self.operations: list[tuple[int, bytes, bytes]] = []

    def put(self, key: bytes, value: bytes) -> None:
        self.operations.append((0, key, value))

    def delete(self, key: bytes) -> None:
        self.operations.append((1, key, b""))

    def delete_range(self, begin: bytes, end: bytes) -> None:
        self.operations.append((2, begin, end))


class Rdict:
    def __init__(self, store: RocksStore) -> None:
        self._store: RocksStore | None = store

    @property
    def store(self) -> RocksStore:
        if self._store is None:
            raise DbClosedError("DB instance already closed")
        return self._store

    def get(self, key: bytes) -> bytes | None:
        return self.store.get(key)

    def iter(self, read_opt: ReadOptions | None = None) -> View:
        return View(self.store, None if read_opt is None else read_opt.upper)

    def items(
        self, backwards: bool = False, from_key: bytes | None = None, read_opt: ReadOptions | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Ends without a word where it cannot read, as rocksdict's does."""
        view = self.iter(read_opt)
        if backwards:
            view.seek_to_last() if from_key is None else view.seek_for_prev(from_key)
        else:
            view.seek(b"" if from_key is None else from_key)
        return _pairs(view, view.prev if backwards else view.next)

    def write(self, batch: WriteBatch, write_opt: WriteOptions) -> None:
        assert write_opt.disable_wal, "there is no log here"
        self.store.write(batch.operations, may_wait=not write_opt.no_slowdown)

    def flush(self, wait: bool = True) -> None:
        self.store.flush()

    def compact_range(self, begin: bytes | None, end: bytes | None) -> None:
        self.store.compact(begin, end)

    def property_int_value(self, name: str) -> int | None:
        return self.store.property(name)

    def property_value(self, name: str) -> str | None:
        found = self.store.property(name)
        return None if found is None else str(found)

    def live_files(self) -> list[dict[str, Any]]:
        return [
            {
                "name": f"/{table.name}", "size": table.size, "level": table.level, "start_key": table.first,
                "end_key": table.last, "num_entries": table.records, "num_deletions": table.deleted,
            }
            for table in reversed(self.store.tables)
        ]  # fmt: skip

    def close(self) -> None:
        store, self._store = self.store, None
        store.close()


def _pairs(view: View, step: Callable[[], None]) -> Iterator[tuple[bytes, bytes]]:
    while view.valid():
        key, value = view.key(), view.value()
        assert key is not None and value is not None
        yield key, value
        step()


def _at_once(work: Callable[[], None]) -> None:
    work()


class RocksModule:
    """The twin of the module `rocksdict`, for one machine."""

    Options = Options
    BlockBasedOptions = BlockBasedOptions
    Cache = Cache
    DBCompressionType = DBCompressionType
    AccessType = AccessType
    WriteOptions = WriteOptions
    ReadOptions = ReadOptions
    WriteBatch = WriteBatch
    DbClosedError = DbClosedError

    def __init__(self, disk: SimDisk, background: Background = _at_once) -> None:
        """`background`: does the flushes that RocksDB begins by itself; the owner's are done by whoever asks."""
        self._disk = disk
        self._background = background

    def Rdict(self, path: str, options: Any, access_type: Any = None) -> Any:
        """Raises Exception with RocksDB's text."""
        options.background = self._background
        read_only = access_type is not None and access_type.name == "read_only"
        return Rdict(RocksStore(self._disk, path, options, read_only=read_only))
