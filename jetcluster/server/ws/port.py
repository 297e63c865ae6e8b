"""The port for WebSocket clients, with its own INFO and login rules. Imported only if it is configured."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from jetcluster.auth.authenticator import Authenticator
from jetcluster.log_limit import FROM_STRANGERS
from jetcluster.net.open_port import open_port
from jetcluster.net.tls_listener import TlsListener
from jetcluster.protocol.websocket import Rules, UpgradeRequest, places_of
from jetcluster.records import dataclass
from jetcluster.server.client.client import Client
from jetcluster.server.client.clients import ServerParts
from jetcluster.server.client.connection import Entrance
from jetcluster.server.listener import LISTEN_BACKLOG, ListenError, advertised, bound_address, host_port
from jetcluster.server.state import ServerState
from jetcluster.server.ws.transport import WebSocket

if TYPE_CHECKING:
    import ssl

    from jetcluster.auth.authenticator import Authenticator
    from jetcluster.config.options import WebSocketOptions
    from jetcluster.config.tls_options import TlsOptions
    from jetcluster.protocol.websocket import UpgradeRequest
    from jetcluster.server.client.clients import ServerParts
    from jetcluster.server.state import ServerState

log = logging.getLogger("jetcluster.server")

HANDSHAKE_SECONDS = 10.0
"""Default of `handshake_timeout`."""


@dataclass(slots=True)
class WsState:
    """Options and addresses of the WebSocket port. A reload replaces `options` and `authenticator`."""

    server: ServerState
    options: WebSocketOptions
    authenticator: Authenticator
    host: str
    port: int = 0
    """Bound port; 0 while it is not open."""
    secure: bool = False
    """True with TLS."""
    peer_urls: list[str] = field(default_factory=list)
    """`host:port` of the other nodes' WebSocket ports."""

    @property
    def own_url(self) -> str:
        """`host:port` for WebSocket clients; "" if it is not advertised."""
        if self.server.options.no_advertise or not self.port:
            return ""
        return advertised(self.options.advertise, self.host, self.port)

    @property
    def connect_urls(self) -> list[str]:
        """INFO's `connect_urls`, as `state.connect_urls` but with WebSocket addresses; empty without a cluster."""
        if not self.server.options.cluster_name or self.server.options.no_advertise:
            return []
        own = [] if self.server.lame_duck or not self.own_url else [self.own_url]
        return own + [url for url in self.peer_urls if url not in own]


class WsEntrance(Entrance):
    """The WebSocket port as one client's entrance. Login settings of the `websocket` block override the server's."""

    trace_kind = "wid"
    client_type = "websocket"
    connection_type = "WEBSOCKET"

    def __init__(self, port: WsState, request: UpgradeRequest) -> None:
        super().__init__(port.server)
        self._port = port
        options = port.options
        cookies = (
            ("jwt", options.jwt_cookie),
            ("user", options.user_cookie),
            ("pass", options.pass_cookie),
            ("auth_token", options.token_cookie),
        )
        found = ((key, request.cookie(name)) for key, name in cookies if name)
        self._cookies = {key: value for key, value in found if value}

    @property
    def ping_interval(self) -> float:
        return self._port.options.ping_interval or super().ping_interval

    @property
    def authenticator(self) -> Authenticator:
        return self._port.authenticator

    @property
    def no_auth_user(self) -> str:
        return self._port.options.no_auth_user or super().no_auth_user

    @property
    def login_seconds(self) -> float:
        return self._port.options.authorization.timeout or super().login_seconds

    @property
    def tls(self) -> TlsOptions | None:
        return self._port.options.tls

    def info(self) -> dict[str, Any]:
        info = super().info()
        for key in ("auth_required", "tls_required", "tls_available", "tls_verify", "connect_urls"):
            info.pop(key, None)
        info |= {"host": self._port.host, "port": self._port.port}
        if self.authenticator.required:
            info["auth_required"] = True
        if self._port.secure:
            info["tls_required"] = True
            if self._port.options.tls is not None and self._port.options.tls.verify:
                info["tls_verify"] = True
            info["tls_available"] = True
        urls = self._port.connect_urls
        return info | {"connect_urls": urls} if urls else info

    def completed(self, connect: dict[str, Any]) -> dict[str, Any]:
        """Returns CONNECT's fields; the cookies of the handshake supply missing ones."""
        return {**self._cookies, **{key: value for key, value in connect.items() if value != ""}}


class WsPort:
    """The port that the `websocket` block configures; `tls` is made from the `tls` block in it."""

    def __init__(self, parts: ServerParts, tls: ssl.SSLContext | None = None) -> None:
        self._parts = parts
        self.tls = tls
        options = parts.state.options.websocket
        authenticator = _authenticator(parts.state)
        self.state = WsState(parts.state, options, authenticator, options.host, secure=tls is not None)
        self._rules = Rules()
        self._handshaking: set[WebSocket] = set()
        self._listener: asyncio.Server | TlsListener | None = None
        self._set_rules()

    @property
    def host(self) -> str:
        return self.state.host

    @property
    def port(self) -> int:
        return self.state.port

    @property
    def own_url(self) -> str:
        """See `WsState.own_url`."""
        return self.state.own_url

    def _set_rules(self) -> None:
        options = self.state.options
        self._rules = Rules(
            tls=self.tls is not None,
            same_origin=options.same_origin,
            origins=places_of(options.allowed_origins),
            compression=options.compression,
            headers=options.headers,
        )

    async def start(self) -> None:
        """Opens the port. Raises ListenError."""
        options = self.state.options
        port, shared = max(options.port, 0), self._parts.state.options.worker is not None
        try:
            if self.tls is not None:
                assert options.tls is not None
                listener = TlsListener(self.tls, options.tls.timeout, self._accept, _handshake_failed)
                self.state.host, self.state.port = await listener.start(options.host, port, shared=shared)
                self._listener = listener
            else:
                plain = await open_port(self._accept, options.host, port, LISTEN_BACKLOG, shared=shared)
                self.state.host, self.state.port = bound_address(plain)
                self._listener = plain
        except OSError as error:
            address = host_port(options.host, port)
            why = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
            raise ListenError(f'Unable to listen for websocket connections: {address}, "{why}"') from error
        log.info("Listening for websocket clients on %s://%s", self.scheme, host_port(options.host, self.port))
        if self.tls is None:
            log.warning("Websocket not configured with TLS. DO NOT USE IN PRODUCTION!")

    def close(self) -> None:
        """Stops accepting, and drops connections in their handshake. The server closes the clients."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for one in list(self._handshaking):
            one.drop()

    def renew(self, context: ssl.SSLContext, timeout: float) -> None:
        """Replaces the context and timeout of later TLS handshakes."""
        self.tls = context
        if isinstance(self._listener, TlsListener):
            self._listener.context, self._listener.timeout = context, timeout

    def reconfigure(self) -> None:
        """Applies a reload, before the server checks its clients again. Host, port and the use of TLS cannot change."""
        self.state.options = self._parts.state.options.websocket
        self.state.authenticator = _authenticator(self._parts.state)
        self._set_rules()

    # ---- connections

    def _accept(self) -> asyncio.Protocol:
        parts, patience = self._parts, self.state.options.handshake_timeout or HANDSHAKE_SECONDS
        return WebSocket(
            self._rules, parts.state.timers, parts.budget, patience, self._open_client, self._handshaking,
            parts.crowd.has_room_at,
        )  # fmt: skip

    def _open_client(self, request: UpgradeRequest) -> Client:
        return Client(self._parts, self._parts.new_cid(), WsEntrance(self.state, request))

    # ---- addresses

    @property
    def scheme(self) -> str:
        return "ws" if self.tls is None else "wss"

    def set_peer_urls(self, urls: Sequence[str]) -> None:
        """Sets the WebSocket addresses of the other nodes, and sends INFO to clients when they changed."""
        peers = [url for url in dict.fromkeys(urls) if url and url != self.state.own_url]
        if peers == self.state.peer_urls:
            return
        self.state.peer_urls = peers
        for client in self._parts.clients:
            if isinstance(client.entrance, WsEntrance):
                client.send_info()


def _authenticator(server: ServerState) -> Authenticator:
    """Returns the server's authenticator, or one with the login settings of the `websocket` block."""
    options, of_server, own = server.options, server.authenticator, server.options.websocket
    if not own.overrides_login or options.operator.is_on:
        return of_server
    changed: dict[str, Any] = {}
    if own.authorization.user or own.authorization.token:
        changed["authorization"] = own.authorization
    if own.no_auth_user:
        changed["no_auth_user"] = own.no_auth_user
    return Authenticator(replace(options, **changed), of_server)


def _handshake_failed(address: tuple[str, int], error: Exception) -> None:
    from jetcluster.config.tls import handshake_failure

    why = handshake_failure(error)
    log.info("%s:%d - websocket TLS handshake error: %s", address[0], address[1], why, extra=FROM_STRANGERS)
