"""An asyncio loop whose time jumps: a test that waits ten seconds takes milliseconds, and always the same steps."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

from jetcluster.budget import SLICE_SECONDS

EPOCH_NS = 1_700_000_000_000_000_000


class _JumpingSelector(selectors.SelectSelector):
    """Instead of waiting, moves the loop's time on."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise AssertionError("nothing is left that could happen: the test would hang")
            if timeout > 0:
                self.loop.now += timeout
        return ready


class Strides:
    """A clock of its own for `LoopBudget`, as the loop's stands still while somebody works: it goes on with each look,
    so that a job does one step of its work per turn."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += SLICE_SECONDS
        return self._now

    def time_ns(self) -> int:
        return EPOCH_NS


class VirtualLoop(asyncio.SelectorEventLoop):
    """Also the `Clock` and the `Timers` of everything in the test."""

    def __init__(self) -> None:
        self.now = 1000.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)
        self.failures: list[dict[str, Any]] = []
        self.set_exception_handler(lambda loop, context: self.failures.append(context))

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return EPOCH_NS + int((self.now - 1000.0) * 1e9)


def virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test in virtual time. It fails, too, when a callback raised or a task's exception was never
    looked at: in production nobody would have been told either."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, VirtualLoop)
            runner.run(test(*args, **kwargs))  # type: ignore[arg-type]
            import gc

            gc.collect()
            assert not loop.failures, loop.failures

    return run
