"""A fixed view of RocksDB and its errors: what `RocksKv` shares with its snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from jetcluster.store.kv import KeyValue, KvDamagedError, KvError, KvFullError, MemSnapshot, OpenWrites


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
