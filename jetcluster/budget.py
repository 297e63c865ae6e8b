"""`LoopBudget`: the time of a node's event loop that work of unknown length may take, shared by all that asks for it.

One loop serves everybody, so a request must not keep it. What may take long is written as a generator that yields
after about a millisecond, or less, of work (`Steps`). All such jobs of a node together have `SLICE` seconds per turn of
the loop, in turns: first those of one key (an account, a connection) and then those of the next, so that nobody waits
for another's thousand jobs. In between the loop gets to Raft, routes, timers and everybody's messages. A short job is
done at once, without waiting for a turn. Connections that have sent much share the time with the jobs
(`server.fairness`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable, Iterator
from typing import Any, Final, Generic, TypeVar

from jetcluster.clock import Clock, Timers
from jetcluster.errors import PassingError

SLICE: Final = 0.005
"""Seconds of a turn of the loop."""
QUANTUM: Final = 0.001
"""Seconds after which the next job has its turn."""
MAX_JOBS: Final = 8192
MAX_PER_KEY: Final = 1024
"""Jobs that wait for their turns, in all and of one key; more are refused."""

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work in steps: it yields where others may go on, and returns its result."""
Work = Generator[float | None, None, T]
"""The same; a step that sets something off which is done elsewhere in the loop, a task, yields the seconds that this is
likely to take."""


def at_once(steps: Steps[T]) -> T:
    """The result of `steps`, run without a pause: for work that is known to be short."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            found: T = stop.value
            return found


def exhaust(steps: Iterator[None]) -> None:
    """All of them at once."""
    for _ in steps:
        pass


class BusyError(PassingError):
    """Too many jobs wait already, of this key or in all."""


class Job(Generic[T]):
    """One piece of work under way; from `LoopBudget.start`."""

    __slots__ = ("_budget", "_done", "_failed", "_running", "_steps", "key", "over")

    def __init__(
        self,
        budget: LoopBudget,
        key: Hashable,
        steps: Work[T],
        done: Callable[[T], object],
        failed: Callable[[Exception], object],
    ) -> None:
        self._budget = budget
        self._steps = steps
        self._done = done
        self._failed = failed
        self._running = False
        self.key = key
        self.over = False
        """It has ended, or was cancelled: no callback comes any more."""

    def cancel(self) -> None:
        """Ends the work where it stands, without a callback. Of one that is over, nothing."""
        if self.over:
            return
        self.over = True
        if not self._running:
            self._budget.leave(self)
            self._steps.close()

    def advance(self, clock: Clock, end: float) -> bool:
        """Steps until `end`, one at least; True when no more are to come. For the budget."""
        steps, budget = self._steps, self._budget
        self._running = True
        try:
            budget.claimed += next(steps) or 0.0
            while not self.over and clock.monotonic() + budget.claimed < end:
                budget.claimed += next(steps) or 0.0
        except StopIteration as stop:
            if not self.over:
                self.over = True
                self._done(stop.value)
            return True
        except Exception as error:  # noqa: BLE001 - it belongs to the one that waits for the result
            if not self.over:
                self.over = True
                self._failed(error)
            return True
        finally:
            self._running = False
        if self.over:
            steps.close()
        return self.over


class LoopBudget:
    """One per node. `timers` is the event loop outside tests."""

    def __init__(self, clock: Clock, timers: Timers) -> None:
        self._clock = clock
        self._timers = timers
        self._waiting: OrderedDict[Hashable, deque[Job[Any]]] = OrderedDict()
        """By key; the first one's first job is the next."""
        self.jobs = 0
        """Jobs that wait for their turns."""
        self.connections_wait = False
        """Told by the governor: it has turns to give as well."""
        self._scheduled = False
        self.claimed = 0.0
        """Seconds of this turn of the loop that are spoken for (see `Work`)."""
        self._end = -1.0
        """When the time of this turn of the loop is over; -1.0: nobody has taken any of it."""

    # ---- the time of one turn of the loop

    def has_time(self) -> bool:
        """Is something left of this turn of the loop? The first to ask begins it."""
        now = self._clock.monotonic()
        if self._end < 0:
            self._end = now + SLICE
            self._timers.call_soon(self._turn_over)
            return True
        return now + self.claimed < self._end

    def _turn_over(self) -> None:
        self._end = -1.0
        self.claimed = 0.0

    @property
    def _now(self) -> float:
        return self._clock.monotonic() + self.claimed

    @property
    def share(self) -> float:
        """Seconds of a turn for jobs, and as many for connections that wait: all of it, when the others have none."""
        return SLICE / 2 if self.jobs and self.connections_wait else SLICE

    # ---- jobs

    def start(
        self,
        key: Hashable,
        steps: Work[T],
        done: Callable[[T], object],
        failed: Callable[[Exception], object],
        *,
        at_once: bool = True,
    ) -> Job[T]:
        """Does `steps` in turns with all others and calls `done` with what they return, or `failed` with what they
        raise; before it returns already, if that is quick and nobody waits, unless not `at_once`. Raises BusyError."""
        job = Job(self, key, steps, done, failed)
        now = at_once and not self.jobs and self.has_time()
        if now and job.advance(self._clock, min(self._now + QUANTUM, self._end)):
            return job
        of_key = self._waiting.get(key)
        if self.jobs >= MAX_JOBS or (of_key is not None and len(of_key) >= MAX_PER_KEY):
            job.over = True
            steps.close()
            raise BusyError(f"{self.jobs} jobs wait")
        self._queue(job)
        self._schedule()
        return job

    async def run(self, key: Hashable, steps: Work[T]) -> T:
        """Does the work in its turns and returns the result of `steps`. Raises what they raise, and BusyError. A task
        that is cancelled cancels the work."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(value: T) -> None:
            if not future.done():
                future.set_result(value)

        def failed(error: Exception) -> None:
            if not future.done():
                future.set_exception(error)

        job = self.start(key, steps, done, failed)
        if future.done():
            return future.result()
        try:
            return await future
        finally:
            job.cancel()

    def stop(self) -> None:
        """Cancels all jobs: nobody hears of them any more."""
        for jobs in list(self._waiting.values()):
            for job in list(jobs):
                job.cancel()

    def leave(self, job: Job[Any]) -> None:
        """`job` waits no more."""
        jobs = self._waiting.get(job.key)
        if jobs is not None and job in jobs:
            jobs.remove(job)
            self.jobs -= 1
            if not jobs:
                del self._waiting[job.key]

    def _queue(self, job: Job[Any]) -> None:
        jobs = self._waiting.get(job.key)
        if jobs is None:
            jobs = self._waiting[job.key] = deque()
        jobs.append(job)
        self.jobs += 1

    def _next(self) -> Job[Any]:
        """Taken out of its place; its key goes behind the others."""
        key, jobs = self._waiting.popitem(last=False)
        job = jobs.popleft()
        self.jobs -= 1
        if jobs:
            self._waiting[key] = jobs
        return job

    def _schedule(self) -> None:
        if self.jobs and not self._scheduled:
            self._scheduled = True
            self._timers.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        self.claimed = 0.0
        end = self._now + self.share
        try:
            while self.jobs:
                job = self._next()
                if not job.advance(self._clock, min(self._now + QUANTUM, end)):
                    self._queue(job)
                if self._now >= end:
                    break
        finally:
            self._schedule()
