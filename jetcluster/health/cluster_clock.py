"""`ClusterClock`: wall time that one bad clock cannot move.

The stamps in the logs decide which messages expire, when schedules fire and which message ids count as repeated, on
all replicas. So a clock that is hours ahead deletes data everywhere, and one that is hours late does so once it is set
right. Every node sends its wall clock with its heartbeats. A wall clock is compared as its *base*: wall time minus
monotonic time, which is constant as long as a clock runs as it should.

The *reference* is the base that the node believes in. A *majority* is one of all nodes that belong to the cluster,
heard or not. Rules, in this order:

1. At the start there is no reference: the node reads its own clock, and `established` is False, so that it does not
   lead. It takes the reference of peers that have one, else that of a majority whose clocks agree (within
   MAX_DIFFERENCE_NS). If no majority agrees, no clock can be known to be right. Where all nodes are heard and the
   clocks of a majority are less than a minute apart, a difference of n seconds is accepted after n seconds: no node is
   left that could outvote them.
2. A majority that agrees with the reference carries it on, by the lower median. A clock that jumps is ignored, this
   node's own as any other. Without a majority the reference goes on by the monotonic clock.
3. A majority that does not agree with the reference, and agrees on another time for AGREED_SECONDS, replaces it:
   somebody has set the clocks of the cluster right.
4. A node that had no majority for AGREED_SECONDS takes the majority's time at once when it is back. The others alone
   must be a majority; where the node's own clock does not agree with its reference either, it counts as one of them.
5. A reading that was sent while this node stood still, or by a peer that was silent, may have waited for long, and a
   reading that waited makes a clock look late. So no reading counts in the first second after such a pause
   (PROVEN_SECONDS).

As long as the own clock agrees it is read as it is; otherwise the reference goes on by the monotonic clock. Marzullo's
algorithm (1984) and NTP's selection (RFC 5905, section 11.2.1) decide likewise: a majority that agrees is right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import field
from typing import Final

from jetcluster.clock import Clock
from jetcluster.records import dataclass

SECOND: Final = 1_000_000_000
MAX_DIFFERENCE_NS: Final = 5 * SECOND
"""Nanoseconds by which clocks may differ and count as equal. Far above what NTP leaves, far below any sensible
max_age, window for duplicates or schedule."""
AGREED_SECONDS: Final = 30.0
"""Seconds that a majority must have agreed on another time before it is believed."""
HEARD_SECONDS: Final = 3.0
"""Seconds without a heartbeat after which a peer's clock does not count."""
DOUBT_SECONDS: Final = 2.0
"""Seconds after which a start at which clocks disagree is a trouble, not only the order in which peers are heard."""
PROVEN_SECONDS: Final = 1.0
"""Seconds after a pause until readings count. Those that have waited are read within milliseconds."""
START_DIFFERENCE_SECONDS: Final = 60.0
"""The most seconds by which clocks may differ at a start at which all nodes are heard."""
READINGS_PER_PEER: Final = 20
"""Readings per peer: a delay makes a clock look late, so the latest one of them is right."""


@dataclass(slots=True)
class _Heard:
    bases: deque[int] = field(default_factory=lambda: deque(maxlen=READINGS_PER_PEER))
    trusted: int | None = None
    """The peer's own reference, once it has one."""
    at: float = 0.0
    counts_at: float = 0.0

    @property
    def base(self) -> int:
        return max(self.bases)


class ClusterClock:
    """A `Clock`. `settle` must be called some ten times per second, `heard` with each heartbeat of a peer."""

    def __init__(
        self, system: Clock, limit: int = MAX_DIFFERENCE_NS, on_moved: Callable[[float], None] | None = None
    ) -> None:
        """`on_moved(seconds)`: the reference was given up for another one, that many seconds later."""
        self._system = system
        self.monotonic = system.monotonic
        self._limit = limit
        self._on_moved = on_moved or (lambda seconds: None)
        self._peers: dict[str, _Heard] = {}
        self._reference = self._base()
        self._low = self._reference - limit
        self._high = self._reference + limit
        self.others: Callable[[], Collection[str] | None] = lambda: None
        """The other nodes of the cluster, heard or not; None while that is not known."""
        self.established = False
        """There is a reference, a majority's: this node may stamp."""
        self._secure_at = 0.0
        """When a majority agreed with the reference last."""
        self._settled_at: float | None = None
        self._counts_at = 0.0
        self._doubt_since: float | None = None
        """Since when a clock is heard that disagrees, while there is no reference."""
        self._all_since: float | None = None
        """Since when all nodes are heard, while there is no reference."""
        self._apart_since: float | None = None
        self._apart_at = 0

    # ---- clock.Clock

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
        """The time that others may take over, in nanoseconds since the Unix epoch. 0 without a reference, and after
        AGREED_SECONDS without a majority that agrees if the own clock does not agree either: one of the two is
        wrong."""
        now = self._system.monotonic()
        if not self.established or (now - self._secure_at >= AGREED_SECONDS and not self._agrees(self._base())):
            return 0
        return self._reference + int(now * SECOND)

    @property
    def disputed(self) -> bool:
        """True when there is no reference, and the clock of a peer disagrees with this one."""
        return not self.established and self._doubt_since is not None

    @property
    def skew(self) -> float:
        """Seconds by which the own wall clock is ahead of the reference."""
        return (self._base() - self._reference) / SECOND

    @property
    def trouble(self) -> str:
        """Why the own clock is not to be trusted; "" while it is."""
        if self._doubt_since is not None and self._system.monotonic() - self._doubt_since >= DOUBT_SECONDS:
            return "the wall clocks of the servers differ, and no majority of them agrees on the time"
        skew = self._base() - self._reference
        if abs(skew) <= self._limit:
            return ""
        return f"the wall clock is {abs(skew) / SECOND:.1f} s {'ahead of' if skew > 0 else 'behind'} the cluster's time"

    def heard(self, peer: str, wall_ns: int, trusted_ns: int) -> None:
        """A heartbeat of `peer`, with what its `wall_ns` and `trusted_ns` were when it left."""
        now = self._system.monotonic()
        self._note_pause(now)
        known = self._peers.get(peer)
        if known is None:
            known = self._peers[peer] = _Heard()
        elif now - known.at > HEARD_SECONDS:
            known.bases.clear()
            known.counts_at = now + PROVEN_SECONDS
        uptime = int(now * SECOND)
        known.bases.append(wall_ns - uptime)
        known.trusted = trusted_ns - uptime if trusted_ns else None
        known.at = now
        if not self.established or now - self._secure_at >= AGREED_SECONDS:
            self.settle()

    def forget(self, peer: str) -> None:
        """The link to `peer` is gone."""
        self._peers.pop(peer, None)

    # ---- the reference

    def settle(self) -> None:
        """Looks at all clocks again."""
        now = self._system.monotonic()
        self._note_pause(now)
        self._settled_at = now
        heard = {peer: known for peer, known in self._peers.items() if self._counts(known, now)}
        bases = [self._base(), *(known.base for known in heard.values())]
        others = self.others()
        majority = (len(heard.keys() | set(others or ())) + 1) // 2 + 1
        if not self.established:
            self._establish(heard, bases, others, majority, now)
        else:
            self._keep_secure(list(heard.values()), bases, majority, now)
        agreeing = [base for base in bases if self._agrees(base)]
        if len(agreeing) >= majority:
            self._refer_to(_lower_median(agreeing))
        self._look_for_another(bases, majority, now)

    def _note_pause(self, now: float) -> None:
        """This process, or its machine, stood still."""
        if self._settled_at is not None and now - self._settled_at > HEARD_SECONDS:
            self._settled_at = now
            self._counts_at = now + PROVEN_SECONDS

    def _counts(self, known: _Heard, now: float) -> bool:
        return now - known.at <= HEARD_SECONDS and now >= max(known.counts_at, self._counts_at)

    def _establish(
        self, heard: dict[str, _Heard], bases: list[int], others: Collection[str] | None, majority: int, now: float
    ) -> None:
        trusted = [known.trusted for known in heard.values() if known.trusted is not None]
        if trusted:
            self._refer_to(_lower_median(trusted))
        else:
            if self._agrees(bases[0]):
                self._refer_to(bases[0])
            if others is None:
                return
            united = _largest_group(bases, self._margin(heard.keys() >= set(others), now))
            if len(united) < majority:
                self._note_doubt(bases, now)
                return
            self._refer_to(_lower_median(united))
        self.established = True
        self._secure_at = now
        self._doubt_since = self._apart_since = None

    def _margin(self, all_heard: bool, now: float) -> int:
        if not all_heard:
            self._all_since = None
        elif self._all_since is None:
            self._all_since = now
        waited = 0.0 if self._all_since is None else now - self._all_since
        return max(self._limit, int(min(waited, START_DIFFERENCE_SECONDS) * SECOND))

    def _note_doubt(self, bases: list[int], now: float) -> None:
        if all(abs(base - bases[0]) <= self._limit for base in bases):
            self._doubt_since = None
        elif self._doubt_since is None:
            self._doubt_since = now

    def _keep_secure(self, heard: list[_Heard], bases: list[int], majority: int, now: float) -> None:
        """A majority carries the reference; a node that was without one for long takes what it finds on its return."""
        carried = sum(self._agrees(known.base) or self._agrees(known.trusted) for known in heard)
        if 1 + carried >= majority:
            self._secure_at = now
        elif now - self._secure_at >= AGREED_SECONDS and len(bases) >= majority:
            found = self._found(heard, bases, majority)
            if found:
                self._secure_at = now
                self._move_to(_lower_median(found))

    def _found(self, heard: list[_Heard], bases: list[int], majority: int) -> list[int]:
        """Bases that enough of the others believe in, or clocks of a majority that agree; empty when neither is so."""
        trusted = [known.trusted for known in heard if known.trusted is not None]
        united = _largest_group(trusted, self._limit) if trusted else []
        own = 0 if self._agrees(self._base()) else 1
        if len(united) + own >= majority:
            return united
        united = _largest_group(bases, self._limit)
        return united if len(united) >= majority else []

    def _look_for_another(self, bases: list[int], majority: int, now: float) -> None:
        apart = [base for base in bases if not self._agrees(base)]
        other = _lower_median(apart) if apart else 0
        united = [base for base in apart if abs(base - other) <= self._limit]
        if len(united) < majority:
            self._apart_since = None
        elif self._apart_since is None or abs(other - self._apart_at) > self._limit:
            self._apart_since, self._apart_at = now, other
        elif now - self._apart_since >= AGREED_SECONDS:
            self._move_to(other)

    def _agrees(self, base: int | None) -> bool:
        return base is not None and self._low <= base <= self._high

    def _move_to(self, base: int) -> None:
        self._apart_since = None
        moved = base - self._reference
        self._refer_to(base)
        if abs(moved) > self._limit:
            self._on_moved(moved / SECOND)

    def _refer_to(self, base: int) -> None:
        self._reference = base
        self._low, self._high = base - self._limit, base + self._limit

    def _base(self) -> int:
        return self._system.time_ns() - int(self._system.monotonic() * SECOND)


def _lower_median(values: list[int]) -> int:
    return sorted(values)[(len(values) - 1) // 2]


def _largest_group(bases: list[int], margin: int) -> list[int]:
    """The most of them that are within `margin` of one of them."""
    groups = ([other for other in bases if abs(other - base) <= margin] for base in sorted(bases))
    return max(groups, key=len)
