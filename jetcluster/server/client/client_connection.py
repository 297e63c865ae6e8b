"""A client's connection as its server and monitoring know it: who it is, its rights and limits, what it is told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from jetcluster.auth.authenticator import STANDARD
from jetcluster.protocol import writer
from jetcluster.protocol.connection_states import RECHECKED, RECHECKING, SETTLED
from jetcluster.server.accounts.subscription import ClientSubscription, Sink
from jetcluster.server.connection import Connection, Sockets
from jetcluster.server.state import ServerState, new_nonce, server_info

if TYPE_CHECKING:
    from jetcluster.auth.authenticator import Session
    from jetcluster.auth.permissions import UserPermissions
    from jetcluster.server.permissions import ConnectionPermissions

_HEARS: Final = (SETTLED, RECHECKING, RECHECKED)
"""INFO may come unasked only after the first PING that followed a CONNECT."""


class ClientConnection(Connection, Sink):
    """A client's connection, but for its login (`login.ClientLogin`) and its commands (`client.Client`)."""

    client_type = "nats"
    """As monitoring calls it."""
    connection_type = STANDARD
    """As `allowed_connection_types` of a user calls it."""

    def __init__(self, server: ServerState, sockets: Sockets, cid: int) -> None:
        super().__init__(server, sockets, cid)
        self._spent = 0
        """Messages of its portion that were used up by work for others of them."""
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
        self.session: Session | None = None
        """Limits of this connection alone; None: it has those of its account."""
        self.tls_first = False
        """The handshake came before the INFO."""
        self._permissions: ConnectionPermissions | None = None

    def reconfigured(self, *, new_pings: bool) -> None:
        """The server has a new configuration: is this client still who it was, and what may it do now?"""
        raise NotImplementedError

    # ---- rights and limits

    @property
    def no_auth_user(self) -> str:
        """The user that a client without credentials is; "" when there is none."""
        return self.server.options.no_auth_user

    def spend(self, messages: int) -> None:
        """Takes so many messages off this portion of the client: one of them has cost as much."""
        self._spent += messages

    @property
    def permissions(self) -> UserPermissions | None:
        """The rights that the authenticator gave this user; None: everything."""
        return None if self._permissions is None else self._permissions.of_user

    @property
    def max_payload(self) -> int:
        """Bytes a message of this client may have: the smallest of the server's, its account's and its own limit."""
        of_user = -1 if self.session is None else self.session.max_payload
        limits = (self.server.limits_of(self.account).max_payload, of_user)
        return min([self.server.options.max_payload, *(limit for limit in limits if limit >= 0)])

    @property
    def _max_subscriptions(self) -> int:
        """-1 is no limit."""
        of_user = -1 if self.session is None else self.session.max_subscriptions
        limits = (
            self.server.options.max_subscriptions or -1,
            self.server.limits_of(self.account).max_subscriptions,
            of_user,
        )
        return min((limit for limit in limits if limit >= 0), default=-1)

    # ---- INFO

    def info(self, *, first: bool) -> dict[str, Any]:
        """INFO for this client: the first, or a later one, which also says where it has landed."""
        info = self.told(server_info(self.server))
        info["client_id"] = self.cid
        info["client_ip"] = self.ip
        if first:
            # Clients with no credentials would give up at once, though no_auth_user lets them in.
            if self.no_auth_user:
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

    def told(self, info: dict[str, Any]) -> dict[str, Any]:
        """The server's INFO as it is for the listener this client has come by."""
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
