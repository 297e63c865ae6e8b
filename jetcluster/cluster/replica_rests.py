"""`ReplicaRests`: which streams the meta leader leaves alone for a while, and which servers may not take them.

Each server has its own, and fills it while it leads the meta group: the next meta leader asks again, and does not know
what was changed by hand before it led. Nothing here walks over all streams.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Final, TypeVar

from jetcluster.clock import Clock
from jetcluster.cluster.load import REST_SECONDS

if TYPE_CHECKING:
    from jetcluster.meta.state import StreamUpdated

REFUSED_SECONDS: Final = 300.0
"""Time after which a server that a placement forbids is looked at again: its tags may be others then."""
BY_HAND_SECONDS: Final = 3600.0
"""Time for which a stream stays where anybody else has put its replicas (`nats stream cluster peer-remove`)."""
MAX_REMEMBERED: Final = 16_384
"""Streams that rest, and places that are refused; the oldest ones are forgotten."""

Key = TypeVar("Key", bound=Hashable)


class ReplicaRests:
    """One per server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._moving: tuple[int, tuple[str, ...]] = 0, ()
        """Group id and new peers of the newest move for balance."""
        self._until: dict[int, float] = {}
        """By stream, until when it rests (monotonic seconds)."""
        self._refused: dict[tuple[int, str], float] = {}
        """By stream and server, until when it is refused."""

    def moving(self, gid: int, peers: tuple[str, ...]) -> None:
        """Announces a move for balance."""
        self._moving = gid, peers

    def note(self, effect: StreamUpdated) -> None:
        """Takes a decision of the meta group that this server leads."""
        new = effect.assignment
        if set(new.peers) != set(effect.previous.peers):
            self.rest(new.gid, REST_SECONDS if (new.gid, new.peers) == self._moving else BY_HAND_SECONDS)

    def rest(self, gid: int, seconds: float) -> None:
        now = self._clock.monotonic()
        _put(self._until, gid, max(self._until.get(gid, 0.0), now + seconds), now)

    def rests(self, gid: int) -> bool:
        return self._until.get(gid, 0.0) > self._clock.monotonic()

    def refuse(self, gid: int, target: str) -> None:
        now = self._clock.monotonic()
        _put(self._refused, (gid, target), now + REFUSED_SECONDS, now)

    def is_refused(self, gid: int, target: str) -> bool:
        return self._refused.get((gid, target), 0.0) > self._clock.monotonic()


def _put(times: dict[Key, float], key: Key, until: float, now: float) -> None:
    times.pop(key, None)  # so that the newest are the last
    while times and (len(times) >= MAX_REMEMBERED or times[next(iter(times))] <= now):
        del times[next(iter(times))]
    times[key] = until
