"""`KeyRows`: a set of keys of one consumer, a row each; only what changed is written, once per commit of the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from jetcluster.ordered import OrderedSet

K = TypeVar("K", int, bytes)


class KeyRows(Generic[K]):
    __slots__ = ("_changes", "_encode", "keys")

    def __init__(self, encode: Callable[[K], bytes]) -> None:
        """`encode` makes of a key what is its row's key, behind the consumer's id."""
        self.keys: dict[K, None] = {}
        self._changes: OrderedSet[K] = OrderedSet()
        self._encode: Callable[[K], bytes] = encode

    def add(self, key: K) -> bool:
        """False when it is there already."""
        if key in self.keys:
            return False
        self.keys[key] = None
        self._changes.add(key)
        return True

    def discard(self, key: K) -> bool:
        """False when it is not there."""
        if key not in self.keys:
            return False
        del self.keys[key]
        self._changes.add(key)
        return True

    def clear(self) -> None:
        self._changes.update(self.keys)
        self.keys.clear()

    def write(self, prefix: bytes, put: Callable[[bytes, bytes], None], delete: Callable[[bytes], None]) -> None:
        """The rows that changed since the last call; `prefix` is the consumer's id."""
        for key in self._changes:
            if key in self.keys:
                put(prefix + self._encode(key), b"")
            else:
                delete(prefix + self._encode(key))
        self._changes.clear()

    def remove(self, prefix: bytes, delete: Callable[[bytes], None]) -> None:
        """All rows."""
        for key in self._changes | self.keys:
            delete(prefix + self._encode(key))
