"""`Governor`: the connections that have sent more than fits into one turn of the loop take turns.

Without it a flood of one message size and two hundred connections keeps the loop in their input for a second at a time,
and everybody else's message waits behind all of theirs. A connection that sends little never comes here: its input is
worked on at once. One that has sent more than a quantum is paused (`Connection.pause_reading`), and its turn comes
again when all the others that wait have had theirs; the loop gets to Raft, routes, timers and requests after every few
milliseconds (`budget.LoopBudget`, whose time it is). Connections that met a closed valve wait there
(`protocol.valve`), and take turns once it is open.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, Protocol, cast

from jetcluster.budget import LoopBudget
from jetcluster.clock import Clock, Timers
from jetcluster.protocol.valve import Valve, Waiter

HEAVY: Final = 16 * 1024
"""Bytes of one read from which on a connection has to wait while others do."""
SMALL: Final = 1024
"""Bytes of one read that is worked on at once, however much others have sent."""
CHUNK: Final = 8192
"""Bytes of what was read that are parsed at a time."""
PORTION_SECONDS: Final = 0.002
"""After so long, looked at after each chunk, a connection's turn ends."""
LINE_BYTES: Final = 16
"""For each so many of its line a command, but a message, is worth one message more."""
MOST: Final = 1024
LEAST: Final = 64
"""Messages that a connection may send per turn: MOST if it is alone, LEAST of many."""
CROWD: Final = 16
"""So many that wait for their turn at the same time are a crowd ..."""
LASTING: Final = 1.0
"""... and a flood, if they have been one for so many seconds without a break: half as many, or fewer, are one."""
FIRST: Final = 4
"""One of so many turns goes to those that have sent much, however many have sent little."""


class Governed(Waiter, Protocol):
    def take_turn(self, quantum: int) -> None:
        """Works on what was read, `quantum` messages at most, and comes again (`Governor.wait`) if there is more."""
        ...


class Governor:
    """One per node."""

    def __init__(self, clock: Clock, timers: Timers, budget: LoopBudget) -> None:
        self._clock = clock
        self._timers = timers
        self._budget = budget
        self._turns = Valve()
        """Never closed: here wait those that only want their turn."""
        self._open: deque[Valve] = deque()
        """Open valves at which somebody waits: they take turns, too."""
        self._scheduled = False
        self.waiting = 0
        """Connections that wait for their turn, also at closed valves."""
        self._crowded_since = -1.0
        """-1.0: there is no crowd."""
        self._turns_given = 0

    def admits(self, *, heavy: bool = True) -> bool:
        """May a connection that has sent something be worked on at once? `heavy`: much."""
        return not (heavy and self._open) and self._budget.has_time()

    def wait(self, who: Governed, valve: Valve | None, light: bool) -> None:
        """`who` comes to its next turn behind the others, not before `valve` is open. `light`: it had sent little."""
        self.waiting += 1
        if self.waiting >= CROWD and self._crowded_since < 0:
            self._crowded_since = self._clock.monotonic()
        place = self._turns if valve is None else valve
        (place.first if light else place.waiting)[who] = None
        if place.closed:
            place.opened = self._list
        else:
            self._list(place)

    def leave(self, who: Governed, valve: Valve | None) -> None:
        """`who`, which waits for its turn, does not want it any more; `valve` as it was told to `wait`."""
        self._turns.leave(who) if valve is None else valve.leave(who)
        self._one_less()

    def _one_less(self) -> None:
        self.waiting -= 1
        if self.waiting <= CROWD // 2:
            self._crowded_since = -1.0

    @property
    def flooded(self) -> bool:
        """There has been a crowd for a while."""
        return 0 <= self._crowded_since <= self._clock.monotonic() - LASTING

    def _list(self, valve: Valve) -> None:
        if not valve.listed:
            valve.listed = True
            self._open.append(valve)
            self._schedule()

    def _schedule(self) -> None:
        self._budget.connections_wait = bool(self._open)
        if self._open and not self._scheduled:
            self._scheduled = True
            self._timers.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        clock, open_ = self._clock, self._open
        end = clock.monotonic() + self._budget.share
        left = sum(map(len, open_))  # nobody comes twice in a turn: what is answered goes out in between
        while open_:
            valve = open_.popleft()
            if (valve.closed and valve.due <= 0) or not len(valve):
                valve.listed = False
                valve.opened = self._list
                continue
            open_.append(valve)
            if not left or clock.monotonic() >= end:
                break
            left -= 1
            valve.due -= 1
            self._turns_given += 1
            self._one_less()
            who = cast(Governed, self._next(valve).popitem(last=False)[0])
            who.take_turn(max(LEAST, MOST // (len(valve) + len(open_))))
        self._schedule()

    def _next(self, valve: Valve) -> OrderedDict[Waiter, None]:
        if not valve.first or not valve.waiting or valve.closed:
            return valve.first or valve.waiting
        return valve.first if self._turns_given % FIRST else valve.waiting
