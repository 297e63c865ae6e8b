"""`ClusterClock`: wall time that one bad clock cannot move.

What is stamped into logs decides what expires, when schedules fire and which message ids count as repeated, on all
replicas; so a clock that is hours ahead deletes data everywhere. Every node tells its wall clock with its heartbeats.
A wall clock is compared as its *base*: wall time minus monotonic time, which is constant as long as a clock runs as it
should.

The *reference* is the base that the node believes in. Rules, in this order:

1. The clocks that agree with the reference (within LIMIT) carry it on; it follows their lower median. A clock that
   jumps away is left behind, this node's own as any other.
2. Clocks that do not agree with it take it over once they are a majority of those heard, agree among each other, and
   have done so for HOLD seconds: somebody has set the clocks of the cluster right. A node that nobody is heard by is
   a majority of one.
3. At the start the reference is that of the peers, if they have one, else the lower median of what is heard. Of two
   clocks that differ the lower one counts: to expire something late loses nothing.

As long as the own clock agrees it is read as it is; otherwise the reference goes on by the monotonic clock. Marzullo's
algorithm (1984) and NTP's selection (RFC 5905, section 11.2.1) are of the same mind: a majority that agrees is right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from jetcluster.clock import Clock

SECOND: Final = 1_000_000_000
LIMIT: Final = 5 * SECOND
"""Nanoseconds by which clocks may differ and count as equal. Far above what NTP leaves, far below any sensible
max_age, window for duplicates or schedule."""
HOLD: Final = 30.0
"""Seconds that a majority must have agreed on another time before it is believed."""
FRESH: Final = 3.0
"""A peer that was not heard for so many seconds tells no time."""
KEPT: Final = 20
"""Readings per peer: a delay makes a clock look late, so the latest one of them is right."""


@dataclass(slots=True)
class _Heard:
    bases: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT))
    trusted: int | None = None
    """The peer's own reference, once it has one that others have confirmed."""
    at: float = 0.0

    @property
    def base(self) -> int:
        return max(self.bases)


class ClusterClock:
    """A `Clock`. `settle` is to be called some ten times per second, `heard` with each heartbeat of a peer."""

    def __init__(self, system: Clock, limit: int = LIMIT, on_moved: Callable[[float], None] | None = None) -> None:
        """`on_moved(seconds)`: the reference was given up for another one, that many seconds later."""
        self._system = system
        self._limit = limit
        self._on_moved = on_moved or (lambda seconds: None)
        self._peers: dict[str, _Heard] = {}
        self._reference = self._base()
        self._low = self._reference - limit
        self._high = self._reference + limit
        self._confirmed = False
        """Others agree with the reference, or gave it: it is no longer only what this node believes."""
        self._apart_since: float | None = None
        self._apart_at = 0

    # ---- clock.Clock

    def monotonic(self) -> float:
        return self._system.monotonic()

    def time_ns(self) -> int:
        """Nanoseconds since the Unix epoch: the own wall clock while it agrees with the others, else their time."""
        wall = self._system.time_ns()
        uptime = int(self._system.monotonic() * SECOND)
        if self._low <= wall - uptime <= self._high:
            return wall
        return self._reference + uptime

    # ---- what is told and heard

    @property
    def wall_ns(self) -> int:
        """The own wall clock as it is."""
        return self._system.time_ns()

    @property
    def trusted_ns(self) -> int:
        """What others may take over as the time; 0 while nobody has confirmed it."""
        return self._reference + int(self._system.monotonic() * SECOND) if self._confirmed else 0

    @property
    def skew(self) -> float:
        """Seconds by which the own wall clock is ahead of the reference."""
        return (self._base() - self._reference) / SECOND

    @property
    def trouble(self) -> str:
        """Why the own clock is not to be trusted; "" while it is."""
        skew = self._base() - self._reference
        if abs(skew) <= self._limit:
            return ""
        return f"the wall clock is {abs(skew) / SECOND:.1f} s {'ahead of' if skew > 0 else 'behind'} the cluster's time"

    def heard(self, peer: str, wall_ns: int, trusted_ns: int) -> None:
        """A heartbeat of `peer`, with what its `wall_ns` and `trusted_ns` were when it left."""
        now = self._system.monotonic()
        known = self._peers.get(peer)
        if known is None:
            known = self._peers[peer] = _Heard()
        elif now - known.at > FRESH:
            known.bases.clear()
        uptime = int(now * SECOND)
        known.bases.append(wall_ns - uptime)
        known.trusted = trusted_ns - uptime if trusted_ns else None
        known.at = now
        if not self._confirmed:
            self.settle()

    def forget(self, peer: str) -> None:
        """The link to `peer` is gone."""
        self._peers.pop(peer, None)

    # ---- the reference

    def settle(self) -> None:
        """Looks at all clocks again."""
        now = self._system.monotonic()
        heard = [known for known in self._peers.values() if now - known.at <= FRESH]
        bases = [self._base(), *(known.base for known in heard)]
        if heard and not self._confirmed:
            trusted = [known.trusted for known in heard if known.trusted is not None]
            self._refer_to(_lower_median(trusted or bases))
            self._confirmed = True
        agreeing = [base for base in bases if abs(base - self._reference) <= self._limit]
        if agreeing:
            self._refer_to(_lower_median(agreeing))
        self._look_for_another(bases, now)

    def _look_for_another(self, bases: list[int], now: float) -> None:
        apart = [base for base in bases if abs(base - self._reference) > self._limit]
        other = _lower_median(apart) if apart else 0
        united = [base for base in apart if abs(base - other) <= self._limit]
        if 2 * len(united) <= len(bases):
            self._apart_since = None
        elif self._apart_since is None or abs(other - self._apart_at) > self._limit:
            self._apart_since, self._apart_at = now, other
        elif now - self._apart_since >= HOLD:
            self._apart_since = None
            moved = (other - self._reference) / SECOND
            self._refer_to(other)
            self._on_moved(moved)

    def _refer_to(self, base: int) -> None:
        self._reference = base
        self._low, self._high = base - self._limit, base + self._limit

    def _base(self) -> int:
        return self._system.time_ns() - int(self._system.monotonic() * SECOND)


def _lower_median(values: list[int]) -> int:
    return sorted(values)[(len(values) - 1) // 2]
