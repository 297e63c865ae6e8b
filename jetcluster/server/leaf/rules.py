"""The rules of what may cross a leaf link of an account."""

from __future__ import annotations

from collections.abc import Sequence

from jetcluster.auth.permissions import UserPermissions
from jetcluster.protocol import subjects
from jetcluster.protocol.sublist import LONGEST_CACHED
from jetcluster.server.permissions import first_foreign, without_domain

NEVER = (b"$JS.API.>", b"$KV.>", b"$OBJ.>")
"""JetStream of one side is reached from the other by its domain's name only."""

NEVER_SYSTEM = (*NEVER, b"$JSC.>", b"$NRG.>")
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
        never = NEVER_SYSTEM if system else NEVER
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
