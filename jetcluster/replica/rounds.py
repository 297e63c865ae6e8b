"""The periodic work of a node: rounds over its replicas, and background tasks.

Each tick visits the replicas that have work in progress, and an idle one only when its rest ends, so that idle streams
cost next to nothing. A replica chooses the length of its rest (`StreamReplica.tick`); an event that makes it due sooner
wakes it, and the next tick visits it. A round over very many is made in slices, with other work between.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from jetcluster.cancelling import cancelled
from jetcluster.logs import Log
from jetcluster.ordered import OrderedSet

STANDSTILL_SECONDS: Final = 1.0
"""Time without a tick after which the process counts as having stood still."""


class Pulse:
    """Counts how often this process stood still (SIGSTOP, a suspended machine). One per node; times are monotonic."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._stops = 0

    def beat(self, now: float) -> None:
        """Note a tick."""
        self.stops(now)
        self._at = now

    def stops(self, now: float) -> int:
        """Number of standstills so far, including one that lasts until `now`."""
        if self._at is not None and now - self._at > STANDSTILL_SECONDS:
            self._stops += 1
            self._at = now
        return self._stops


class Background:
    """Background tasks: each is kept until it ends, and its exception is logged."""

    def __init__(self, log: Log) -> None:
        self.tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._log = log

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        await cancelled(self.tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("a background task failed", error=repr(error))


TICK: Final = 0.25
"""Seconds between two ticks of a node."""
MAX_REST_SECONDS: Final = 5.0
"""Longest rest while few replicas rest."""
IDLE_VISITS_PER_SECOND: Final = 100
"""Most visits of idle replicas on average: where more of them rest, they rest for longer. What makes a replica due also
wakes it; the end of a rest is for what is not foreseen."""
VISITS_AT_ONCE: Final = 128
"""Replicas visited before other work gets its turn: about 4 ms."""
SLICE_PAUSE: Final = 0.01
"""Seconds between two slices of a round."""
_SPREAD_SLOTS: Final = 64
"""Slots in the last fifth of a rest. Replicas that were added together end their rests in different slots."""


SetResting = Callable[[bool], None]
"""Called with True when a replica begins to rest, and with False when it becomes due."""


class Rounds:
    """The order in which replicas are visited, by the id of their group. One per node."""

    def __init__(self) -> None:
        self._awake: dict[int, SetResting] = {}
        self._asleep: dict[int, tuple[float, SetResting]] = {}
        self._times: list[tuple[float, int]] = []
        """A heap of (due time, group); an entry is stale unless `_asleep` has the same time."""
        self._round: deque[int] = deque()
        """Groups still to be visited in this round."""

    def add(self, gid: int, set_resting: SetResting) -> None:
        set_resting(False)
        self._awake[gid] = set_resting

    def remove(self, gid: int) -> None:
        self._awake.pop(gid, None)
        self._asleep.pop(gid, None)

    def wake(self, gid: int) -> None:
        """Make the replica due at the next tick."""
        found = self._asleep.pop(gid, None)
        if found is not None:
            self.add(gid, found[1])

    def wake_all(self) -> None:
        for gid in list(self._asleep):
            self.wake(gid)
        self._times.clear()

    def rest(self, gid: int, now: float, seconds: float) -> None:
        """Let the replica rest for `seconds`, or until it is woken."""
        set_resting = self._awake.get(gid)
        if set_resting is None or seconds <= TICK:
            return
        longest = max(MAX_REST_SECONDS, len(self._asleep) / IDLE_VISITS_PER_SECOND)
        until = now + min(seconds, longest * (1.0 - gid % _SPREAD_SLOTS / (5 * _SPREAD_SLOTS)))
        del self._awake[gid]
        set_resting(True)
        self._asleep[gid] = until, set_resting
        heapq.heappush(self._times, (until, gid))

    def due(self, now: float) -> list[int]:
        """Begin a round of the groups whose replicas are due, unless one is under way; return its next slice."""
        if not self._round:
            while self._times and self._times[0][0] <= now:
                until, gid = heapq.heappop(self._times)
                found = self._asleep.get(gid)
                if found is not None and found[0] == until:
                    self.wake(gid)
            self._round.extend(self._awake)
        some = [self._round.popleft() for _ in range(min(VISITS_AT_ONCE, len(self._round)))]
        return [gid for gid in some if gid in self._awake]

    @property
    def under_way(self) -> bool:
        """True while a round has replicas left to visit."""
        return bool(self._round)
