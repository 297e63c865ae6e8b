"""`Clients`: a server's connected and closed clients with their traffic; and `ServerParts`, used by its connections."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import field
from typing import Any, Protocol

from jetcluster.budget import LoopBudget
from jetcluster.ordered import OrderedSet
from jetcluster.records import dataclass
from jetcluster.server.accounts.accounts import Accounts, Removals
from jetcluster.server.client.connection import ClientConnection
from jetcluster.server.connection import Sockets
from jetcluster.server.fairness import Crowd, Governor, SlowLogins
from jetcluster.server.state import ServerState

LookUp = Callable[[Exception], Coroutine[Any, Any, None] | None]


@dataclass(slots=True)
class ServerParts:
    """The parts of a server that its connections use; made by `server.Server`."""

    state: ServerState
    sockets: Sockets
    clients: Clients
    crowd: Crowd
    accounts: Accounts
    removals: Removals
    budget: LoopBudget
    governor: Governor
    slow_logins: SlowLogins
    look_up: LookUp
    """Maps the error of a refused login to a look-up after which it may succeed; None if there is none."""
    tasks: OrderedSet[asyncio.Task[None]] = field(default_factory=OrderedSet)
    """Running tasks, cancelled when the server stops."""
    last_cid: int = 0

    def new_cid(self) -> int:
        """Returns a new connection's number; no number is used twice."""
        self.last_cid += 1
        return self.last_cid

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


@dataclass(slots=True, frozen=True)
class ClosedClient:
    """A closed connection, as monitoring shows it. Times are nanoseconds since the epoch; `rtt` is seconds."""

    cid: int
    ip: str
    port: int
    account: str
    user: str
    name: str
    lang: str
    version: str
    start_ns: int
    stop_ns: int
    reason: str
    rtt: float
    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int
    subscriptions: int
    client_type: str = "nats"


@dataclass(slots=True)
class Totals:
    """Messages and payload bytes (headers included) from and to clients."""

    in_msgs: int = 0
    out_msgs: int = 0
    in_bytes: int = 0
    out_bytes: int = 0
    slow_consumers: int = 0
    """Connections closed because they did not read."""

    def add(self, other: Totals | ClientConnection) -> None:
        self.in_msgs += other.in_msgs
        self.out_msgs += other.out_msgs
        self.in_bytes += other.in_bytes
        self.out_bytes += other.out_bytes


class ConnectionWatcher(Protocol):
    """Callbacks from the read loop, which must not block and not raise."""

    def connected(self, client: ClientConnection) -> None:
        """Called when a client has logged in; its account is set."""

    def disconnected(self, client: ClientConnection) -> None:
        """Called when a connection has ended, with `close_reason` set; its account is "" if it never logged in."""


class Clients:
    """The clients of one server, iterated in the order of their arrival. Each is admitted once and forgotten once."""

    def __init__(self, state: ServerState, crowd: Crowd) -> None:
        self._state = state
        self._crowd = crowd
        self._present: dict[int, ClientConnection] = {}
        self.departed: set[int] = set()
        """Cids of present clients whose connection is gone and whose last messages wait for a turn."""
        self._of_account: Counter[str] = Counter()
        """Clients without departed ones, by the account in which they are logged in."""
        self.closed: deque[ClosedClient] = deque(maxlen=max(state.options.max_closed_clients, 0))
        self.closed_totals: dict[str, Totals] = {}
        """Traffic of closed connections, by account."""
        self.total = 0
        """Connections since the start."""
        self.visited = asyncio.Event()
        """Set when the first connection comes."""
        self.handshakes = 0
        """Connections in their TLS handshake; they count towards max_connections."""
        self.watcher: ConnectionWatcher | None = None

    def __iter__(self) -> Iterator[ClientConnection]:
        """Iterates over a copy: a client may close meanwhile."""
        return iter(list(self._present.values()))

    def watch(self, watcher: ConnectionWatcher | None) -> None:
        """Reports logins and ends of connections to `watcher` from now on; None ends that."""
        self.watcher = watcher

    def __len__(self) -> int:
        """Returns the number of clients, with departed ones."""
        return len(self._present)

    def get(self, cid: int) -> ClientConnection | None:
        return self._present.get(cid)

    @property
    def connected(self) -> int:
        """The number of clients, without departed ones."""
        return len(self._present) - len(self.departed)

    @property
    def is_full(self) -> bool:
        return self.connected + self.handshakes > self._state.options.max_connections

    def of_account(self, account: str) -> list[ClientConnection]:
        """Returns the clients of an account that are not closed."""
        return [client for client in self if client.account == account and not client.close_reason]

    def has_room(self, account: str) -> bool:
        """Returns False when the account has as many connections as it may have."""
        limit = self._state.limits_of(account).max_connections
        return limit < 0 or self._of_account[account] < limit

    # ---- arrival and departure

    def admit(self, client: ClientConnection) -> bool:
        """Adds a connection; False when max_connections is reached, or the store needs the remaining descriptors."""
        most = self._state.options.max_connections
        if self.connected >= most or len(self.departed) > most or not self._crowd.has_room_for(client):
            return False
        self._present[client.cid] = client
        self._crowd.strangers[client.cid] = client
        self.total += 1
        self.visited.set()
        return True

    def departs(self, client: ClientConnection) -> None:
        """Marks a client whose connection is gone; `forget` follows when its last messages are processed."""
        self._count(client, -1)
        self.departed.add(client.cid)
        self._crowd.strangers.pop(client.cid, None)

    def count_failed_handshake(self, client: ClientConnection) -> None:
        """Counts a connection whose TLS handshake failed, as a closed one."""
        self._present[client.cid] = client
        self.total += 1
        self.forget(client)

    def enters(self, client: ClientConnection, account: str) -> None:
        """Gives a client the account in which it is logged in now."""
        self._count(client, -1)
        client.account = account
        self._count(client, 1)

    def _count(self, client: ClientConnection, by: int) -> None:
        account = client.account
        if account and client.cid in self._present and client.cid not in self.departed:
            self._of_account[account] += by
            if not self._of_account[account]:
                del self._of_account[account]

    def logged_in(self, client: ClientConnection) -> None:
        """Reports a login; called once per connection that logs in."""
        if self.watcher is not None:
            self.watcher.connected(client)

    def forget(self, client: ClientConnection) -> None:
        """Removes a connection that has ended and keeps its traffic; called once per connection."""
        self._count(client, -1)
        if self._present.pop(client.cid, None) is None:
            return
        self.departed.discard(client.cid)
        self._crowd.strangers.pop(client.cid, None)
        closed = self.closed_totals.setdefault(client.account, Totals())
        closed.add(client)
        closed.slow_consumers += client.close_reason.startswith("Slow Consumer")
        self.closed.append(
            ClosedClient(
                cid=client.cid,
                ip=client.ip,
                port=client.port,
                account=client.account,
                user=client.user,
                name=client.name,
                lang=client.lang,
                version=client.version,
                start_ns=client.start_ns,
                stop_ns=self._state.clock.time_ns(),
                reason=client.close_reason,
                rtt=client.rtt,
                in_msgs=client.in_msgs,
                out_msgs=client.out_msgs,
                in_bytes=client.in_bytes,
                out_bytes=client.out_bytes,
                subscriptions=len(client.subscriptions),
                client_type=client.client_type,
            )
        )
        if self.watcher is not None:
            self.watcher.disconnected(client)

    def shed(self, most: int) -> int:
        """Closes the newest connections beyond `most`; returns their number."""
        excess = [client for client in self if client.cid not in self.departed][max(most, 0) :]
        for client in excess:
            client.close("Maximum Connections Exceeded", "maximum connections exceeded")
        return len(excess)

    def shed_of(self, account: str) -> None:
        """Closes the newest connections of an account beyond its limit."""
        present = [client for client in self.of_account(account) if client.cid not in self.departed]
        limit = self._state.limits_of(account).max_connections
        for client in present[limit:] if limit >= 0 else ():
            client.close("Maximum Account Connections Exceeded", "maximum account active connections exceeded")

    def totals(self) -> Totals:
        """Returns the traffic since the start, of open and closed connections."""
        found = Totals()
        for closed in self.closed_totals.values():
            found.add(closed)
        for client in self._present.values():
            found.add(client)
        return found

    def send_info(self) -> None:
        """Sends a changed INFO to the clients that may receive one unasked."""
        for client in self:
            client.send_info()
