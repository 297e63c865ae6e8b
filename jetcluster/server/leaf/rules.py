"""`LeafLogins`, the logins of leaf nodes, and `LeafRules`, the subjects that may cross a leaf link. Leaf nodes log in
as users of the `leafnodes` block if it has any, else as clients do.
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
from jetcluster.log_limit import FROM_STRANGERS
from jetcluster.protocol import subjects
from jetcluster.protocol.sublist import MAX_CACHED_BYTES
from jetcluster.server.client.clients import ServerParts
from jetcluster.server.leaf.state import LeafState
from jetcluster.server.permissions import first_foreign, without_domain

if TYPE_CHECKING:
    from jetcluster.auth.certificates import PeerCertificate

log = logging.getLogger("jetcluster.server")

LOCAL_SUBJECTS = (b"$JS.API.>", b"$KV.>", b"$OBJ.>")
"""Subjects that never cross: one side reaches the other's JetStream only through its domain."""
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
"""Subjects after `$JS.<domain>.API.` in the interest that a server with JetStream announces."""
_MAX_CACHED = 4096
_ANSWERS = (b"$JS.ACK.", b"$JS.FC.")
_OBJECTS = b"$OBJ."


class LeafLogins:
    """The logins of leaf nodes on one server."""

    def __init__(self, parts: ServerParts, state: LeafState) -> None:
        self._parts = parts
        self._state = state
        self._passwords = PasswordChecker(parts.state.rng)

    def slow_part(self, connect: dict[str, Any]) -> SlowPart | None:
        """Returns the part of `log_in` that is too slow for the event loop, or None: see `auth.secrets`."""
        users = self._state.options.users
        if not users:
            return self._parts.state.authenticator.slow_part(connect)
        found = next((user for user in users if user.user and user.user == connect.get("user")), None)
        return None if found is None else self._passwords.slow_part(found.password, str(connect.get("pass") or ""))

    def log_in(
        self, connect: dict[str, Any], nonce: bytes, address: str, certificate: PeerCertificate | None = None
    ) -> AuthResult | None:
        """Returns the user that a leaf node logs in as; None if it is refused. `certificate`: the presented one, which
        names the user if the port has verify_and_map."""
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
        except Exception as error:  # noqa: BLE001 - any exception refuses the login
            work = self._parts.look_up(error)
            if work is not None:
                self._parts.spawn(work)  # in time for the leaf node's next attempt
            log.info("leafnode refused: %s", error, extra=FROM_STRANGERS)
            return None

    def identify(
        self, connect: dict[str, Any], nonce: bytes, address: str, certificate: PeerCertificate | None
    ) -> AuthResult:
        """Returns the user by the rules for clients. Raises AuthError."""
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
    """The subjects that may cross one link. Interest is judged by the direction of its messages."""

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
        """`deny_imports` restrict incoming messages, `deny_exports` outgoing ones. `permissions`: the user's."""
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
        """Returns the subject for which a message is refused, or None. `shown`: the subject that takers see."""
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
        """Returns True when a message from the other end may come in. Wildcards in its subject are plain text."""
        answer = self._cache_in.get(subject)
        if answer is None:
            answer = subjects.is_valid(subject) and not _denied(subject, self._incoming)
            if answer and self._permissions is not None:
                answer = self._permissions.can_publish(subject) and not self._is_denied_bucket(subject)
            _remember(self._cache_in, subject, answer)
        return answer

    def _is_denied_bucket(self, subject: bytes) -> bool:
        """Returns True when publishing to the bucket's plain subject `$OBJ.<bucket>` is denied: the domain's name for
        it must not bypass that. nats-server has no such subject."""
        assert self._permissions is not None
        plain = without_domain(subject, self._domain)
        return plain.startswith(_OBJECTS) and self._permissions.denies_publish(plain)

    def may_be_shown(self, subject: bytes) -> bool:
        """Returns True when an ack subject may carry this subject, which streams store as the message's."""
        answer = self._cache_shown.get(subject)
        if answer is None:
            answer = subjects.is_valid_literal(subject)
            if answer and self._permissions is not None:
                answer = self._permissions.can_publish(subject)
            _remember(self._cache_shown, subject, answer)
        return answer

    def may_be_answered_at(self, reply: bytes, subject: bytes = b"") -> bool:
        """Returns True when a message to `subject` may have this reply: see `ClientConnection.may_be_answered_at`.
        Deliveries to another server have ack and flow control subjects; API requests must not have them."""
        if not _may_be_literal(reply):
            return False
        if reply[:1] != b"$" or self._permissions is None:
            return True
        if reply.startswith(_ANSWERS) and not (subject.startswith(b"$JS.") and b".API." in subject):
            return True
        return self._permissions.can_publish(reply)

    def may_deliver_to(self, subject: bytes) -> bool:
        """See `Origin.may_deliver_to`; for a guarded subject."""
        return self._permissions is None or self._permissions.can_publish_all(without_domain(subject, self._domain))

    def may_go(self, subject: bytes) -> bool:
        """Returns True when a message may go to the other end."""
        answer = self._cache_out.get(subject)
        if answer is None:
            answer = not _denied(subject, self._outgoing)
            if answer and self._permissions is not None and self._permissions.can_deliver is not None:
                answer = self._permissions.can_deliver(subject, None)
            _remember(self._cache_out, subject, answer)
        return answer

    def may_announce(self, subject: bytes) -> bool:
        """Returns True when interest may be announced to the other end: not all of its messages are denied."""
        return not _all_denied(subject, self._incoming)

    def may_want(self, subject: bytes, queue: bytes | None) -> bool:
        """Returns True when the other end may have this interest."""
        if not subjects.is_valid(subject) or (queue is not None and not subjects.is_valid(queue)):
            return False
        if _all_denied(subject, self._outgoing):
            return False
        return self._permissions is None or self._permissions.can_subscribe(subject, queue)


def _may_be_literal(subject: bytes) -> bool:
    """Does the work of `is_valid_literal` faster, for a reply subject from a parsed line, which has no blanks."""
    if b".." in subject or subject[:1] == b"." or subject[-1:] == b".":
        return False
    return subjects.is_literal(subject)


def _denied(subject: bytes, patterns: Sequence[bytes]) -> bool:
    return any(subjects.matches(subject, pattern) for pattern in patterns)


def _all_denied(subject: bytes, patterns: Sequence[bytes]) -> bool:
    return any(subjects.is_subset(subject, pattern) for pattern in patterns)


def _remember(cache: dict[bytes, bool], subject: bytes, answer: bool) -> None:
    if len(subject) > MAX_CACHED_BYTES:
        return
    if len(cache) >= _MAX_CACHED:
        cache.clear()
    cache[subject] = answer
