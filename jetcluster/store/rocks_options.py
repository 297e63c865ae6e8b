"""Options of the data store's RocksDB."""

from __future__ import annotations

from typing import Any

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
with index and filter blocks among them. jetcluster's own cache of decoded batches (`blocks.BlockCache`) stands above."""


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
