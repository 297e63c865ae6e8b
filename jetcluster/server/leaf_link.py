"""One leaf link: the connection to another server that shares one account's subjects.

Which end connects and which end is the hub are two things. The accepting end speaks first (INFO), the other one answers
with CONNECT, the accepting end says which account it is (INFO again); then both list what they want.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from jetcluster.auth.authenticator import AuthError, AuthResult
from jetcluster.auth.remote_login import LoginError
from jetcluster.budget import BusyError, Steps
from jetcluster.config.lexer import ConfigError
from jetcluster.config.options import LeafRemoteOptions
from jetcluster.model.codec import without_surrogates
from jetcluster.model.subjects import MAX_TOKENS
from jetcluster.protocol import leaf, writer
from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.protocol.interest import RemotePeer
from jetcluster.protocol.valve import Valve
from jetcluster.server import leaf_told
from jetcluster.server.governor import MOST, Governed
from jetcluster.server.leaf_input import LeafInput
from jetcluster.server.leaf_peer import LeafPeer, deliver_from_leaf, is_marked, passes
from jetcluster.server.leaf_rules import API_PARTS, LeafRules
from jetcluster.server.leaf_told import Told
from jetcluster.server.leaf_url import wants_tls
from jetcluster.server.listener import host_port
from jetcluster.server.login import text_of
from jetcluster.server.removals import RETRY, exhaust
from jetcluster.server.router import Router
from jetcluster.server.slow_logins import PATIENCE

if TYPE_CHECKING:
    from jetcluster.auth.certificates import PeerCertificate
    from jetcluster.auth.secrets import SlowPart
    from jetcluster.server.leafnodes import LeafNodes

log = logging.getLogger("jetcluster.server")

LOOP_DELAY = 30.0
"""Seconds before the next attempt when the last one closed a circle of links."""
MAX_NAME = 256
"""Characters of what the other end says of itself: its names travel with its messages."""
MAX_EARLY = 16
"""Pieces that may come with the end of a handshake."""
MAX_INTEREST = 1_000_000
"""Subjects that the other end may want."""
VIOLATION_PAUSE = 10.0
"""Seconds between two lines about what a link's other end must not publish."""
_ACK_DOTS = 8
_ACK = b"$JS.ACK."


Wanted = tuple[RemotePeer | None, bytes, bytes | None, int]
"""Interest on this side: the peer that has it, the subject, the queue, and the number of members."""


class LeafLink(LeafInput):
    """Satisfies `leaf_peer.LeafPeer`. `url` has the credentials for the other end, "" at the accepting end."""

    def __init__(self, leafnodes: LeafNodes, remote: LeafRemoteOptions | None = None, url: str = "") -> None:
        server = leafnodes.server
        super().__init__(server)
        self.leafnodes = leafnodes
        self.remote = remote
        self.url = url
        self.peer_id = ""
        """Server id of the other end."""
        self.remote_name = ""
        self.remote_domain = ""
        self.remote_cluster = b""
        self.spoke = remote is not None and not remote.hub
        self.joined = False
        """True while the link takes part in its account."""
        self.wanted = 0
        """Subjects and queue groups the other end wants."""
        self.retry_after = 0.0
        """Seconds the other end, or a loop, tells this one to wait before it connects again."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._login: dict[str, Any] = {}
        self._identity: AuthResult | None = None
        """These two: the CONNECT of the other end, and the user that it has logged in."""
        self.nonce = b""
        self.secure = False
        """True once the link has TLS."""
        self._in_handshake = False
        self._certificate: PeerCertificate | None = None
        self.valve = Valve()
        """Never closed: publishers are stalled instead (`congested`)."""
        self._early: list[bytes] | None = None
        """Bytes that have come by TLS before this end knows that the handshake is done; None while none can come."""
        self._told = Told(self.send)
        self._router: Router | None = None
        self._rules: LeafRules | None = None
        self._violations = 0
        self._quiet_until = 0.0
        """The monotonic time from which the next violation is told."""
        self.was_up = False
        """True once the link has taken part."""
        self._greeted = False

    @property
    def solicited(self) -> bool:
        return self.remote is not None

    # ---- beginning and end

    def opened(self) -> None:
        if self.remote is None and self.server.crowd.is_crowded(self) and not self.server.crowd.make_room():
            self._arm("crowded", 0.0, self.abort, "Maximum Connections Exceeded")  # uvloop has yet to begin reading
            return
        options = self.leafnodes.options
        tls = options.tls if self.remote is None else self.remote.tls
        patience = (self.remote.first_info_timeout if self.remote is not None else 0.0) or options.auth_timeout
        self._arm("auth", patience + (tls.timeout + 1 if tls is not None else 0), self._nobody_came)
        self.secure = self.transport.get_extra_info("ssl_object") is not None
        if self.secure and not self._check_certificate():
            return
        if self.remote is None:
            self.nonce = self.leafnodes.new_nonce()
            if tls is None or self.secure:
                self._say_info()
            else:
                self._begin_tls(self._say_info, lambda: None)

    def _say_info(self) -> None:
        """The accepting end speaks first."""
        self.transport.write(writer.info(self.leafnodes.info_for(self)))

    def _begin_tls(self, before: Callable[[], None], then: Callable[[], None]) -> None:
        """Nothing is read or written as it is until the handshake is done, but what `before` writes."""
        self._in_handshake = self._blocked = True
        self.transport.pause_reading()
        self.server.spawn(self._shake_hands(before, then))

    async def _shake_hands(self, before: Callable[[], None], then: Callable[[], None]) -> None:
        from jetcluster.server.leaf_tls import handshake

        if self.over.done():
            return
        try:
            context, name, seconds = self.leafnodes.tls_for(self)
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
        self.secure, self._in_handshake, self._blocked = True, False, False
        if not self._check_certificate():
            return
        early, self._early = self._early or [], None
        then()
        self.flush()
        for data in early:
            self.data_received(data)

    def _check_certificate(self) -> bool:
        """Reads what the other end has shown, where somebody asks; closes the link when it may not come in."""
        tls = self.leafnodes.options.tls if self.remote is None else self.remote.tls
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

    def ended(self) -> None:
        self._forget_input()
        was_joined, self.joined = self.joined, False
        if self._router is not None:
            self.server.removals.of_leaf(self._router, self)
        if was_joined:
            log.info("Leafnode connection closed: %s account: %s", self.close_reason, self.account)
        self.leafnodes.forget(self)
        if not self.over.done():
            self.over.set_result(None)

    def _refused(self, reason: str, text: str) -> None:
        log.warning("leafnode cid %d: %s", self.cid, text)
        self.close(reason, text)

    # ---- input

    def data_received(self, data: bytes) -> None:
        if self._early is not None and len(self._early) < MAX_EARLY:
            self._early.append(data)
        elif self._in_handshake:
            self._not_secure("the other end sends what is no TLS")
        elif not self.close_reason:
            self.last_activity = self.server.clock.monotonic()
            self._process(data)

    def _command(self, kind: int, a: bytes, b: bytes, weight: list[bytes]) -> None:
        if kind == leaf.PING:
            self.send(writer.PONG)
        elif kind == leaf.PONG:
            self.pong_received()
        elif kind == leaf.INFO:
            self._info(_json(a))
        elif kind == leaf.CONNECT and self.remote is None and not self._greeted:
            self._greeted = True
            connect = _json(a)
            slow = self.leafnodes.slow_part(connect)
            if slow is None:
                self._connect(connect)
            else:
                self._checking = asyncio.ensure_future(self._log_in_later(connect, slow))
        elif kind == leaf.ERR:
            self._told_error(a.decode("utf-8", "replace"))
        elif kind == leaf.INTEREST:
            self._wants(a, b or None, int(weight[0]))
        elif kind == leaf.GONE:
            self._wants(a, b or None, 0)

    def _told_error(self, text: str) -> None:
        log.warning("leafnode cid %d: the other end says: %s", self.cid, text)
        if text.startswith("Permissions Violation"):
            return
        if "Loop detected" in text:
            self.retry_after = LOOP_DELAY
        self.close("Client Closed")

    # ---- handshake

    async def _log_in_later(self, connect: dict[str, Any], slow: SlowPart) -> None:
        """Checks a password that takes long; the commands behind the CONNECT wait meanwhile."""
        self._arm("auth", PATIENCE, self._nobody_came)
        logins = self.server.slow_logins
        known = await logins.check(self.ip, _text(connect, "user"), slow.key, slow, lambda: bool(self.close_reason))
        if not known:
            self._nobody_came()
        if self.close_reason:
            return
        self._checking = None
        self._connect(connect)
        if not self.close_reason:
            self.resume_reading("login")
            self._run(MOST)

    def _connect(self, connect: dict[str, Any]) -> None:
        """Takes the CONNECT of the other end, at the accepting end."""
        if connect.get("lang"):
            self._refused("Incorrect Port", "attempted to connect to leaf node port")
            return
        cluster = _text(connect, "cluster")
        if cluster and cluster == self.server.options.cluster_name:
            self._refused("Cluster Names Identical", "remote leafnode has same cluster name")
            return
        least = self.leafnodes.options.min_version
        if least and not is_at_least(_text(connect, "version"), least):
            self._refused(
                "Minimum Version Required", f'connection rejected since minimum version required is "{least}"'
            )
            return
        identity = self.leafnodes.log_in(connect, self.nonce, self.ip, self._certificate)
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
        if not self.leafnodes.has_room(identity.account):
            text = "maximum account active connections exceeded"
            self._refused("Maximum Account Connections Exceeded", text)
            return
        denied = connect.get("deny_pub")
        told = [str(subject) for subject in denied] if isinstance(denied, list) else []
        self._rules = LeafRules(
            system=self.account == self.leafnodes.system_account,
            own_domain=self.server.options.domain,
            remote_domain=self.remote_domain,
            deny_exports=told,
            permissions=identity.permissions,
        )
        self.send(writer.info(self.leafnodes.info_for(self)))
        self._expect_end(identity)
        self._join()

    def _expect_end(self, identity: AuthResult) -> None:
        session = identity.session
        self._disarm("expiry")
        if session is not None and session.expires:
            left = max(session.expires - self.server.clock.time_ns() / 1e9, 0.0)
            self._arm("expiry", left, self.close, "Authentication Expired", "User Authentication Expired")

    def recheck(self) -> None:
        """Is the other end still who it was? With other permissions it has to connect anew."""
        try:
            identity = self.leafnodes.identify(self._login, self.nonce, self.ip, self._certificate)
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
        """Takes an INFO of the accepting end; later ones are news of its neighbours."""
        if self.remote is None:
            return
        urls = info.get("leafnode_urls")
        if isinstance(urls, list):
            self.leafnodes.discovered(self.remote, [url for url in urls if isinstance(url, str)])
        if not self._greeted:
            self._greet(info)
        elif not self.joined and info.get("connect_info") is True:
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
        self._greeted = True
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
            system=self.account == self.leafnodes.system_account,
            own_domain=self.server.options.domain,
            remote_domain=self.remote_domain,
            deny_imports=self.remote.deny_imports,
            deny_exports=self.remote.deny_exports,
        )
        try:
            connect = self.leafnodes.connect_for(self, self.remote, _text(info, "nonce").encode())
        except LoginError as error:
            self._refused("Authentication Failure", f"cannot log in: {error}")
            return
        self.send(b"CONNECT " + json.dumps(connect, separators=(",", ":")).encode() + b"\r\n")
        if info.get("info_on_connect") is not True:
            self._join()

    def _join(self) -> None:
        """Both ends know each other: the link becomes a part of its account."""
        self._disarm("auth")
        router = self._router = self.server.accounts[self.account]
        self.joined = True
        self.leafnodes.joined(self)
        wanted = router.add_leaf(self)
        if len(wanted) <= leaf_told.AT_ONCE:
            exhaust(self._telling(wanted, router.leaf_links))
        else:
            self._tell(wanted, list(router.leaf_links))
        log.info("Leafnode connection created for account: %s, remote: %s", self.account, self.remote_name)

    def _telling(self, wanted: Iterable[Wanted], links: Sequence[LeafPeer]) -> Steps[None]:
        """`links`: those there were when it was `wanted`, as one that ends meanwhile is no leaf link any more."""
        own = [self.leafnodes.loop_mark(self.account), *self._api_subjects()]
        passing = ((subject, queue, n) for source, subject, queue, n in wanted if self._passes(source, subject, links))
        return self._told.all_of(chain([(subject, None, 1) for subject in own], passing), lambda: not self.joined)

    def _tell(self, wanted: list[Wanted], links: list[LeafPeer]) -> None:
        try:
            self.server.budget.start(self, self._telling(wanted, links), lambda _: None, self._not_told)
        except BusyError:
            self._arm("tell", RETRY, self._tell, wanted, links)

    def _not_told(self, error: Exception) -> None:
        log.error("leafnode cid %d: internal error, closing the link", self.cid, exc_info=error)
        self.abort("Internal Error")

    def _api_subjects(self) -> list[bytes]:
        domain = self.server.options.domain.encode()
        if not domain or not self.leafnodes.has_jetstream(self.account):
            return []
        return [b"$JS.%b.API.%b" % (domain, part) for part in API_PARTS]

    # ---- what this end wants

    def interest_changed(self, source: RemotePeer | None, subject: bytes, queue: bytes | None, change: int) -> None:
        assert self._router is not None
        if self._passes(source, subject, self._router.leaf_links):
            self._told.change(subject, queue, change)

    def _passes(self, source: RemotePeer | None, subject: bytes, links: Sequence[LeafPeer]) -> bool:
        assert self._rules is not None
        return passes(source, self, links) and self._rules.may_tell(subject)

    # ---- what the other end wants

    def _wants(self, subject: bytes, queue: bytes | None, count: int) -> None:
        router, rules = self._router, self._rules
        if router is None or rules is None:
            self._refused("Protocol Violation", "Authorization Violation")
            return
        if subject == self.leafnodes.loop_mark(self.account):
            self.retry_after = LOOP_DELAY
            text = f'Loop detected for leafnode account="{self.account}". Delaying attempt to reconnect for 30s'
            self._refused("Protocol Violation", text)
            return
        if count and not (rules.may_want(subject, queue) and (queue is None or not is_marked(queue))):
            log.debug("leafnode cid %d: may not subscribe to %r", self.cid, subject)
            return
        if count and subject.count(b".") >= MAX_TOKENS:
            return
        if count and self.wanted >= MAX_INTEREST:
            self._refused("Maximum Subscriptions Exceeded", "maximum subscriptions exceeded")
            return
        self.wanted += router.set_leaf_interest(self, subject, queue, count)

    # ---- messages

    def _message(self, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes) -> None:
        router, rules = self._router, self._rules
        if router is None or rules is None:
            self._refused("Protocol Violation", "Authorization Violation")
            return
        self.in_msgs += 1
        self.in_bytes += len(headers) + len(payload)
        shown = subject
        if reply.startswith(_ACK) and b"@" in reply:
            reply, shown = split_ack(reply, subject)
        refused = rules.first_refused(subject, shown, reply, headers)
        if refused is not None:
            self._tell_violation(refused)
            return
        if shown is subject and subject.startswith(b"$JS."):
            # Publishes to another domain's buckets: `$JS.<domain>.API.$KV.<bucket>.<key>`.
            subject = shown = self._without_domain(subject)
        deliver_from_leaf(router, self, subject, shown, reply, queues, headers, payload)

    def _tell_violation(self, subject: bytes) -> None:
        """Says in the log, and to the other end, what must not come in; as nats-server does, but not for each."""
        self._violations += 1
        now = self.server.clock.monotonic()
        if self.remote is not None or now < self._quiet_until:
            return
        self._quiet_until = now + VIOLATION_PAUSE
        text = text_of(subject)
        log.error(
            'leafnode cid %d: Publish Violation on "%s" - Check other side configuration (%d so far)',
            self.cid, text, self._violations,
        )  # fmt: skip
        self.send(writer.err(f'Permissions Violation for Publish to "{text}"'))

    def _without_domain(self, subject: bytes) -> bytes:
        prefix = b"$JS.%b.API." % self.server.options.domain.encode()
        if subject.startswith((prefix + b"$KV.", prefix + b"$OBJ.")):
            return subject[len(prefix) :]
        return subject

    def send_msg(
        self, account: str, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes
    ) -> None:
        assert self._rules is not None
        if self.close_reason or not self._rules.may_go(subject):
            return
        if not self.out:
            self.wake()
        size = len(headers) + len(payload)
        line = leaf.message_line(subject, reply, queues, len(headers), size)
        self.out += (line, headers, payload, writer.CRLF)
        self.out_msgs += 1
        self.out_bytes += size
        self.pending += size + len(line) + 2
        if self.pending > self.congestion_mark:
            self.congested(self)

    def send_many(self, account: str, target: bytes, queues: list[bytes], messages: Sequence[Outgoing]) -> None:
        for subject, reply, headers, payload in messages:
            # As nats-server does: the ack subject carries the subject that the last server is to show.
            marked = b"%b@%b" % (reply, subject) if subject != target and reply.startswith(_ACK) else reply
            self.send_msg(account, target, marked, queues, headers, payload)

    def ask_backlog(self, account: str, target: bytes, mark: int) -> None:
        # Nobody can be asked beyond the link; what waits on it is known here.
        if self._router is not None:
            self._router.far.told(self, target, mark, 0)

    def congested(self, origin: Origin) -> None:
        # In the next turn: this may be in the middle of the router telling its links of a change.
        if "slow" not in self._timers and not self.close_reason:
            self._arm("slow", 0.0, self._look_again)

    def _look_again(self) -> None:
        self._disarm("slow")
        if self.pending > self.congestion_mark:
            super().congested(self)

    def stall(self) -> None:
        """One slow client must not hold up everything that comes over the link: it is closed instead."""


def split_ack(reply: bytes, subject: bytes) -> tuple[bytes, bytes]:
    """(reply, subject to show) of `$JS.ACK.<stream>.<consumer>.<numbers>@<subject>`; names may contain "@", so it is
    the first one behind the eighth dot. `subject` when there is none."""
    at = -1
    for _ in range(_ACK_DOTS):
        at = reply.find(b".", at + 1)
        if at < 0:
            return reply, subject
    mark = reply.find(b"@", at)
    return (reply, subject) if mark < 0 or mark == len(reply) - 1 else (reply[:mark], reply[mark + 1 :])


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


def _contracts(link: LeafLink) -> tuple[LeafPeer, Origin, Governed]:
    """For the type checker."""
    return link, link, link
