"""The port for WebSocket clients. Imported only when one is configured."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jetcluster.auth.authenticator import Authenticator
from jetcluster.net.open_port import open_port
from jetcluster.net.tls_listener import TlsListener
from jetcluster.protocol.writer import info as info_line
from jetcluster.protocol.ws_handshake import Rules, UpgradeRequest, places_of
from jetcluster.server.listener import BACKLOG, ListenError, advertised, bound_address, host_port
from jetcluster.server.ws_client import WsClient
from jetcluster.server.ws_transport import WebSocket

if TYPE_CHECKING:
    import ssl

    from jetcluster.server.server import Server

log = logging.getLogger("jetcluster.server")

HANDSHAKE_TIMEOUT = 10.0
"""Seconds, unless `handshake_timeout` says otherwise."""


class WsPort:
    """Configured by the `websocket` block of the server's options; `tls` is made of the `tls` there."""

    def __init__(self, server: Server, tls: ssl.SSLContext | None = None) -> None:
        self.server = server
        options = self.options = server.options.websocket
        self.tls = tls
        self.authenticator = self._authenticator()
        self.host = options.host
        self.port = 0
        self._rules = Rules()
        self._peer_urls: list[str] = []
        self._handshaking: set[WebSocket] = set()
        self._listener: asyncio.Server | TlsListener | None = None
        self._set_rules()

    def _set_rules(self) -> None:
        options = self.options
        self._rules = Rules(
            tls=self.tls is not None,
            same_origin=options.same_origin,
            origins=places_of(options.allowed_origins),
            compression=options.compression,
            headers=options.headers,
        )

    async def start(self) -> None:
        """Raises ListenError."""
        options = self.options
        port = max(options.port, 0)
        try:
            if self.tls is not None:
                assert options.tls is not None
                listener = TlsListener(self.tls, options.tls.timeout, self._accept, _handshake_failed)
                self.host, self.port = await listener.start(options.host, port)
                self._listener = listener
            else:
                plain = await open_port(self._accept, options.host, port, BACKLOG)
                self.host, self.port = bound_address(plain)
                self._listener = plain
        except OSError as error:
            address = host_port(options.host, port)
            why = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
            raise ListenError(f'Unable to listen for websocket connections: {address}, "{why}"') from error
        log.info("Listening for websocket clients on %s://%s", self.scheme, host_port(options.host, self.port))
        if self.tls is None:
            log.warning("Websocket not configured with TLS. DO NOT USE IN PRODUCTION!")

    def close(self) -> None:
        """Takes no more connections, and drops those whose handshake is under way. The server ends the clients."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for one in list(self._handshaking):
            one.drop()

    def renew(self, context: ssl.SSLContext, timeout: float) -> None:
        """For handshakes to come."""
        self.tls = context
        if isinstance(self._listener, TlsListener):
            self._listener.context, self._listener.timeout = context, timeout

    def reconfigure(self) -> None:
        """After a reload, before the server asks its clients anew who they are: host, port and TLS on or off are the
        same."""
        self.options = self.server.options.websocket
        self.authenticator = self._authenticator()
        self._set_rules()

    def _authenticator(self) -> Authenticator:
        """The server's own, unless the block has another way to let clients in."""
        options, of_server, own = self.server.options, self.server.authenticator, self.options
        if not own.overrides_login or options.operator.is_on:
            return of_server
        changed: dict[str, Any] = {}
        if own.authorization.user or own.authorization.token:
            changed["authorization"] = own.authorization
        if own.no_auth_user:
            changed["no_auth_user"] = own.no_auth_user
        return Authenticator(replace(options, **changed), of_server)

    # ---- connections

    def _accept(self) -> asyncio.Protocol:
        patience = self.options.handshake_timeout or HANDSHAKE_TIMEOUT
        server = self.server
        return WebSocket(
            self._rules, server.timers, server.budget, patience, self._open_client, self._handshaking,
            server.crowd.has_room_at,
        )  # fmt: skip

    def _open_client(self, request: UpgradeRequest) -> WsClient:
        return WsClient(self, self.server.new_cid(), request)

    # ---- where clients may go

    @property
    def scheme(self) -> str:
        return "ws" if self.tls is None else "wss"

    @property
    def own_url(self) -> str:
        """`host:port` for WebSocket clients; "" when it is not to be advertised."""
        if self.server.options.no_advertise or not self.port:
            return ""
        return advertised(self.options.advertise, self.host, self.port)

    @property
    def connect_urls(self) -> list[str]:
        """As `Server.connect_urls`; of a server on its own, none."""
        if not self.server.options.cluster_name or self.server.options.no_advertise:
            return []
        own = [] if self.server.lame_duck or not self.own_url else [self.own_url]
        return own + [url for url in self._peer_urls if url not in own]

    def set_peer_urls(self, urls: Sequence[str]) -> None:
        """Takes the WebSocket addresses of the other nodes; clients that listen are told when they changed."""
        peers = [url for url in dict.fromkeys(urls) if url and url != self.own_url]
        if peers == self._peer_urls:
            return
        self._peer_urls = peers
        for client in list(self.server.clients.values()):
            if client.settled and isinstance(client, WsClient):
                client.send(info_line(self.server.info_for(client, first=False)))


def _handshake_failed(address: tuple[str, int], error: Exception) -> None:
    from jetcluster.config.tls import handshake_failure

    log.info("%s:%d - websocket TLS handshake error: %s", address[0], address[1], handshake_failure(error))
