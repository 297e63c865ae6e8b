"""`Door`: the WebSocket through which the console connects, on the monitoring port.

The page is served there, so that a browser needs one address, and an ingress one rule. The clients behind the door are
clients like those of the WebSocket port: the server's own users, of connection type WEBSOCKET.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from typing import TYPE_CHECKING, Any, Final

from jetcluster.config.options import WebSocketOptions
from jetcluster.console.audit import DIRECT, ChangeAudit, Detour
from jetcluster.protocol.websocket import HandshakeError, Rules, UpgradeRequest, place_of
from jetcluster.server.client import message_trace
from jetcluster.server.client.client import Client
from jetcluster.server.client.commands import TRACE_DEST, Commands
from jetcluster.server.ws.port import HANDSHAKE_SECONDS, WsEntrance, WsState
from jetcluster.server.ws.transport import WebSocket

if TYPE_CHECKING:
    from jetcluster.auth.authenticator import Authenticator
    from jetcluster.config.tls_options import TlsOptions
    from jetcluster.server.accounts.router import Router
    from jetcluster.server.client.clients import ServerParts

log = logging.getLogger("jetcluster.server")

PATH: Final = "/ui/nats"
INBOX: Final = b"_INBOX."


class ConsoleEntrance(WsEntrance):
    """The entrance of a console's client: the server's users, and no addresses of other nodes, which a page could not
    connect to (another origin)."""

    client_type = "console"

    @property
    def authenticator(self) -> Authenticator:
        return self._server.authenticator

    @property
    def tls(self) -> TlsOptions | None:
        return self._server.options.tls

    def info(self) -> dict[str, Any]:
        info = super().info()
        info.pop("connect_urls", None)
        return info


class ConsoleCommands(Commands):
    """The input of a console's client: each of its publishes goes by the audit before it is executed."""

    __slots__ = ("audit",)

    audit: ChangeAudit

    def may_publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bool:
        self.audit.published(subject, payload, self._detour(subject, reply, headers))
        return super().may_publish(subject, reply, headers, payload)

    def _detour(self, subject: bytes, reply: bytes, headers: bytes) -> Detour:
        router = self._session.router
        assert router is not None, "publishes come after the login"
        answer = b"" if not reply or reply.startswith(INBOX) or self._is_own(router, reply) else reply
        report = (message_trace.destination(headers) or b"") if TRACE_DEST in headers else b""
        mapped = router.mapping_of(subject) is not None or (subject[:1] != b"$" and router.imports_service(subject))
        return Detour(answer, report, mapped) if answer or report or mapped else DIRECT

    def _is_own(self, router: Router, reply: bytes) -> bool:
        """Returns True where this connection alone takes what is published to `reply`."""
        route = router.route_of(reply)
        return route.takers == 1 and len(route.clients) == 1 and router.subscription_of(self._client, reply) is not None


class ConsoleClient(Client):
    """A client behind the door: what it changes is in the log. Strangers have no lines there: they publish nothing."""

    commands_type = ConsoleCommands

    def __init__(self, parts: ServerParts, cid: int, entrance: ConsoleEntrance) -> None:
        super().__init__(parts, cid, entrance)
        self.session.watched = True
        self._audit = ChangeAudit(parts.state.clock, self._tell)
        assert isinstance(self.commands, ConsoleCommands)
        self.commands.audit = self._audit

    def _tell(self, text: str) -> None:
        log.info("%s - console: %s", self.head(), text)

    def ended(self) -> None:
        super().ended()
        self._audit.end()


class Door:
    """The monitoring port's way to the clients. `base_path` as `http_base_path`; `secure`: the port has TLS. It is shut
    while the server goes away: aiohttp answers then."""

    def __init__(self, parts: ServerParts, host: str, port: int, base_path: str = "", *, secure: bool) -> None:
        self._parts = parts
        base = base_path.strip("/")
        self._line = f"GET {'/' if base else ''}{base}{PATH} ".encode()
        # Of the same host, not origin: a proxy may end the TLS of a page that came by https.
        self._rules = Rules(tls=secure, same_host=True)
        self._state = WsState(
            parts.state, WebSocketOptions(), parts.state.authenticator, host, port=port, secure=secure
        )
        self._handshaking: set[WebSocket] = set()

    def wants(self, begin: bytes) -> bool | None:
        """Returns whether a request that begins like this is for the door; None: too short to tell."""
        if self._is_shut:
            return False
        size = min(len(begin), len(self._line))
        if begin[:size] != self._line[:size]:
            return False
        return True if size == len(self._line) else None

    def accept(self) -> asyncio.Protocol:
        """Returns the protocol that takes over a connection, from the first byte of its request on."""
        parts = self._parts
        return WebSocket(
            self._rules, parts.state.timers, parts.budget, HANDSHAKE_SECONDS, self._open, self._handshaking,
            parts.crowd.has_room_at,
        )  # fmt: skip

    @property
    def _is_shut(self) -> bool:
        return self._parts.state.lame_duck or self._parts.state.stopping

    def _is_named(self, host: str) -> bool:
        """Returns False for a name that may be anybody's: a page of the internet can give its own name this server's
        address (DNS rebinding), and would need nothing more where clients need no login."""
        state = self._parts.state
        options = state.options
        if state.authenticator.required and not (options.no_auth_user or options.global_is_open):
            return True
        name = place_of(f"http://{host}")[1].removesuffix(".")
        if name == "localhost" or name.endswith(".localhost"):
            return True
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name)
            return True
        return name in {own.lower().removesuffix(".") for own in options.console_hosts}

    def _open(self, request: UpgradeRequest) -> Client:
        if self._is_shut:
            raise HandshakeError(503, "the server is going away")
        if "origin" in request.headers and not self._is_named(request.headers["host"]):
            raise HandshakeError(403, "this name is not in console_hosts, and no login is asked for")
        return ConsoleClient(self._parts, self._parts.new_cid(), ConsoleEntrance(self._state, request))

    def close(self) -> None:
        """Drops connections in their handshake. The server closes the clients."""
        for one in list(self._handshaking):
            one.drop()
