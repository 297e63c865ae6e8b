"""`ClientConnection`: a client's connection as takers, its server and monitoring know it, with its session, and the
port it has come by.
"""

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
"""INFO may come unasked only after the first PING that followed a CONNECT."""


class Entrance:
    """The port that clients come by: what they are told there, and how they are let in. This one is the client port;
    `ws.port.WsEntrance` is the other one. A reload changes its answers."""

    trace_kind = "cid"
    client_type = "nats"
    """As monitoring calls it."""
    connection_type = STANDARD
    """As `allowed_connection_types` of a user calls it."""

    def __init__(self, server: ServerState) -> None:
        self._server = server

    @property
    def authenticator(self) -> Authenticator:
        return self._server.authenticator

    @property
    def no_auth_user(self) -> str:
        """The user that a client without credentials is; "" when there is none."""
        return self._server.options.no_auth_user

    @property
    def login_seconds(self) -> float:
        """Seconds that a client has to say its credentials."""
        return self._server.options.auth_timeout

    @property
    def ping_interval(self) -> float:
        return self._server.options.ping_interval

    @property
    def tls(self) -> TlsOptions | None:
        return self._server.options.tls

    def info(self) -> dict[str, Any]:
        """The server's INFO, as it is for this port; a new object."""
        return server_info(self._server)

    def completed(self, connect: dict[str, Any]) -> dict[str, Any]:
        """CONNECT with what the connection has brought besides."""
        return connect


class ClientSession:
    """The place of a client in its account: the router, and what the client may do there."""

    __slots__ = ("careful", "limits", "pedantic", "permissions", "router", "spent", "verbose")

    def __init__(self) -> None:
        self.router: Router | None = None
        """None until the client is let in."""
        self.permissions: ConnectionPermissions | None = None
        """None: everything is permitted."""
        self.limits: Session | None = None
        """Limits of this connection alone; None: it has those of its account."""
        self.verbose = True
        self.pedantic = True
        self.careful = True
        """True when a publish needs more than a lookup: +OK, a pedantic check, or permissions."""
        self.spent = 0
        """Messages of the portion that is worked on which were used up by work for others of them."""

    def obey(self, permissions: ConnectionPermissions | None) -> None:
        """From now on these are the permissions; called whenever one of the flags has changed as well."""
        self.permissions = permissions
        self.careful = self.verbose or self.pedantic or permissions is not None


class ClientConnection(Connection, Sink):
    """A client's connection, whose parts `client.Client` puts together."""

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
        """The handshake came before the INFO."""
        self.valve: Valve | None = None
        """The valve of a taker that takes no more of what this client publishes."""
        self.is_lost = False
        """The connection is gone, while what had been read still has its turns."""

    def reconfigured(self, *, new_pings: bool) -> None:
        """The server has a new configuration: is this client still who it was, and what may it do now?"""
        raise NotImplementedError

    def answered(self) -> None:
        """It is known now who this is: what was read meanwhile is worked on."""
        raise NotImplementedError

    def take_turn(self, quantum: int) -> None:
        """See `fairness.Governed`."""
        raise NotImplementedError

    def wait_at(self, valve: Valve) -> None:
        """See `bus.Waiter`: this message is the last of its portion."""
        self.valve = valve

    def spend(self, messages: int) -> None:
        """Takes so many messages off this portion of the client: one of them has cost as much."""
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
        """The rights that the authenticator gave this user; None: everything."""
        permissions = self.session.permissions
        return None if permissions is None else permissions.of_user

    @property
    def max_payload(self) -> int:
        """Bytes a message of this client may have: the smallest of the server's, its account's and its own limit."""
        limits = self.session.limits
        of_user = -1 if limits is None else limits.max_payload
        found = (self.server.limits_of(self.account).max_payload, of_user)
        return min([self.server.options.max_payload, *(limit for limit in found if limit >= 0)])

    @property
    def max_subscriptions(self) -> int:
        """-1 is no limit."""
        limits = self.session.limits
        found = (
            self.server.options.max_subscriptions or -1,
            self.server.limits_of(self.account).max_subscriptions,
            -1 if limits is None else limits.max_subscriptions,
        )
        return min((limit for limit in found if limit >= 0), default=-1)

    def may_be_answered_at(self, reply: bytes) -> bool:
        """The server answers many requests itself: a client that may not publish to its own subjects ($JS, $KV, $SYS,
        ...) may not have it publish there either."""
        permissions = self.session.permissions
        return reply[:1] != b"$" or permissions is None or permissions.can_publish(reply)

    def may_deliver_to(self, subject: bytes) -> bool:
        session = self.session
        if session.permissions is None or session.router is None or not session.router.is_guarded(subject):
            return True
        return session.permissions.can_publish_all(subject)

    def may_publish_mapped(self, subject: bytes) -> bool:
        """False when it may not, and has been told."""
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
        """Removes one subscription; `Sink.expire`."""
        router = self.session.router
        if router is not None and self.subscriptions.get(subscription.sid) is subscription:
            del self.subscriptions[subscription.sid]
            router.remove_client(subscription)

    # ---- INFO

    def info(self, *, first: bool) -> dict[str, Any]:
        """INFO for this client: the first, or a later one, which also says where it has landed."""
        info = self.entrance.info()
        info["client_id"] = self.cid
        info["client_ip"] = self.ip
        if first:
            # Clients with no credentials would give up at once, though no_auth_user lets them in.
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
        """With a nonce, where a configured credential signs one."""
        self.nonce = new_nonce(self.server.rng) if self.server.authenticator.nonce_required else b""
        return self.info(first=True)

    def tell_info(self) -> None:
        """The server's INFO has changed: told to a client that may hear of it unasked."""
        if self.state in _HEARS:
            self.send(writer.info(self.info(first=False)))

    def tell_lame_duck(self) -> None:
        """As if the server went away: this one client looks for another."""
        self.send(writer.info({**self.info(first=False), "ldm": True}))

    # ---- as others see it

    def head(self) -> str:
        """The head of lines of the log about this client: address, number, what it calls itself, its user."""
        from jetcluster.server.tracing import head_of

        of_user = (self.account, self.user) if self.user else None
        return head_of(
            self.ip, self.port, f"{self.trace_kind}:{self.cid}", (self.version, self.lang, self.name), of_user
        )

    def client_info(self) -> dict[str, Any]:
        """The client, as the `client` of an advisory has it."""
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
