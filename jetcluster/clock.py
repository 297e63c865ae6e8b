"""Time, randomness and timers as parameters: the only module that asks the operating system for them.

Everything else takes a `Clock`, an `Rng` or `Timers`, so that a test or the simulation can replay it. `apply` of a
state machine gets none of them: time comes stamped into the command (docs/architecture.md, "Determinism").
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from typing import Any, Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def time_ns(self) -> int:
        """Wall clock, nanoseconds since the Unix epoch."""
        ...


class Rng(Protocol):
    def random(self) -> float: ...
    def uniform(self, a: float, b: float) -> float: ...
    def randrange(self, n: int) -> int: ...
    def token(self, n: int) -> bytes:
        """`n` random bytes, unguessable outside tests."""
        ...


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """The part of an event loop that pure-ish code needs; asyncio's loop satisfies it as it is."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> TimerHandle: ...
    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> TimerHandle: ...


class SystemClock:
    """The operating system's; its functions themselves, as every message asks for the time."""

    monotonic = staticmethod(time.monotonic)
    time_ns = staticmethod(time.time_ns)


class SystemRng:
    def random(self) -> float:
        return random.random()

    def uniform(self, a: float, b: float) -> float:
        return random.uniform(a, b)

    def randrange(self, n: int) -> int:
        return random.randrange(n)

    def token(self, n: int) -> bytes:
        return secrets.token_bytes(n)
