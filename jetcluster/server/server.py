"""`Server`: the client-facing server. It makes the parts, opens the port, and applies reloads. In lame duck mode
(`enter_lame_duck`) it sends its clients to other nodes, a few at a time, before it stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from jetcluster.budget import LoopBudget
from jetcluster.clock import Clock, Rng, Timers
from jetcluster.config.account_options import AccountLimitOptions, AccountOptions
from jetcluster.config.options import Options
from jetcluster.health.descriptors import DescriptorWatch
from jetcluster.server.accounts.accounts import Accounts, Removals
from jetcluster.server.accounts.router import Router
from jetcluster.server.client.client import Client
from jetcluster.server.client.clients import Clients, LookUp, ServerParts
from jetcluster.server.client.connection import Entrance
from jetcluster.server.connection import Sockets
from jetcluster.server.fairness import Crowd, Governor, SlowLogins
from jetcluster.server.listener import PlainPort, bound_address, listen, take_over
from jetcluster.server.state import ServerState, client_url, connect_urls, new_server_id, server_info

if TYPE_CHECKING:
    import ssl

    from jetcluster.auth.authenticator import Authenticator
    from jetcluster.config.account_options import MappingOptions
    from jetcluster.net.tls_listener import TlsListener
    from jetcluster.server.accounts.imports import Sharing
    from jetcluster.server.client.tls_port import TlsPort
    from jetcluster.server.tracing import Tracer
    from jetcluster.server.ws.port import WsPort

log = logging.getLogger("jetcluster.server")

_STOP_SECONDS: Final = 2.0
_MAX_STEP_SECONDS = 1.0


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
        descriptors: DescriptorWatch | None = None,
        look_up: LookUp = lambda error: None,
    ) -> None:
        """`tls`: the client port's context, made from `options.tls`."""
        self.clock = clock
        self.rng = rng
        self.timers = timers
        self.budget = LoopBudget(clock, timers)
        self.removals = Removals(self.budget, timers)
        self.accounts = Accounts(rng, self.removals, clock)
        self.governor = Governor(clock, timers, self.budget)
        self.crowd = Crowd(clock, descriptors)
        self.slow_logins = SlowLogins()
        self.server_id = new_server_id(rng)
        self.name = options.server_name or self.server_id
        self.start_ns = clock.time_ns()
        self.state = ServerState(
            options, authenticator, clock, rng, timers,
            server_id=self.server_id, name=self.name, start_ns=self.start_ns,
            host=options.host, port=options.port, tls=tls, tracer=_tracer_for(options),
        )  # fmt: skip
        self.clients = Clients(self.state, self.crowd)
        self.sockets = Sockets()
        self.parts = ServerParts(
            self.state, self.sockets, self.clients, self.crowd, self.accounts, self.removals, self.budget,
            self.governor, self.slow_logins, look_up,
        )  # fmt: skip
        self._entrance = Entrance(self.state)
        self.sharing: Sharing | None = None
        """The imports and mappings of accounts; None until there are any."""
        self.ws_port: WsPort | None = None
        """The WebSocket port, if there is one; the node opens it."""
        self._listener: PlainPort | TlsListener | None = None
        self._plain: PlainPort | None = None
        """`_listener`, while it has no TLS."""

    # ---- life

    async def start(self) -> None:
        """Opens the port. Raises listener.ListenError."""
        secure = self._tls_port()
        self._listener = await listen(self.options, self.new_client, secure)
        self._plain = cast(PlainPort, self._listener) if secure is None else None
        self.state.host, self.state.port = bound_address(self._listener)

    def _tls_port(self) -> TlsPort | None:
        if self.state.tls is None:
            return None
        from jetcluster.server.client.tls_port import TlsPort

        return TlsPort(self.parts, self.new_client)

    async def stop_accepting(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = self._plain = None
        if self.ws_port is not None:
            self.ws_port.close()

    async def stop(self) -> None:
        """Closes the ports, writes out what is queued for connections, and closes them."""
        self.state.stopping = True
        await self.stop_accepting()
        for task in list(self.parts.tasks):
            task.cancel()
        self.slow_logins.stop()
        self.budget.stop()
        await self.sockets.close("Server Shutdown", _STOP_SECONDS)

    def new_client(self) -> Client:
        return Client(self.parts, self.parts.new_cid(), self._entrance)

    def account(self, name: str) -> Router:
        return self.accounts[name]

    # ---- for the node and monitoring

    @property
    def options(self) -> Options:
        return self.state.options

    @property
    def authenticator(self) -> Authenticator:
        return self.state.authenticator

    @property
    def host(self) -> str:
        return self.state.host

    @property
    def port(self) -> int:
        return self.state.port

    @property
    def lame_duck(self) -> bool:
        return self.state.lame_duck

    @property
    def info(self) -> dict[str, Any]:
        """The part of INFO that is the same for all connections."""
        return server_info(self.state)

    @property
    def connect_urls(self) -> list[str]:
        """See `state.connect_urls`."""
        return connect_urls(self.state)

    @property
    def client_url(self) -> str:
        """See `state.client_url`."""
        return client_url(self.state)

    # ---- changes

    def share(
        self,
        accounts: Mapping[str, AccountOptions],
        of_global: list[MappingOptions],
        system_account: str,
        *,
        operator: bool = False,
    ) -> None:
        """Replaces the imports and mappings of accounts: see `imports.Sharing.apply`."""
        if self.sharing is None:
            from jetcluster.server.accounts.import_context import ImportContext
            from jetcluster.server.accounts.imports import Sharing

            context = ImportContext(
                self.clock, self.timers, self.rng,
                server_name=self.name, cluster=self.options.cluster_name, system_account=system_account,
            )  # fmt: skip
            self.sharing = Sharing(self.accounts, context)
        self.sharing.apply(accounts, of_global, operator=operator)

    def reconfigure(self, options: Options, authenticator: Authenticator, tls: ssl.SSLContext | None = None) -> None:
        """Applies a reload. Connections that are no longer allowed are closed, the newest first where there are too
        many; the others get the new INFO. Host, port and max_pending cannot change."""
        state = self.state
        before, limits = self.info, _limits(state.options)
        new_pings = options.ping_interval != state.options.ping_interval
        state.options, state.authenticator, state.tls = options, authenticator, tls
        state.tracer = _tracer_for(options)
        if self.ws_port is not None:
            self.ws_port.reconfigure()
        secure = self._tls_port() if self._plain is not None else None
        if secure is not None and self._plain is not None:
            self._listener, self._plain = take_over(self._plain, secure), None
        if shed := self.clients.shed(options.max_connections):
            log.info("Closed %d connections to fall within max_connections", shed)
        for client in self.clients:
            client.reconfigured(new_pings=new_pings)
        new_limits = _limits(options)
        for account, its in new_limits.items():
            if its != limits.get(account):
                self.clients.shed_of(account)
        if self.info != before or new_limits != limits:
            self.clients.send_info()

    def recheck(self, account: str) -> None:
        """Checks the clients of an account that changed; closes the newest where there are too many."""
        self.clients.shed_of(account)
        for client in self.clients.of_account(account):
            if not client.close_reason:
                client.reconfigured(new_pings=False)
                client.send_info()

    def set_connect_urls(self, urls: Sequence[str]) -> None:
        """Sets the client URLs of the other nodes, and sends INFO to clients when they changed."""
        own = self.client_url
        peers = [url for url in dict.fromkeys(urls) if url and url != own]
        if peers != self.state.peer_urls:
            self.state.peer_urls = peers
            self.clients.send_info()

    def announce_lame_duck(self) -> None:
        self.state.lame_duck = True
        self.clients.send_info()


def _tracer_for(options: Options) -> Tracer | None:
    if not options.trace:
        return None
    from jetcluster.server.tracing import Tracer

    return Tracer(options)


def _limits(options: Options) -> dict[str, AccountLimitOptions]:
    return {name: account.limits for name, account in (options.accounts or {}).items()}


async def enter_lame_duck(server: Server) -> None:
    """Stops accepting, sends INFO, waits the grace period, and closes the clients spread over the duration.

    The caller must move Raft leaderships and JetStream first. The process may exit when this returns.
    """
    options = server.options
    log.info("Entering lame duck mode, stop accepting new clients")
    await server.stop_accepting()
    server.announce_lame_duck()
    await asyncio.sleep(options.lame_duck_grace_period)
    clients = list(server.clients)
    if not clients:
        return
    # Clients are closed in groups when their interval is below the resolution of a timer (1 ms).
    interval = min(_MAX_STEP_SECONDS, options.lame_duck_duration / len(clients))
    group = max(1, int(0.001 / interval) if interval else len(clients))
    for start in range(0, len(clients), group):
        for client in clients[start : start + group]:
            client.close("Server Shutdown")
        if start + group < len(clients):
            await asyncio.sleep(interval * group)
