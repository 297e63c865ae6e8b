"""`Redial`, the pauses between a leaf's attempts at one hub."""

from __future__ import annotations

import math
from collections.abc import Callable

MAX_DELAY_SECONDS = 8.0
"""Longest pause between attempts at a hub that refuses; after a detected loop the pause is longer."""
MAX_UNREACHED_DELAY_SECONDS = 2.0
"""Longest pause between attempts at an unreachable hub."""
STALE_SECONDS = 30.0
"""Seconds after the loss of a link in which a loop may be the link itself: another server of the hub may not have found
it dead yet, and announces this leaf's own interest. nats-server waits 30 s as after any loop."""


class Redial:
    """Pauses double with each attempt that brings no link, and begin again after one that did."""

    def __init__(self, random: Callable[[], float]) -> None:
        """`random`: a number from 0 to 1."""
        self._random = random
        self._failures = 0
        self._lost_at = -math.inf

    def pause(self, now: float, least: float, *, reached: bool, was_up: bool, told: float) -> float:
        """Seconds until the next attempt, after one that has ended at `now` (monotonic). `least`: the first pause.
        `told`: the pause that the link itself asks for, as after a loop; 0 for none."""
        if was_up and not told:
            self._failures, self._lost_at = 0, now
        self._failures += 1
        longest = MAX_DELAY_SECONDS if reached else MAX_UNREACHED_DELAY_SECONDS
        delay: float = min(least * 2 ** min(self._failures - 1, 8), max(longest, least))
        if now - self._lost_at < STALE_SECONDS:
            told = 0.0
        return max(delay * (1 + 0.2 * self._random()), told)
