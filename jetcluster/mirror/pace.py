"""`Pace`: how many links may ask their upstreams again in a while, of one stream and of the node.

An attempt costs about a millisecond here and where the upstream is. One link asks ever more rarely, but thousands of
them that all fail would keep a node busy without end.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

from jetcluster.clock import Timers

WINDOW: Final = 0.1
"""Seconds."""


class Pace:
    """Turns are given at once while the window has some left, else in later windows: streams in turns, the links of a
    stream in their order."""

    def __init__(self, per_stream: int, per_node: int) -> None:
        """Number of turns that a window has."""
        self._per_stream = per_stream
        self._per_node = per_node
        self._waiting: OrderedDict[object, deque[Callable[[], None]]] = OrderedDict()
        self._given: Counter[object] = Counter()
        """In this window, by stream."""
        self._open = False

    def turn(self, timers: Timers, stream: object, begin: Callable[[], None]) -> None:
        """Calls `begin` when it is its turn, before this returns if that is now."""
        if not self._open:
            self._open = True
            timers.call_later(WINDOW, self._over, timers)
        if stream not in self._waiting and self._has_turn(stream):
            self._given[stream] += 1
            begin()
        else:
            self._waiting.setdefault(stream, deque()).append(begin)

    def forget(self, stream: object) -> None:
        """Its links have ended."""
        self._waiting.pop(stream, None)

    def _has_turn(self, stream: object) -> bool:
        return self._given[stream] < self._per_stream and self._given.total() < self._per_node

    def _over(self, timers: Timers) -> None:
        self._given.clear()
        self._open = bool(self._waiting)
        if not self._open:
            return
        timers.call_later(WINDOW, self._over, timers)
        for _ in range(self._per_node):
            stream = next((stream for stream in self._waiting if self._has_turn(stream)), None)
            if stream is None:
                return
            begins = self._waiting.pop(stream)
            begin = begins.popleft()
            if begins:
                self._waiting[stream] = begins  # behind the others
            self._given[stream] += 1
            begin()


class Paces(NamedTuple):
    """The paces of a node."""

    retries: Pace
    """After an attempt that failed: 50 per second of a stream, 100 of the node."""
    returns: Pace
    """After a link that lived: 500 and 1,000."""


def paces() -> Paces:
    return Paces(Pace(5, 10), Pace(50, 100))
