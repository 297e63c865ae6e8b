"""`LookupCache`: what a bucket had under its keys a moment ago, keys that it has not included."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

ENTRY_BYTES: Final = 200
"""About what an entry takes besides its key and value."""


class KeyEntry(NamedTuple):
    """The newest message of a key. All fields are None for a key that the bucket has not."""

    value: bytes | None = None
    """None also for a key that is deleted."""
    revision: int | None = None
    operation: str | None = None
    """PUT, DEL or PURGE."""
    created: int | None = None
    """Unix nanoseconds."""


class LookupCache:
    """Keeps entries for `max_age` seconds, `max_keys` of them and about `max_bytes`; those used last stay."""

    def __init__(
        self, max_age: float, max_keys: int, max_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock = clock
        self._max_age, self._max_keys, self._max_bytes = max_age, max_keys, max_bytes
        self._entries: OrderedDict[str, tuple[float, KeyEntry]] = OrderedDict()
        """(when it was asked for, what was found), by key."""
        self.size = 0
        """Bytes, about."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> KeyEntry | None:
        """Returns what is known of the key; None for nothing, or nothing that is new enough."""
        found = self._entries.get(key)
        if found is None:
            return None
        if self.clock() - found[0] >= self._max_age:
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return found[1]

    def put(self, key: str, entry: KeyEntry, asked: float) -> None:
        """`asked`: when the question was put, by the clock; what was answered may be as old as that."""
        if key in self._entries:
            self._remove(key)
        self._entries[key] = asked, entry
        self.size += _size(key, entry)
        while len(self._entries) > self._max_keys or (self.size > self._max_bytes and self._entries):
            self._remove(next(iter(self._entries)))

    def _remove(self, key: str) -> None:
        _, entry = self._entries.pop(key)
        self.size -= _size(key, entry)


def _size(key: str, entry: KeyEntry) -> int:
    return ENTRY_BYTES + len(key) + len(entry.value or b"")
