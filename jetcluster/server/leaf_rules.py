"""What may cross a leaf link of an account (reference sheet core 7.3, deny rules)."""

from __future__ import annotations

from collections.abc import Sequence

from jetcluster.protocol import subjects
from jetcluster.server.options import Permissions
from jetcluster.server.permissions import first_foreign

NEVER = (b"$JS.API.>", b"$KV.>", b"$OBJ.>")
"""JetStream of one side is reached from the other by its domain's name only."""

NEVER_SYSTEM = (*NEVER, b"$JSC.>", b"$NRG.>")
"""Of the system account."""

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
"""What `$JS.<domain>.API.` is followed by in the interest that a server with JetStream tells (sheet 8)."""

_MAX_CACHED = 4096
_ANSWERS = (b"$JS.ACK.", b"$JS.FC.")


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
        permissions: Permissions | None = None,
    ) -> None:
        """`deny_imports` of what comes in, `deny_exports` of what goes out. `permissions` are those of the user that
        the other end has logged in as."""
        never = NEVER_SYSTEM if system else NEVER
        own = [b"$JS.%b.API.>" % own_domain.encode()] if own_domain and own_domain != remote_domain else []
        self._incoming = [*never, *(subject.encode() for subject in deny_imports)]
        self._outgoing = [*never, *own, *(subject.encode() for subject in deny_exports)]
        self._permissions = permissions
        self._cache_in: dict[bytes, bool] = {}
        self._cache_out: dict[bytes, bool] = {}

    def may_come(self, subject: bytes) -> bool:
        """Of a message from the other end."""
        answer = self._cache_in.get(subject)
        if answer is None:
            answer = not _denied(subject, self._incoming)
            if answer and self._permissions is not None:
                answer = self._permissions.can_publish(subject)
            _remember(self._cache_in, subject, answer)
        return answer

    def may_be_answered_at(self, reply: bytes) -> bool:
        """As `Client` asks it; deliveries on their way to another server have their answer subjects already."""
        if reply[:1] != b"$" or self._permissions is None or reply.startswith(_ANSWERS):
            return True
        return self._permissions.can_publish(reply)

    def may_schedule(self, headers: bytes) -> bool:
        return self._permissions is None or first_foreign(self._permissions, headers) is None

    def may_go(self, subject: bytes) -> bool:
        """Of a message to the other end."""
        answer = self._cache_out.get(subject)
        if answer is None:
            answer = not _denied(subject, self._outgoing)
            can_deliver = getattr(self._permissions, "can_deliver", None)
            if answer and can_deliver is not None:
                answer = can_deliver(subject, None)
            _remember(self._cache_out, subject, answer)
        return answer

    def may_tell(self, subject: bytes) -> bool:
        """Of interest told to the other end: False when nothing that it could bring may come."""
        return not _all_denied(subject, self._incoming)

    def may_want(self, subject: bytes, queue: bytes | None) -> bool:
        """Of interest of the other end."""
        if _all_denied(subject, self._outgoing):
            return False
        return self._permissions is None or self._permissions.can_subscribe(subject, queue)


def _denied(subject: bytes, patterns: Sequence[bytes]) -> bool:
    return any(subjects.matches(subject, pattern) for pattern in patterns)


def _all_denied(subject: bytes, patterns: Sequence[bytes]) -> bool:
    return any(subjects.is_subset(subject, pattern) for pattern in patterns)


def _remember(cache: dict[bytes, bool], subject: bytes, answer: bool) -> None:
    if len(cache) >= _MAX_CACHED:
        cache.clear()
    cache[subject] = answer
