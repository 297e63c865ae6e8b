"""Time, randomness and timers as parameters: only this module asks the operating system for them.

Other modules take a `Clock`, an `Rng` or `Timers`, so that a test or the simulation can replay them. A state machine's
`apply` gets none: the command carries its time (docs/architecture.md, "Determinism").
"""

from __future__ import annotations

import functools
import random
import secrets
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

SECOND: Final = 1_000_000_000
"""Nanoseconds."""


class Clock(Protocol):
    """A source of time."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; never goes back."""

    def uptime(self) -> float:
        """Return seconds as `monotonic` does, with those in which the machine was suspended, where it can tell."""

    def time_ns(self) -> int:
        """Return the wall clock, nanoseconds since the Unix epoch."""


class Rng(Protocol):
    """A source of randomness, with the signatures of `random.Random`."""

    def random(self) -> float: ...
    def uniform(self, a: float, b: float) -> float: ...
    def randrange(self, n: int) -> int: ...
    def token(self, n: int) -> bytes:
        """Return `n` random bytes, unguessable outside tests."""


class TimerHandle(Protocol):
    """A scheduled callback, as `asyncio.TimerHandle`."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """The part of an event loop that schedules callbacks; asyncio's loop satisfies it."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> TimerHandle: ...
    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> TimerHandle: ...


def _uptime() -> Callable[[], float]:
    boottime = getattr(time, "CLOCK_BOOTTIME", None)  # Linux only
    return time.monotonic if boottime is None else functools.partial(time.clock_gettime, boottime)


class SystemClock:
    """The operating system's clock, without wrappers, as every message asks for the time."""

    monotonic = staticmethod(time.monotonic)
    uptime = staticmethod(_uptime())
    time_ns = staticmethod(time.time_ns)


class SystemRng:
    """The operating system's randomness."""

    uniform = staticmethod(random.uniform)
    random = staticmethod(random.random)

    def randrange(self, n: int) -> int:
        return random.randrange(n)

    def token(self, n: int) -> bytes:
        return secrets.token_bytes(n)


_SET_BACK_NS: Final = SECOND
"""Nanoseconds from which on a difference is no correction of a clock that goes on."""


class OnwardClock:
    """A `Clock` for what is to happen some time from now: where another one is set back it goes on from where it was,
    by `lead` ahead from then on. (Set forward, it follows.) What waits for a time would else wait so much longer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.monotonic, self.uptime = clock.monotonic, clock.uptime
        self.lead = 0
        """Nanoseconds by which it is ahead of the other clock."""
        self._base = clock.time_ns() - int(clock.monotonic() * SECOND)

    def time_ns(self) -> int:
        wall = self._clock.time_ns()
        base = wall - int(self.monotonic() * SECOND)
        if base < self._base - _SET_BACK_NS:
            self.lead += self._base - base
        self._base = base
        return wall + self.lead
