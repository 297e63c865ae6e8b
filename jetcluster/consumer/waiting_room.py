"""`WaitingRoom`: how many pull requests may wait on a node, of all its consumers together.

`max_waiting` is chosen by whoever creates a consumer, and may be millions; each request that waits takes memory and
time of the node all the same. When the room is full, those are refused who fill it: each consumer has its share
whatever the others hold.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Final
from weakref import WeakSet

MAX_WAITING: Final = 131_072
"""Requests that wait on a node; more are refused as beyond `max_waiting`, where a consumer has its share."""
SHARE: Final = 512
"""Requests of one consumer that may wait at any time; as many as `max_waiting` is unless a client says otherwise."""
RECOUNT: Final = 1_000_000_000
"""Nanoseconds between two counts of all queues, at least."""


class WaitingRoom:
    """One per node; each consumer's queue counts itself in and out."""

    def __init__(self, most: int = MAX_WAITING, share: int = SHARE) -> None:
        self.most = most
        self.share = share
        self._queues: WeakSet[Sized] = WeakSet()
        self._counted: int | None = None
        self.count = 0
        """At least as many as wait: those of owners that were let go are found out when it is full."""

    def enter(self, queue: Sized) -> None:
        self._queues.add(queue)

    def is_full_for(self, queue: Sized, now: int) -> bool:
        """True when one more of this queue is too many. `now`: ns."""
        if self.count < self.most or len(queue) < self.share:
            return False
        if self._counted is None or not 0 <= now - self._counted < RECOUNT:
            self._counted = now
            self.count = sum(len(queue) for queue in self._queues)
        return self.count >= self.most
