"""`Handshake`: the start of a leaf link: TLS, INFO, CONNECT, and the login.

The accepting end sends INFO, the connecting end CONNECT, then the accepting end INFO again with the account; then both
announce their interest (`link`). Either end may be the hub.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jetcluster.auth.authenticator import AuthError, AuthResult
from jetcluster.auth.remote_login import LoginError
from jetcluster.config.lexer import ConfigError
from jetcluster.log_limit import FROM_STRANGERS
from jetcluster.model.account_hash import AccountNames
from jetcluster.model.codec import without_surrogates
from jetcluster.protocol import leaf
from jetcluster.protocol.connection_states import CONNECTED, OPEN, ConnectionEvent
from jetcluster.server.fairness import SLOW_LOGIN_SECONDS
from jetcluster.server.leaf.connection import LOOP_DELAY_SECONDS, LeafConnection, LinkParts
from jetcluster.server.leaf.rules import LeafRules
from jetcluster.server.leaf.state import wants_tls
from jetcluster.server.listener import host_port
from jetcluster.server.state import new_nonce

if TYPE_CHECKING:
    from jetcluster.auth.certificates import PeerCertificate
    from jetcluster.auth.secrets import SlowPart
    from jetcluster.config.options import LeafRemoteOptions

log = logging.getLogger("jetcluster.server")

MAX_NAME_CHARS = 256
"""Longest name accepted from the other end: names travel with its messages."""
MAX_EARLY_READS = 16
"""Reads of TLS input accepted before the handshake is known to be done."""


class Handshake:
    """The handshake of one link; it calls the link's `join` at its end."""

    def __init__(self, link: LeafConnection, own: LinkParts) -> None:
        self._link = link
        self._parts = own.server
        self._leaf = own.state
        self._logins = own.logins
        self._links = own.links
        self._login: dict[str, Any] = {}
        self._identity: AuthResult | None = None
        """The accepted CONNECT, and the user it logged in."""
        self._certificate: PeerCertificate | None = None
        self._early: list[bytes] | None = None
        """Input over TLS before this end knows that the handshake is done; None when there can be none."""

    # ---- TLS

    def begin(self) -> None:
        """Starts the handshake of a new connection."""
        link = self._link
        link.advance(ConnectionEvent.MAKE)
        if link.remote is None and self._parts.crowd.is_crowded(link) and not self._parts.crowd.make_room():
            link.arm("crowded", 0.0, link.abort, "Maximum Connections Exceeded")  # uvloop has not started reading
            return
        options = self._leaf.options
        tls = options.tls if link.remote is None else link.remote.tls
        patience = (link.remote.first_info_timeout if link.remote is not None else 0.0) or options.auth_timeout
        link.arm("auth", patience + (tls.timeout + 1 if tls is not None else 0), self._time_out)
        link.secure = link.transport.get_extra_info("ssl_object") is not None
        if link.secure and not self._check_certificate():
            return
        if link.remote is None:
            link.nonce = new_nonce(link.server.rng)
            if tls is None or link.secure:
                self._say_info()
            else:
                self._begin_tls(self._say_info, lambda: None)

    def _say_info(self) -> None:
        """Writes INFO at the accepting end, which speaks first."""
        link = self._link
        link.transport.write(link.own_info())

    def _begin_tls(self, before: Callable[[], None], then: Callable[[], None]) -> None:
        """Runs `before`, the TLS handshake, then `then`. In clear, only `before` writes and nothing is read."""
        link = self._link
        link.advance(ConnectionEvent.SECURE)
        link.blocked = True
        link.transport.pause_reading()
        self._parts.spawn(self._shake_hands(before, then))

    async def _shake_hands(self, before: Callable[[], None], then: Callable[[], None]) -> None:
        from jetcluster.server.leaf.tls import handshake

        link = self._link
        if link.over.done():
            return
        try:
            context, name, seconds = self._leaf.tls_for(link.remote, link.url)
        except ConfigError as error:
            self._not_secure(str(error))
            return
        before()  # in the same turn as start_tls: no input may be read in clear after it
        self._early = []
        made = await handshake(link.transport, link, context, name, seconds)
        if isinstance(made, str):
            self._not_secure(made)
            return
        link.transport = made
        made.set_write_buffer_limits(high=64 * 1024, low=0)
        if link.close_reason:
            made.abort()
            return
        link.advance(ConnectionEvent.SECURED)
        link.secure, link.blocked = True, False
        if not self._check_certificate():
            return
        early, self._early = self._early or [], None
        then()
        link.flush()
        for data in early:
            link.data_received(data)

    def _check_certificate(self) -> bool:
        """Checks the other end's certificate if the options require it; closes the link if it is not accepted."""
        link = self._link
        tls = self._leaf.options.tls if link.remote is None else link.remote.tls
        if tls is None or not (tls.pinned_certs or tls.verify_and_map):
            return True
        from jetcluster.auth.certificates import CertificateError, certificate_of, check_pin

        try:
            self._certificate = certificate_of(link.transport)
            check_pin(self._certificate, tls.pinned_certs)
        except CertificateError as error:
            self._not_secure(str(error))
            return False
        return True

    def _not_secure(self, why: str) -> None:
        link = self._link
        where = host_port(link.ip, link.port)
        log.warning("leafnode cid %d, %s: TLS handshake error: %s", link.cid, where, why, extra=FROM_STRANGERS)
        link.abort("TLS Handshake Failure")

    def receive_early(self, data: bytes) -> None:
        """Keeps input that is read before this end knows that the TLS handshake is done."""
        if self._early is not None and len(self._early) < MAX_EARLY_READS:
            self._early.append(data)
        else:
            self._not_secure("the other end sends what is no TLS")

    def lost(self, exc: Exception | None) -> None:
        """Logs, at the connecting end, a TLS connection lost before the link joined as a failed handshake."""
        link = self._link
        if link.solicited and link.secure and not link.was_up and not link.close_reason:
            # The accepting end checks certificates after the connecting end has finished its handshake.
            from jetcluster.config.tls import handshake_failure

            self._not_secure(handshake_failure(exc or ConnectionError()))

    def _time_out(self) -> None:
        self._link.close("Authentication Timeout", "Authentication Timeout")

    # ---- commands

    def command(self, kind: int, text: bytes) -> None:
        """Runs INFO, CONNECT and -ERR."""
        link = self._link
        if kind == leaf.INFO:
            self._info(_json(text))
        elif kind == leaf.CONNECT and link.remote is None and link.state is OPEN:
            link.advance(ConnectionEvent.CONNECT)
            connect = _json(text)
            slow = self._logins.slow_part(connect)
            if slow is None:
                self._connect(connect)
            else:
                link.advance(ConnectionEvent.CHECK)
                self._parts.spawn(self._log_in_later(connect, slow))
        elif kind == leaf.ERR:
            self._peer_error(text.decode("utf-8", "replace"))

    def _peer_error(self, text: str) -> None:
        link = self._link
        log.warning("leafnode cid %d: the other end says: %s", link.cid, text, extra=FROM_STRANGERS)
        if text.startswith("Permissions Violation"):
            return
        if "Loop detected" in text:
            link.retry_after = LOOP_DELAY_SECONDS
        link.close("Client Closed")

    async def _log_in_later(self, connect: dict[str, Any], slow: SlowPart) -> None:
        """Logs in after a slow password check; the input after CONNECT waits meanwhile."""
        link = self._link
        link.arm("auth", SLOW_LOGIN_SECONDS, self._time_out)
        logins = self._parts.slow_logins
        known = await logins.check(link.ip, _text(connect, "user"), slow.key, slow, lambda: bool(link.close_reason))
        if not known:
            self._time_out()
        if link.close_reason:
            return
        link.advance(ConnectionEvent.ANSWER)
        self._connect(connect)
        if not link.close_reason:
            link.resume_reading("login")
            link.answered()

    def _connect(self, connect: dict[str, Any]) -> None:
        """Runs CONNECT, at the accepting end."""
        link = self._link
        if connect.get("lang"):
            link.refuse("Incorrect Port", "attempted to connect to leaf node port")
            return
        cluster = _text(connect, "cluster")
        if cluster and cluster == link.server.options.cluster_name:
            link.refuse("Cluster Names Identical", "remote leafnode has same cluster name")
            return
        least = self._leaf.options.min_version
        if least and not is_at_least(_text(connect, "version"), least):
            link.refuse("Minimum Version Required", f'connection rejected since minimum version required is "{least}"')
            return
        identity = self._logins.log_in(connect, link.nonce, link.ip, self._certificate)
        if identity is None:
            link.refuse("Authentication Failure", "Authorization Violation")
            return
        link.peer_id = _text(connect, "server_id")
        link.remote_name = _text(connect, "name")
        link.remote_domain = _text(connect, "domain")
        link.remote_cluster = (cluster or link.peer_id).encode()
        link.spoke = connect.get("is_hub") is True
        link.account = identity.account
        self._login, self._identity = connect, identity
        if not self._has_room():
            text = "maximum account active connections exceeded"
            link.refuse("Maximum Account Connections Exceeded", text)
            return
        denied = connect.get("deny_pub")
        deny_exports = [str(subject) for subject in denied] if isinstance(denied, list) else []
        link.rules = LeafRules(
            system=link.account == self._leaf.system_account,
            own_domain=link.server.options.domain,
            remote_domain=link.remote_domain,
            deny_exports=deny_exports,
            permissions=identity.permissions,
        )
        link.send_info()
        self._expect_end(identity)
        link.join()

    def _expect_end(self, identity: AuthResult) -> None:
        link = self._link
        session = identity.session
        link.disarm("expiry")
        if session is not None and session.expires:
            left = max(session.expires - link.server.clock.time_ns() / 1e9, 0.0)
            link.arm("expiry", left, link.close, "Authentication Expired", "User Authentication Expired")

    def recheck(self) -> None:
        """Checks the login again; closes the link if its account or permissions have changed."""
        link = self._link
        try:
            identity = self._logins.identify(self._login, link.nonce, link.ip, self._certificate)
        except Exception as error:  # noqa: BLE001 - any exception refuses the login
            refusal = error if isinstance(error, AuthError) else AuthError()
            log.info("leafnode cid %d refused: %s", link.cid, error)
            link.close(refusal.live_reason, refusal.live_text or None)
            return
        assert self._identity is not None
        before, now = (
            None if one.permissions is None else one.permissions.options for one in (self._identity, identity)
        )
        if identity.account != link.account or before != now:
            link.close("Credentials Revoked")
            return
        self._expect_end(identity)

    def _info(self, info: dict[str, Any]) -> None:
        """Runs INFO, at the connecting end: the first, the one after CONNECT, or a later one with new addresses."""
        link = self._link
        if link.remote is None:
            return
        urls = info.get("leafnode_urls")
        if isinstance(urls, list):
            self._leaf.discovered(link.remote, [url for url in urls if isinstance(url, str)])
        if link.state is OPEN:
            self._greet(info)
        elif link.state is CONNECTED and info.get("connect_info") is True:
            self._join_hub(link.remote, _text(info, "remote_account") or None)

    def _greet(self, info: dict[str, Any]) -> None:
        link = self._link
        assert link.remote is not None
        if not link.secure:
            offered, wanted = info.get("tls_required") is True, link.remote.tls is not None or wants_tls(link.url)
            if wanted and not offered:
                link.refuse("TLS Handshake Failure", "the other end has no TLS, which this remote is configured for")
                return
            if info.get("tls_verify") is True and not (link.remote.tls and link.remote.tls.cert_file):
                self._not_secure("the other end wants a certificate of this one, and none is configured")
                return
            if offered:
                self._begin_tls(lambda: None, lambda: self._greet(info))
                return
        link.advance(ConnectionEvent.CONNECT)
        if not isinstance(info.get("leafnode_urls"), list) and "info_on_connect" not in info:
            link.refuse("Incorrect Port", f"{link.ip}:{link.port} is no port for leafnodes")
            return
        cluster = _text(info, "cluster")
        if cluster and cluster == link.server.options.cluster_name:
            link.retry_after = LOOP_DELAY_SECONDS
            link.refuse("Cluster Names Identical", "remote leafnode has same cluster name")
            return
        link.peer_id = _text(info, "server_id")
        link.remote_name = _text(info, "server_name")
        link.remote_domain = _text(info, "domain")
        link.remote_cluster = (cluster or link.remote_name or link.peer_id).encode()
        link.account = link.remote.account
        link.rules = self._rules_of(link.remote, None)
        try:
            connect = self._leaf.connect_for(link.remote, link.url, _text(info, "nonce").encode())
        except LoginError as error:
            link.refuse("Authentication Failure", f"cannot log in: {error}")
            return
        link.send(b"CONNECT " + json.dumps(connect, separators=(",", ":")).encode() + b"\r\n")
        if info.get("info_on_connect") is not True:  # then no INFO follows CONNECT
            self._join_hub(link.remote, None)

    def _join_hub(self, remote: LeafRemoteOptions, remote_account: str | None) -> None:
        names = AccountNames(remote.account, leaf_remote=remote_account)
        if remote_account is None and names.leaves_open([*remote.deny_imports, *remote.deny_exports]):
            self._link.refuse(
                "Authentication Failure", "a deny list has the other end's account, which it does not tell"
            )
            return
        self._link.rules = self._rules_of(remote, remote_account)
        self._link.join()

    def _rules_of(self, remote: LeafRemoteOptions, remote_account: str | None) -> LeafRules:
        """Returns the rules at the connecting end. `remote_account`: the other end's, None while it is not known."""
        link, names = self._link, AccountNames(remote.account, leaf_remote=remote_account)
        return LeafRules(
            system=link.account == self._leaf.system_account,
            own_domain=link.server.options.domain,
            remote_domain=link.remote_domain,
            deny_imports=names.expand_all(remote.deny_imports),
            deny_exports=names.expand_all(remote.deny_exports),
        )

    def _has_room(self) -> bool:
        """Returns False when the account has as many leaf links as it may have."""
        account, links = self._link.account, self._links
        limit = self._link.server.limits_of(account).max_leafnodes
        return limit < 0 or sum(one.account == account and not one.solicited for one in links) < limit


def _json(text: bytes) -> dict[str, Any]:
    try:
        value = without_surrogates(json.loads(text.decode("utf-8", "replace")))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def is_at_least(version: str, least: str) -> bool:
    """Compares versions such as `2.14.5` and `v2.12.0-beta.1`; a `version` of another form is too low."""
    given, wanted = (re.match(r"v?(\d+)\.(\d+)\.(\d+)", text) for text in (version, least))
    if given is None or wanted is None:
        return wanted is None
    return tuple(map(int, given.groups())) >= tuple(map(int, wanted.groups()))


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return value[:MAX_NAME_CHARS] if isinstance(value, str) else ""
