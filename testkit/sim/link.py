"""A link of the simulated network: one direction between two machines (`Network.link`)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from testkit.sim.loop import Scheduler

WINDOW = 256 << 10
"""Bytes of one direction of a connection that kernels and the network hold, where no link is congested."""
RATE = 120e6
"""Bytes per second of a link that nothing is done to."""
SLOW = 0.001
"""Seconds that no such link takes."""
RESEND = 0.2
"""Seconds until TCP sends again what was lost."""
MOST_RESENDS = 6


class Link:
    """One direction between two machines; see `Network.link`."""

    def __init__(self, scheduler: Scheduler, rng: Random) -> None:
        self.calm()
        self.cut_since: float | None = None
        self._scheduler = scheduler
        self._random = rng.random
        self._free_at = 0.0
        self._late = 0.0
        """The time until which something is under way that was held up."""
        self._held: list[tuple[Callable[..., None], tuple[Any, ...], Lane]] = []

    def calm(self) -> None:
        """Sets the link to what it is at the beginning. Seconds, seconds, share of segments, bytes per second, bytes of
        one connection that are under way."""
        self.delay = 0.0002
        self.jitter = 0.0003
        self.loss = 0.0
        self.rate = RATE
        self.window = WINDOW

    @property
    def is_calm(self) -> bool:
        """Nothing is done to it, and nothing that was done before holds anything up."""
        quiet = self._scheduler.now + SLOW >= max(self._late, self._free_at)
        wide = self.rate == RATE and self.window == WINDOW
        return quiet and wide and self.cut_since is None and not self.loss and self.delay < SLOW

    def send(self, lane: Lane, size: int, callback: Callable[..., None], *args: Any) -> None:
        """Calls back once it has come over."""
        if self.cut_since is not None:
            self._held.append((callback, args, lane))
            return
        now = self._scheduler.now
        free = self._free_at
        self._free_at = free = (free if free > now else now) + size / self.rate
        when = free + self.delay + self.jitter * self._random()
        if self.loss:
            resend = RESEND
            while self._random() < self.loss and resend < RESEND * 2**MOST_RESENDS:
                when += resend
                resend *= 2
            self._late = max(self._late, when)
        if when > lane.last:
            lane.last = when
        self._scheduler.at(lane.last, callback, *args)

    def cut(self) -> None:
        if self.cut_since is None:
            self.cut_since = self._scheduler.now

    def heal(self, resend: float | None = None) -> None:
        """Lets what was held come with the next resend of its connection, which are the rarer the longer it was cut;
        with `resend` within so many seconds."""
        if self.cut_since is None:
            return
        now = self._scheduler.now
        longest = min(max(now - self.cut_since, RESEND), RESEND * 2**MOST_RESENDS) if resend is None else resend
        self.cut_since = None
        held, self._held = self._held, []
        resends: dict[Lane, float] = {}
        for callback, args, lane in held:
            if lane not in resends:
                resends[lane] = now + self.delay + longest * self._random()
            self._late = max(self._late, resends[lane])
            lane.last = max(lane.last, resends[lane])
            self._scheduler.at(lane.last, callback, *args)


class Lane:
    """One direction of one connection: what goes over it stays in order."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0.0
