"""`BlockCache`: decoded batches of all streams of a node, the least recently used ones dropped first."""

from __future__ import annotations

from collections import OrderedDict
from weakref import WeakKeyDictionary

from jetcluster.store.batch import Batch

DEFAULT_BYTES = 32 << 20

_of_kv: WeakKeyDictionary[object, BlockCache] = WeakKeyDictionary()


class BlockCache:
    """Bounded by the bytes of the encoded batches; a batch larger than a quarter of that is not kept."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._batches: OrderedDict[tuple[int, int], tuple[Batch, int]] = OrderedDict()

    def get(self, stream: int, first_seq: int) -> Batch | None:
        found = self._batches.get((stream, first_seq))
        if found is None:
            return None
        self._batches.move_to_end((stream, first_seq))
        return found[0]

    def put(self, stream: int, first_seq: int, batch: Batch) -> None:
        size = batch.encoded_bytes + 500  # what the objects around the bytes take, about
        self.drop(stream, first_seq)
        if size * 4 > self._max_bytes:
            return
        self._batches[stream, first_seq] = batch, size
        self._bytes += size
        while self._bytes > self._max_bytes:
            _, (_, dropped) = self._batches.popitem(last=False)
            self._bytes -= dropped

    def drop(self, stream: int, first_seq: int) -> None:
        old = self._batches.pop((stream, first_seq), None)
        if old is not None:
            self._bytes -= old[1]

    def drop_stream(self, stream: int) -> None:
        for key in [key for key in self._batches if key[0] == stream]:
            self.drop(*key)


def cache_of(kv: object) -> BlockCache:
    """The cache that all streams of `kv` share, so that the bound holds for the node and not for each stream."""
    cache = _of_kv.get(kv)
    if cache is None:
        cache = _of_kv[kv] = BlockCache()
    return cache
