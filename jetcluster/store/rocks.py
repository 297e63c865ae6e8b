"""RocksDB's options, its errors and a fixed view of it, for `RocksKv`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from jetcluster.store.kv import KeyValue, KvDamagedError, KvError, KvFullError, MemSnapshot, OpenWrites

MEMTABLE_BYTES = 32 << 20
"""Less on a small disk: a full memtable needs that much room to be flushed."""
TABLE_FILE_BYTES = 64 << 20
"""Less on a small disk: a compaction writes whole new files before it deletes the old ones. After one that met a full
disk, RocksDB refuses all others as large as the free space, including those that would free some."""
UNLIMITED_BYTES = 1 << 30
"""RocksDB's memtable limit if the owner flushes: at MEMTABLE_BYTES a flush is due, at 1.5 times that commits wait. So a
memtable in its flush and one that is written hold about three times as much at most."""

MAX_MEMTABLES = 3
BLOCK_CACHE_BYTES = 32 << 20
"""Bounds of RocksDB's memory: 3 x 32 MiB of writes under load, nearly nothing when idle, and 32 MiB of blocks, which
include index and filter blocks. Decoded batches have a cache of their own (`blocks.BlockCache`)."""


def options_of(rocks: Any, memtable: int, table_file: int) -> Any:
    """Return options with the bounds in bytes of a memtable and of a table file. `rocks`: the module."""
    options = rocks.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(memtable)
    options.set_target_file_size_base(table_file)
    options.set_max_write_buffer_number(MAX_MEMTABLES)
    options.set_max_background_jobs(2)
    options.set_max_open_files(256)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_compression_type(rocks.DBCompressionType.lz4())
    options.set_level_compaction_dynamic_level_bytes(True)
    # A stream with limits leaves runs of tombstones at its head: such files are compacted early.
    options.add_compact_on_deletion_collector_factory(1024, 512, 0.5)
    table = rocks.BlockBasedOptions()
    table.set_block_cache(rocks.Cache(BLOCK_CACHE_BYTES))
    table.set_block_size(16 << 10)
    table.set_bloom_filter(10, False)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options.set_block_based_table_factory(table)
    return options


class RocksSnapshot:
    """A fixed view: one iterator, for which RocksDB keeps the state of its creation. (rocksdict 0.3.29's own Snapshot
    shows later writes.) It allows one scan at a time, and pins replaced table files: it must not be kept for long.
    """

    def __init__(self, cursor: Any, newer: OpenWrites | None) -> None:
        """`newer`: writes that could not be committed."""
        self._cursor = cursor
        self._newer = newer

    def scan(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        if self._cursor is None:
            raise KvError("the database was closed")
        pairs = self._stored(start, end)
        yield from pairs if self._newer is None else self._newer.over(pairs, start, end)

    def first(self, start: bytes, end: bytes) -> KeyValue | None:
        """Return the first pair of `scan`, None without one, at the cost of a seek: a scan begins with a look at all
        newer writes."""
        if self._cursor is None:
            raise KvError("the database was closed")
        stored, newer = self._stored(start, end), self._newer
        if newer is None:
            return next(stored, None)
        found = next((pair for pair in stored if not newer.covers(pair[0])), None)
        key = newer.ceiling(start, end)
        return found if key is None or (found is not None and found[0] < key) else (key, newer.present(key))

    def _stored(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        for pair in pairs_of(self._cursor, None, start):
            if pair[0] >= end:
                return
            yield pair

    def prepare(self, kind: int, stream: int) -> Iterator[None]:
        """Return the steps that make a `scan` of a kind ready, so that it need not make them at once."""
        return iter(())

    def close(self) -> None:
        """End the view: later scans raise KvError."""
        self._cursor = self._newer = None


Snapshot = RocksSnapshot | MemSnapshot
"""Pairs as of one moment."""


def pairs_of(
    cursor: Any, bounds: Any, start: bytes, failed: Callable[[Exception], KvError] | None = None
) -> Iterator[KeyValue]:
    """Yield pairs from `start` on. `bounds` is only kept alive, as rocksdict's iterator points into it."""
    try:
        cursor.seek(start)
        valid, key, value, step = cursor.valid, cursor.key, cursor.value, cursor.next
        while valid():
            yield key(), value()
            step()
        cursor.status()
    except Exception as error:
        raise (failed or failure_of)(error) from error


_GONE: Final = "IO error: No such file or directory: While open a file for random read"
"""RocksDB's text for a missing table file: corruption, which it reports as such only on opening."""


def failure_of(error: Exception) -> KvError:
    """Return the KvError for an exception of rocksdict, which has RocksDB's status only as text."""
    text = str(error)
    if text.startswith(("Corruption", _GONE)):
        return KvDamagedError(text)
    return KvFullError(text) if "No space left" in text else KvError(text)
