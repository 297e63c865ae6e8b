"""`ConsumerScheduler`: one end-of-turn hook and one timer for all consumer owners of a stream on this node."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Generic, TypeVar

from jetcluster.clock import Clock, TimerHandle, Timers
from jetcluster.protocol.sublist import Sublist

MIN_STALE_ENTRIES = 64
TIMER_SLACK_SECONDS = 1e-6
"""Seconds by which the timer fires late, so that it never fires a nanosecond early."""
MAX_TIMER_SECONDS = 3600.0
"""Longest timer: by then a clock that was set back is noticed."""

T = TypeVar("T")


class OwnerWakes:
    """The wake-ups of one owner: a run at the end of the loop turn, and a tick at a requested time."""

    __slots__ = ("_wakes", "due", "run", "tick")

    def __init__(self, wakes: ConsumerScheduler) -> None:
        self._wakes = wakes
        self.due = 0
        """The time of its tick in Unix nanoseconds; 0: never."""
        self.run: Callable[[], None] | None = None
        self.tick: Callable[[int], None] | None = None
        """Both are None before `bind` and after `close`."""

    def bind(self, run: Callable[[], None], tick: Callable[[int], None]) -> None:
        """Set the callbacks, right after the owner was made."""
        self.run, self.tick = run, tick

    def soon(self) -> None:
        """Request one call of `run` at the end of this loop turn."""
        wakes = self._wakes
        wakes.ready[self] = None
        if not wakes.scheduled:
            wakes.schedule()

    def at(self, ns: int) -> None:
        """Request `tick(now)` when the wall clock reaches `ns`; only the earliest time since the last tick counts."""
        if not self.due or ns < self.due:
            replaced = self.due > 0
            self.due = max(ns, 1)
            self._wakes.at(self, replaced=replaced)

    def close(self) -> None:
        self.run = self.tick = None
        self.due = 0
        self._wakes.forget(self)


class ConsumerScheduler:
    """Runs and ticks the owners of one stream."""

    def __init__(
        self,
        clock: Clock,
        timers: Timers,
        may_run: Callable[[], bool],
        guard: Callable[[Callable[[], None]], None],
    ) -> None:
        """`may_run`: owners may run (see `resume`); `guard` calls its argument and takes exceptions."""
        self._clock = clock
        self._timers = timers
        self._may_run = may_run
        self._guard = guard
        self.ready: dict[OwnerWakes, None] = {}
        """Owners that run at the end of the turn, or once they may."""
        self.scheduled = False
        self._queue: list[tuple[int, int, OwnerWakes]] = []
        self._number = count()
        self._timer: TimerHandle | None = None
        self._timer_at = 0
        self._stale = 0
        """Approximate number of outdated entries of the queue."""

    def resume(self) -> None:
        """Run waiting owners, which may run again."""
        if self.ready:
            self.schedule()

    def at(self, wakes: OwnerWakes, *, replaced: bool) -> None:
        heapq.heappush(self._queue, (wakes.due, next(self._number), wakes))
        self._stale += replaced
        if self._stale > MIN_STALE_ENTRIES and 2 * self._stale > len(self._queue):
            self._compact()
        self._arm()

    def forget(self, wakes: OwnerWakes) -> None:
        self.ready.pop(wakes, None)
        self._stale += 1

    def stop(self) -> None:
        self.ready.clear()
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def schedule(self) -> None:
        """Run the ready owners at the end of this turn."""
        if not self.scheduled:
            self.scheduled = True
            self._timers.call_soon(self._run)

    def _run(self) -> None:
        self.scheduled = False
        if not self._may_run():
            return  # they stay ready until `resume`
        ready, self.ready = self.ready, {}
        for wakes in ready:
            if wakes.run is not None:
                self._guard(wakes.run)

    def _arm(self) -> None:
        """Set the one timer to the earliest requested time."""
        due = self._queue[0][0] if self._queue else 0
        if self._timer is not None:
            if due and self._timer_at <= due:
                return
            self._timer.cancel()
            self._timer = None
        if due:
            self._timer_at = due
            delay = min(max((due - self._clock.time_ns()) / 1e9 + TIMER_SLACK_SECONDS, 0.0), MAX_TIMER_SECONDS)
            self._timer = self._timers.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._clock.time_ns()
        while self._queue and self._queue[0][0] <= now:
            due, _, wakes = heapq.heappop(self._queue)
            if wakes.tick is not None and wakes.due == due:
                wakes.due = 0
                self._guard(partial(wakes.tick, now))
        self._arm()

    def _compact(self) -> None:
        self._queue = [entry for entry in self._queue if entry[2].tick is not None and entry[2].due == entry[0]]
        heapq.heapify(self._queue)
        self._stale = 0


class _Filter(Generic[T]):
    __slots__ = ("queue", "subject", "taker")

    def __init__(self, subject: bytes, taker: T) -> None:
        self.subject = subject
        self.queue: bytes | None = None
        self.taker = taker


class ConsumerFilters(Generic[T]):
    """Index over the filters of many consumers (`T`, compared by identity), for newly stored messages."""

    def __init__(self) -> None:
        self._index: Sublist[_Filter[T], list[T]] = Sublist(lambda subject, plain, queues: [f.taker for f in plain])
        self._of: dict[int, list[_Filter[T]]] = {}

    def set(self, cid: int, filters: Iterable[bytes], taker: T) -> None:
        """Replace the filters of consumer `cid`."""
        self.remove(cid)
        added = self._of[cid] = [_Filter(subject, taker) for subject in filters]
        for one in added:
            self._index.insert(one)

    def remove(self, cid: int) -> None:
        for one in self._of.pop(cid, ()):
            self._index.remove(one)

    def takers(self, subjects: Iterable[bytes]) -> list[T]:
        """Return the consumers that want one of `subjects`, each once."""
        return list({id(taker): taker for subject in subjects for taker in self._index.match(subject)}.values())
