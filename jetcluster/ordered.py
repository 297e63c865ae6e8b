"""`OrderedSet`: a set that is gone through in the order in which it was filled.

That of a plain set hangs on addresses in memory and on the seed of hashes. Where it reaches the network, the log or the
order of callbacks, a run could not be replayed (tests/sim/cluster).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


class OrderedSet(dict[T, None]):
    __slots__ = ()

    def __init__(self, items: Iterable[T] = ()) -> None:
        super().__init__(dict.fromkeys(items))

    add = dict.setdefault
    """Takes an item: without a function of Python in between, as it is asked of every pull."""

    def discard(self, item: T) -> None:
        self.pop(item, None)
