"""The work that a node does by the clock and beside: the rounds over its replicas, and background tasks.

Each tick looks at the replicas in which something is under way, and at others when their time has come, so that idle
streams cost next to nothing. A replica rests for as long as it says itself (`StreamReplica.tick`). What makes it due
sooner wakes it: it is then looked at by the next tick, as if it had never rested.

A background task is kept until it ends, and what it raises is logged.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from typing import Any, Final

from jetcluster.logs import Log
from jetcluster.ordered import OrderedSet


class Background:
    def __init__(self, log: Log) -> None:
        self.tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._log = log

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("a background task failed", error=repr(error))


TICK: Final = 0.25
"""Seconds between two ticks of a node."""
LONGEST_REST: Final = 5.0
_SPREAD: Final = 16
"""Parts of the last second of it, so that replicas which came at once are not looked at all at once."""


SetResting = Callable[[bool], None]
"""Told when a replica begins to rest (True), and when it is to be looked at again."""


class Rounds:
    """One per node. Groups have ids, by which they are known here."""

    def __init__(self) -> None:
        self._awake: dict[int, SetResting] = {}
        self._asleep: dict[int, tuple[float, SetResting]] = {}
        self._times: list[tuple[float, int]] = []
        """A heap; an entry counts only if `_asleep` says the same."""

    def add(self, gid: int, set_resting: SetResting) -> None:
        set_resting(False)
        self._awake[gid] = set_resting

    def remove(self, gid: int) -> None:
        self._awake.pop(gid, None)
        self._asleep.pop(gid, None)

    def wake(self, gid: int) -> None:
        """The next tick looks at it."""
        found = self._asleep.pop(gid, None)
        if found is not None:
            self.add(gid, found[1])

    def wake_all(self) -> None:
        for gid in list(self._asleep):
            self.wake(gid)
        self._times.clear()

    def rest(self, gid: int, now: float, seconds: float) -> None:
        """There is nothing to do in it for so long, unless it is woken."""
        set_resting = self._awake.get(gid)
        if set_resting is None or seconds <= TICK:
            return
        until = now + min(seconds, LONGEST_REST - gid % _SPREAD / _SPREAD)
        del self._awake[gid]
        set_resting(True)
        self._asleep[gid] = until, set_resting
        heapq.heappush(self._times, (until, gid))

    def due(self, now: float) -> list[int]:
        """The groups whose replicas are to be looked at now."""
        while self._times and self._times[0][0] <= now:
            until, gid = heapq.heappop(self._times)
            found = self._asleep.get(gid)
            if found is not None and found[0] == until:
                self.wake(gid)
        return list(self._awake)
