"""`Login`: a client's INFO, CONNECT, account, limits and permissions, and their changes by a reload."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from jetcluster.auth.authenticator import AuthError
from jetcluster.log_limit import FROM_STRANGERS
from jetcluster.model.codec import without_surrogates
from jetcluster.protocol import writer
from jetcluster.protocol.connection_states import ANONYMOUS, CHECKED, GREETED, OPEN, RECHECKED, ConnectionEvent
from jetcluster.protocol.parser import Parser
from jetcluster.server.accounts.router import Router
from jetcluster.server.accounts.subscription import ClientSubscription
from jetcluster.server.client.clients import ServerParts
from jetcluster.server.client.connection import ClientConnection, text_of
from jetcluster.server.fairness import SLOW_LOGIN_SECONDS
from jetcluster.server.permissions import ConnectionPermissions

if TYPE_CHECKING:
    from jetcluster.auth.authenticator import AuthResult
    from jetcluster.auth.certificates import PeerCertificate
    from jetcluster.auth.permissions import UserPermissions
    from jetcluster.auth.secrets import SlowPart

log = logging.getLogger("jetcluster.server")

_CONNECT_TYPES: dict[str, type] = {
    **dict.fromkeys(("verbose", "pedantic", "echo", "headers", "no_responders", "tls_required"), bool),
    **dict.fromkeys(("user", "pass", "auth_token", "jwt", "sig", "nkey", "name", "lang", "version"), str),
    "protocol": int,
}
_WITHOUT_CONNECT: Final = (OPEN, ANONYMOUS)
_ASKED: Final = (CHECKED, RECHECKED)
"""States after a slow check, which is made once."""


class Login:
    """The login of one client. It sets the router and permissions of the session, and the limits of the parser."""

    __slots__ = ("_client", "_credentials", "_entrance", "_parser", "_parts", "_server", "_session")

    def __init__(self, client: ClientConnection, parts: ServerParts, parser: Parser) -> None:
        self._client = client
        self._session = client.session
        self._entrance = client.entrance
        self._server = client.server
        self._parts = parts
        self._parser = parser
        self._credentials: dict[str, Any] = {}
        """The accepted CONNECT, checked again at each reload."""

    # ---- before CONNECT

    def begin(self) -> None:
        """Sends INFO on a new connection and starts the login timeout."""
        client, parts = self._client, self._parts
        if client.state is not GREETED:
            client.out.append(writer.info(client.first_info()))
        client.advance(ConnectionEvent.MAKE)
        if not parts.clients.admit(client):
            # A lingering connection keeps its descriptor, and descriptors may be short.
            spare = not parts.crowd.is_crowded(client)
            client.close("Maximum Connections Exceeded", "maximum connections exceeded", linger=spare)
            return
        if not self._is_pinned():
            return
        self._expect_credentials()
        client.flush()

    def _is_pinned(self) -> bool:
        """Returns False when the certificate is not one of `pinned_certs`; closes the connection then."""
        client, tls = self._client, self._entrance.tls
        pins = frozenset(tls.pinned_certs) if tls is not None else frozenset()
        allowed = self._server.options.allow_non_tls and client.transport.get_extra_info("ssl_object") is None
        if not pins or allowed:
            return True
        from jetcluster.auth.certificates import CertificateError, certificate_of, check_pin

        try:
            check_pin(certificate_of(client.transport), pins)
        except CertificateError as error:
            log.info("cid %d, %s: TLS handshake error: %s", client.cid, client.ip, error, extra=FROM_STRANGERS)
            client.abort("TLS Handshake Failure")
            return False
        return True

    def _expect_credentials(self) -> None:
        if self._entrance.authenticator.required:
            text, client = "Authentication Timeout", self._client
            client.arm("auth", self._entrance.login_seconds, client.close, text, text)

    @property
    def is_guarded(self) -> bool:
        """True when only CONNECT is served before a login."""
        entrance = self._entrance
        return entrance.authenticator.required and not (entrance.no_auth_user or self._server.options.global_is_open)

    def serve_unconnected(self) -> Router | None:
        """Logs in a client that sends another verb before CONNECT; None if credentials are required or a check runs."""
        if self.is_guarded:
            self._client.close("Authentication Failure", "Authorization Violation")
        else:
            self._log_in({}, ConnectionEvent.SERVE)
        return self._session.router

    # ---- CONNECT

    def connect(self, text: bytes) -> None:
        """Runs CONNECT with this JSON."""
        client, session = self._client, self._session
        connect = _decode_connect(text)
        if connect is None:
            client.close("Parse Error")
            return
        if client.state not in _WITHOUT_CONNECT:
            # A second CONNECT authenticates again and drops all subscriptions.
            self.drop_subscriptions()
        self._parts.crowd.strangers.pop(client.cid, None)
        session.verbose = connect.get("verbose", session.verbose)
        session.pedantic = connect.get("pedantic", session.pedantic)
        client.echo = connect.get("echo", client.echo)
        client.protocol = connect.get("protocol", client.protocol)
        client.name = connect.get("name", client.name)
        client.lang = connect.get("lang", client.lang)
        client.version = connect.get("version", client.version)
        client.headers = connect.get("headers", client.headers) and not self._server.options.no_header_support
        if not self._log_in(connect, ConnectionEvent.CONNECT):
            return
        if client.protocol not in (0, 1):
            client.close("Bad Client Protocol Version", "invalid client protocol")
            return
        client.no_responders = connect.get("no_responders", client.no_responders)
        if client.no_responders and not client.headers:
            client.close("No Responders Requires Headers", "no responders requires headers support")
            return
        if session.verbose:
            client.send(writer.OK)

    def _log_in(self, connect: dict[str, Any], event: ConnectionEvent) -> bool:
        """Asks the authenticator and enters the account it returns, with `event` for the state; closes the connection
        on a refusal. False also while a slow check runs (`BEING_CHECKED`)."""
        client, session, parts = self._client, self._session, self._parts
        identity = self._identify(connect)
        if identity is None:
            return False
        if identity.account != client.account and not parts.clients.has_room(identity.account):
            text = "maximum account active connections exceeded"
            client.close("Maximum Account Connections Exceeded", text)
            return False
        client.disarm("auth")
        client.advance(event)
        self._credentials = connect
        parts.clients.enters(client, identity.account)
        client.user = identity.user
        router, first = parts.accounts[identity.account], session.router is None
        permissions = identity.permissions
        if router is not session.router or permissions is not None:
            self.drop_subscriptions()  # made before CONNECT, with another account or other permissions
        session.router = router
        self._take_limits(identity)
        self._set_permissions(permissions)
        if first:
            parts.clients.logged_in(client)
        self._check_limits()
        return not client.close_reason

    def _identify(self, connect: dict[str, Any], *, live: bool = False) -> AuthResult | None:
        """Returns the account and user of these credentials; None if they are refused, with the connection closed, or
        while a slow check runs. `live`: they were valid before, so the error names the reason."""
        client, parts = self._client, self._parts
        asked = live or client.state in _ASKED
        slow = None if asked else self._entrance.authenticator.slow_part(self._entrance.completed(connect))
        if slow is not None:
            client.advance(ConnectionEvent.CHECK)
            self._wait_for_check(slow, str(connect.get("user") or ""))
            return None
        try:
            return self._check(connect)
        except Exception as error:  # noqa: BLE001 - any exception refuses the login
            work = None if asked else parts.look_up(error)
            if work is not None:
                client.advance(ConnectionEvent.CHECK)
                parts.spawn(self._wait_for(work))
                return None
            refusal = error if isinstance(error, AuthError) else AuthError()
            text, reason = (refusal.live_text, refusal.live_reason) if live else (refusal.text, "")
            log.info("cid %d, %s: authentication refused: %s", client.cid, client.ip, error, extra=FROM_STRANGERS)
            # For monitoring, which shows closed connections.
            client.user = client.user or str(connect.get("user") or connect.get("nkey") or "")
            client.close(reason or "Authentication Failure", text or None)
            return None

    def _check(self, connect: dict[str, Any]) -> AuthResult:
        """Runs the authenticator. Raises AuthError and CertificateError."""
        client, entrance = self._client, self._entrance
        mapped = entrance.tls is not None and entrance.tls.verify_and_map
        return entrance.authenticator.check(
            entrance.completed(connect), client.nonce, client.ip, entrance.connection_type,
            certificate=self._certificate if mapped else None, by_certificate=mapped,
        )  # fmt: skip

    @property
    def _certificate(self) -> PeerCertificate | None:
        """The certificate that the client presented. Raises CertificateError."""
        from jetcluster.auth.certificates import certificate_of

        return certificate_of(self._client.transport)

    # ---- a check that takes time

    def _wait_for_check(self, slow: SlowPart, user: str) -> None:
        """Replaces the login timeout with that of the password check, and starts the check."""
        client, slow_logins, text = self._client, self._parts.slow_logins, "Authentication Timeout"
        client.arm("auth", SLOW_LOGIN_SECONDS, client.close, text, text)

        async def check() -> None:
            gone = lambda: bool(client.close_reason)  # noqa: E731
            if not await slow_logins.check(client.ip, user, slow.key, slow, gone):
                client.close(text, text)

        self._parts.spawn(self._wait_for(check()))

    async def _wait_for(self, work: Awaitable[None]) -> None:
        await work
        client = self._client
        if not client.close_reason:
            client.advance(ConnectionEvent.ANSWER)
            client.resume_reading("login")
            client.answered()

    # ---- rights and limits

    def _take_limits(self, identity: AuthResult) -> None:
        client = self._client
        self._session.limits = limits = identity.session
        client.disarm("expiry")
        if limits is not None and limits.expires:
            left = max(limits.expires - self._server.clock.time_ns() / 1e9, 0.0)
            client.arm("expiry", left, client.close, "Authentication Expired", "User Authentication Expired")

    def _set_permissions(self, permissions: UserPermissions | None) -> None:
        clock, domain = self._server.clock, self._server.options.domain
        self._session.set_permissions(
            None if permissions is None else ConnectionPermissions(permissions, clock, domain)
        )
        self._parser.max_payload = self._client.max_payload

    def _check_limits(self) -> None:
        """Closes a connection with more subscriptions than it may have, or that may have none."""
        limit = self._client.max_subscriptions
        if limit == 0 or 0 < limit < len(self._client.subscriptions):
            self._client.close("Maximum Subscriptions Exceeded", "maximum subscriptions exceeded")

    def drop_subscriptions(self) -> None:
        """Removes all subscriptions of the client."""
        client, router = self._client, self._session.router
        dropped, client.subscriptions = client.subscriptions, {}
        if router is not None and dropped:
            self._parts.removals.of_client(router, client, dropped)

    # ---- reload

    def reconfigured(self, *, new_pings: bool) -> None:
        """See `ClientConnection.reconfigured`."""
        client = self._client
        self._parser.max_control_line = self._server.options.max_control_line
        if not self._is_pinned():
            return
        if new_pings:
            client.arm_ping()
        if self._session.router is None:
            self._parser.max_payload = client.max_payload
            client.disarm("auth")
            self._expect_credentials()
            return
        identity = self._identify(self._credentials, live=True)
        if identity is None:
            return
        if identity.account != client.account:
            client.close("Credentials Revoked")  # without an -ERR: it may reconnect, into its new account
            return
        client.user = identity.user
        self._take_limits(identity)
        self._set_permissions(identity.permissions)
        for subscription in list(client.subscriptions.values()):
            self._review(subscription)
        self._check_limits()

    def _review(self, subscription: ClientSubscription) -> None:
        client, router, permissions = self._client, self._session.router, self._session.permissions
        subject = subscription.subject
        assert router is not None
        if permissions is not None and not permissions.can_subscribe(subject, subscription.queue):
            named = "" if subscription.queue is None else f' using queue "{text_of(subscription.queue)}"'
            what = f'"{text_of(subject)}"{named} (sid "{text_of(subscription.sid)}")'
            text = f"Permissions Violation for Subscription to {what}"
            log.info("cid %d: removed, not authorized any more: %s", client.cid, text_of(subject))
            client.send(writer.err(text))
            client.expire(subscription)
            return
        special = bool(subscription.max) or (permissions is not None and permissions.watches_deliveries)
        router.watch_client(subscription, special)


def _decode_connect(text: bytes) -> dict[str, Any] | None:
    """Returns the CONNECT object without nulls; None if it is not a JSON object or a known key has another type."""
    try:
        value = json.loads(text.decode("utf-8", "replace"))
        if b"\\u" in text:
            value = without_surrogates(value)  # /connz and the log could not encode them
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    connect = {key: item for key, item in value.items() if item is not None}
    for key, wanted in _CONNECT_TYPES.items():
        if key in connect and type(connect[key]) is not wanted:
            return None
    return connect
