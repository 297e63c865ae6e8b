"""`ReplicaRests`: which streams the meta leader leaves alone for a while, and which servers did not take them.

It belongs to one meta leader and is lost with it: the next one asks again, and does not know what was changed by hand
before it led.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jetcluster.budget import Steps
from jetcluster.clock import Clock
from jetcluster.cluster.load import REST_SECONDS

if TYPE_CHECKING:
    from jetcluster.meta.machine import MetaMachine

REFUSED_SECONDS: Final = 300.0
"""Time after which a server that a placement forbids is looked at again: its tags may be others then."""
BY_HAND_SECONDS: Final = 3600.0
"""Time for which a stream stays where anybody else has put its replicas (`nats stream cluster peer-remove`)."""
MAX_REFUSED: Final = 16_384
STREAMS_PER_STEP: Final = 256


class ReplicaRests:
    """One per server; times are monotonic seconds."""

    def __init__(self, machine: MetaMachine, clock: Clock) -> None:
        self._machine, self._clock = machine, clock
        self._term = -1
        self._peers: dict[int, tuple[str, ...]] = {}
        """By stream, its peers when they were last looked at, or as a move for balance left them."""
        self._until: dict[int, float] = {}
        """By stream, until when it rests."""
        self._refused: dict[tuple[int, str], float] = {}
        """By stream and server, when it was refused; oldest first."""

    def look(self, term: int) -> Steps[None]:
        """Finds the streams whose peers somebody else has changed, and forgets what is over. `term`: of the meta
        leader; what others decided in between says nothing."""
        if term != self._term:
            self._term, self._peers = term, {}
        old, now = self._peers, self._clock.monotonic()
        seen: dict[int, tuple[str, ...]] = {}
        for number, one in enumerate(self._machine.all_assignments(), 1):
            seen[one.gid] = one.peers
            if set(old.get(one.gid, one.peers)) != set(one.peers):
                self.rest(one.gid, BY_HAND_SECONDS)
            if number % STREAMS_PER_STEP == 0:
                yield
        self._peers = seen
        self._until = {gid: until for gid, until in self._until.items() if until > now and gid in seen}
        for pair in [pair for pair, at in self._refused.items() if now - at >= REFUSED_SECONDS]:
            del self._refused[pair]

    def rest(self, gid: int, seconds: float) -> None:
        self._until[gid] = max(self._until.get(gid, 0.0), self._clock.monotonic() + seconds)

    def rests(self, gid: int) -> bool:
        return gid in self._until

    def moved(self, gid: int, peers: tuple[str, ...]) -> None:
        """Notes a move for balance, which is decided."""
        self.rest(gid, REST_SECONDS)
        self._peers[gid] = peers

    def refuse(self, gid: int, target: str) -> None:
        if len(self._refused) >= MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[gid, target] = self._clock.monotonic()

    def is_refused(self, gid: int, target: str) -> bool:
        return (gid, target) in self._refused
