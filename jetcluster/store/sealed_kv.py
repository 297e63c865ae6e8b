"""`SealedKv`: the data store with encryption at rest, and its readers.

Callers see plain pairs. Below this port all is sealed: the open writes, RocksDB's memory and its files. What a key's
seal takes away is the order of subjects. Single subjects and whole kinds are searched as before. Only a transfer needs
all postings in order: at the giver, `SealedSnapshot` sorts the names of the stream first (`prepare`); a receiver drops
what it has of these kinds, and takes the giver's (`unordered`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Any, Final

from jetcluster.store import keys
from jetcluster.store.kv import KeyValue, chunked
from jetcluster.store.rocks import RocksSnapshot
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.rocks_reader import RocksReader
from jetcluster.store.seal import HIGHEST, UNORDERED, StoreSeal

_POSTING, _SIDE = bytes([keys.POSTING]), bytes([keys.SIDE])
_STEP_NAMES: Final = 512
"""Names that are read, or put in order, between two pauses."""


class Sealed(RocksKv):
    """A `RocksKv` whose pairs are sealed."""

    unordered = UNORDERED

    def __init__(self, path: Path, seal: StoreSeal, **options: Any) -> None:
        super().__init__(path, **options)
        self._seal = seal
        self.put_new = self._put_new

    def get(self, key: bytes) -> bytes | None:
        stored = self._seal.key(key)
        value = super().get(stored)
        return None if value is None else self._seal.opened(stored, value)

    def put(self, key: bytes, value: bytes) -> None:
        super().put(*self._seal.sealed(key, value))

    def _put_new(self, pairs: dict[bytes, bytes]) -> None:
        self.writes.put_new(self._seal.all_sealed(pairs))

    def delete(self, key: bytes) -> None:
        super().delete(self._seal.key(key))

    def delete_each(self, keys: Iterable[bytes]) -> None:
        super().delete_each(map(self._seal.key, keys))

    def delete_range(self, start: bytes, end: bytes) -> None:
        super().delete_range(self._seal.key(start), self._seal.key(end))

    def outdated(self, start: bytes, end: bytes = b"") -> None:
        super().outdated(self._seal.key(start), self._seal.key(end) if end else b"")

    def floor(self, key: bytes, low: bytes) -> KeyValue | None:
        found = super().floor(self._seal.key(key), self._seal.key(low))
        return None if found is None else self._seal.pair(found)

    def ceiling(self, key: bytes, end: bytes) -> KeyValue | None:
        found = super().ceiling(self._seal.key(key), self._seal.key(end))
        return None if found is None else self._seal.pair(found)

    def scan(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        """Return pairs with start <= key < end, in the stored order."""
        return map(self._seal.pair, super().scan(self._seal.key(start), self._seal.key(end)))

    def scan_after(self, key: bytes, end: bytes) -> Iterator[KeyValue]:
        return map(self._seal.pair, super().scan(self._seal.key(key) + b"\0", self._seal.key(end)))

    def chunks(self, start: bytes, end: bytes) -> Iterator[list[KeyValue]]:
        pair = self._seal.pair
        low, high = self._seal.key(start), self._seal.key(end)
        found = chunked(super().scan(low, high)) if self.writes or low >= high else self._stored_chunks(low, high)
        return (list(map(pair, chunk)) for chunk in found)

    def snapshot(self) -> RocksSnapshot:
        return SealedSnapshot(super().snapshot(), self._seal)


class SealedKv(Sealed):
    """The data store in directory `path`, sealed. `options`: see `RocksKv`. Raises KvError."""


class SealedReader(Sealed, RocksReader):
    """A `RocksReader` of a sealed store."""


class SealedSnapshot(RocksSnapshot):
    """A fixed view of a sealed store, in the order of the plain keys."""

    def __init__(self, stored: RocksSnapshot, seal: StoreSeal) -> None:
        self._stored_view = stored
        self._seal = seal
        self._heads: dict[bytes, list[bytes]] = {}
        """Stream's prefix -> the postings' keys up to their subjects, in order."""
        self._rows: dict[bytes, list[tuple[bytes, bytes]]] = {}
        """Prefix of a side table with names -> keys and stored keys, in order."""

    def scan(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        if start[:1] == _POSTING:
            return self._postings(start, end)
        if start[:1] == _SIDE:
            return self._side(start, end)
        return map(self._seal.pair, self._stored_view.scan(start, end))

    def close(self) -> None:
        self._stored_view.close()

    def prepare(self, kind: int, stream: int) -> Iterator[None]:
        if kind == keys.POSTING and (prefix := keys.stream_prefix(kind, stream)) not in self._heads:
            yield from self._find_heads(prefix)

    def _find_heads(self, prefix: bytes) -> Iterator[None]:
        """Find the subjects of a stream, each by one seek, and put them in order; an element is a pause."""
        at, end = prefix, keys.stream_end(keys.POSTING, int.from_bytes(prefix[1:]))
        runs: list[list[bytes]] = [[]]
        while (found := self._stored_view.first(at, end)) is not None:
            stored = found[0]
            at = stored[: self._seal.head_end(stored)] + HIGHEST
            runs[-1].append(self._seal.shown(stored)[:-8])
            if len(runs[-1]) == _STEP_NAMES:
                runs[-1].sort()
                runs.append([])
                yield
        runs[-1].sort()
        ordered, heads = merge(*runs), []
        while part := list(islice(ordered, _STEP_NAMES)):
            heads += part
            yield
        self._heads[prefix] = heads

    def _postings(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        if (head := keys.posting_head_of(start)) and end.startswith(head):  # one subject: its place needs no order
            stored = self._seal.key(head)
            low, high = stored + start[len(head) :], stored + end[len(head) :]
            yield from map(self._seal.pair, self._stored_view.scan(low, high))
            return
        prefix = start[: keys.STREAM_PREFIX]
        for _ in self.prepare(keys.POSTING, int.from_bytes(prefix[1:])):
            pass
        heads = self._heads[prefix]
        at = bisect_right(heads, start)
        if at and start.startswith(heads[at - 1]):
            at -= 1
        else:
            at = bisect_left(heads, start)
        for number in range(at, len(heads)):
            head = heads[number]
            if head >= end:
                return
            stored = self._seal.key(head)
            low = start[len(head) :] if start.startswith(head) else b""
            high = end[len(head) :] if end.startswith(head) else HIGHEST
            yield from map(self._seal.pair, self._stored_view.scan(stored + low, stored + high))

    def _side(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        """Yield rows, table by table."""
        prefix = start[: keys.STREAM_PREFIX]
        at = start
        for table in sorted(self._seal.named):
            own = prefix + bytes([table])
            after = prefix + bytes([table + 1])
            if at < own:
                yield from self._plain(at, min(own, end))
            for key, stored in self._named_rows(own, after) if at < after and own < end else ():
                if max(at, own) <= key < end:
                    yield from map(self._seal.pair, self._stored_view.scan(stored, stored + b"\0"))
            at = max(at, after)
        if at < end:
            yield from self._plain(at, end)

    def _plain(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        return map(self._seal.pair, self._stored_view.scan(start, end))

    def _named_rows(self, own: bytes, after: bytes) -> list[tuple[bytes, bytes]]:
        rows = self._rows.get(own)
        if rows is None:
            found = self._stored_view.scan(own, after)
            rows = self._rows[own] = sorted((self._seal.shown(stored), stored) for stored, _ in found)
        return rows
