"""`BlockReader`: from sequences to messages, through the cache, with every checksum on the way verified."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jetcluster.store import keys
from jetcluster.store.api import DamagedError, Msg
from jetcluster.store.batch import Batch
from jetcluster.store.block_cache import BlockCache
from jetcluster.store.blocks import BlockTable, decode_block
from jetcluster.store.kv import Kv, KvDamagedError

_new_tuple = tuple.__new__
"""A NamedTuple's own constructor costs three times as much."""


class BlockReader:
    def __init__(self, kv: Kv, stream: int, blocks: BlockTable, cache: BlockCache) -> None:
        self._kv = kv
        self._stream = stream
        self._blocks = blocks
        self._cache = cache
        self.version = 0
        """Raised by the store at every mutation: what was looked up before it must be looked up again."""

    def batch(self, at: int) -> Batch:
        """The batch of block number `at` of the table. Raises DamagedError."""
        first = self._blocks.firsts[at]
        batch = self._cache.get(self._stream, first)
        return batch if batch is not None else self._load(at)

    def get(self, seq: int) -> Msg | None:
        blocks = self._blocks
        at = blocks.find(seq)
        if at < 0:
            return None
        first = blocks.firsts[at]
        batch = self._cache.get(self._stream, first) or self._load(at)
        position = seq - first
        return _new_tuple(Msg, (seq, blocks.times[at] + position, *batch.message(position)))

    def messages(self, seqs: Iterable[int]) -> Iterator[Msg]:
        """The messages at ascending `seqs`, all live at the first step; those deleted between steps are left out."""
        blocks = self._blocks
        version = self.version
        first = end = shift = 0
        for seq in seqs:
            if version != self.version and blocks.find(seq) < 0:
                continue
            if seq >= end:
                at = blocks.find(seq)
                first = blocks.firsts[at]
                end = first + blocks.counts[at]
                shift = blocks.times[at] - first
                message = self.batch(at).unpack().message
            yield _new_tuple(Msg, (seq, shift + seq, *message(seq - first)))

    def _load(self, at: int) -> Batch:
        first, count = self._blocks.firsts[at], self._blocks.counts[at]
        key = keys.block(self._stream, first)
        try:
            value = self._kv.get(key)
            ts, batch = decode_block(key, value or b"")
        except (KvDamagedError, DamagedError) as error:
            raise DamagedError(first, first + count - 1) from error
        if ts != self._blocks.times[at] or batch.count != count:
            raise DamagedError(first, first + count - 1)
        self._cache.put(self._stream, first, batch)
        return batch
