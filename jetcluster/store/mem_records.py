"""`MemRecords`: either side of a transfer (`store.transfer`) of a state that is small enough to be in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from jetcluster.store.kv import KeyValue


class MemSnapshot:
    """`pairs` ascending."""

    def __init__(self, pairs: list[KeyValue]) -> None:
        self._pairs = pairs

    def scan(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        low = bisect_left(self._pairs, start, key=lambda pair: pair[0])
        for at in range(low, len(self._pairs)):
            if self._pairs[at][0] >= end:
                return
            yield self._pairs[at]


class MemRecords:
    """The pairs of one state, and no other: a `transfer.Taker` writes to it."""

    overloaded = False

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self._values[key] = value

    def delete_each(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._values.pop(key, None)

    def delete_range(self, start: bytes, end: bytes) -> None:
        self.delete_each([key for key in self._values if start <= key < end])

    def commit(self) -> int:
        """All is in memory already."""
        return 0

    def snapshot(self) -> MemSnapshot:
        return MemSnapshot(sorted(self._values.items()))
