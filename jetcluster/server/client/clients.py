"""`Clients`: the connections of a server's clients, those that are gone, and what both have sent and been sent; and
`ServerParts`, the parts of a server that its connections use.
"""

from __future__ import annotations

import asyncio
from collections import deque
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


def _nothing(_: Exception) -> None:
    return None


@dataclass(slots=True)
class ServerParts:
    """Made by `server.Server`, which keeps what is for itself alone: the port, and what it does about all of them."""

    state: ServerState
    sockets: Sockets
    clients: Clients
    crowd: Crowd
    accounts: Accounts
    removals: Removals
    budget: LoopBudget
    governor: Governor
    slow_logins: SlowLogins
    look_up: LookUp = _nothing
    """The work of finding out what may turn a refusal into a welcome; None when there is nothing to be found."""
    tasks: OrderedSet[asyncio.Task[None]] = field(default_factory=OrderedSet)
    """Under way until the server stops."""
    last_cid: int = 0

    def new_cid(self) -> int:
        """The number of a connection; never given twice."""
        self.last_cid += 1
        return self.last_cid

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


@dataclass(slots=True, frozen=True)
class ClosedClient:
    """A connection that is gone, as monitoring shows it. Times: nanoseconds since the epoch."""

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
    """Connections that were closed because they did not read."""

    def add(self, other: Totals | ClientConnection) -> None:
        self.in_msgs += other.in_msgs
        self.out_msgs += other.out_msgs
        self.in_bytes += other.in_bytes
        self.out_bytes += other.out_bytes


class ConnectionWatcher(Protocol):
    """Called from the read loop: must not block and not raise."""

    def connected(self, client: ClientConnection) -> None:
        """The client has logged in; its account is known."""
        ...

    def disconnected(self, client: ClientConnection) -> None:
        """`close_reason` says why. Also of connections that never logged in: their account is ""."""
        ...


class Clients:
    """Those of one server; iterating gives them as they came. A client is admitted once and forgotten once."""

    def __init__(self, state: ServerState, crowd: Crowd) -> None:
        self._state = state
        self._crowd = crowd
        self._present: dict[int, ClientConnection] = {}
        self.departed: set[int] = set()
        """Those of them, by cid, whose connection is gone and whose last messages wait for their turn."""
        self.closed: deque[ClosedClient] = deque(maxlen=max(state.options.max_closed_clients, 0))
        self.closed_totals: dict[str, Totals] = {}
        """Traffic of connections that are gone, by account."""
        self.total = 0
        """Connections since the start."""
        self.handshakes = 0
        """Connections whose TLS handshake is under way: they count as connections."""
        self.watcher: ConnectionWatcher | None = None
        """Told of clients that log in and of connections that end (`$SYS` events)."""

    def __iter__(self) -> Iterator[ClientConnection]:
        """As they are when it begins: one may be closed meanwhile."""
        return iter(list(self._present.values()))

    def __len__(self) -> int:
        """With those that have departed."""
        return len(self._present)

    def get(self, cid: int) -> ClientConnection | None:
        return self._present.get(cid)

    @property
    def connected(self) -> int:
        """Without those that have departed."""
        return len(self._present) - len(self.departed)

    @property
    def is_full(self) -> bool:
        return self.connected + self.handshakes > self._state.options.max_connections

    def of_account(self, account: str) -> list[ClientConnection]:
        """Those that are not closed."""
        return [client for client in self if client.account == account and not client.close_reason]

    def has_room(self, account: str) -> bool:
        """False when one more connection of the account would be one too many."""
        limit, departed = self._state.limits_of(account).max_connections, self.departed
        if limit < 0:
            return True
        return sum(client.account == account and cid not in departed for cid, client in self._present.items()) < limit

    # ---- coming and going

    def admit(self, client: ClientConnection) -> bool:
        """Takes a new connection in; False when max_connections is reached, or the store needs what descriptors are
        left."""
        most = self._state.options.max_connections
        if self.connected >= most or len(self.departed) > most or not self._crowd.has_room_for(client):
            return False
        self._present[client.cid] = client
        self._crowd.strangers[client.cid] = client
        self.total += 1
        return True

    def departs(self, client: ClientConnection) -> None:
        """Its connection is gone, and counts no more; `forget` comes when its last messages have had their turn."""
        self.departed.add(client.cid)
        self._crowd.strangers.pop(client.cid, None)

    def never_came(self, client: ClientConnection) -> None:
        """One whose handshake came to nothing: it has been a connection all the same."""
        self._present[client.cid] = client
        self.total += 1
        self.forget(client)

    def logged_in(self, client: ClientConnection) -> None:
        """Called once by every connection that gets that far."""
        if self.watcher is not None:
            self.watcher.connected(client)

    def forget(self, client: ClientConnection) -> None:
        """Called once by every connection that ends."""
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
        """Closes the newest where there are more than `most`; how many that were."""
        excess = [client for client in self if client.cid not in self.departed][max(most, 0) :]
        for client in excess:
            client.close("Maximum Connections Exceeded", "maximum connections exceeded")
        return len(excess)

    def shed_of(self, account: str) -> None:
        """Closes the newest of an account where there are more than it may have."""
        present = [client for client in self.of_account(account) if client.cid not in self.departed]
        limit = self._state.limits_of(account).max_connections
        for client in present[limit:] if limit >= 0 else ():
            client.close("Maximum Account Connections Exceeded", "maximum account active connections exceeded")

    def totals(self) -> Totals:
        """Traffic since the start, of connections open and closed."""
        found = Totals()
        for closed in self.closed_totals.values():
            found.add(closed)
        for client in self._present.values():
            found.add(client)
        return found

    def tell_info(self) -> None:
        """INFO has changed: told to those that may hear of it unasked."""
        for client in self:
            client.tell_info()
