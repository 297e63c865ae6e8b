"""Timers and the journal's writer of one life of a simulated process."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jetcluster.raft.journal.writer import Done, Job
from testkit.twins.journal import JournalDisk

if TYPE_CHECKING:
    from tests.sim.simulation import SimNode, Simulation


class SimTimers:
    """Clock and timers of one life of one process, by the clock of its machine, which may be fast or slow."""

    def __init__(self, sim: Simulation, node: SimNode, life: int) -> None:
        self.sim = sim
        self.node = node
        self.life = life

    def monotonic(self) -> float:
        return self.node.clock()

    def uptime(self) -> float:
        return self.monotonic()

    def time_ns(self) -> int:
        return int(self.monotonic() * 1e9)

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> _Handle:
        return self.call_later(0.0, callback, *args)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> _Handle:
        handle = _Handle()
        self.sim.at(delay / self.node.rate, self._run, handle, callback, args)
        return handle

    def _run(self, handle: _Handle, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        node = self.node
        if handle.cancelled or node.dead or node.life != self.life:
            return
        if node.paused_until > self.sim.now:
            self.sim.at(node.paused_until - self.sim.now, self._run, handle, callback, args)
            return
        callback(*args)
        self.sim.checks.after_event(node)


class _Handle:
    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class SimWriter:
    """A disk with latency; the job under way at a crash reaches the platter in part."""

    def __init__(self, node: SimNode, timers: SimTimers) -> None:
        self.node = node
        self.timers = timers
        self.jobs: collections.deque[tuple[Job, Done]] = collections.deque()

    def submit(self, job: Job, done: Done) -> None:
        self.jobs.append((job, done))
        if len(self.jobs) == 1:
            self._next()

    def _next(self) -> None:
        sim = self.node.sim
        delay = sim.rng.uniform(0.0003, 0.004) if sim.rng.random() < 0.95 else sim.rng.uniform(0.01, 0.1)
        if self.node.slow_until > sim.now:
            delay += sim.rng.uniform(0.0, 0.3)
        self.timers.call_later(delay, self._finish)

    def _finish(self) -> None:
        job, done = self.jobs[0]
        error: BaseException | None = None
        try:
            job()
        except OSError as e:
            error = e
        self.jobs.popleft()
        if self.jobs:
            self._next()
        done(error)

    def power_off(self, disk: JournalDisk) -> None:
        with disk.machine.flight():
            for job, _ in list(self.jobs)[:1]:
                try:
                    job()
                except OSError:
                    pass

    def close(self) -> None:
        pass
