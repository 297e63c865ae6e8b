"""`Threads`: the threads of one simulated process, which stand still at calls of the disk and go on later.

Each is a greenlet, and one runs at a time: from one call of the disk to another, in an event of its own, so the event
loop and other threads run in between. Where a thread stands, and for how long, is drawn; a sync takes the disk's time.
A call of the event loop itself is done at once; where it must wait for a thread, that thread runs on until it need not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from greenlet import GreenletExit, getcurrent, greenlet

from jetcluster.clock import Rng

if TYPE_CHECKING:
    from testkit.twins.storage.sim_disk import SimDisk

CUTS: Final = 0.1
"""Share of the calls at which a thread stands still, by default."""
START: Final = 50e-6
"""Seconds until a thread begins, usually."""
LATE: Final = 0.02
OFTEN_LATE: Final = 0.125
"""Seconds that it may take to go on where other threads have the processor, and how often."""
POLL: Final = 100e-6
"""Seconds from one look at a lock that another thread holds to the next."""

After = Callable[..., Any]
"""(seconds, callback, *arguments): calls back then."""


class ProcessEnded(GreenletExit):  # type: ignore[misc]
    """Raised in threads of a process that is gone, by every call of the disk: nothing is touched any more."""


class Thread:
    __slots__ = ("greenlet", "turn", "wanted")

    def __init__(self, work: Callable[[], None]) -> None:
        self.greenlet = greenlet(work)
        self.turn = 0
        """Counts the times that it went on: an event for an earlier one is void."""
        self.wanted: Lock | None = None
        """The lock that it waits for."""


class Threads:
    def __init__(
        self,
        disk: SimDisk,
        after: After,
        rng: Rng,
        *,
        cuts: float = CUTS,
        enter: Callable[[], None] = lambda: None,
    ) -> None:
        """`cuts`: share of the calls at which a thread stands still. `enter` is called before a thread goes on."""
        self.current: Thread | None = None
        """The thread that runs; None while the event loop does."""
        self._disk = disk
        self._after = after
        self._rng = rng
        self._cuts = cuts
        self._enter = enter
        self._all: dict[Thread, None] = {}
        self._paused = False
        self._stopped: list[Thread] = []
        """Those that would have gone on while the process was paused."""
        self._driven = False
        self._ended = False
        disk.threads = self

    # -- the process

    def start(self, work: Callable[[], None]) -> Thread:
        thread = Thread(work)
        self._all[thread] = None
        rng = self._rng
        late = rng.uniform(0.0, LATE) if rng.random() < OFTEN_LATE else START
        self._after(late, self._go, thread, thread.turn)
        return thread

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        stopped, self._stopped = self._stopped, []
        for thread in stopped:
            self._after(0.0, self._go, thread, thread.turn)

    def end(self) -> None:
        """The process is gone."""
        self._ended = True
        for thread in list(self._all):
            self.end_one(thread)

    def end_one(self, thread: Thread) -> None:
        """Ends a thread where it stands."""
        thread.turn += 1
        self._all.pop(thread, None)
        ended, self._ended = self._ended, True
        self.current, before = thread, self.current
        try:
            thread.greenlet.parent = getcurrent()
            thread.greenlet.throw(ProcessEnded)
        finally:
            self.current, self._ended = before, ended

    @property
    def count(self) -> int:
        """The number of threads that have not ended."""
        return len(self._all)

    def finish(self, thread: Thread) -> None:
        """Called by the event loop: waits for the end of a thread."""
        self._drive(thread, lambda: thread.greenlet.dead)

    # -- steps

    def _go(self, thread: Thread, turn: int) -> None:
        if thread.turn != turn or self._ended:
            return
        if self._paused:
            self._stopped.append(thread)
            return
        self._step(thread)

    def _step(self, thread: Thread) -> None:
        """Lets it run until it stands or ends."""
        thread.turn += 1
        self._enter()
        self.current = thread
        try:
            thread.greenlet.parent = getcurrent()
            thread.greenlet.switch()
        finally:
            self.current = None
        if thread.greenlet.dead:
            self._all.pop(thread, None)

    def _drive(self, thread: Thread, until: Callable[[], bool]) -> None:
        """The event loop stands still until a thread has come so far, and so do those that do not hold that one up."""
        assert self.current is None
        before, self._driven = self._driven, True
        try:
            while not until():
                next_one = thread
                while next_one.wanted is not None and (holder := next_one.wanted.holder) is not None:
                    assert isinstance(holder, Thread), "a thread waits for a lock of the event loop, which waits for it"
                    next_one = holder
                self._step(next_one)
        finally:
            self._driven = before

    # -- called in a thread

    def call(self) -> None:
        """Before a call of the disk: the thread may stand still for a while. Raises ProcessEnded."""
        if self._ended:
            raise ProcessEnded
        rng = self._rng
        if rng.random() < self._cuts:
            self._stand(rng.uniform(0.0, LATE if rng.random() < OFTEN_LATE else START))

    def sync(self) -> None:
        """The disk is at work, until what was there before is on the platter."""
        disk = self._disk
        self._stand(disk.seconds())
        while disk.hung and not self._driven:
            thread = self.current
            assert thread is not None
            disk.when_released(functools.partial(self._after, 0.0, self._go, thread, thread.turn))
            thread.greenlet.parent.switch()

    def _stand(self, seconds: float) -> None:
        thread = self.current
        assert thread is not None
        self._after(seconds, self._go, thread, thread.turn)
        thread.greenlet.parent.switch()

    def wait(self, lock: Lock) -> None:
        """Until nobody holds it; in a thread or the event loop."""
        thread = self.current
        if thread is None:
            holder = lock.holder
            assert isinstance(holder, Thread), "the event loop waits for itself"
            self._drive(holder, lambda: lock.holder is not holder)
            return
        thread.wanted = lock
        try:
            self._stand(POLL)
        finally:
            thread.wanted = None


class Lock:
    """A lock of what several threads of a process share, over calls of the disk."""

    def __init__(self, disk: SimDisk) -> None:
        self.holder: object = None
        """A Thread, or something else while the event loop holds it."""
        self._disk = disk

    def __enter__(self) -> None:
        threads = self._disk.threads
        while threads is not None and self.holder is not None:
            threads.wait(self)
        self.holder = self if threads is None or threads.current is None else threads.current

    def __exit__(self, *error: object) -> None:
        self.holder = None
