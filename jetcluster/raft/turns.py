"""`Turns`: the groups of a node that have something to do, and when: in the next turn of the loop, at a time, once
commands may be applied again, or at the next housekeeping."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from jetcluster.clock import Clock, TimerHandle, Timers


class Turns:
    """Groups are known here by their ids. `on_turn` is called behind the present callback when a group was marked,
    `on_wake` when the earliest of the asked times has come."""

    def __init__(self, clock: Clock, timers: Timers, on_turn: Callable[[], None], on_wake: Callable[[], None]) -> None:
        self.busy = False
        """A turn is under way, or comes without being asked for."""
        self.marked: dict[int, None] = {}
        """Groups with something to do in this turn, in the order in which they said so."""
        self.stirred: dict[int, None] = {}
        """Groups in which something happened since the last housekeeping."""
        self.asks = False
        """Groups ask `may_apply` before they apply what is committed: set by `ask_first` until `apply_again`."""
        self.may_apply: Callable[[], bool] = lambda: True
        """Groups apply while this says so. The meta group does not ask: it writes little, and what the node should do
        with the others is in it."""
        self._clock = clock
        self._timers = timers
        self._on_turn = on_turn
        self._on_wake = on_wake
        self._scheduled = False
        self._held: dict[int, None] = {}
        """Groups that had something to apply and were not allowed to."""
        self._wakes: list[tuple[float, int]] = []
        self._wake_handle: TimerHandle | None = None
        self._wake_at = float("inf")

    # -- the next turn

    def mark(self, gid: int) -> None:
        """The group has something to do in this turn."""
        self.marked[gid] = None
        if not (self._scheduled or self.busy):
            self._scheduled = True
            self._timers.call_soon(self._turn)

    def schedule(self) -> None:
        """There is a turn to come, also if one is under way."""
        if not self._scheduled:
            self._scheduled = True
            self._timers.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        self._on_turn()

    def drop(self, gid: int) -> None:
        """The group is gone."""
        self.marked.pop(gid, None)
        self.stirred.pop(gid, None)
        self._held.pop(gid, None)

    # -- applying

    def hold(self, gid: int) -> None:
        """The group has something to apply once it may."""
        self._held[gid] = None

    def ask_first(self) -> None:
        """Soon there may be too much to apply more."""
        self.asks = True

    def apply_again(self) -> None:
        """There is room again, and nobody has to ask for it."""
        self.asks = False
        held, self._held = self._held, {}
        for gid in held:
            self.mark(gid)

    # -- housekeeping

    def stir(self, gid: int) -> None:
        """The group wants the next housekeeping to look at it."""
        self.stirred[gid] = None

    def take_stirred(self) -> dict[int, None]:
        stirred, self.stirred = self.stirred, {}
        return stirred

    # -- times

    def wake_at(self, gid: int, when: float) -> None:
        """The group wants to be asked at `when`, in monotonic seconds."""
        heapq.heappush(self._wakes, (when, gid))
        if when < self._wake_at:
            self._arm(when)

    def _arm(self, when: float) -> None:
        if self._wake_handle is not None:
            self._wake_handle.cancel()
        self._wake_at = when
        delay = max(0.0, when - self._clock.monotonic())
        self._wake_handle = self._timers.call_later(delay, self._wake)

    def _wake(self) -> None:
        self._wake_handle = None
        self._wake_at = float("inf")
        self._on_wake()

    def due(self, now: float) -> list[int]:
        """Takes the groups whose times have come, each once."""
        found: dict[int, None] = {}
        while self._wakes and self._wakes[0][0] <= now:
            found[heapq.heappop(self._wakes)[1]] = None
        return list(found)

    def rearm(self) -> None:
        """After `due`: waits for the next time."""
        if self._wakes and self._wakes[0][0] < self._wake_at:
            self._arm(self._wakes[0][0])

    def close(self) -> None:
        if self._wake_handle is not None:
            self._wake_handle.cancel()
