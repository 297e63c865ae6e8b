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
from jetcluster.protocol.ws_handshake import Rules, UpgradeRequest, places_of
from jetcluster.server.listener import BACKLOG, ListenError, bound_address, host_port
from jetcluster.server.parts import ServerParts
from jetcluster.server.state import ServerState
from jetcluster.server.ws_client import WsClient, WsState
from jetcluster.server.ws_transport import WebSocket

if TYPE_CHECKING:
    import ssl

log = logging.getLogger("jetcluster.server")

HANDSHAKE_TIMEOUT = 10.0
"""Seconds, unless `handshake_timeout` says otherwise."""


class WsPort:
    """Configured by the `websocket` block of the server's options; `tls` is made of the `tls` there."""

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
        """Raises ListenError."""
        options = self.state.options
        port = max(options.port, 0)
        try:
            if self.tls is not None:
                assert options.tls is not None
                listener = TlsListener(self.tls, options.tls.timeout, self._accept, _handshake_failed)
                self.state.host, self.state.port = await listener.start(options.host, port)
                self._listener = listener
            else:
                plain = await open_port(self._accept, options.host, port, BACKLOG)
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
        self.state.options = self._parts.state.options.websocket
        self.state.authenticator = _authenticator(self._parts.state)
        self._set_rules()

    # ---- connections

    def _accept(self) -> asyncio.Protocol:
        parts, patience = self._parts, self.state.options.handshake_timeout or HANDSHAKE_TIMEOUT
        return WebSocket(
            self._rules, parts.state.timers, parts.budget, patience, self._open_client, self._handshaking,
            parts.crowd.has_room_at,
        )  # fmt: skip

    def _open_client(self, request: UpgradeRequest) -> WsClient:
        return WsClient(self._parts, self.state, self._parts.new_cid(), request)

    # ---- where clients may go

    @property
    def scheme(self) -> str:
        return "ws" if self.tls is None else "wss"

    def set_peer_urls(self, urls: Sequence[str]) -> None:
        """Takes the WebSocket addresses of the other nodes; clients that listen are told when they changed."""
        peers = [url for url in dict.fromkeys(urls) if url and url != self.state.own_url]
        if peers == self.state.peer_urls:
            return
        self.state.peer_urls = peers
        for client in self._parts.clients:
            if isinstance(client, WsClient):
                client.tell_info()


def _authenticator(server: ServerState) -> Authenticator:
    """The server's own, unless the block has another way to let clients in."""
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

    log.info("%s:%d - websocket TLS handshake error: %s", address[0], address[1], handshake_failure(error))
