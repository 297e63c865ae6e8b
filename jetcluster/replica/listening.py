"""`Listening`: a stream's leader and the subjects that it takes messages from; very many are subscribed to in steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Final

from jetcluster.budget import BusyError, Job, LoopBudget, Steps
from jetcluster.protocol.bus import Bus, Callback, Subscription

AT_ONCE: Final = 256
PER_STEP: Final = 64
"""Subjects: about a millisecond."""


class Listening:
    """`failed` is told why a subject cannot be subscribed to. Of a stream that listens to all of its subjects already
    nothing is in the budget."""

    def __init__(self, bus: Bus, budget: LoopBudget, failed: Callable[[Exception], None]) -> None:
        self._bus = bus
        self._budget = budget
        self._failed = failed
        self._subscriptions: dict[bytes, Subscription] = {}
        self._job: Job[None] | None = None

    @property
    def subjects(self) -> Collection[bytes]:
        """Listened to by now."""
        return self._subscriptions.keys()

    @property
    def complete(self) -> bool:
        """Nothing is missing; false for a moment when there are very many."""
        return self._job is None or self._job.over

    def listen(self, wanted: set[bytes], taker: Callable[[bytes], Callback], listening: Callable[[], None]) -> None:
        """To these and no others; `listening` is called when it does, or has done what it can."""
        self._stop()
        for subject in sorted(self._subscriptions.keys() - wanted):
            self._bus.unsubscribe(self._subscriptions.pop(subject))
        steps = self._steps(sorted(wanted - self._subscriptions.keys()), taker, listening)
        if len(wanted) - len(self._subscriptions) > AT_ONCE:
            with contextlib.suppress(BusyError):
                account = self._bus.account
                self._job = self._budget.start(account, steps, lambda _: None, self._failed, at_once=False)
                return
            steps = self._steps(sorted(wanted - self._subscriptions.keys()), taker, listening)
        for _ in steps:
            pass

    def end(self) -> None:
        self._stop()
        for subscription in self._subscriptions.values():
            self._bus.unsubscribe(subscription)
        self._subscriptions.clear()

    def _steps(
        self, new: list[bytes], taker: Callable[[bytes], Callback], listening: Callable[[], None]
    ) -> Steps[None]:
        for number, subject in enumerate(new, 1):
            self._subscriptions[subject] = self._bus.subscribe(subject, taker(subject))
            if number % PER_STEP == 0:
                yield
        listening()

    def _stop(self) -> None:
        if self._job is not None:
            self._job.cancel()
            self._job = None
