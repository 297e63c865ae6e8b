"""A client that has come by WebSocket: what it is told and how it is let in differ, the protocol does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetcluster.server.client import Client

if TYPE_CHECKING:
    from jetcluster.auth.authenticator import Authenticator
    from jetcluster.config.tls_options import TlsOptions
    from jetcluster.protocol.ws_handshake import UpgradeRequest
    from jetcluster.server.ws_port import WsPort


class WsClient(Client):
    """`authorization`, `no_auth_user` and `ping_interval` are those of the `websocket` block where it has its own."""

    trace_kind = "wid"
    client_type = "websocket"
    connection_type = "WEBSOCKET"

    def __init__(self, port: WsPort, cid: int, request: UpgradeRequest) -> None:
        super().__init__(port.server, cid)
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
        if self._port.tls is not None:
            info["tls_required"] = True
            if self._port.options.tls is not None and self._port.options.tls.verify:
                info["tls_verify"] = True
        urls = self._port.connect_urls
        return info | {"connect_urls": urls} if urls else info

    def _said(self, connect: dict[str, Any]) -> dict[str, Any]:
        """The fields of CONNECT, and those that it leaves out from the cookies of the handshake."""
        return {**self._cookies, **{key: value for key, value in connect.items() if value != ""}}
