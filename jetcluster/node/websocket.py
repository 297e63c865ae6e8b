"""From the configuration to the port for WebSocket clients."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jetcluster.auth.authenticator import Authenticator
from jetcluster.config.options import Options
from jetcluster.server.options import AuthResult
from jetcluster.server.ws_client import CONNECTION_TYPE
from jetcluster.server.ws_port import Check, WsPort

if TYPE_CHECKING:
    from jetcluster.auth.certificates import PeerCertificate
    from jetcluster.node.node import Node


def ws_port_of(node: Node) -> WsPort:
    """Raises ConfigError when TLS files are unusable."""
    websocket = node.options.websocket
    context = None
    if websocket.tls is not None:
        from jetcluster.config.tls import server_context

        context = server_context(websocket.tls)
    authenticator = node.server.authenticator
    assert isinstance(authenticator, Authenticator)
    return WsPort(node.server, websocket, context, *_login(node.options, authenticator))


def renew_tls(port: WsPort, options: Options) -> None:
    """For handshakes to come. Raises ConfigError."""
    tls = options.websocket.tls
    if port.tls is not None and tls is not None:
        from jetcluster.config.tls import server_context

        port.renew(server_context(tls), tls.timeout)


def reconfigure(port: WsPort, options: Options, authenticator: Authenticator) -> None:
    """After a reload, before the server asks its clients anew who they are."""
    port.reconfigure(options.websocket, *_login(options, authenticator))


def _login(options: Options, of_server: Authenticator) -> tuple[Authenticator, Check]:
    """The server's own way to let clients in, unless the block has another one."""
    websocket, authenticator = options.websocket, of_server
    if websocket.overrides_login and not options.operator.is_on:
        changed: dict[str, Any] = {}
        if websocket.authorization.user or websocket.authorization.token:
            changed["authorization"] = websocket.authorization
        if websocket.no_auth_user:
            changed["no_auth_user"] = websocket.no_auth_user
        authenticator = Authenticator(replace(options, **changed), of_server)

    mapped = websocket.tls is not None and websocket.tls.verify_and_map

    def check(connect: dict[str, Any], nonce: bytes, address: str, certificate: PeerCertificate | None) -> AuthResult:
        return authenticator.check(
            connect, nonce, address, CONNECTION_TYPE, certificate=certificate, by_certificate=mapped
        )

    return authenticator, check
