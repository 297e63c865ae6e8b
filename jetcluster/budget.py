"""`LoopBudget`: the time of a node's event loop for work of unknown length, shared by all jobs.

One loop serves all clients, so no request may occupy it. Long work is a generator that yields after at most about a
millisecond of work (`Steps`). All such jobs of a node together get `SLICE_SECONDS` per turn of the loop, and their keys
(an account, a connection) take turns, so that no key waits for another's thousand jobs. In between the loop serves
Raft, routes, timers and messages. A short job runs at once, without waiting for a turn. Connections that have sent much
share the time with the jobs (`server.fairness`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable, Iterator
from typing import Any, Final, Generic, TypeVar

from jetcluster.clock import Clock, Timers
from jetcluster.errors import PassingError

SLICE_SECONDS: Final = 0.005
"""Time of all jobs in one turn of the loop."""
QUANTUM_SECONDS: Final = 0.001
"""Time after which the next job has its turn."""
MAX_JOBS: Final = 8192
MAX_PER_KEY: Final = 1024
"""Waiting jobs, in all and of one key; further ones are refused."""

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work in steps: it yields where other work may run, and returns its result."""
Work = Generator[float | None, None, T]
"""Steps that may also yield the seconds that a task which they started is likely to take from the loop."""


def at_once(steps: Steps[T]) -> T:
    """Run `steps` without a pause, for work known to be short, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            found: T = stop.value
            return found


def exhaust(steps: Iterator[None]) -> None:
    """Run all steps at once."""
    for _ in steps:
        pass


class BusyError(PassingError):
    """Too many jobs wait, of this key or in all."""


class Job(Generic[T]):
    """A piece of work in progress, from `LoopBudget.start`."""

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
        """True once it has ended or was cancelled: no callback follows."""

    def cancel(self) -> None:
        """End the work without a callback; does nothing when it is over."""
        if self.over:
            return
        self.over = True
        if not self._running:
            self._budget.leave(self)
            self._steps.close()

    def advance(self, clock: Clock, end: float) -> bool:
        """Run steps until `end`, at least one; True when it is over. For the budget."""
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
        except Exception as error:  # noqa: BLE001 - reported to the owner of the job
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
    """The budget of one node. `timers` is the event loop outside tests."""

    def __init__(self, clock: Clock, timers: Timers) -> None:
        self._clock = clock
        self._timers = timers
        self._waiting: OrderedDict[Hashable, deque[Job[Any]]] = OrderedDict()
        """Key -> its waiting jobs; the first key's first job is next."""
        self.jobs = 0
        """Number of waiting jobs."""
        self.connections_wait = False
        """Set by the governor while connections wait for a share of the time."""
        self._scheduled = False
        self.claimed = 0.0
        """Seconds of this turn of the loop that started tasks are likely to take (see `Work`)."""
        self._end = -1.0
        """End of the time in this turn of the loop; -1.0 while none of it is used."""

    # ---- the time of one turn of the loop

    def has_time(self) -> bool:
        """Return True while this turn of the loop has time left. The first call of a turn starts its time."""
        now = self._clock.monotonic()
        if self._end < 0:
            self._end = now + SLICE_SECONDS
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
        """Seconds of a turn for jobs, and as many for waiting connections: all of it if only one of them needs it."""
        return SLICE_SECONDS / 2 if self.jobs and self.connections_wait else SLICE_SECONDS

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
        """Run `steps` in turn with all other jobs and call `done` with their result, or `failed` with their exception;
        before this returns, if the work is short, no job waits, and `at_once` is set. Raises BusyError."""
        job = Job(self, key, steps, done, failed)
        now = at_once and not self.jobs and self.has_time()
        if now and job.advance(self._clock, min(self._now + QUANTUM_SECONDS, self._end)):
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
        """Run `steps` in turn with other jobs and return their result. Raises what they raise, and BusyError. The
        task's cancellation cancels the work."""
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
        """Cancel all jobs, without callbacks."""
        for jobs in list(self._waiting.values()):
            for job in list(jobs):
                job.cancel()

    def leave(self, job: Job[Any]) -> None:
        """Remove `job` from the waiting ones."""
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
        """Take out the next job; its key moves behind the others."""
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
                if not job.advance(self._clock, min(self._now + QUANTUM_SECONDS, end)):
                    self._queue(job)
                if self._now >= end:
                    break
        finally:
            self._schedule()
