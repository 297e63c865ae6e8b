"""RocksDB as `RocksKv` and its snapshots share it: its options, its errors, and a fixed view of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from jetcluster.store.kv import KeyValue, KvDamagedError, KvError, KvFullError, MemSnapshot, OpenWrites

MEMTABLE = 32 << 20
"""On a small disk less: a full memtable needs that much room to be flushed."""
TABLE_FILE = 64 << 20
"""On a small disk less, too: a compaction writes whole files anew before it deletes the old ones. One that finds the
disk full would leave RocksDB refusing all others that are as large as what is free, also those that free space."""
NO_LIMIT = 1 << 30
"""Bytes of the memtable, as RocksDB is told where the owner flushes: at MEMTABLE a flush is due, and commits wait for
it at half as much again. So there are never more than twice that, one being flushed and one being written."""

MEMTABLES = 3
BLOCK_CACHE = 32 << 20
"""Bounds of RocksDB's own memory: 3 x 32 MiB of writes under load, nearly nothing when idle, and 32 MiB of blocks
with index and filter blocks among them. The cache of decoded batches (`blocks.BlockCache`) stands above."""


def options_of(rocks: Any, memtable: int, table_file: int) -> Any:
    """`rocks`: the module. Bytes of a memtable, and of a table file, at most."""
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


class RocksSnapshot:
    """One iterator: RocksDB keeps what it saw when it was made. (rocksdict 0.3.29's own Snapshot shows later writes.)

    One scan at a time. It pins table files that compaction has replaced meanwhile; do not keep it for long.
    """

    def __init__(self, cursor: Any, newer: OpenWrites | None) -> None:
        """`newer`: what could not be committed."""
        self._cursor = cursor
        self._newer = newer

    def scan(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        if self._cursor is None:
            raise KvError("the database was closed")
        pairs = self._stored(start, end)
        yield from pairs if self._newer is None else self._newer.over(pairs, start, end)

    def _stored(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        for pair in pairs_of(self._cursor, None, start):
            if pair[0] >= end:
                return
            yield pair

    def close(self) -> None:
        """Scans raise KvError from here on."""
        self._cursor = self._newer = None


Snapshot = RocksSnapshot | MemSnapshot
"""Pairs as of one moment."""


def pairs_of(
    cursor: Any, bounds: Any, start: bytes, failed: Callable[[Exception], KvError] | None = None
) -> Iterator[KeyValue]:
    """Pairs from `start` on. `bounds` is only held: rocksdict's iterator points into it, and reads freed memory when it
    is gone first."""
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
"""A table file that the manifest names is not there. An opening calls that a corruption; a read, of a store that was
opened with the files that are there, does not. But it will never succeed either."""


def failure_of(error: Exception) -> KvError:
    """The KvError for what rocksdict raised: it has bare exceptions with RocksDB's status as text."""
    text = str(error)
    if text.startswith(("Corruption", _GONE)):
        return KvDamagedError(text)
    return KvFullError(text) if "No space left" in text else KvError(text)
