"""A client that has come by WebSocket: what it is told and how it is let in differ, the protocol does not."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from jetcluster.records import dataclass
from jetcluster.server.client import Client
from jetcluster.server.listener import advertised

if TYPE_CHECKING:
    from jetcluster.auth.authenticator import Authenticator
    from jetcluster.config.options import WebSocketOptions
    from jetcluster.config.tls_options import TlsOptions
    from jetcluster.protocol.ws_handshake import UpgradeRequest
    from jetcluster.server.parts import ServerParts
    from jetcluster.server.state import ServerState


@dataclass(slots=True)
class WsState:
    """The port for WebSocket clients, as they and others are told of it. A reload replaces `options` and
    `authenticator`."""

    server: ServerState
    options: WebSocketOptions
    authenticator: Authenticator
    host: str
    port: int = 0
    """Bound port; 0: it is not open."""
    secure: bool = False
    """With TLS."""
    peer_urls: list[str] = field(default_factory=list)
    """`host:port` for WebSocket clients of the other nodes."""

    @property
    def own_url(self) -> str:
        """`host:port` for WebSocket clients; "" when it is not to be advertised."""
        if self.server.options.no_advertise or not self.port:
            return ""
        return advertised(self.options.advertise, self.host, self.port)

    @property
    def connect_urls(self) -> list[str]:
        """As `info.connect_urls`; of a server on its own, none."""
        if not self.server.options.cluster_name or self.server.options.no_advertise:
            return []
        own = [] if self.server.lame_duck or not self.own_url else [self.own_url]
        return own + [url for url in self.peer_urls if url not in own]


class WsClient(Client):
    """`authorization`, `no_auth_user` and `ping_interval` are those of the `websocket` block where it has its own."""

    trace_kind = "wid"
    client_type = "websocket"
    connection_type = "WEBSOCKET"

    def __init__(self, parts: ServerParts, port: WsState, cid: int, request: UpgradeRequest) -> None:
        super().__init__(parts, cid)
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
        return self._port.options.ping_interval or self.server.options.ping_interval

    @property
    def authenticator(self) -> Authenticator:
        return self._port.authenticator

    @property
    def no_auth_user(self) -> str:
        return self._port.options.no_auth_user or self.server.options.no_auth_user

    @property
    def _auth_patience(self) -> float:
        return self._port.options.authorization.timeout or super()._auth_patience

    @property
    def listener_tls(self) -> TlsOptions | None:
        return self._port.options.tls

    def told(self, info: dict[str, Any]) -> dict[str, Any]:
        """INFO as it is for this listener."""
        for key in ("auth_required", "tls_required", "tls_available", "tls_verify", "connect_urls"):
            info.pop(key, None)
        info |= {"host": self._port.host, "port": self._port.port}
        if self.authenticator.required:
            info["auth_required"] = True
        if self._port.secure:
            info["tls_required"] = True
            if self._port.options.tls is not None and self._port.options.tls.verify:
                info["tls_verify"] = True
        urls = self._port.connect_urls
        return info | {"connect_urls": urls} if urls else info

    def _said(self, connect: dict[str, Any]) -> dict[str, Any]:
        """The fields of CONNECT, and those that it leaves out from the cookies of the handshake."""
        return {**self._cookies, **{key: value for key, value in connect.items() if value != ""}}
