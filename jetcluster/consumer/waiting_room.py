"""`WaitingRoom`: how many pull requests may wait on a node, of all its consumers together.

`max_waiting` is chosen by whoever creates a consumer, and may be millions; each request that waits takes memory and
time of the node all the same.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Final
from weakref import WeakSet

MAX_WAITING: Final = 131_072
"""Requests that wait on a node; more are refused as beyond `max_waiting`."""


class WaitingRoom:
    """One per node; each consumer's queue counts itself in and out."""

    def __init__(self, most: int = MAX_WAITING) -> None:
        self.most = most
        self._queues: WeakSet[Sized] = WeakSet()
        self.count = 0
        """At least as many as wait: those of owners that were let go are found out when it is full."""

    def enter(self, queue: Sized) -> None:
        self._queues.add(queue)

    @property
    def is_full(self) -> bool:
        if self.count >= self.most:
            self.count = sum(len(queue) for queue in self._queues)
        return self.count >= self.most
