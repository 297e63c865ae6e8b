"""`LoopWatch`: whether the event loop of this process stands still so much that others should lead."""

from __future__ import annotations

import math
from typing import Final

WINDOW: Final = 5.0
"""Seconds: a pause so long ago counts a third."""
STANDS_STILL: Final = 2.5
"""Seconds of the window."""
PAUSE: Final = 0.25
"""Shorter pauses are what a busy machine does to everybody."""
LONGEST_PAUSE: Final = 1.0
"""A longer one counts as this: it is over, and what counts is that they come again and again."""


class LoopWatch:
    """`beat` is called by a timer that is due every `period` seconds."""

    def __init__(self) -> None:
        self._stood_still = 0.0

    def beat(self, period: float, late: float) -> None:
        """It came `late` seconds after it was due."""
        pause = min(max(late, 0.0), LONGEST_PAUSE)
        self._stood_still *= math.exp(-(period + pause) / WINDOW)
        if pause > PAUSE:
            self._stood_still += pause

    @property
    def trouble(self) -> str:
        """ "" while all is well."""
        if self._stood_still < STANDS_STILL:
            return ""
        return f"the event loop stood still for half of the last {WINDOW:.0f} seconds"
