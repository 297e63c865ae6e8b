"""Reads that wait until this replica has applied what it knows to be committed.

A leader tells its followers the commit index before it acknowledges, on the same ordered link. So a client that was
told "stored" through this node, and asks this node now, asks at a moment when the node already knows that index; its
own fsync of the entry may still be under way. Waiting for it (a millisecond) gives every client read-your-writes and
monotonic reads on its connection, without asking the leader. nats-server's followers answer from before the write.

That does not depend on who leads now, or on whether this replica knows it: what any leader said to be committed is, so
its word counts also after this replica has left its term, stands for election, has taken over and has not committed
anything yet, or cannot take its entries (`Receiver.hear`, `RaftGroup.told_index`). Nobody on this node can have been
told more. So a replica that knows no leader answers once it has applied that; if it has not, its readers wait, for the
next leader too, and after MAX_SECONDS another replica is asked. A replica answers at all only once its leader has
confirmed to it what is committed, or it leads itself (`ReadGroup`): what it heard before a restart is forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from jetcluster.clock import Clock, TimerHandle, Timers

MAX_WAITING = 8192
MAX_SECONDS = 0.25
"""After so long somebody else is asked: this replica's disk is not keeping up."""

Call = Callable[[], None]


class ReadWaits:
    def __init__(self, clock: Clock, timers: Timers) -> None:
        self._clock = clock
        self._timers = timers
        self.waiting: deque[tuple[int, float, Call, Call]] = deque()
        self._timer: TimerHandle | None = None

    def hold(self, index: int, answer: Call, give_up: Call) -> None:
        """Calls `answer` once `applied(index)` or more was called, `give_up` if that takes too long or too many wait.
        Indexes must not go down between calls."""
        if len(self.waiting) >= MAX_WAITING:
            give_up()
            return
        self.waiting.append((index, self._clock.monotonic() + MAX_SECONDS, answer, give_up))
        if self._timer is None:
            self._timer = self._timers.call_later(MAX_SECONDS, self._expire)

    def applied(self, index: int) -> None:
        waiting = self.waiting
        while waiting and waiting[0][0] <= index:
            waiting.popleft()[2]()

    def clear(self) -> None:
        """Gives up on everything now."""
        waiting, self.waiting = self.waiting, deque()
        for _, _, _, give_up in waiting:
            give_up()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        overdue: list[Any] = []
        while self.waiting and self.waiting[0][1] <= now:
            overdue.append(self.waiting.popleft())
        if self.waiting:
            self._timer = self._timers.call_later(max(self.waiting[0][1] - now, 0.0), self._expire)
        for _, _, _, give_up in overdue:
            give_up()
