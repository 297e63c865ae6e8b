"""`LeafLogins` and `LeafRules`: who may connect here as a leaf node, and what may cross a leaf link of an account.
Leaf nodes log in by the users of the `leafnodes` block where it has some, else by the rules for clients.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jetcluster.auth.authenticator import AuthResult
from jetcluster.auth.permissions import UserPermissions
from jetcluster.auth.secrets import PasswordChecker, SlowPart, is_signed
from jetcluster.config.nkeys import decode_user_key
from jetcluster.config.options import LeafUserOptions
from jetcluster.protocol import subjects
from jetcluster.protocol.sublist import LONGEST_CACHED
from jetcluster.server.client.clients import ServerParts
from jetcluster.server.leaf.state import LeafState
from jetcluster.server.permissions import first_foreign, without_domain

if TYPE_CHECKING:
    from jetcluster.auth.certificates import PeerCertificate

log = logging.getLogger("jetcluster.server")

LOCAL_SUBJECTS = (b"$JS.API.>", b"$KV.>", b"$OBJ.>")
"""JetStream of one side is reached from the other by its domain's name only."""
LOCAL_SYSTEM_SUBJECTS = (*LOCAL_SUBJECTS, b"$JSC.>", b"$NRG.>")
"""Subjects of the system account that never cross."""
API_PARTS = (
    b"INFO",
    b"STREAM.>",
    b"CONSUMER.>",
    b"DIRECT.>",
    b"META.>",
    b"SERVER.>",
    b"ACCOUNT.>",
    b"$KV.>",
    b"$OBJ.>",
)
"""The subjects behind `$JS.<domain>.API.` in the interest that a server with JetStream tells."""
_MAX_CACHED = 4096
_ANSWERS = (b"$JS.ACK.", b"$JS.FC.")
_OBJECTS = b"$OBJ."


class LeafLogins:
    """One per server."""

    def __init__(self, parts: ServerParts, state: LeafState) -> None:
        self._parts = parts
        self._state = state
        self._passwords = PasswordChecker(parts.state.rng)

    def slow_part(self, connect: dict[str, Any]) -> SlowPart | None:
        """The part of `log_in` that computes for longer than an event loop can wait: see `auth.secrets`."""
        users = self._state.options.users
        if not users:
            return self._parts.state.authenticator.slow_part(connect)
        found = next((user for user in users if user.user and user.user == connect.get("user")), None)
        return None if found is None else self._passwords.slow_part(found.password, str(connect.get("pass") or ""))

    def log_in(
        self, connect: dict[str, Any], nonce: bytes, address: str, certificate: PeerCertificate | None = None
    ) -> AuthResult | None:
        """The user that a leaf connects as; None when it may not. `certificate`: what it has shown, which decides when
        the port has verify_and_map."""
        tls = self._state.options.tls
        if self._state.options.users and tls is not None and tls.verify_and_map:
            return self._named(certificate, str(connect.get("pass") or ""))
        if self._state.options.users:
            for user in self._state.options.users:
                if self._is(user, connect, nonce):
                    return AuthResult(user.account, user.user or user.nkey, None)
            return None
        try:
            return self.identify(connect, nonce, address, certificate)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in there, the answer is no
            work = self._parts.look_up(error)
            if work is not None:
                self._parts.spawn(work)  # the leaf comes again
            log.info("leafnode refused: %s", error)
            return None

    def identify(
        self, connect: dict[str, Any], nonce: bytes, address: str, certificate: PeerCertificate | None
    ) -> AuthResult:
        """By the rules for clients. Raises AuthError."""
        tls = self._state.options.tls
        return self._parts.state.authenticator.check(
            connect, nonce, address, "LEAFNODE",
            certificate=certificate, by_certificate=tls is not None and tls.verify_and_map,
        )  # fmt: skip

    def _named(self, certificate: PeerCertificate | None, password: str) -> AuthResult | None:
        from jetcluster.auth.certificates import user_of

        users = {user.user: user for user in self._state.options.users}
        name = user_of(certificate, users) if certificate is not None else None
        if name is None or not self._passwords.matches(users[name].password, password):
            return None
        return AuthResult(users[name].account, name, None)

    def _is(self, user: LeafUserOptions, connect: dict[str, Any], nonce: bytes) -> bool:
        if user.nkey:
            signature = str(connect.get("sig") or "")
            return connect.get("nkey") == user.nkey and is_signed(decode_user_key(user.nkey), nonce, signature)
        password = str(connect.get("pass") or "")
        return connect.get("user") == user.user and self._passwords.matches(user.password, password)


class LeafRules:
    """The rules of one link; interest is judged by the way that its messages take."""

    def __init__(
        self,
        *,
        system: bool,
        own_domain: str,
        remote_domain: str,
        deny_imports: Sequence[str] = (),
        deny_exports: Sequence[str] = (),
        permissions: UserPermissions | None = None,
    ) -> None:
        """`deny_imports` of what comes in, `deny_exports` of what goes out. `permissions` are those of the user that
        the other end has logged in as."""
        never = LOCAL_SYSTEM_SUBJECTS if system else LOCAL_SUBJECTS
        own = [b"$JS.%b.API.>" % own_domain.encode()] if own_domain and own_domain != remote_domain else []
        self._incoming = [*never, *(subject.encode() for subject in deny_imports)]
        self._outgoing = [*never, *own, *(subject.encode() for subject in deny_exports)]
        self._permissions = permissions
        self._domain = own_domain.encode()
        self._cache_shown: dict[bytes, bool] = {}
        self._cache_in: dict[bytes, bool] = {}
        self._cache_out: dict[bytes, bool] = {}

    def first_refused(self, subject: bytes, shown: bytes, reply: bytes, headers: bytes) -> bytes | None:
        """The subject because of which a message from the other end must not come in, or None. `shown` is what
        takers see as its subject."""
        if not self.may_come(subject):
            return subject
        if shown is not subject and not self.may_be_shown(shown):
            return shown
        if reply and not self.may_be_answered_at(reply, subject):
            return reply
        if headers and self._permissions is not None:
            foreign = first_foreign(self._permissions, headers)
            return None if foreign is None else foreign[1]
        return None

    def may_come(self, subject: bytes) -> bool:
        """May a message from the other end come in? Its wildcards are plain text, as a client's are."""
        answer = self._cache_in.get(subject)
        if answer is None:
            answer = subjects.is_valid(subject) and not _denied(subject, self._incoming)
            if answer and self._permissions is not None:
                answer = self._permissions.can_publish(subject) and not self._is_denied_bucket(subject)
            _remember(self._cache_in, subject, answer)
        return answer

    def _is_denied_bucket(self, subject: bytes) -> bool:
        """`$OBJ.<bucket>` is ours alone: who may not ask there may not do so by the domain's name."""
        assert self._permissions is not None
        plain = without_domain(subject, self._domain)
        return plain.startswith(_OBJECTS) and self._permissions.denies_publish(plain)

    def may_be_shown(self, subject: bytes) -> bool:
        """May a delivery carry this subject behind its ack subject? Streams store it as theirs."""
        answer = self._cache_shown.get(subject)
        if answer is None:
            answer = subjects.is_valid_literal(subject)
            if answer and self._permissions is not None:
                answer = self._permissions.can_publish(subject)
            _remember(self._cache_shown, subject, answer)
        return answer

    def may_be_answered_at(self, reply: bytes, subject: bytes = b"") -> bool:
        """As `Client` asks it; deliveries on their way to another server have their answer subjects already, requests
        to the API (`subject`) are no deliveries."""
        if not _may_be_literal(reply):
            return False
        if reply[:1] != b"$" or self._permissions is None:
            return True
        if reply.startswith(_ANSWERS) and not (subject.startswith(b"$JS.") and b".API." in subject):
            return True
        return self._permissions.can_publish(reply)

    def may_deliver_to(self, subject: bytes) -> bool:
        """See `Origin.may_deliver_to`; of a subject that is guarded."""
        return self._permissions is None or self._permissions.can_publish_all(without_domain(subject, self._domain))

    def may_go(self, subject: bytes) -> bool:
        """May a message go to the other end?"""
        answer = self._cache_out.get(subject)
        if answer is None:
            answer = not _denied(subject, self._outgoing)
            if answer and self._permissions is not None and self._permissions.can_deliver is not None:
                answer = self._permissions.can_deliver(subject, None)
            _remember(self._cache_out, subject, answer)
        return answer

    def may_tell(self, subject: bytes) -> bool:
        """May interest be told to the other end? False when nothing that it could bring may come."""
        return not _all_denied(subject, self._incoming)

    def may_want(self, subject: bytes, queue: bytes | None) -> bool:
        """May the other end have this interest?"""
        if not subjects.is_valid(subject) or (queue is not None and not subjects.is_valid(queue)):
            return False
        if _all_denied(subject, self._outgoing):
            return False
        return self._permissions is None or self._permissions.can_subscribe(subject, queue)


def _may_be_literal(subject: bytes) -> bool:
    """As `is_valid_literal`, without a list of tokens for almost all; no blank can be in there."""
    if b".." in subject or subject[:1] == b"." or subject[-1:] == b".":
        return False
    return subjects.is_literal(subject)


def _denied(subject: bytes, patterns: Sequence[bytes]) -> bool:
    return any(subjects.matches(subject, pattern) for pattern in patterns)


def _all_denied(subject: bytes, patterns: Sequence[bytes]) -> bool:
    return any(subjects.is_subset(subject, pattern) for pattern in patterns)


def _remember(cache: dict[bytes, bool], subject: bytes, answer: bool) -> None:
    if len(subject) > LONGEST_CACHED:
        return
    if len(cache) >= _MAX_CACHED:
        cache.clear()
    cache[subject] = answer
