"""`ManualTime` and `SeededRng`: the twins of the clock, the timers and the randomness."""

from __future__ import annotations

import functools
import heapq
import random
from collections.abc import Callable
from typing import Any


class SeededRng:
    """Test twin of `SystemRng`: the same seed gives the same run."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def random(self) -> float:
        return self._random.random()

    def uniform(self, a: float, b: float) -> float:
        return self._random.uniform(a, b)

    def randrange(self, n: int) -> int:
        return self._random.randrange(n)

    def token(self, n: int) -> bytes:
        return self._random.randbytes(n)


class _ManualHandle:
    __slots__ = ("args", "callback", "cancelled")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.callback = callback
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualTime:
    """Test twin of `SystemClock` and of the loop's timers: time moves only in `advance`."""

    def __init__(self, start: float = 1_000.0, epoch_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now = start
        self._epoch_ns = epoch_ns - int(start * 1e9)
        self._sequence = 0
        self._queue: list[tuple[float, int, _ManualHandle]] = []

    def monotonic(self) -> float:
        return self._now

    def uptime(self) -> float:
        return self.monotonic()

    def time_ns(self) -> int:
        return self._epoch_ns + int(self._now * 1e9)

    def set_time_ns(self, now: int) -> None:
        """Sets the clock; monotonic time goes on."""
        self._epoch_ns += now - self.time_ns()

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> _ManualHandle:
        return self.call_later(0.0, callback, *args)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> _ManualHandle:
        handle = _ManualHandle(callback, args)
        self._sequence += 1
        heapq.heappush(self._queue, (self._now + delay, self._sequence, handle))
        return handle

    def advance(self, seconds: float) -> None:
        """Runs, in order, every callback due within `seconds`, then stands at the end of the interval."""
        end = self._now + seconds
        while self._queue and self._queue[0][0] <= end:
            due, _, handle = heapq.heappop(self._queue)
            self._now = max(self._now, due)
            if not handle.cancelled:
                handle.callback(*handle.args)
        self._now = end


class SteppedTime(ManualTime):
    """Test twin whose time moves only while somebody works, and whose loop is turned by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.soon: list[Callable[[], None]] = []

    def monotonic(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Any:
        self.soon.append(functools.partial(callback, *args))

    def turn(self) -> None:
        now, self.soon = self.soon, []
        for callback in now:
            callback()
