"""Fair shares of scarce resources: the loop's time (`Governor`), file descriptors (`Crowd`), and the threads that check
passwords (`SlowLogins`).
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
"""Size of a read from which a connection must wait while others wait."""
SMALL_READ: Final = 1024
"""Reads below this size are processed at once, however many connections wait."""
CHUNK_BYTES: Final = 8192
"""Bytes of input parsed at a time."""
PORTION_SECONDS: Final = 0.002
"""Longest turn of a connection; the clock is read after each chunk."""
LINE_BYTES: Final = 16
"""Bytes of line for which a command other than PUB is charged one more message."""
MAX_QUANTUM: Final = 1024
MIN_QUANTUM: Final = 64
"""Messages that a connection may send per turn: MAX_QUANTUM when alone, MIN_QUANTUM among many."""
CROWD_SIZE: Final = 16
"""Connections waiting for a turn that count as a crowd, until half as many or fewer wait."""
FLOOD_SECONDS: Final = 1.0
"""A crowd that lasts this long is a flood."""
TURNS_PER_HEAVY: Final = 4
"""One turn of this number is reserved for connections that have sent much."""
STRANGER_SECONDS: Final = 1.0
"""Silence after which a connection that has sent no CONNECT may be closed to make room."""
LOOK_SECONDS: Final = 0.5
"""Seconds between two looks at what descriptors are left."""
LOG_SECONDS: Final = 10.0
MAX_LOGIN_THREADS: Final = 2
MAX_WAITING_LOGINS: Final = 1024
"""Queued logins; beyond it, a login of the address with the most of them is refused."""
SLOW_LOGIN_SECONDS: Final = 10.0
"""Login timeout while a password waits for its check: the configured one limits only the client's part."""


class Governed(Waiter, Protocol):
    """A connection that takes turns."""

    def take_turn(self, quantum: int) -> None:
        """Processes at most `quantum` messages of the input, and waits again (`Governor.wait`) if there is more."""


class Governor:
    """The turns of connections whose input exceeds one turn of the loop; one governor per node.

    Without it, a flood from two hundred connections keeps the loop in their input for a second at a time, and delays
    all other messages. The input of a connection that sends little is processed at once, without a turn. A connection
    that has sent more than a quantum is paused (`Connection.pause_reading`) until all other waiting connections have
    had a turn. Every few milliseconds the loop goes on to Raft, routes, timers and requests (`budget.LoopBudget`).
    Connections that met a closed valve wait there (`protocol.bus`), and take turns once it opens."""

    def __init__(self, clock: Clock, timers: Timers, budget: LoopBudget) -> None:
        self._clock = clock
        self._timers = timers
        self._budget = budget
        self._turns = Valve()
        """Never closed: connections wait here that met no valve."""
        self._open: deque[Valve] = deque()
        """Open valves with waiting connections; the valves take turns too."""
        self._scheduled = False
        self.waiting = 0
        """Connections that wait for a turn, including those at closed valves."""
        self._crowded_since = -1.0
        """Monotonic seconds; -1.0 while there is no crowd."""
        self._turns_given = 0

    def admits(self, *, heavy: bool = True) -> bool:
        """Returns True when new input of a connection may be processed at once. `heavy`: it is a large read."""
        return not (heavy and self._open) and self._budget.has_time()

    def wait(self, who: Governed, valve: Valve | None, light: bool) -> None:
        """Queues `who` for its next turn, not before `valve` is open. `light`: it has sent little."""
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
        """Removes `who` from the queue; `valve` is the one passed to `wait`."""
        self._turns.leave(who) if valve is None else valve.leave(who)
        self._one_less()

    def _one_less(self) -> None:
        self.waiting -= 1
        if self.waiting <= CROWD_SIZE // 2:
            self._crowded_since = -1.0

    @property
    def flooded(self) -> bool:
        """True after FLOOD_SECONDS with a crowd."""
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
        left = sum(map(len, open_))  # one turn per connection: its answers are written before the next
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
        return valve.first if self._turns_given % TURNS_PER_HEAVY else valve.waiting


class Crowd:
    """The choice of connections to close or refuse when a server's file descriptors run short.

    The oldest connection that has sent no CONNECT is closed; if there is none, the new connection is refused. Both
    happen before the store's reserve is touched (`health.descriptors`)."""

    def __init__(self, clock: Clock, watch: DescriptorWatch | None) -> None:
        self._clock = clock
        self.watch = watch
        self.strangers: dict[int, Connection] = {}
        """Connections that have sent no CONNECT, by cid, the oldest first."""
        self.refused = 0
        self.closed = 0
        """Strangers closed to make room."""
        self._look_at = 0.0
        self._found = ""
        self._logged_at = -LOG_SECONDS
        self._unlogged = 0

    def trouble(self) -> str:
        """Returns the watch's trouble, "" for none; a `node_health.Check`. It is asked for with each heartbeat, and
        looked for less often: the look opens a file, half of a heartbeat's cost."""
        now = self._clock.monotonic()
        if self.watch is not None and now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._found = self.watch.trouble()
        return self._found

    def is_crowded(self, client: Connection) -> bool:
        socket = client.transport.get_extra_info("socket")
        return socket is not None and self.watch is not None and self.watch.crowded(socket.fileno())

    def has_room_for(self, client: Connection) -> bool:
        return not self.is_crowded(client) or self.make_room()

    def has_room_at(self, descriptor: int) -> bool:
        """Does the same for a connection without a transport, by its descriptor."""
        return self.watch is None or not self.watch.crowded(descriptor) or self.make_room()

    def make_room(self) -> bool:
        """Closes the oldest silent stranger; False if there is none."""
        silent_since = self._clock.monotonic() - STRANGER_SECONDS
        oldest = next(iter(self.strangers.values()), None)
        found = oldest is not None and oldest.last_activity <= silent_since
        if found and oldest is not None:
            self.closed += 1
            oldest.close("Maximum Connections Exceeded", "maximum connections exceeded", linger=False)
        else:
            self.refused += 1
        self._log_shortage()
        return found

    def _log_shortage(self) -> None:
        self._unlogged += 1
        now = self._clock.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            assert self.watch is not None
            log.error(
                "File descriptors run short (limit %d, %d of them for the store): %d connections were refused, or "
                "closed because they had not logged in",
                self.watch.limit, self.watch.reserve, self._unlogged,
            )  # fmt: skip
            self._logged_at, self._unlogged = now, 0


class _WaitingLogin:
    """A login that waits for its password check."""

    __slots__ = ("key", "over", "unless", "work")

    def __init__(self, key: Hashable, work: Callable[[], None], unless: Callable[[], bool]) -> None:
        self.key = key
        self.work = work
        self.unless = unless
        self.over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def gone(self) -> bool:
        """True when the connection no longer waits for it."""
        return self.over.done() or self.unless()


class SlowLogins:
    """Slow password checks (bcrypt), in threads and in a fair order; one per server.

    Attempts to guess passwords must neither delay valid logins nor take all CPUs. So addresses take turns, and so do
    the users of an address; the logins of one user are taken newest first, as the oldest is the first to time out. A
    password that several connections present at the same time is checked once."""

    def __init__(self) -> None:
        self._queue: OrderedDict[str, OrderedDict[str, list[_WaitingLogin]]] = OrderedDict()
        """Logins by address and user. The next is the last one of the first user of the first address."""
        self._same: dict[Hashable, list[_WaitingLogin]] = {}
        """Logins that wait or are being checked, by key."""
        self._running: set[Hashable] = set()
        self._threads: ThreadPoolExecutor | None = None
        self.waiting = 0
        self.refused = 0

    async def check(
        self, address: str, user: str, key: Hashable, work: Callable[[], None], unless: Callable[[], bool]
    ) -> bool:
        """Runs `work` in a thread, once for all logins with the same `key`. Returns False without running it if too
        many wait, or if `unless()` is true at its turn."""
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
        """Drops all waiting checks."""
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
        """Removes and returns the next login whose connection still waits."""
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
        """Drops logins that are gone; if there are none, the oldest one of the busiest user at the busiest address."""
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
