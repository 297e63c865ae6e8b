"""`View`: an iterator of the twin of rocksdict, over what the database held when it was made."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

from testkit.twins.storage.rocks_tables import RocksError

if TYPE_CHECKING:
    from testkit.twins.storage.rocks_store import RocksStore


class View:
    """A snapshot: it keeps the values of before, key by key, once they change."""

    def __init__(self, store: RocksStore, upper: bytes | None) -> None:
        """`upper`: keys from there on are not seen."""
        self._store = store
        self._upper = upper
        self._old: dict[bytes, bytes | None] = {}
        """The values of keys that have changed; None: there was none."""
        self._old_keys: list[bytes] = []
        """The keys of `_old` that had a value, sorted."""
        self._key: bytes | None = None
        self._at = -1
        """The place of `_key` among the store's keys, as of `_changes`."""
        self._changes = -1
        self._error = ""
        store.views.add(self)

    def __del__(self) -> None:
        store = getattr(self, "_store", None)
        if store is not None and not store.live:
            store.views.discard(self)
            store.view_ends()

    def before(self, key: bytes, value: bytes | None) -> None:
        """`key` is about to be changed, and has `value`."""
        if key not in self._old:
            self._old[key] = value
            if value is not None:
                bisect.insort(self._old_keys, key)

    # -- as RdictIter

    def valid(self) -> bool:
        return self._key is not None

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        key = self._key
        if key is None:
            return None
        if self._old and key in self._old:
            return self._old[key]
        return self._store.values[key]

    def status(self) -> None:
        """Raises Exception where it ended because it could not read."""
        if self._error:
            raise RocksError(self._error)

    def seek(self, key: bytes) -> None:
        self._error = ""
        keys = self._store.keys
        self._forward(bisect.bisect_left(keys, key), key)

    def seek_to_first(self) -> None:
        self.seek(b"")

    def seek_for_prev(self, key: bytes) -> None:
        self._error = ""
        if self._upper is not None and key >= self._upper:
            self._backward(bisect.bisect_left(self._store.keys, self._upper) - 1, self._upper, inclusive=False)
        else:
            self._backward(bisect.bisect_right(self._store.keys, key) - 1, key, inclusive=True)

    def seek_to_last(self) -> None:
        self._error = ""
        if self._upper is not None:
            self._backward(bisect.bisect_left(self._store.keys, self._upper) - 1, self._upper, inclusive=False)
        else:
            self._backward(len(self._store.keys) - 1, None, inclusive=True)

    def next(self) -> None:
        if self._key is None:
            return
        at = self._at + 1 if self._changes == self._store.changes else bisect.bisect_right(self._store.keys, self._key)
        self._forward(at, self._key + b"\0")

    def prev(self) -> None:
        if self._key is None:
            return
        known = self._changes == self._store.changes
        at = self._at if known else bisect.bisect_left(self._store.keys, self._key)
        self._backward(at - 1, self._key, inclusive=False)

    def _forward(self, at: int, start: bytes) -> None:
        """Goes to the first key from `start` on; the store's own begin at `at`."""
        store, old = self._store, self._old
        keys = store.keys
        while at < len(keys) and old and keys[at] in old:
            at += 1  # those that were there stand in `_old_keys`
        found = keys[at] if at < len(keys) else None
        if self._old_keys:
            place = bisect.bisect_left(self._old_keys, start)
            if place < len(self._old_keys) and (found is None or self._old_keys[place] < found):
                found, at = self._old_keys[place], -1
        if found is not None and self._upper is not None and found >= self._upper:
            found = None
        self._arrive(found, at, start, found if found is not None else self._upper)

    def _backward(self, at: int, end: bytes | None, *, inclusive: bool) -> None:
        store, old = self._store, self._old
        keys = store.keys
        while at >= 0 and old and keys[at] in old:
            at -= 1
        found = keys[at] if at >= 0 else None
        if self._old_keys:
            side = bisect.bisect_right if inclusive else bisect.bisect_left
            place = (len(self._old_keys) if end is None else side(self._old_keys, end)) - 1
            if place >= 0 and (found is None or self._old_keys[place] > found):
                found, at = self._old_keys[place], -1
        self._arrive(found, at, found if found is not None else b"", end)

    def _arrive(self, found: bytes | None, at: int, start: bytes, end: bytes | None) -> None:
        self._key, self._at = found, at
        self._changes = self._store.changes if at >= 0 else -1
        if self._store.may_be_bad():
            try:
                self._store.check(start, end)
            except Exception as error:
                self._key, self._error = None, str(error)
