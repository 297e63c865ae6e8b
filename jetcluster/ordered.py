"""`OrderedSet`: a set that iterates in order of insertion.

A plain set's order depends on memory addresses and the hash seed. A run in which that order reaches the network, the
log or callbacks could not be replayed (tests/sim/cluster).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


class OrderedSet(dict[T, None]):
    """A dict without values."""

    __slots__ = ()

    def __init__(self, items: Iterable[T] = ()) -> None:
        super().__init__(dict.fromkeys(items))

    add = dict.setdefault
    """Adds an item. It is no Python function, as every pull request calls it."""

    def discard(self, item: T) -> None:
        self.pop(item, None)
