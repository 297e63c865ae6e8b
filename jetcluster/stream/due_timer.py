"""`DueTimer`: what a stream's leader does when its time has come: by a timer, and not more often than is good.

Ticks come a few times per second; a timer is set when the time is near. What is due right after something was done
waits for a pause, so that much of it goes with one command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from jetcluster.clock import Clock

SOON: Final = 500_000_000
"""A timer is set for what is due within so many nanoseconds; for later ones there are ticks to come."""

CallLater = Callable[[float, Callable[[], None]], Any]
"""The loop's: what it returns has `cancel`."""


class DueTimer:
    """Calls for one kind of work when it is due. Idle until `look` or `arm`."""

    def __init__(
        self,
        clock: Clock,
        call_later: CallLater,
        due: Callable[[], int | None],
        pause: Callable[[], int],
        act: Callable[[int], bool],
    ) -> None:
        """`due` tells when there is something to do (Unix nanoseconds), None: never, or not now; `pause` for how long
        after the last time nothing is done; `act` does it, at the time that it is given, and says whether it did."""
        self._clock = clock
        self._call_later = call_later
        self._due = due
        self._pause = pause
        self._act = act
        self._timer: Any = None
        self._at = 0
        """When the timer goes off."""
        self._acted = 0

    def hurry(self) -> None:
        """More is to be done at once: there is no pause this time."""
        self._acted = 0

    def look(self) -> None:
        """Does what is due, or sets a timer if that is soon."""
        now = self._clock.time_ns()
        at = self._next(now)
        if at is None or at > now:
            self._arm(at, now)
        elif self._act(now):
            self._acted = now

    def arm(self) -> None:
        """Sets a timer for what is due or will be soon, and does nothing yet: for who may not be interrupted."""
        now = self._clock.time_ns()
        self._arm(self._next(now), now)

    def _next(self, now: int) -> int | None:
        due = self._due()
        if due is None:
            return None
        if self._acted > now:
            self._acted = 0  # the clock was set back
        return max(due, self._acted + self._pause())

    def _arm(self, at: int | None, now: int) -> None:
        if at is not None and at - now <= SOON and (self._timer is None or at < self._at):
            self.cancel()
            self._at = at
            self._timer = self._call_later(max(at - now, 0) / 1e9, self._goes_off)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _goes_off(self) -> None:
        self._timer = None
        self.look()
