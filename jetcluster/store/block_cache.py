"""`BlockCache`: decoded batches of all streams of a node, the least recently used ones dropped first."""

from __future__ import annotations

from collections import OrderedDict
from weakref import WeakKeyDictionary

from jetcluster.store.batch import Batch

MOST_BYTES = 192 << 20
SHARE_OF_RAM = 50
"""A node's cache: a fiftieth of the machine's memory, 32 MiB at least, MOST_BYTES at most. A miss costs three times a
hit, so what is read at random should fit; the rest of the memory is the page cache's, which saves the disk."""

_of_kv: WeakKeyDictionary[object, BlockCache] = WeakKeyDictionary()


class BlockCache:
    """Bounded by the memory of the batches, about; a batch larger than a quarter of that is not kept."""

    def __init__(self, max_bytes: int = 32 << 20) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._batches: OrderedDict[tuple[int, int], tuple[Batch, int]] = OrderedDict()
        self._of_stream: dict[int, set[int]] = {}
        """First sequences by stream: one that goes costs what it has here, not a look at everybody's batches."""

    def get(self, stream: int, first_seq: int) -> Batch | None:
        found = self._batches.get((stream, first_seq))
        if found is None:
            return None
        self._batches.move_to_end((stream, first_seq))
        return found[0]

    def put(self, stream: int, first_seq: int, batch: Batch) -> None:
        # what the objects around the bytes take, about: columns, and with the second message subjects and offsets
        size = batch.encoded_bytes + 500 + 64 * batch.subject_count + 10 * batch.count
        if (stream, first_seq) in self._batches:
            self.drop(stream, first_seq)
        if size * 4 > self._max_bytes:
            return
        self._batches[stream, first_seq] = batch, size
        self._of_stream.setdefault(stream, set()).add(first_seq)
        self._bytes += size
        while self._bytes > self._max_bytes:
            self.drop(*next(iter(self._batches)))

    def drop(self, stream: int, first_seq: int) -> None:
        old = self._batches.pop((stream, first_seq), None)
        if old is not None:
            self._bytes -= old[1]
            held = self._of_stream[stream]
            held.discard(first_seq)
            if not held:
                del self._of_stream[stream]

    def drop_stream(self, stream: int) -> None:
        for first_seq in self._of_stream.pop(stream, ()):
            self._bytes -= self._batches.pop((stream, first_seq))[1]


def cache_of(kv: object, memory: int = 0) -> BlockCache:
    """The cache that all streams of `kv` share, so that the bound holds for the node and not for each stream. Who asks
    first makes it; `memory`: bytes that the machine has."""
    cache = _of_kv.get(kv)
    if cache is None:
        cache = _of_kv[kv] = BlockCache(bytes_of(memory))
    return cache


def bytes_of(memory: int) -> int:
    """The cache of a machine with so much memory."""
    return max(32 << 20, min(memory // SHARE_OF_RAM, MOST_BYTES))
