"""`ClusterClock`: wall time that one bad clock cannot move.

The stamps in the logs decide on all replicas which messages expire, when schedules fire and which message ids are
duplicates. So a clock that is hours ahead deletes data everywhere, and one that is hours late does so once it is
corrected. Every node sends its wall clock with its heartbeats. Clocks are compared by their *base*: wall time minus
monotonic time, which is constant while a clock runs correctly.

The *reference* is the base that the node trusts. A *majority* counts all nodes of the cluster, reachable or not. The
rules, in this order:

1. A node starts without a reference: it reads its own clock, and `established` is False, so it does not lead. It takes
   the reference of peers that have one, otherwise that of a majority whose clocks agree (within MAX_DIFFERENCE_NS). If
   no majority agrees, no clock is known to be right. When all nodes are reachable and the clocks of a majority are
   less than a minute apart, a difference of n seconds is accepted after n seconds: no other node could outvote them.
2. A majority that agrees with the reference carries it on, by the lower median. A clock that jumps is ignored, also
   this node's own. Without a majority the reference advances with the monotonic clock.
3. A majority that agrees on another time for AGREED_SECONDS replaces the reference, if no majority agrees with that:
   the clocks of the cluster were corrected.
4. A node that had no majority for AGREED_SECONDS takes the majority's time as soon as it is connected again. The other
   nodes alone must be a majority, or together with this node where its own clock disagrees with its reference too.
5. A reading that was sent while this node was paused, or by a peer that was silent, may have been delayed, and a
   delayed reading makes a clock look late. So no reading counts in the first PROVEN_SECONDS after such a pause.

While the node's own clock agrees, its time is returned unchanged; otherwise the reference advances with the monotonic
clock. Marzullo's algorithm (1984) and NTP's selection (RFC 5905, section 11.2.1) also trust the majority that agrees.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import field
from typing import Final

from jetcluster.clock import SECOND, Clock
from jetcluster.records import dataclass

MAX_DIFFERENCE_NS: Final = 5 * SECOND
"""Nanoseconds by which clocks may differ and count as equal: far more than NTP leaves, far less than any sensible
max_age, duplicate window or schedule."""
AGREED_SECONDS: Final = 30.0
"""Seconds for which a majority must agree on another time before it replaces the reference."""
HEARD_SECONDS: Final = 3.0
"""Seconds without a heartbeat after which a peer's clock does not count."""
DOUBT_SECONDS: Final = 2.0
"""Seconds after which disagreement at the start is a trouble, not just the order in which heartbeats arrive."""
PROVEN_SECONDS: Final = 1.0
"""Seconds after a pause until readings count; delayed ones are read within milliseconds."""
START_DIFFERENCE_SECONDS: Final = 60.0
"""Largest accepted difference at a start where all nodes are reachable."""
READINGS_PER_PEER: Final = 20
"""Readings kept per peer; the highest base is used, since a delay makes a clock look late."""


@dataclass(slots=True)
class _Heard:
    bases: deque[int] = field(default_factory=lambda: deque(maxlen=READINGS_PER_PEER))
    base: int = 0
    """The highest of them."""
    trusted: int | None = None
    """The peer's own reference, once it has one."""
    at: float = 0.0
    counts_at: float = 0.0


class ClusterClock:
    """A `Clock`. `settle` must be called some ten times per second, `heard` with each heartbeat of a peer."""

    def __init__(
        self, system: Clock, limit: int = MAX_DIFFERENCE_NS, on_moved: Callable[[float], None] | None = None,
        others: Callable[[], Collection[str] | None] = lambda: None,
    ) -> None:  # fmt: skip
        """`on_moved(seconds)` is called when another reference, later by that many seconds, replaces the old one.
        `others` returns the other nodes of the cluster, reachable or not; None while they are unknown."""
        self._system = system
        self.monotonic = system.monotonic
        self.uptime = system.uptime
        self._limit = limit
        self._on_moved = on_moved or (lambda seconds: None)
        self._peers: dict[str, _Heard] = {}
        self._reference = self._base()
        self._low = self._reference - limit
        self._high = self._reference + limit
        self.others = others
        self.established = False
        """True once there is a reference, from a majority: this node may stamp."""
        self._secure_at = 0.0
        """Monotonic time at which a majority last agreed with the reference."""
        self._settled_at: float | None = None
        self._counts_at = 0.0
        self._doubt_since: float | None = None
        """Start of the disagreement between clocks, while there is no reference."""
        self._all_since: float | None = None
        """Time since which all nodes are reachable, while there is no reference."""
        self._apart_since: float | None = None
        self._apart_at = 0

    # ---- clock.Clock

    def time_ns(self) -> int:
        """Return Unix nanoseconds: of the node's own wall clock while it agrees with the reference."""
        wall = self._system.time_ns()
        uptime = int(self._system.monotonic() * SECOND)
        if self._low <= wall - uptime <= self._high:
            return wall
        return self._reference + uptime

    # ---- exchange with peers

    @property
    def wall_ns(self) -> int:
        """The node's own wall clock, uncorrected, in Unix nanoseconds."""
        return self._system.time_ns()

    @property
    def trusted_ns(self) -> int:
        """The time that peers may adopt, in Unix nanoseconds. 0 without a reference, and after AGREED_SECONDS without
        an agreeing majority if the node's own clock disagrees too: one of the two is wrong then."""
        now = self._system.monotonic()
        if not self.established or (now - self._secure_at >= AGREED_SECONDS and not self._agrees(self._base())):
            return 0
        return self._reference + int(now * SECOND)

    @property
    def disputed(self) -> bool:
        """True while there is no reference and a peer's clock disagrees with this one."""
        return not self.established and self._doubt_since is not None

    @property
    def skew(self) -> float:
        """Seconds by which the node's own wall clock is ahead of the reference."""
        return (self._base() - self._reference) / SECOND

    @property
    def trouble(self) -> str:
        """Reason not to trust the node's own clock; "" while there is none."""
        if self._doubt_since is not None and self._system.monotonic() - self._doubt_since >= DOUBT_SECONDS:
            return "the wall clocks of the servers differ, and no majority of them agrees on the time"
        skew = self._base() - self._reference
        if abs(skew) <= self._limit:
            return ""
        return f"the wall clock is {abs(skew) / SECOND:.1f} s {'ahead of' if skew > 0 else 'behind'} the cluster's time"

    def heard(self, peer: str, wall_ns: int, trusted_ns: int) -> None:
        """Take a heartbeat of `peer`, with its `wall_ns` and `trusted_ns` at the time of sending."""
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
        known.base = max(known.bases)
        known.trusted = trusted_ns - uptime if trusted_ns else None
        known.at = now
        if not self.established or now - self._secure_at >= AGREED_SECONDS:
            self.settle()

    def forget(self, peer: str) -> None:
        """Drop the readings of `peer`, whose link is gone."""
        self._peers.pop(peer, None)

    # ---- the reference

    def settle(self) -> None:
        """Compare all clocks again and update the reference."""
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
        """Ignore readings for a while if this process, or its machine, was paused."""
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
        """Note that a majority carries the reference, or adopt the majority's time after a long absence."""
        carried = sum(self._agrees(known.base) or self._agrees(known.trusted) for known in heard)
        if 1 + carried >= majority:
            self._secure_at = now
        elif now - self._secure_at >= AGREED_SECONDS and len(bases) >= majority:
            found = self._found(heard, bases, majority)
            if found:
                self._secure_at = now
                self._move_to(_lower_median(found))

    def _found(self, heard: list[_Heard], bases: list[int], majority: int) -> list[int]:
        """Return the references that enough peers share, else the agreeing bases of a majority, else nothing."""
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
        if len(united) < majority and apart and len(bases) - len(apart) < majority:
            # They agree with each other, but some are just within the limit of the reference, and some just beyond.
            united = _largest_group(bases, self._limit)
            other = _lower_median(united)
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
    """Return the largest set of bases within `margin` of one of them."""
    groups = ([other for other in bases if abs(other - base) <= margin] for base in sorted(bases))
    return max(groups, key=len)
