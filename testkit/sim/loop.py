"""Simulated time: one scheduler for all processes, and an asyncio event loop for each of them.

A `SimLoop` is the loop of one process. It runs in turns, as asyncio's does: what comes during a turn waits for the next
one, and a turn takes time of the process's processor, in which nothing else of that process runs. Timers, what the
network brings and work in threads are events of the one `Scheduler`. A process that is killed is a loop that runs no
turn any more; one that is paused runs none until it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import sys
import warnings
from asyncio import _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    from testkit.sim.network import Endpoints

TURN = 20e-6
STEP = 4e-6
"""Seconds of the processor that a turn takes, and each callback in it."""


class Scheduler:
    """Time of the whole simulation, seconds from 0. What was scheduled happens: who may change its mind asks then."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = 0
        self._heap: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []

    def at(self, when: float, callback: Callable[..., Any], *args: Any) -> None:
        self._order = order = self._order + 1
        now = self.now
        heappush(self._heap, (when if when > now else now, order, callback, args))

    def after(self, seconds: float, callback: Callable[..., Any], *args: Any) -> None:
        self._order = order = self._order + 1
        now = self.now
        heappush(self._heap, (now + seconds if seconds > 0.0 else now, order, callback, args))

    def run(self, until: float) -> None:
        heap = self._heap
        try:
            while heap and heap[0][0] <= until:
                self.now, _, callback, args = heappop(heap)
                callback(*args)
        finally:
            _set_running_loop(None)
        self.now = until


class Handle:
    """A handle, as asyncio calls it; also of a timer."""

    __slots__ = ("_when", "args", "callback", "context")

    def __init__(
        self,
        callback: Callable[..., Any] | None,
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        when: float = 0.0,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self._when = when

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self._when


class LoopClock(Protocol):
    """The machine's monotonic clock, as its process reads it, and the speed of its processor."""

    spent: float
    """Seconds of this turn that are over, as far as the process can tell: each look at the clock takes some."""
    slowness: float
    """Factor by which everything takes longer than usual."""

    def monotonic(self) -> float: ...
    def now(self) -> float:
        """The same, and no time goes by."""
        ...

    def true_delay(self, seconds: float) -> float:
        """True seconds until that clock has gone on by `seconds`."""
        ...


@contextlib.contextmanager
def quietly_collected() -> Iterator[None]:
    """Around the end of a simulation: collects what is left of its processes. A task that was under way is made to
    end where no loop runs, and can do nothing right there: neither what it warns of nor what it raises is told."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda found: None if asyncio.iscoroutine(found.object) else before(found)
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
        sys.unraisablehook = before


class SimLoop(asyncio.AbstractEventLoop):
    """`work` does what is for a thread, and calls back in a turn. `failed` is called for callbacks that raise and for
    exceptions that nobody looked at."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: LoopClock,
        work: Callable[[Callable[[], None], Callable[[], None]], None],
        failed: Callable[[str, BaseException | None], None],
    ) -> None:
        self.scheduler = scheduler
        self.alive = True
        self.endpoints: Endpoints
        """Its connections and ports."""
        self.signals: dict[int, Callable[[], None]] = {}
        self.log: Any = None
        """The log of the node in the process."""
        self.main: asyncio.Task[Any] | None = None
        self.turns = 0
        self.level = 0
        """Level of the version that its node says it is of; 0: of this one."""
        self._clock = clock
        self._work = work
        self._failed = failed
        self._ready: deque[Handle] = deque()
        self._scheduled = False
        self._paused = False
        self._busy_until = 0.0
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        """Its own, so that an end need not look through those of all processes that ever were."""
        self._left: list[asyncio.Task[Any]] = []
        """The tasks that were under way when the process was killed."""
        self.time = clock.monotonic  # type: ignore[method-assign]

    # ---- the process

    def kill(self) -> None:
        """Nothing of it runs any more, also no `finally` of a task, as one that is collected would: it stays as it is
        until the simulation is over (`quietly_collected`)."""
        self.alive = False
        self._ready.clear()
        self._left = [task for task in self._tasks if not task.done()]

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._schedule()

    def _schedule(self) -> None:
        if self._ready and not self._scheduled and not self._paused and self.alive:
            self._scheduled = True
            self.scheduler.at(self._busy_until, self._turn)

    def enter(self) -> None:
        """Makes what runs from here on run in this process; a thread needs that for its log."""
        _set_running_loop(self)

    def _turn(self) -> None:
        if not self.alive or self._paused:
            self._scheduled = False
            return
        ready, clock = self._ready, self._clock
        count = len(ready)
        self.turns += 1
        work = (TURN + STEP * count) * clock.slowness
        clock.spent = 0.0
        _set_running_loop(self)
        while count and ready:  # a process that was killed in its turn has none left
            count -= 1
            handle = ready.popleft()
            callback = handle.callback
            if callback is None:
                continue
            try:
                if (context := handle.context) is None:
                    callback(*handle.args)
                else:
                    context.run(callback, *handle.args)
            except Exception as error:
                self._failed(f"a callback raised: {callback}", error)
        self._busy_until = self.scheduler.now + work + clock.spent
        clock.spent = 0.0
        self._scheduled = False  # until here, so that what comes meanwhile need not look
        if ready:
            self._schedule()

    def from_outside(self, callback: Callable[..., Any], *args: Any) -> None:
        """An event of the kernel: it comes with the next turn."""
        self.take(Handle(callback, args, None))

    def take(self, handle: Handle) -> None:
        """The same for a handle that whoever calls has kept; it is in one turn at a time."""
        if self.alive:
            self._ready.append(handle)
            if not self._scheduled:
                self._schedule()

    # ---- asyncio

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.alive

    def is_closed(self) -> bool:
        return not self.alive

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context)
        self._ready.append(handle)
        if not self._scheduled:
            self._schedule()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        clock, delay = self._clock, delay if delay > 0.0 else 0.0
        handle = Handle(callback, args, context, clock.now() + delay)
        self.scheduler.after(clock.spent + clock.true_delay(delay), self._due, handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        return self.call_later(when - self._clock.now(), callback, *args, context=context)

    def _due(self, handle: Handle) -> None:
        if handle.callback is not None:
            self.take(handle)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        self._tasks.add(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.alive:  # tasks of a process that is gone are never finished
            self._failed(str(context.get("message")), context.get("exception"))

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome.extend((func(*args), None))
            except Exception as error:
                outcome.extend((None, error))

        def done() -> None:
            result, error = outcome
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self._work(work, done)
        return future

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        self.signals[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self.signals.pop(sig, None) is not None

    # ---- connections

    async def create_server(self, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # type: ignore[override]
        if options.get("ssl") is not None or options.get("sock") is not None:
            raise NotImplementedError("ports of TLS are `tls_ports.ListeningSocket`, and others have no sockets")
        return self.endpoints.listen(factory, host, port)

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # type: ignore[override]
        if options.get("sock") is not None:
            raise NotImplementedError("sockets are out of the simulation")
        context = options.get("ssl")
        if context is not None:
            return await context.connect(self, factory, host, port, options)
        return await self.endpoints.dial(factory, host, port)

    async def start_tls(self, transport: Any, protocol: Any, sslcontext: Any, **options: Any) -> Any:
        return await sslcontext.upgrade(self, transport, protocol, options)

    # ---- sockets, as `tls_ports` has them

    async def sock_accept(self, sock: Any) -> Any:
        return await sock.accepted()

    async def sock_sendall(self, sock: Any, data: Any) -> None:
        await sock.send(data)

    async def sock_recv(self, sock: Any, nbytes: int) -> bytes:
        found: bytes = await sock.rest()
        return found

    async def connect_accepted_socket(self, factory: Any, sock: Any, *, ssl: Any = None, **options: Any) -> Any:  # type: ignore[override]
        return await sock.given(self, factory, ssl, options)

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        fd.when_readable(lambda: self.from_outside(callback, *args))

    def remove_reader(self, fd: Any) -> bool:
        fd.when_readable(None)
        return True
