"""`LeafConnection`: the connection of a leaf link until its ends know each other: TLS, INFO, CONNECT, and who is there.

Which end connects and which end is the hub are two things. The accepting end speaks first (INFO), the other one answers
with CONNECT, the accepting end says which account it is (INFO again); then both list what they want (`link`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from jetcluster.auth.authenticator import AuthError, AuthResult
from jetcluster.auth.remote_login import LoginError
from jetcluster.config.lexer import ConfigError
from jetcluster.config.options import LeafRemoteOptions
from jetcluster.model.codec import without_surrogates
from jetcluster.protocol import leaf, writer
from jetcluster.protocol.connection_states import CONNECTED, JOINED, OPEN, SECURING, ConnectionEvent
from jetcluster.server.client.clients import ServerParts
from jetcluster.server.fairness import MAX_QUANTUM, SLOW_LOGIN_SECONDS
from jetcluster.server.leaf.input import LeafInput
from jetcluster.server.leaf.logins import LeafLogins
from jetcluster.server.leaf.rules import LeafRules
from jetcluster.server.leaf.state import LeafState, wants_tls
from jetcluster.server.listener import host_port
from jetcluster.server.state import new_nonce

if TYPE_CHECKING:
    from jetcluster.auth.certificates import PeerCertificate
    from jetcluster.auth.secrets import SlowPart

log = logging.getLogger("jetcluster.server")

LOOP_DELAY = 30.0
"""Seconds before the next attempt when the last one closed a circle of links."""
MAX_NAME = 256
"""Characters of what the other end says of itself: its names travel with its messages."""
MAX_EARLY = 16
"""Pieces that may come with the end of a handshake."""


class LinkParts(NamedTuple):
    """The parts of a server that its leaf links use."""

    server: ServerParts
    state: LeafState
    logins: LeafLogins
    links: list[LeafConnection]
    """Those that take part in their accounts."""


class LeafConnection(LeafInput):
    """A leaf link, but for what it does once it has joined its account (`link.LeafLink`). `url` has the
    credentials for the other end, "" at the accepting end."""

    def __init__(self, own: LinkParts, remote: LeafRemoteOptions | None = None, url: str = "") -> None:
        super().__init__(own.server)
        self._leaf = own.state
        self._logins = own.logins
        self._links = own.links
        self.remote = remote
        self.url = url
        self.peer_id = ""
        """Server id of the other end."""
        self.remote_name = ""
        self.remote_domain = ""
        self.remote_cluster = b""
        self.spoke = remote is not None and not remote.hub
        self.wanted = 0
        """Subjects and queue groups the other end wants."""
        self.retry_after = 0.0
        """Seconds the other end, or a loop, tells this one to wait before it connects again."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._login: dict[str, Any] = {}
        self._identity: AuthResult | None = None
        """The CONNECT that the other end has logged in with, and who that was."""
        self.nonce = b""
        self.secure = False
        """True once the link has TLS."""
        self._certificate: PeerCertificate | None = None
        self._early: list[bytes] | None = None
        """Input that has come by TLS before this end knows that the handshake is done; None while nothing can."""
        self._rules: LeafRules | None = None
        self.was_up = False
        """True once the link has taken part."""

    @property
    def joined(self) -> bool:
        """True while the link takes part in its account."""
        return self.state is JOINED

    @property
    def solicited(self) -> bool:
        return self.remote is not None

    def _join(self) -> None:
        """Both ends know each other: the link becomes a part of its account."""
        raise NotImplementedError

    # ---- beginning and end

    def opened(self) -> None:
        self.advance(ConnectionEvent.MAKE)
        if self.remote is None and self.parts.crowd.is_crowded(self) and not self.parts.crowd.make_room():
            self.arm("crowded", 0.0, self.abort, "Maximum Connections Exceeded")  # uvloop has yet to begin reading
            return
        options = self._leaf.options
        tls = options.tls if self.remote is None else self.remote.tls
        patience = (self.remote.first_info_timeout if self.remote is not None else 0.0) or options.auth_timeout
        self.arm("auth", patience + (tls.timeout + 1 if tls is not None else 0), self._nobody_came)
        self.secure = self.transport.get_extra_info("ssl_object") is not None
        if self.secure and not self._check_certificate():
            return
        if self.remote is None:
            self.nonce = new_nonce(self.server.rng)
            if tls is None or self.secure:
                self._say_info()
            else:
                self._begin_tls(self._say_info, lambda: None)

    def _say_info(self) -> None:
        """The accepting end speaks first."""
        self.transport.write(self._own_info())

    def tell_info(self) -> None:
        """Tells the other end, which has connected here, what this one is."""
        self.send(self._own_info())

    def _own_info(self) -> bytes:
        return writer.info(self._leaf.info_for(self.cid, self.account, self.nonce))

    def _begin_tls(self, before: Callable[[], None], then: Callable[[], None]) -> None:
        """Nothing is read or written as it is until the handshake is done, but what `before` writes."""
        self.advance(ConnectionEvent.SECURE)
        self._blocked = True
        self.transport.pause_reading()
        self.parts.spawn(self._shake_hands(before, then))

    async def _shake_hands(self, before: Callable[[], None], then: Callable[[], None]) -> None:
        from jetcluster.server.leaf.tls import handshake

        if self.over.done():
            return
        try:
            context, name, seconds = self._leaf.tls_for(self.remote, self.url)
        except ConfigError as error:
            self._not_secure(str(error))
            return
        before()  # and in the same turn what comes is no longer read here
        self._early = []
        made = await handshake(self.transport, self, context, name, seconds)
        if isinstance(made, str):
            self._not_secure(made)
            return
        self.transport = made
        made.set_write_buffer_limits(high=64 * 1024, low=0)
        if self.close_reason:
            made.abort()
            return
        self.advance(ConnectionEvent.SECURED)
        self.secure, self._blocked = True, False
        if not self._check_certificate():
            return
        early, self._early = self._early or [], None
        then()
        self.flush()
        for data in early:
            self.data_received(data)

    def _check_certificate(self) -> bool:
        """Reads what the other end has shown, where somebody asks; closes the link when it may not come in."""
        tls = self._leaf.options.tls if self.remote is None else self.remote.tls
        if tls is None or not (tls.pinned_certs or tls.verify_and_map):
            return True
        from jetcluster.auth.certificates import CertificateError, certificate_of, check_pin

        try:
            self._certificate = certificate_of(self.transport)
            check_pin(self._certificate, tls.pinned_certs)
        except CertificateError as error:
            self._not_secure(str(error))
            return False
        return True

    def _not_secure(self, why: str) -> None:
        log.warning("leafnode cid %d, %s: TLS handshake error: %s", self.cid, host_port(self.ip, self.port), why)
        self.abort("TLS Handshake Failure")

    def connection_lost(self, exc: Exception | None) -> None:
        if self.solicited and self.secure and not self.was_up and not self.close_reason:
            # The accepting end looks at certificates after the connecting end is done with its handshake.
            from jetcluster.config.tls import handshake_failure

            self._not_secure(handshake_failure(exc or ConnectionError()))
        self._finish_input()
        super().connection_lost(exc)

    def _nobody_came(self) -> None:
        self.close("Authentication Timeout", "Authentication Timeout")

    def _refused(self, reason: str, text: str) -> None:
        log.warning("leafnode cid %d: %s", self.cid, text)
        self.close(reason, text)

    # ---- input

    def data_received(self, data: bytes) -> None:
        if self._early is not None and len(self._early) < MAX_EARLY:
            self._early.append(data)
        elif self.state is SECURING:
            self._not_secure("the other end sends what is no TLS")
        elif not self.close_reason:
            self.last_activity = self.server.clock.monotonic()
            self._process(data)

    def _handshake_command(self, kind: int, text: bytes) -> None:
        """INFO, CONNECT and -ERR."""
        if kind == leaf.INFO:
            self._info(_json(text))
        elif kind == leaf.CONNECT and self.remote is None and self.state is OPEN:
            self.advance(ConnectionEvent.CONNECT)
            connect = _json(text)
            slow = self._logins.slow_part(connect)
            if slow is None:
                self._connect(connect)
            else:
                self.advance(ConnectionEvent.CHECK)
                self.parts.spawn(self._log_in_later(connect, slow))
        elif kind == leaf.ERR:
            self._told_error(text.decode("utf-8", "replace"))

    def _told_error(self, text: str) -> None:
        log.warning("leafnode cid %d: the other end says: %s", self.cid, text)
        if text.startswith("Permissions Violation"):
            return
        if "Loop detected" in text:
            self.retry_after = LOOP_DELAY
        self.close("Client Closed")

    # ---- handshake

    async def _log_in_later(self, connect: dict[str, Any], slow: SlowPart) -> None:
        """The input behind a CONNECT waits meanwhile."""
        self.arm("auth", SLOW_LOGIN_SECONDS, self._nobody_came)
        logins = self.parts.slow_logins
        known = await logins.check(self.ip, _text(connect, "user"), slow.key, slow, lambda: bool(self.close_reason))
        if not known:
            self._nobody_came()
        if self.close_reason:
            return
        self.advance(ConnectionEvent.ANSWER)
        self._connect(connect)
        if not self.close_reason:
            self.resume_reading("login")
            self._run(MAX_QUANTUM)

    def _connect(self, connect: dict[str, Any]) -> None:
        """The other end says what it is, at the accepting end."""
        if connect.get("lang"):
            self._refused("Incorrect Port", "attempted to connect to leaf node port")
            return
        cluster = _text(connect, "cluster")
        if cluster and cluster == self.server.options.cluster_name:
            self._refused("Cluster Names Identical", "remote leafnode has same cluster name")
            return
        least = self._leaf.options.min_version
        if least and not is_at_least(_text(connect, "version"), least):
            self._refused(
                "Minimum Version Required", f'connection rejected since minimum version required is "{least}"'
            )
            return
        identity = self._logins.log_in(connect, self.nonce, self.ip, self._certificate)
        if identity is None:
            self._refused("Authentication Failure", "Authorization Violation")
            return
        self.peer_id = _text(connect, "server_id")
        self.remote_name = _text(connect, "name")
        self.remote_domain = _text(connect, "domain")
        self.remote_cluster = (cluster or self.peer_id).encode()
        self.spoke = connect.get("is_hub") is True
        self.account = identity.account
        self._login, self._identity = connect, identity
        if not self._has_room():
            text = "maximum account active connections exceeded"
            self._refused("Maximum Account Connections Exceeded", text)
            return
        denied = connect.get("deny_pub")
        told = [str(subject) for subject in denied] if isinstance(denied, list) else []
        self._rules = LeafRules(
            system=self.account == self._leaf.system_account,
            own_domain=self.server.options.domain,
            remote_domain=self.remote_domain,
            deny_exports=told,
            permissions=identity.permissions,
        )
        self.tell_info()
        self._expect_end(identity)
        self._join()

    def _expect_end(self, identity: AuthResult) -> None:
        session = identity.session
        self.disarm("expiry")
        if session is not None and session.expires:
            left = max(session.expires - self.server.clock.time_ns() / 1e9, 0.0)
            self.arm("expiry", left, self.close, "Authentication Expired", "User Authentication Expired")

    def recheck(self) -> None:
        """Is the other end still who it was? With other permissions it has to connect anew."""
        try:
            identity = self._logins.identify(self._login, self.nonce, self.ip, self._certificate)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in there, the answer is no
            refusal = error if isinstance(error, AuthError) else AuthError()
            log.info("leafnode cid %d refused: %s", self.cid, error)
            self.close(refusal.live_reason, refusal.live_text or None)
            return
        assert self._identity is not None
        before, now = (
            None if one.permissions is None else one.permissions.options for one in (self._identity, identity)
        )
        if identity.account != self.account or before != now:
            self.close("Credentials Revoked")
            return
        self._expect_end(identity)

    def _info(self, info: dict[str, Any]) -> None:
        """The accepting end says what it is; later ones are news of its neighbours."""
        if self.remote is None:
            return
        urls = info.get("leafnode_urls")
        if isinstance(urls, list):
            self._leaf.discovered(self.remote, [url for url in urls if isinstance(url, str)])
        if self.state is OPEN:
            self._greet(info)
        elif self.state is CONNECTED and info.get("connect_info") is True:
            self._join()

    def _greet(self, info: dict[str, Any]) -> None:
        assert self.remote is not None
        if not self.secure:
            offered, wanted = info.get("tls_required") is True, self.remote.tls is not None or wants_tls(self.url)
            if wanted and not offered:
                self._refused("TLS Handshake Failure", "the other end has no TLS, which this remote is configured for")
                return
            if info.get("tls_verify") is True and not (self.remote.tls and self.remote.tls.cert_file):
                self._not_secure("the other end wants a certificate of this one, and none is configured")
                return
            if offered:
                self._begin_tls(lambda: None, lambda: self._greet(info))
                return
        self.advance(ConnectionEvent.CONNECT)
        if not isinstance(info.get("leafnode_urls"), list) and "info_on_connect" not in info:
            self._refused("Incorrect Port", f"{self.ip}:{self.port} is no port for leafnodes")
            return
        cluster = _text(info, "cluster")
        if cluster and cluster == self.server.options.cluster_name:
            self.retry_after = LOOP_DELAY
            self._refused("Cluster Names Identical", "remote leafnode has same cluster name")
            return
        self.peer_id = _text(info, "server_id")
        self.remote_name = _text(info, "server_name")
        self.remote_domain = _text(info, "domain")
        self.remote_cluster = (cluster or self.remote_name or self.peer_id).encode()
        self.account = self.remote.account
        self._rules = LeafRules(
            system=self.account == self._leaf.system_account,
            own_domain=self.server.options.domain,
            remote_domain=self.remote_domain,
            deny_imports=self.remote.deny_imports,
            deny_exports=self.remote.deny_exports,
        )
        try:
            connect = self._leaf.connect_for(self.remote, self.url, _text(info, "nonce").encode())
        except LoginError as error:
            self._refused("Authentication Failure", f"cannot log in: {error}")
            return
        self.send(b"CONNECT " + json.dumps(connect, separators=(",", ":")).encode() + b"\r\n")
        if info.get("info_on_connect") is not True:
            self._join()

    def _take_over(self) -> None:
        """A server that connects anew may be here before its old link is known to be dead."""
        self.was_up = True
        for other in list(self._links):
            same = (other.peer_id, other.account, other.remote_cluster) == (
                self.peer_id,
                self.account,
                self.remote_cluster,
            )
            if same and not other.solicited and not self.solicited:
                other.close("Duplicate Remote LeafNode Connection")
        self._links.append(self)

    def _has_room(self) -> bool:
        """False when one more link of the account would be one too many."""
        limit = self.server.limits_of(self.account).max_leafnodes
        return limit < 0 or sum(one.account == self.account and not one.solicited for one in self._links) < limit


def _json(text: bytes) -> dict[str, Any]:
    try:
        value = without_surrogates(json.loads(text.decode("utf-8", "replace")))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def is_at_least(version: str, least: str) -> bool:
    """Compares versions such as `2.14.5` and `v2.12.0-beta.1`; other texts count as no version."""
    given, wanted = (re.match(r"v?(\d+)\.(\d+)\.(\d+)", text) for text in (version, least))
    if given is None or wanted is None:
        return wanted is None
    return tuple(map(int, given.groups())) >= tuple(map(int, wanted.groups()))


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return value[:MAX_NAME] if isinstance(value, str) else ""
