"""The login of a client's connection: INFO, CONNECT, its account, limits and rights, and how a reload changes them."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from jetcluster.auth.authenticator import AuthError
from jetcluster.model.codec import without_surrogates
from jetcluster.protocol import writer
from jetcluster.protocol.connection_states import ANONYMOUS, CHECKED, GREETED, OPEN, RECHECKED, ConnectionEvent
from jetcluster.protocol.parser import Command, Parser
from jetcluster.protocol.valve import Valve
from jetcluster.server.accounts.router import Router
from jetcluster.server.accounts.subscription import ClientSubscription
from jetcluster.server.client.client_connection import ClientConnection
from jetcluster.server.client.clients import ServerParts
from jetcluster.server.fairness import SLOW_LOGIN_SECONDS
from jetcluster.server.permissions import ConnectionPermissions

if TYPE_CHECKING:
    from jetcluster.auth.authenticator import Authenticator, AuthResult
    from jetcluster.auth.certificates import PeerCertificate
    from jetcluster.auth.permissions import UserPermissions
    from jetcluster.auth.secrets import SlowPart
    from jetcluster.config.tls_options import TlsOptions

log = logging.getLogger("jetcluster.server")

_CONNECT_TYPES: dict[str, type] = {
    **dict.fromkeys(("verbose", "pedantic", "echo", "headers", "no_responders", "tls_required"), bool),
    **dict.fromkeys(("user", "pass", "auth_token", "jwt", "sig", "nkey", "name", "lang", "version"), str),
    "protocol": int,
}


_WITHOUT_CONNECT: Final = (OPEN, ANONYMOUS)
_ASKED: Final = (CHECKED, RECHECKED)
"""The states in which it is not asked again: a check that takes time is made once."""


class ClientLogin(ClientConnection):
    """A client's connection, but for what it may do once it is in (`client.Client`)."""

    def __init__(self, parts: ServerParts, cid: int) -> None:
        super().__init__(parts.state, parts.sockets, cid)
        self.parts = parts
        self._verbose = True
        self._pedantic = True
        self._careful = True
        """True when a publish needs more than a lookup: +OK, a pedantic check, or permissions."""
        self._parser = Parser(self.server.options.max_payload, self.server.options.max_control_line)
        self._credentials: dict[str, Any] = {}
        """The CONNECT that let this client in, for the next reload of the configuration."""
        self._rest: list[Command] = []
        """Commands that were read and wait for their turn."""
        self._queued = False
        """It waits for a turn (`fairness.Governor`)."""
        self._narrowed = False
        """It was part of a flood."""
        self._valve: Valve | None = None
        """The valve of a taker that takes no more of what this client publishes."""
        self._lost: tuple[Exception | None] | None = None
        """Why the connection is gone, while what it had sent still has its turns."""
        self._router: Router | None = None

    # ---- beginning and end

    def greeting(self) -> bytes:
        """The first INFO, for a port that sends it before the connection is made; `ip` and `port` are known by then."""
        self.advance(ConnectionEvent.GREET)
        return writer.info(self.first_info())

    def opened(self) -> None:
        if self.state is not GREETED:
            self.out.append(writer.info(self.first_info()))
        self.advance(ConnectionEvent.MAKE)
        if not self.parts.clients.admit(self):
            # A connection that lingers keeps its descriptor, which may be what there are too few of.
            spare = not self.parts.crowd.is_crowded(self)
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
    def _auth_patience(self) -> float:
        return self.server.options.auth_timeout

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
        self.parts.clients.forget(self)
        self._drop_subscriptions()

    def _drop_subscriptions(self) -> None:
        dropped, self.subscriptions = self.subscriptions, {}
        if self._router is not None and dropped:
            self.parts.removals.of_client(self._router, self, dropped)

    # ---- CONNECT

    @property
    def _is_guarded(self) -> bool:
        return self.authenticator.required and not (self.no_auth_user or self.server.options.global_is_open)

    def _serve_unconnected(self) -> Router | None:
        """Without authorization, or where credentials are no must, every verb is served before CONNECT."""
        if self._is_guarded:
            self.close("Authentication Failure", "Authorization Violation")
        else:
            self._log_in({}, ConnectionEvent.SERVE)
        return self._router

    def _connect(self, text: bytes) -> None:
        connect = _decode_connect(text)
        if connect is None:
            self.close("Parse Error")
            return
        if self.state not in _WITHOUT_CONNECT:
            # A second CONNECT authenticates anew and loses all subscriptions.
            self._drop_subscriptions()
        self.parts.crowd.strangers.pop(self.cid, None)
        self._verbose = connect.get("verbose", self._verbose)
        self._pedantic = connect.get("pedantic", self._pedantic)
        self.echo = connect.get("echo", self.echo)
        self.protocol = connect.get("protocol", self.protocol)
        self.name = connect.get("name", self.name)
        self.lang = connect.get("lang", self.lang)
        self.version = connect.get("version", self.version)
        self.headers = connect.get("headers", self.headers) and not self.server.options.no_header_support
        if not self._log_in(connect, ConnectionEvent.CONNECT):
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

    def _log_in(self, connect: dict[str, Any], event: ConnectionEvent) -> bool:
        """Asks the authenticator and takes the place it gives, which is what `event` tells; closes the connection when
        it refuses. False also while it takes time (`BEING_CHECKED`)."""
        identity = self._identify(connect)
        if identity is None:
            return False
        if identity.account != self.account and not self.parts.clients.has_room(identity.account):
            text = "maximum account active connections exceeded"
            self.close("Maximum Account Connections Exceeded", text)
            return False
        self._disarm("auth")
        self.advance(event)
        self._credentials = connect
        self.account = identity.account
        self.user = identity.user
        router, first = self.parts.accounts[identity.account], self._router is None
        permissions = identity.permissions
        if router is not self._router or permissions is not None:
            self._drop_subscriptions()  # made before CONNECT, by the rules of somebody else
        self._router = router
        self._take_session(identity)
        self._obey(permissions)
        if first:
            self.parts.clients.logged_in(self)
        self._check_limits()
        return not self.close_reason

    def _identify(self, connect: dict[str, Any], *, live: bool = False) -> AuthResult | None:
        """The account and user of these credentials; None when they are refused, and the connection is closed. `live`:
        they were good before, so the client is told why they are not any more."""
        asked = live or self.state in _ASKED
        slow = None if asked else self._slow_part(connect)
        if slow is not None:
            self.advance(ConnectionEvent.CHECK)
            self._wait_for_check(slow, str(connect.get("user") or ""))
            return None
        try:
            return self._check(connect)
        except Exception as error:  # noqa: BLE001 - any failure in there means no
            work = None if asked else self.parts.look_up(error)
            if work is not None:
                self.advance(ConnectionEvent.CHECK)
                self.parts.spawn(self._wait_for(work))
                return None
            refusal = error if isinstance(error, AuthError) else AuthError()
            text, reason = (refusal.live_text, refusal.live_reason) if live else (refusal.text, "")
            log.info("cid %d: authentication refused: %s", self.cid, error)
            self.user = self.user or str(connect.get("user") or connect.get("nkey") or "")  # for who asks later
            self.close(reason or "Authentication Failure", text or None)
            return None

    def _wait_for_check(self, slow: SlowPart, user: str) -> None:
        """The time to log in is over once a password was said; there is another one for the check."""
        self._arm("auth", SLOW_LOGIN_SECONDS, self.close, "Authentication Timeout", "Authentication Timeout")

        async def check() -> None:
            gone = lambda: bool(self.close_reason)  # noqa: E731
            if not await self.parts.slow_logins.check(self.ip, user, slow.key, slow, gone):
                self.close("Authentication Timeout", "Authentication Timeout")

        self.parts.spawn(self._wait_for(check()))

    def _slow_part(self, connect: dict[str, Any]) -> SlowPart | None:
        return self.authenticator.slow_part(self._said(connect))

    def _said(self, connect: dict[str, Any]) -> dict[str, Any]:
        """CONNECT with what the connection has brought besides."""
        return connect

    async def _wait_for(self, work: Awaitable[None]) -> None:
        await work
        if not self.close_reason:
            self.advance(ConnectionEvent.ANSWER)
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

    def reconfigured(self, *, new_pings: bool) -> None:
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
