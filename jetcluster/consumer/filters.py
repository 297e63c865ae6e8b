"""An index over the filters of many consumers: it finds those that want what was just stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from jetcluster.protocol.sublist import Sublist

T = TypeVar("T")


class _Filter(Generic[T]):
    __slots__ = ("queue", "subject", "taker")

    def __init__(self, subject: bytes, taker: T) -> None:
        self.subject = subject
        self.queue: bytes | None = None
        self.taker = taker


class ConsumerFilters(Generic[T]):
    """The filters of consumers; `T` stands for one, compared by identity."""

    def __init__(self) -> None:
        self._index: Sublist[_Filter[T], list[T]] = Sublist(lambda subject, plain, queues: [f.taker for f in plain])
        self._of: dict[int, list[_Filter[T]]] = {}

    def set(self, cid: int, filters: Iterable[bytes], taker: T) -> None:
        """Consumer `cid` wants what matches one of `filters`, and nothing else."""
        self.remove(cid)
        added = self._of[cid] = [_Filter(subject, taker) for subject in filters]
        for one in added:
            self._index.insert(one)

    def remove(self, cid: int) -> None:
        for one in self._of.pop(cid, ()):
            self._index.remove(one)

    def takers(self, subjects: Iterable[bytes]) -> list[T]:
        """Each once."""
        return list({id(taker): taker for subject in subjects for taker in self._index.match(subject)}.values())
