"""`ClientConnection`: a client's connection as takers, the server and monitoring see it; its session and its port."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from jetcluster.auth.authenticator import STANDARD
from jetcluster.protocol import writer
from jetcluster.protocol.bus import Valve
from jetcluster.protocol.connection_states import RECHECKED, RECHECKING, SETTLED
from jetcluster.server.accounts.subscription import ClientSubscription, Sink
from jetcluster.server.connection import Connection, Sockets
from jetcluster.server.state import ServerState, new_nonce, server_info

if TYPE_CHECKING:
    from jetcluster.auth.authenticator import Authenticator, Session
    from jetcluster.auth.permissions import UserPermissions
    from jetcluster.config.tls_options import TlsOptions
    from jetcluster.server.accounts.router import Router
    from jetcluster.server.permissions import ConnectionPermissions

log = logging.getLogger("jetcluster.server")

_HEARS: Final = (SETTLED, RECHECKING, RECHECKED)
"""States in which INFO may be sent unasked: after the first PING that followed a CONNECT."""


class Entrance:
    """The INFO and the login rules of the port that accepted a client: here the client port; `ws.port.WsEntrance` is
    the WebSocket port's. A reload changes its properties."""

    trace_kind = "cid"
    client_type = "nats"
    """Monitoring's name of it."""
    connection_type = STANDARD
    """Its name in a user's `allowed_connection_types`."""

    def __init__(self, server: ServerState) -> None:
        self._server = server

    @property
    def authenticator(self) -> Authenticator:
        return self._server.authenticator

    @property
    def no_auth_user(self) -> str:
        """The user of clients without credentials; "" if there is none."""
        return self._server.options.no_auth_user

    @property
    def login_seconds(self) -> float:
        """Seconds that a client has to send CONNECT."""
        return self._server.options.auth_timeout

    @property
    def ping_interval(self) -> float:
        return self._server.options.ping_interval

    @property
    def tls(self) -> TlsOptions | None:
        return self._server.options.tls

    def info(self) -> dict[str, Any]:
        """Returns a new copy of the server's INFO for this port."""
        return server_info(self._server)

    def completed(self, connect: dict[str, Any]) -> dict[str, Any]:
        """Returns CONNECT's fields, completed with credentials from the connection itself."""
        return connect


class ClientSession:
    """A client's router, permissions and limits in its account."""

    __slots__ = ("careful", "limits", "pedantic", "permissions", "plain", "router", "spent", "verbose", "watched")

    def __init__(self) -> None:
        self.router: Router | None = None
        """None until the client is logged in."""
        self.permissions: ConnectionPermissions | None = None
        """None when everything is permitted."""
        self.limits: Session | None = None
        """Limits of this connection; None when only its account's apply."""
        self.verbose = True
        self.pedantic = True
        self.careful = True
        """True when a publish needs more than a lookup: +OK, a pedantic check, permissions, or `watched`."""
        self.plain = False
        """True when a publish needs neither +OK nor a pedantic check, and is not `watched`."""
        self.watched = False
        """True when each publish passes `Commands.may_publish`, which tells of it."""
        self.spent = 0
        """Messages to charge to the current portion for extra work (`ClientConnection.spend`)."""

    def set_permissions(self, permissions: ConnectionPermissions | None) -> None:
        """Sets the permissions; called also when a flag has changed."""
        self.permissions = permissions
        self.plain = not (self.verbose or self.pedantic or self.watched)
        self.careful = permissions is not None or not self.plain


class ClientConnection(Connection, Sink):
    """A client's connection; `client.Client` adds its parts."""

    def __init__(self, server: ServerState, sockets: Sockets, cid: int, entrance: Entrance) -> None:
        super().__init__(server, sockets, cid)
        self.entrance = entrance
        self.session = ClientSession()
        self.trace_kind = entrance.trace_kind
        self.user = ""
        self.name = ""
        self.lang = ""
        self.version = ""
        self.subscriptions: dict[bytes, ClientSubscription] = {}
        self.echo = True
        self.headers = False
        self.no_responders = False
        self.protocol = 0
        self.nonce = b""
        self.tls_first = False
        """True when the TLS handshake came before INFO."""
        self.valve: Valve | None = None
        """The closed valve of a taker of this client's messages."""
        self.is_lost = False
        """True when the connection is gone and its input still waits for turns."""

    def reconfigured(self, *, new_pings: bool) -> None:
        """Checks the client's credentials, permissions and limits against a new configuration."""
        raise NotImplementedError

    def answered(self) -> None:
        """Processes the input that waited for the end of a slow login."""
        raise NotImplementedError

    def take_turn(self, quantum: int) -> None:
        """See `fairness.Governed`."""
        raise NotImplementedError

    def wait_at(self, valve: Valve) -> None:
        """Ends the portion after this message: see `bus.Waiter`."""
        self.valve = valve

    def spend(self, messages: int) -> None:
        """Charges the current portion for the work of so many messages."""
        self.session.spent += messages

    @property
    def client_type(self) -> str:
        return self.entrance.client_type

    @property
    def ping_interval(self) -> float:
        return self.entrance.ping_interval

    # ---- rights and limits

    @property
    def permissions(self) -> UserPermissions | None:
        """The user's permissions; None when everything is permitted."""
        permissions = self.session.permissions
        return None if permissions is None else permissions.of_user

    @property
    def max_payload(self) -> int:
        """Largest message in bytes: the smallest of the server's, the account's and the user's limit."""
        limits = self.session.limits
        of_user = -1 if limits is None else limits.max_payload
        found = (self.server.limits_of(self.account).max_payload, of_user)
        return min([self.server.options.max_payload, *(limit for limit in found if limit >= 0)])

    @property
    def max_subscriptions(self) -> int:
        """The smallest limit of the server, the account and the user; -1 for none."""
        limits = self.session.limits
        found = (
            self.server.options.max_subscriptions or -1,
            self.server.limits_of(self.account).max_subscriptions,
            -1 if limits is None else limits.max_subscriptions,
        )
        return min((limit for limit in found if limit >= 0), default=-1)

    def may_be_answered_at(self, reply: bytes) -> bool:
        """Returns False for a reply subject in the server's space ($JS, $KV, $SYS, ...) that the client may not publish
        to: the server answers many requests itself, and must not publish there on the client's behalf."""
        permissions = self.session.permissions
        return reply[:1] != b"$" or permissions is None or permissions.can_publish(reply)

    def may_deliver_to(self, subject: bytes) -> bool:
        session = self.session
        if session.permissions is None or session.router is None or not session.router.is_guarded(subject):
            return True
        return session.permissions.can_publish_all(subject)

    def may_publish_mapped(self, subject: bytes) -> bool:
        """Returns False when the client may not, after an -ERR."""
        permissions = self.session.permissions
        if permissions is None or permissions.can_publish(subject):
            return True
        self.refuse("Publish to", permissions.judged(subject))
        return False

    def refuse(self, what: str, subject: bytes, queue: bytes | None = None) -> None:
        text = f'Permissions Violation for {what} "{text_of(subject)}"'
        if queue is not None:
            text += f' using queue "{text_of(queue)}"'
        log.info("cid %d: %s", self.cid, text)
        self.send(writer.err(text))

    # ---- deliveries

    def admits(self, subject: bytes, reply: bytes, queue: bytes | None) -> bool:
        permissions = self.session.permissions
        return permissions is None or permissions.admits(subject, reply, queue)

    def expire(self, subscription: ClientSubscription) -> None:
        """Removes one subscription: see `Sink.expire`."""
        router = self.session.router
        if router is not None and self.subscriptions.get(subscription.sid) is subscription:
            del self.subscriptions[subscription.sid]
            router.remove_client(subscription)

    # ---- INFO

    def info(self, *, first: bool) -> dict[str, Any]:
        """Returns the first INFO for this client, or a later one, which also has its account."""
        info = self.entrance.info()
        info["client_id"] = self.cid
        info["client_ip"] = self.ip
        if first:
            # Clients without credentials would give up, although no_auth_user admits them.
            if self.entrance.no_auth_user:
                info.pop("auth_required", None)
            if self.nonce:
                info["nonce"] = self.nonce.decode()
        else:
            info["max_payload"] = self.max_payload
            info["connect_info"] = True
            info["remote_account"] = self.account
            if self.account == self.server.options.system_account_name:
                info["acc_is_sys"] = True
        return info

    def first_info(self) -> dict[str, Any]:
        """Returns the first INFO, with a nonce if any configured credential signs one."""
        self.nonce = new_nonce(self.server.rng) if self.server.authenticator.nonce_required else b""
        info = self.info(first=True)
        if self.tls_first:  # required of this one, even if others may come in clear
            info["tls_required"] = True
        return info

    def send_info(self) -> None:
        """Sends a changed INFO if the client may receive one unasked."""
        if self.state in _HEARS:
            self.send(writer.info(self.info(first=False)))

    def send_lame_duck(self) -> None:
        """Sends INFO with lame duck mode, so that this client reconnects elsewhere."""
        self.send(writer.info({**self.info(first=False), "ldm": True}))

    # ---- logs and advisories

    def head(self) -> str:
        """Returns the head of log lines: address, number, the client's name and library, its user."""
        from jetcluster.server.tracing import head_of

        of_user = (self.account, self.user) if self.user else None
        return head_of(
            self.ip, self.port, f"{self.trace_kind}:{self.cid}", (self.version, self.lang, self.name), of_user
        )

    def client_info(self) -> dict[str, Any]:
        """Returns the `client` field of an advisory."""
        info: dict[str, Any] = {
            "start": datetime.fromtimestamp(self.start_ns / 1e9, UTC).isoformat().replace("+00:00", "Z"),
            "host": self.ip,
            "id": self.cid,
            "acc": self.account,
            "user": self.user,
            "name": self.name,
            "lang": self.lang,
            "ver": self.version,
            "rtt": int(self.rtt * 1e9),
            "server": self.server.name,
            "cluster": self.server.options.cluster_name,
            "kind": "Client",
            "client_type": self.client_type,
        }
        return {key: value for key, value in info.items() if key == "rtt" or (value != "" and value != 0)}


def text_of(subject: bytes) -> str:
    return subject.decode("utf-8", "surrogateescape")
