"""The login of a client's connection: INFO, CONNECT, its account, limits and rights, and how a reload changes them."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from jetcluster.auth.authenticator import STANDARD, AuthError
from jetcluster.model.codec import without_surrogates
from jetcluster.protocol import writer
from jetcluster.protocol.parser import Command, Parser
from jetcluster.protocol.valve import Valve
from jetcluster.server.connection import Connection
from jetcluster.server.permissions import ConnectionPermissions
from jetcluster.server.router import Router
from jetcluster.server.slow_logins import PATIENCE
from jetcluster.server.subscription import ClientSubscription

if TYPE_CHECKING:
    from jetcluster.auth.authenticator import Authenticator, AuthResult, Session
    from jetcluster.auth.certificates import PeerCertificate
    from jetcluster.auth.permissions import UserPermissions
    from jetcluster.auth.secrets import SlowPart
    from jetcluster.config.tls_options import TlsOptions
    from jetcluster.server.server import Server

log = logging.getLogger("jetcluster.server")

_CONNECT_TYPES: dict[str, type] = {
    **dict.fromkeys(("verbose", "pedantic", "echo", "headers", "no_responders", "tls_required"), bool),
    **dict.fromkeys(("user", "pass", "auth_token", "jwt", "sig", "nkey", "name", "lang", "version"), str),
    "protocol": int,
}


class ClientLogin(Connection):
    """A client's connection, but for what it may do once it is in (`client.Client`)."""

    client_type = "nats"
    """As monitoring calls it."""
    connection_type = STANDARD
    """As `allowed_connection_types` of a user calls it."""

    def __init__(self, server: Server, cid: int) -> None:
        super().__init__(server, cid)
        self.user = ""
        self.name = ""
        self.lang = ""
        self.version = ""
        self.subscriptions: dict[bytes, ClientSubscription] = {}
        self.echo = True
        self.headers = False
        self.no_responders = False
        self.protocol = 0
        self.settled = False
        """True after the first PING that followed a CONNECT: only then may INFO come unasked."""
        self._verbose = True
        self._pedantic = True
        self._careful = True
        """True when a publish needs more than a lookup: +OK, a pedantic check, or permissions."""
        self._parser = Parser(server.options.max_payload, server.options.max_control_line)
        self.nonce = b""
        self._credentials: dict[str, Any] = {}
        """The CONNECT that let this client in, for the next reload of the configuration."""
        self._connected = False
        self._rest: list[Command] = []
        """Commands that were read and wait for their turn."""
        self._queued = False
        """It waits for a turn (`governor`)."""
        self._narrowed = False
        """It was part of a flood."""
        self._valve: Valve | None = None
        """The valve of a taker that takes no more of what this client publishes."""
        self._lost: tuple[Exception | None] | None = None
        """Why the connection is gone, while what it had sent still has its turns."""
        self._greeted = False
        self.tls_first = False
        """The handshake came before the INFO."""
        self._router: Router | None = None
        self._permissions: ConnectionPermissions | None = None
        self.session: Session | None = None
        """Limits of this connection alone; None: it has those of its account."""
        self._asks = self._has_asked = False
        """It takes time to know who this is (bcrypt, an account that is looked for elsewhere); has taken it, which is
        once."""

    # ---- beginning and end

    def first_info(self) -> dict[str, Any]:
        self.nonce = self.server.new_nonce()
        return self.server.info_for(self, first=True)

    def greeting(self) -> bytes:
        """The first INFO, for a port that sends it before the connection is made; `ip` and `port` are known by then."""
        self._greeted = True
        return writer.info(self.first_info())

    def opened(self) -> None:
        if not self._greeted:
            self.out.append(writer.info(self.first_info()))
        if not self.server.admit(self):
            # A connection that lingers keeps its descriptor, which may be what there are too few of.
            spare = not self.server.crowd.is_crowded(self)
            self.close("Maximum Connections Exceeded", "maximum connections exceeded", linger=spare)
            return
        if not self._is_pinned():
            return
        self._expect_credentials()
        self.flush()

    @property
    def pins(self) -> frozenset[str]:
        """Public keys that may come by this listener; empty: any."""
        tls = self.listener_tls
        return frozenset(tls.pinned_certs) if tls is not None else frozenset()

    def _is_pinned(self) -> bool:
        """Closes the connection otherwise."""
        pins, options = self.pins, self.server.options
        if not pins or (options.allow_non_tls and self.transport.get_extra_info("ssl_object") is None):
            return True
        from jetcluster.auth.certificates import CertificateError, certificate_of, check_pin

        try:
            check_pin(certificate_of(self.transport), pins)
        except CertificateError as error:
            log.info("cid %d, %s: TLS handshake error: %s", self.cid, self.ip, error)
            self.abort("TLS Handshake Failure")
            return False
        return True

    def _expect_credentials(self) -> None:
        if self.authenticator.required:
            self._arm("auth", self._auth_patience, self.close, "Authentication Timeout", "Authentication Timeout")

    @property
    def listener_tls(self) -> TlsOptions | None:
        """TLS of the port that the client has come by."""
        return self.server.options.tls

    @property
    def authenticator(self) -> Authenticator:
        return self.server.authenticator

    @property
    def no_auth_user(self) -> str:
        return self.server.options.no_auth_user

    @property
    def _auth_patience(self) -> float:
        return self.server.options.auth_timeout

    def told(self, info: dict[str, Any]) -> dict[str, Any]:
        """The server's INFO as it is for the listener this client has come by."""
        return info

    def _check(self, connect: dict[str, Any]) -> AuthResult:
        """Raises AuthError, CertificateError."""
        tls = self.listener_tls
        mapped = tls is not None and tls.verify_and_map
        return self.authenticator.check(
            self._said(connect), self.nonce, self.ip, self.connection_type,
            certificate=self.certificate if mapped else None, by_certificate=mapped,
        )  # fmt: skip

    @property
    def certificate(self) -> PeerCertificate | None:
        """The certificate that the client has shown. Raises CertificateError."""
        from jetcluster.auth.certificates import certificate_of

        return certificate_of(self.transport)

    def ended(self) -> None:
        self.server.forget(self)
        self._drop_subscriptions()

    def _drop_subscriptions(self) -> None:
        dropped, self.subscriptions = self.subscriptions, {}
        if self._router is not None and dropped:
            self.server.removals.of_client(self._router, self, dropped)

    @property
    def permissions(self) -> UserPermissions | None:
        """The permissions that the authenticator gave this user; None: everything."""
        return None if self._permissions is None else self._permissions.of_user

    def tell_lame_duck(self) -> None:
        """As if the server went away: this one client looks for another."""
        self.send(writer.info({**self.server.info_for(self, first=False), "ldm": True}))

    def client_info(self) -> dict[str, Any]:
        """The client, as the `client` of an advisory has it."""
        server = self.server
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
            "server": server.name,
            "cluster": server.options.cluster_name,
            "kind": "Client",
            "client_type": self.client_type,
        }
        return {key: value for key, value in info.items() if key == "rtt" or (value != "" and value != 0)}

    # ---- CONNECT

    @property
    def _is_guarded(self) -> bool:
        return self.authenticator.required and not (self.no_auth_user or self.server.options.global_is_open)

    def _serve_unconnected(self) -> Router | None:
        """Without authorization, or where credentials are no must, every verb is served before CONNECT."""
        if self._is_guarded:
            self.close("Authentication Failure", "Authorization Violation")
        else:
            self._log_in({})
        return self._router

    def _connect(self, text: bytes) -> None:
        connect = _decode_connect(text)
        if connect is None:
            self.close("Parse Error")
            return
        if self._connected:
            # A second CONNECT authenticates anew and loses all subscriptions.
            self._drop_subscriptions()
        self._connected = True
        self.server.crowd.strangers.pop(self.cid, None)
        self._verbose = connect.get("verbose", self._verbose)
        self._pedantic = connect.get("pedantic", self._pedantic)
        self.echo = connect.get("echo", self.echo)
        self.protocol = connect.get("protocol", self.protocol)
        self.name = connect.get("name", self.name)
        self.lang = connect.get("lang", self.lang)
        self.version = connect.get("version", self.version)
        self.headers = connect.get("headers", self.headers) and not self.server.options.no_header_support
        if not self._log_in(connect):
            return
        if self.protocol not in (0, 1):
            self.close("Bad Client Protocol Version", "invalid client protocol")
            return
        self.no_responders = connect.get("no_responders", self.no_responders)
        if self.no_responders and not self.headers:
            self.close("No Responders Requires Headers", "no responders requires headers support")
            return
        if self._verbose:
            self.send(writer.OK)

    def _log_in(self, connect: dict[str, Any]) -> bool:
        """Asks the authenticator and takes the place it gives; closes the connection when it refuses."""
        identity = self._identify(connect)
        if identity is None:
            return False
        if identity.account != self.account and not self.server.has_room(identity.account):
            text = "maximum account active connections exceeded"
            self.close("Maximum Account Connections Exceeded", text)
            return False
        self._disarm("auth")
        self._has_asked = False
        self._credentials = connect
        self.account = identity.account
        self.user = identity.user
        router, first = self.server.accounts[identity.account], self._router is None
        permissions = identity.permissions
        if router is not self._router or permissions is not None:
            self._drop_subscriptions()  # made before CONNECT, by the rules of somebody else
        self._router = router
        self._take_session(identity)
        self._obey(permissions)
        if first and self.server.watcher is not None:
            self.server.watcher.connected(self)
        self._check_limits()
        return not self.close_reason

    def _identify(self, connect: dict[str, Any], *, live: bool = False) -> AuthResult | None:
        """The account and user of these credentials; None when they are refused, and the connection is closed. `live`:
        they were good before, so the client is told why they are not any more."""
        self._asks = False
        slow = None if live or self._has_asked else self._slow_part(connect)
        if slow is not None:
            self._asks = self._has_asked = True
            self._wait_for_check(slow, str(connect.get("user") or ""))
            return None
        try:
            return self._check(connect)
        except Exception as error:  # noqa: BLE001 - any failure in there means no
            work = None if live or self._has_asked else self.server.look_up(error)
            if work is not None:
                self._asks = self._has_asked = True
                self.server.spawn(self._wait_for(work))
                return None
            refusal = error if isinstance(error, AuthError) else AuthError()
            text, reason = (refusal.live_text, refusal.live_reason) if live else (refusal.text, "")
            log.info("cid %d: authentication refused: %s", self.cid, error)
            self.user = self.user or str(connect.get("user") or connect.get("nkey") or "")  # for who asks later
            self.close(reason or "Authentication Failure", text or None)
            return None

    def _wait_for_check(self, slow: SlowPart, user: str) -> None:
        """The time to log in is over once a password was said; there is another one for the check."""
        self._arm("auth", PATIENCE, self.close, "Authentication Timeout", "Authentication Timeout")

        async def check() -> None:
            gone = lambda: bool(self.close_reason)  # noqa: E731
            if not await self.server.slow_logins.check(self.ip, user, slow.key, slow, gone):
                self.close("Authentication Timeout", "Authentication Timeout")

        self.server.spawn(self._wait_for(check()))

    def _slow_part(self, connect: dict[str, Any]) -> SlowPart | None:
        return self.authenticator.slow_part(self._said(connect))

    def _said(self, connect: dict[str, Any]) -> dict[str, Any]:
        """CONNECT with what the connection has brought besides."""
        return connect

    async def _wait_for(self, work: Awaitable[None]) -> None:
        await work
        if not self.close_reason:
            self.resume_reading("login")
            self._continue()

    def _take_session(self, identity: AuthResult) -> None:
        self.session = session = identity.session
        self._disarm("expiry")
        if session is not None and session.expires:
            left = max(session.expires - self.server.clock.time_ns() / 1e9, 0.0)
            text = "User Authentication Expired"
            self._arm("expiry", left, self.close, "Authentication Expired", text)

    def _check_limits(self) -> None:
        """A connection that has more subscriptions than it may have ends, and so does one that may have none."""
        limit = self._max_subscriptions
        if limit == 0 or 0 < limit < len(self.subscriptions):
            self.close("Maximum Subscriptions Exceeded", "maximum subscriptions exceeded")

    def _obey(self, permissions: UserPermissions | None) -> None:
        clock, domain = self.server.clock, self.server.options.domain
        self._permissions = None if permissions is None else ConnectionPermissions(permissions, clock, domain)
        self._careful = self._verbose or self._pedantic or self._permissions is not None
        self._parser.max_payload = self.max_payload

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

    def reconfigured(self, *, new_pings: bool) -> None:
        """The server has a new configuration: is this client still who it was, and what may it do now?"""
        self._parser.max_control_line = self.server.options.max_control_line
        if not self._is_pinned():
            return
        if new_pings:
            self._arm_ping()
        if self._router is None:
            self._parser.max_payload = self.max_payload
            self._disarm("auth")
            self._expect_credentials()
            return
        identity = self._identify(self._credentials, live=True)
        if identity is None:
            return
        if identity.account != self.account:
            self.close("Credentials Revoked")  # without an error: the client is welcome, in its new account
            return
        self.user = identity.user
        self._take_session(identity)
        self._obey(identity.permissions)
        for subscription in list(self.subscriptions.values()):
            self._review(subscription)
        self._check_limits()

    def _review(self, subscription: ClientSubscription) -> None:
        permissions, subject = self._permissions, subscription.subject
        assert self._router is not None
        if permissions is not None and not permissions.can_subscribe(subject, subscription.queue):
            named = "" if subscription.queue is None else f' using queue "{text_of(subscription.queue)}"'
            what = f'"{text_of(subject)}"{named} (sid "{text_of(subscription.sid)}")'
            text = f"Permissions Violation for Subscription to {what}"
            log.info("cid %d: removed, not authorized any more: %s", self.cid, text_of(subject))
            self.send(writer.err(text))
            self.expire(subscription)
            return
        special = bool(subscription.max) or (permissions is not None and permissions.watches_deliveries)
        self._router.watch_client(subscription, special)

    def expire(self, subscription: ClientSubscription) -> None:
        """Removes one subscription; `Sink.expire`."""
        if self._router is not None and self.subscriptions.get(subscription.sid) is subscription:
            del self.subscriptions[subscription.sid]
            self._router.remove_client(subscription)

    def _continue(self) -> None:
        """Goes on with what was read while it was not known who this is."""
        raise NotImplementedError


def text_of(subject: bytes) -> str:
    return subject.decode("utf-8", "surrogateescape")


def _decode_connect(text: bytes) -> dict[str, Any] | None:
    """The CONNECT object without nulls; None when it is not JSON, no object, or a known key has another type."""
    try:
        value = json.loads(text.decode("utf-8", "replace"))
        if b"\\u" in text:
            value = without_surrogates(value)  # which nobody could encode for /connz or a log
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    connect = {key: item for key, item in value.items() if item is not None}
    for key, wanted in _CONNECT_TYPES.items():
        if key in connect and type(connect[key]) is not wanted:
            return None
    return connect
