"""Fairness where there is not enough for all at once: of the loop's time (`Governor`), of file descriptors (`Crowd`),
and of threads that check passwords (`SlowLogins`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final, Protocol, cast

from jetcluster.budget import LoopBudget
from jetcluster.clock import Clock, Timers
from jetcluster.health.descriptors import DescriptorWatch
from jetcluster.protocol.bus import Valve, Waiter

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from jetcluster.server.connection import Connection

log = logging.getLogger("jetcluster.server")

HEAVY_READ: Final = 16 * 1024
"""Bytes of one read from which on a connection has to wait while others do."""
SMALL_READ: Final = 1024
"""Bytes of one read that is worked on at once, however much others have sent."""
CHUNK_BYTES: Final = 8192
"""Bytes of what was read that are parsed at a time."""
PORTION_SECONDS: Final = 0.002
"""Seconds after which a connection's turn ends; the clock is read after each chunk."""
LINE_BYTES: Final = 16
"""Bytes of its line that make a command other than a message worth one message more."""
MAX_QUANTUM: Final = 1024
MIN_QUANTUM: Final = 64
"""Messages that a connection may send per turn: MAX_QUANTUM if it is alone, MIN_QUANTUM if there are many."""
CROWD_SIZE: Final = 16
"""Connections that are a crowd when they wait for their turn at the same time ..."""
FLOOD_SECONDS: Final = 1.0
"""... and a flood after so many seconds as a crowd; half as many connections, or fewer, are a break."""
LIGHT_TURNS: Final = 4
"""Turns of which one goes to those that have sent much, however many have sent little."""
STRANGER_SECONDS: Final = 1.0
"""Seconds without a word after which a connection that is not logged in may be closed for another one."""
LOG_SECONDS: Final = 10.0
MAX_LOGIN_THREADS: Final = 2
MAX_WAITING_LOGINS: Final = 1024
"""Logins; when there are more, one of the address that has the most of them is refused."""
SLOW_LOGIN_SECONDS: Final = 10.0
"""Seconds that a connection has to log in once its password waits to be checked, instead of those it had before: it has
said what it had to say."""


class Governed(Waiter, Protocol):
    """A connection that takes turns."""

    def take_turn(self, quantum: int) -> None:
        """Works on what was read, `quantum` messages at most, and comes again (`Governor.wait`) if there is more."""
        ...


class Governor:
    """The turns of the connections that have sent more than fits into one turn of the loop; one per node.

    Without it a flood of one message size and two hundred connections keeps the loop in their input for a second at a
    time, and everybody else's message waits behind all of theirs. A connection that sends little never comes here: its
    input is worked on at once. One that has sent more than a quantum is paused (`Connection.pause_reading`), and its
    turn comes again when all the others that wait have had theirs; the loop gets to Raft, routes, timers and requests
    after every few milliseconds (`budget.LoopBudget`, whose time it is). Connections that met a closed valve wait there
    (`protocol.bus`), and take turns once it is open."""

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
        if self.waiting >= CROWD_SIZE and self._crowded_since < 0:
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
        if self.waiting <= CROWD_SIZE // 2:
            self._crowded_since = -1.0

    @property
    def flooded(self) -> bool:
        """There has been a crowd for a while."""
        return 0 <= self._crowded_since <= self._clock.monotonic() - FLOOD_SECONDS

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
            who.take_turn(max(MIN_QUANTUM, MAX_QUANTUM // (len(valve) + len(open_))))
        self._schedule()

    def _next(self, valve: Valve) -> OrderedDict[Waiter, None]:
        if not valve.first or not valve.waiting or valve.closed:
            return valve.first or valve.waiting
        return valve.first if self._turns_given % LIGHT_TURNS else valve.waiting


class Crowd:
    """The choice of connections that are closed or refused when the file descriptors of one server run short.

    Connections that nobody has logged in on go first, the oldest of them; one that comes when there is none is refused.
    Both happen before the reserve of the store is touched (`health.descriptors`)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.watch: DescriptorWatch | None = None
        """None: descriptors are not looked at."""
        self.strangers: dict[int, Connection] = {}
        """Those that have sent no CONNECT, by cid, the oldest first."""
        self.refused = 0
        self.closed = 0
        """Strangers that went for others."""
        self._told = -LOG_SECONDS
        self._untold = 0

    def trouble(self) -> str:
        """A `node_health.Check`."""
        return "" if self.watch is None else self.watch.trouble()

    def is_crowded(self, client: Connection) -> bool:
        socket = client.transport.get_extra_info("socket")
        return socket is not None and self.watch is not None and self.watch.crowded(socket.fileno())

    def has_room_for(self, client: Connection) -> bool:
        return not self.is_crowded(client) or self.make_room()

    def has_room_at(self, descriptor: int) -> bool:
        """The same of a connection that is only a socket yet."""
        return self.watch is None or not self.watch.crowded(descriptor) or self.make_room()

    def make_room(self) -> bool:
        """Closes a client that has not logged in, for somebody else; False when there is none."""
        silent_since = self._clock.monotonic() - STRANGER_SECONDS
        oldest = next(iter(self.strangers.values()), None)
        found = oldest is not None and oldest.last_activity <= silent_since
        if found and oldest is not None:
            self.closed += 1
            oldest.close("Maximum Connections Exceeded", "maximum connections exceeded", linger=False)
        else:
            self.refused += 1
        self._tell()
        return found

    def _tell(self) -> None:
        self._untold += 1
        now = self._clock.monotonic()
        if now - self._told >= LOG_SECONDS:
            assert self.watch is not None
            log.error(
                "File descriptors run short (limit %d, %d of them for the store): %d connections were refused, or "
                "closed because they had not logged in",
                self.watch.limit, self.watch.reserve, self._untold,
            )  # fmt: skip
            self._told, self._untold = now, 0


class _WaitingLogin:
    """One login that waits."""

    __slots__ = ("key", "over", "unless", "work")

    def __init__(self, key: Hashable, work: Callable[[], None], unless: Callable[[], bool]) -> None:
        self.key = key
        self.work = work
        self.unless = unless
        self.over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def gone(self) -> bool:
        """Nobody waits for it any more."""
        return self.over.done() or self.unless()


class SlowLogins:
    """Checks of passwords that take long (bcrypt), in threads and in an order that is fair; one per server.

    Strangers who guess passwords must neither stand in the way of those who know theirs, nor get all of the machine. So
    addresses have their turns one after the other, and so have the users of one address; the logins of one user are
    taken newest first: the one that has waited longest is the first to give up. A password that several try at the same
    time is checked once."""

    def __init__(self) -> None:
        self._queue: OrderedDict[str, OrderedDict[str, list[_WaitingLogin]]] = OrderedDict()
        """By address and user; the first address is the next, and of it the first user, and of that the last entry."""
        self._same: dict[Hashable, list[_WaitingLogin]] = {}
        """Those that wait, or are being checked, by what is checked."""
        self._running: set[Hashable] = set()
        self._threads: ThreadPoolExecutor | None = None
        self.waiting = 0
        self.refused = 0

    async def check(
        self, address: str, user: str, key: Hashable, work: Callable[[], None], unless: Callable[[], bool]
    ) -> bool:
        """Does `work`, or finds it done by another one of the same `key`. False when there are too many before it, or
        `unless` is true when its turn comes."""
        entry = _WaitingLogin(key, work, unless)
        self._same.setdefault(key, []).append(entry)
        if key not in self._running:
            self._queue.setdefault(address, OrderedDict()).setdefault(user, []).append(entry)
            self.waiting += 1
            if self.waiting > MAX_WAITING_LOGINS:
                self._make_room()
            self._start()
        return await entry.over

    def stop(self) -> None:
        """Nothing is checked any more."""
        self._queue.clear()
        self.waiting = 0
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        while len(self._running) < MAX_LOGIN_THREADS and (entry := self._next()) is not None:
            if self._threads is None:
                from concurrent.futures import ThreadPoolExecutor

                self._threads = ThreadPoolExecutor(MAX_LOGIN_THREADS, "slow")
            self._running.add(entry.key)
            running = asyncio.get_running_loop().run_in_executor(self._threads, entry.work)
            running.add_done_callback(lambda done, key=entry.key: self._checked(key, done))  # type: ignore[misc]

    def _checked(self, key: Hashable, done: asyncio.Future[None]) -> None:
        self._running.discard(key)
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("a password could not be checked", exc_info=error)
        for entry in self._same.pop(key, ()):
            if not entry.over.done():
                entry.over.set_result(True)
        if not done.cancelled():
            self._start()

    def _next(self) -> _WaitingLogin | None:
        """The next one that somebody still waits for, taken out."""
        while self._queue:
            address, users = self._queue.popitem(last=False)
            user, entries = users.popitem(last=False)
            entry = entries.pop()
            self.waiting -= 1
            if entries:
                users[user] = entries
            if users:
                self._queue[address] = users
            if not entry.gone and entry.key not in self._running:
                return entry
            if entry.gone:
                self._drop(entry)
        return None

    def _drop(self, entry: _WaitingLogin) -> None:
        same = self._same.get(entry.key)
        if same is not None and entry in same:
            same.remove(entry)
            if not same:
                del self._same[entry.key]
        if not entry.over.done():
            entry.over.set_result(False)

    def _make_room(self) -> None:
        """Without those that are gone; if there are none, without the oldest one of the user who has the most."""
        before = self.waiting
        counts: dict[str, int] = {}
        for address, users in list(self._queue.items()):
            for user, entries in list(users.items()):
                for entry in [entry for entry in entries if entry.gone]:
                    entries.remove(entry)
                    self.waiting -= 1
                    self._drop(entry)
                if entries:
                    counts[address] = counts.get(address, 0) + len(entries)
                else:
                    del users[user]
            if not users:
                del self._queue[address]
        if self.waiting < before or not counts:
            return
        users = self._queue[max(counts, key=lambda address: counts[address])]
        user = max(users, key=lambda user: len(users[user]))
        entry = users[user].pop(0)
        self.waiting -= 1
        self.refused += 1
        if not users[user]:
            del users[user]
        self._drop(entry)
