"""The client-facing server: its listener, its connections, what it tells them, and its counters."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from jetcluster import API_LEVEL, REPORTED_VERSION
from jetcluster.budget import LoopBudget
from jetcluster.clock import Clock, Rng, Timers
from jetcluster.config.account_options import AccountLimitOptions
from jetcluster.config.options import Options
from jetcluster.ordered import OrderedSet
from jetcluster.protocol import writer
from jetcluster.records import dataclass
from jetcluster.server.accounts import Accounts
from jetcluster.server.client import Client
from jetcluster.server.connection import Connection
from jetcluster.server.crowd import Crowd
from jetcluster.server.governor import Governor
from jetcluster.server.identity import new_nonce, new_server_id
from jetcluster.server.listener import advertised, bound_address, listen, take_over
from jetcluster.server.login import ClientLogin
from jetcluster.server.removals import Removals
from jetcluster.server.router import Router
from jetcluster.server.slow_logins import SlowLogins

if TYPE_CHECKING:
    import ssl

    from jetcluster.auth.authenticator import Authenticator
    from jetcluster.net.tls_listener import TlsListener
    from jetcluster.server.tls_port import TlsPort
    from jetcluster.server.tracing import Tracer
    from jetcluster.server.ws_port import WsPort

log = logging.getLogger("jetcluster.server")

_PROTOCOL_VERSION = 1
_STOP_PATIENCE = 2.0
_NO_LIMITS = AccountLimitOptions()


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

    def add(self, other: Totals | ClientLogin) -> None:
        self.in_msgs += other.in_msgs
        self.out_msgs += other.out_msgs
        self.in_bytes += other.in_bytes
        self.out_bytes += other.out_bytes


class ConnectionWatcher(Protocol):
    """Called from the read loop: must not block and not raise."""

    def connected(self, client: ClientLogin) -> None:
        """The client has logged in; its account is known."""
        ...

    def disconnected(self, client: ClientLogin) -> None:
        """`close_reason` says why. Also of connections that never logged in: their account is ""."""
        ...


class Server:
    """Serves clients on one port. `timers` is the event loop outside tests."""

    def __init__(
        self,
        options: Options,
        authenticator: Authenticator,
        clock: Clock,
        rng: Rng,
        timers: Timers,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: of the client port, made of `options.tls`. `options` are the server's own: the node's change in place
        before `reconfigure` brings the new ones."""
        self.options = options
        self.tls = tls
        self.tracer = self._new_tracer()
        """None: nothing is traced."""
        self.authenticator = authenticator
        self.clock = clock
        self.rng = rng
        self.timers = timers
        self.budget = LoopBudget(clock, timers)
        self.removals = Removals(self.budget, timers)
        self.accounts = Accounts(rng, self.removals)
        self.governor = Governor(clock, timers, self.budget)
        self.crowd = Crowd(clock)
        self.slow_logins = SlowLogins()
        self.server_id = new_server_id(rng)
        self.name = options.server_name or self.server_id
        self.host = options.host
        """The address that is bound, once it is: `options.host` may be a name."""
        self.port = options.port
        self.start_ns = clock.time_ns()
        self.clients: dict[int, ClientLogin] = {}
        self.departed: set[int] = set()
        """Those of them, by cid, whose connection is gone and whose last messages wait for their turn."""
        self.transports: OrderedSet[Connection] = OrderedSet()
        """`clients`, and those that were closed and still have a socket."""
        self.closed: deque[ClosedClient] = deque(maxlen=max(options.max_closed_clients, 0))
        self.total_connections = 0
        self.slow_consumers = 0
        self.stale_connections = 0
        self.stalled_clients = 0
        self.lame_duck = False
        self.stopping = False
        self.look_up: Callable[[Exception], Coroutine[Any, Any, None] | None] = lambda _refusal: None
        """Returns work that may find the account of a refused login, after which the login is tried again; None: there
        is none."""
        self.watcher: ConnectionWatcher | None = None
        """Told of clients that log in and of connections that end (`$SYS` events)."""
        self.closed_totals: dict[str, Totals] = {}
        """Traffic of connections that are gone, by account."""
        self._next_cid = 0
        self._peer_urls: list[str] = []
        self.ws_port: WsPort | None = None
        """The other port for clients, if there is one; the node opens it."""
        self.handshakes = 0
        """Connections whose TLS handshake is under way: they count as connections."""
        self._listener: asyncio.Server | TlsListener | None = None
        self._plain: asyncio.Server | None = None
        """`_listener`, while it knows nothing of TLS."""
        self._tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._drained: asyncio.Event | None = None

    # ---- life

    async def start(self) -> None:
        """Opens the port. Raises listener.ListenError."""
        secure = self._tls_port()
        self._listener = await listen(self.options, self.new_client, secure)
        self._plain = cast(asyncio.Server, self._listener) if secure is None else None
        self.host, self.port = bound_address(self._listener)

    def _tls_port(self) -> TlsPort | None:
        if self.tls is None:
            return None
        from jetcluster.server.tls_port import TlsPort

        return TlsPort(self)

    async def stop_accepting(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = self._plain = None
        if self.ws_port is not None:
            self.ws_port.close()

    async def stop(self) -> None:
        """Closes the port and every connection, after what is queued for them has been written."""
        self.stopping = True
        await self.stop_accepting()
        for task in list(self._tasks):
            task.cancel()
        self.slow_logins.stop()
        self.budget.stop()
        for connection in list(self.transports):
            connection.close("Server Shutdown", linger=False)
            connection.transport.close()
        if self.transports:
            self._drained = asyncio.Event()
            try:
                await asyncio.wait_for(self._drained.wait(), _STOP_PATIENCE)
            except TimeoutError:
                for connection in list(self.transports):
                    connection.transport.abort()
                await asyncio.sleep(0)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def account(self, name: str) -> Router:
        return self.accounts[name]

    def reconfigure(self, options: Options, authenticator: Authenticator, tls: ssl.SSLContext | None = None) -> None:
        """Takes over what a reload brings. Connections that may no longer be are closed, the newest first where there
        are too many; the others are told what changed. Host, port and max_pending cannot change."""
        before, limits = self.info, _limits(self.options)
        new_pings = options.ping_interval != self.options.ping_interval
        self.options = options
        self.tls = tls
        self.tracer = self._new_tracer()
        self.authenticator = authenticator
        if self.ws_port is not None:
            self.ws_port.reconfigure()
        secure = self._tls_port() if self._plain is not None else None
        if secure is not None and self._plain is not None:
            self._listener, self._plain = take_over(self._plain, secure), None
        present = [client for client in self.clients.values() if client.cid not in self.departed]
        excess = present[max(options.max_connections, 0) :]
        for client in excess:
            client.close("Maximum Connections Exceeded", "maximum connections exceeded")
        if excess:
            log.info("Closed %d connections to fall within max_connections", len(excess))
        for client in list(self.clients.values()):
            client.reconfigured(new_pings=new_pings)
        new_limits = _limits(options)
        for account, its in new_limits.items():
            if its != limits.get(account):
                self._shed(account)
        if self.info != before or new_limits != limits:
            self._send_info()

    def recheck(self, account: str) -> None:
        """The account is not what it was: are its clients still who they were? The newest go where there are too
        many."""
        for client in self._shed(account):
            if not client.close_reason:
                client.reconfigured(new_pings=False)
                if client.settled and not client.close_reason:
                    client.send(writer.info(self.info_for(client, first=False)))

    def _shed(self, account: str) -> list[ClientLogin]:
        """Its clients, of which the newest are closed where there are too many."""
        clients = self.clients.values()
        found = [client for client in clients if client.account == account and not client.close_reason]
        present = [client for client in found if client.cid not in self.departed]
        limit = self.limits_of(account).max_connections
        for client in present[limit:] if limit >= 0 else ():
            client.close("Maximum Account Connections Exceeded", "maximum account active connections exceeded")
        return found

    def limits_of(self, account: str) -> AccountLimitOptions:
        found = (self.options.accounts or {}).get(account)
        return _NO_LIMITS if found is None else found.limits

    def has_room(self, account: str) -> bool:
        """False when one more connection of the account would be one too many."""
        limit, departed = self.limits_of(account).max_connections, self.departed
        if limit < 0:
            return True
        return sum(client.account == account and cid not in departed for cid, client in self.clients.items()) < limit

    def _new_tracer(self) -> Tracer | None:
        if not self.options.trace:
            return None
        from jetcluster.server.tracing import Tracer

        return Tracer(self.options)

    # ---- connections

    def new_client(self) -> Client:
        return Client(self, self.new_cid())

    def new_cid(self) -> int:
        self._next_cid += 1
        return self._next_cid

    def admit(self, client: ClientLogin) -> bool:
        """Takes a new connection in; False when max_connections is reached, or the store needs what descriptors are
        left."""
        most = self.options.max_connections
        if self.connected >= most or len(self.departed) > most or not self.crowd.has_room_for(client):
            return False
        self.clients[client.cid] = client
        self.crowd.strangers[client.cid] = client
        self.total_connections += 1
        return True

    @property
    def connected(self) -> int:
        """`clients` but those that have departed."""
        return len(self.clients) - len(self.departed)

    @property
    def is_full(self) -> bool:
        return self.connected + self.handshakes > self.options.max_connections

    def departs(self, client: ClientLogin) -> None:
        """Its connection is gone, and counts no more; `forget` comes when its last messages have had their turn."""
        self.departed.add(client.cid)
        self.crowd.strangers.pop(client.cid, None)
        self.transport_lost(client)

    def never_came(self, client: ClientLogin) -> None:
        """One whose handshake came to nothing: it has been a connection all the same."""
        self.clients[client.cid] = client
        self.total_connections += 1
        self.forget(client)

    def transport_lost(self, connection: Connection) -> None:
        self.transports.discard(connection)
        if not self.transports and self._drained is not None:
            self._drained.set()

    def forget(self, client: ClientLogin) -> None:
        """Called once by every connection that ends."""
        if self.clients.pop(client.cid, None) is None:
            return
        self.departed.discard(client.cid)
        self.crowd.strangers.pop(client.cid, None)
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
                stop_ns=self.clock.time_ns(),
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

    def totals(self) -> Totals:
        """Traffic since the start, of connections open and closed."""
        found = Totals()
        for closed in self.closed_totals.values():
            found.add(closed)
        for client in self.clients.values():
            found.add(client)
        return found

    # ---- INFO

    def new_nonce(self) -> bytes:
        """A nonce for one connection; b"" when no configured credential signs one."""
        return new_nonce(self.rng) if self.authenticator.nonce_required else b""

    @property
    def client_url(self) -> str:
        """`host:port` of this server for clients; "" when it is not to be advertised."""
        options = self.options
        return "" if options.no_advertise else advertised(options.client_advertise, options.host, self.port)

    @property
    def connect_urls(self) -> list[str]:
        """This server first, then the peers; in lame duck mode without this server."""
        own = [] if self.lame_duck or not self.client_url else [self.client_url]
        return own + [url for url in self._peer_urls if url not in own]

    def set_connect_urls(self, urls: Sequence[str]) -> None:
        """Takes the client URLs of the other nodes; clients that listen are told when they changed."""
        peers = [url for url in dict.fromkeys(urls) if url and url != self.client_url]
        if peers != self._peer_urls:
            self._peer_urls = peers
            self._send_info()

    def announce_lame_duck(self) -> None:
        self.lame_duck = True
        self._send_info()

    def _send_info(self) -> None:
        for client in list(self.clients.values()):
            if client.settled:
                client.send(writer.info(self.info_for(client, first=False)))

    @property
    def info(self) -> dict[str, Any]:
        """The part of INFO that is the same for all connections, keys in nats-server's order."""
        options = self.options
        info: dict[str, Any] = {
            "server_id": self.server_id,
            "server_name": self.name,
            "version": REPORTED_VERSION,
            "proto": _PROTOCOL_VERSION,
            "go": f"python{sys.version_info.major}.{sys.version_info.minor}",
            "host": options.host,
            "port": self.port,
            "headers": not options.no_header_support,
        }
        if self.authenticator.required:
            info["auth_required"] = True
        if options.tls is not None:
            info["tls_available" if options.allow_non_tls else "tls_required"] = True
            if options.tls.verify:
                info["tls_verify"] = True
        info["max_payload"] = options.max_payload
        if options.jetstream.enabled:
            info["jetstream"] = True
        if options.cluster_name:
            info["cluster"] = options.cluster_name
            if not options.no_advertise:
                info["connect_urls"] = self.connect_urls
        if options.domain:
            info["domain"] = options.domain
        if self.lame_duck:
            info["ldm"] = True
        info["api_lvl"] = API_LEVEL
        return info

    def info_for(self, client: ClientLogin, *, first: bool) -> dict[str, Any]:
        """INFO for one connection: the first, or a later one, which also says where the client has landed."""
        info = client.told(self.info)
        info["client_id"] = client.cid
        info["client_ip"] = client.ip
        if first:
            # Clients with no credentials would give up at once, though no_auth_user lets them in.
            if client.no_auth_user:
                info.pop("auth_required", None)
            nonce = client.nonce
            if nonce:
                info["nonce"] = nonce.decode()
        else:
            info["max_payload"] = client.max_payload
            info["connect_info"] = True
            info["remote_account"] = client.account
            if client.account == self.options.system_account_name:
                info["acc_is_sys"] = True
        return info


def _limits(options: Options) -> dict[str, AccountLimitOptions]:
    return {name: account.limits for name, account in (options.accounts or {}).items()}
