"""The rights of one connection's user, with the answers cached, and the reply subjects opened for it."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TypeVar

from jetcluster.auth.permissions import UserPermissions
from jetcluster.clock import Clock
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.sublist import MAX_CACHED_BYTES

_Key = TypeVar("_Key", bound=Hashable)

_SCHEDULE = b"Nats-Schedule"
_SCHEDULER = b"Nats-Scheduler"
_PURGE = b"purge"
REQUEST_INFO = b"Nats-Request-Info"
"""Header that names the requester in a message that an import brings from another account."""
MAX_CACHED = 4096
"""Cached decisions of a connection, for publishes and for deliveries each."""
MAX_REPLIES = 65_536
MAX_REPLIES_BYTES = 8 << 20
"""Open reply subjects of a connection, and their bytes; the oldest is dropped first."""


class ConnectionPermissions:
    """`UserPermissions` with one connection's caches and open reply subjects."""

    def __init__(self, permissions: UserPermissions, clock: Clock, domain: str = "") -> None:
        """`domain`: this server's JetStream domain."""
        self.of_user = self._permissions = permissions
        self._domain = domain.encode()
        self._clock = clock
        self.publishes: dict[bytes, bool] = {}
        """Cached answers of `permits`."""
        self._deliver: dict[bytes, bool] = {}
        self._deliver_to_queue: dict[tuple[bytes, bytes], bool] = {}
        self._can_deliver = permissions.can_deliver
        self._responses = permissions.allow_responses
        self._replies: dict[bytes, tuple[int, float]] = {}
        self._replies_bytes = 0

    @property
    def watches_deliveries(self) -> bool:
        """True when `admits` has work to do for a delivery."""
        return self._can_deliver is not None or self._responses is not None

    def can_subscribe(self, subject: bytes, queue: bytes | None) -> bool:
        return self._permissions.can_subscribe(subject, queue)

    def permits(self, subject: bytes) -> bool:
        """Returns True when the configuration permits a publish, whatever replies are open."""
        answer = self.publishes.get(subject)
        if answer is None:
            answer = self._permissions.can_publish(self.judged(subject))
            _remember(self.publishes, subject, answer, len(subject))
        return answer

    def can_publish(self, subject: bytes) -> bool:
        return self.permits(subject) or (bool(self._replies) and self._use_reply(subject))

    def can_publish_all(self, filter: bytes) -> bool:
        """Returns True when the user may publish to every subject that `filter` matches."""
        return self._permissions.can_publish_all(self.judged(filter))

    def judged(self, subject: bytes) -> bytes:
        """Returns the subject whose permission a publish to `subject` needs. The domain's names of the API and of
        buckets must not bypass a denial of the plain names; nats-server also maps them before it checks."""
        return without_domain(subject, self._domain) if self._domain else subject

    def admits(self, subject: bytes, reply: bytes, queue: bytes | None = None) -> bool:
        """Returns True when a subscription of `queue` may get a message, and opens its reply subject for the answer."""
        if self._can_deliver is not None and not self._is_deliverable(subject, queue):
            return False
        if reply and self._responses is not None:
            count, seconds = self._responses
            self._close_reply(reply)
            self._replies_bytes += len(reply)
            while self._replies and (len(self._replies) >= MAX_REPLIES or self._replies_bytes > MAX_REPLIES_BYTES):
                self._close_reply(next(iter(self._replies)))
            self._replies[reply] = (count, self._clock.monotonic() + seconds if seconds >= 0 else math.inf)
        return True

    def _is_deliverable(self, subject: bytes, queue: bytes | None) -> bool:
        assert self._can_deliver is not None
        if queue is None:
            answer = self._deliver.get(subject)
            if answer is None:
                answer = self._can_deliver(subject, None)
                _remember(self._deliver, subject, answer, len(subject))
            return answer
        answer = self._deliver_to_queue.get((subject, queue))
        if answer is None:
            answer = self._can_deliver(subject, queue)
            _remember(self._deliver_to_queue, (subject, queue), answer, len(subject) + len(queue))
        return answer

    def _close_reply(self, subject: bytes) -> None:
        """Forgets the reply subject, if it is open."""
        if self._replies.pop(subject, None) is not None:
            self._replies_bytes -= len(subject)

    def _use_reply(self, subject: bytes) -> bool:
        left, until = self._replies.get(subject, (0, 0.0))
        if left == 0:
            return False
        late = self._clock.monotonic() > until
        if left == 1 or late:
            self._close_reply(subject)
        elif left > 0:
            self._replies[subject] = (left - 1, until)
        return not late


def without_domain(subject: bytes, domain: bytes) -> bytes:
    """Turns `$JS.<domain>.API.$KV.b.k` into `$KV.b.k`, `$OBJ` likewise, and `$JS.<domain>.API.X` into `$JS.API.X`."""
    prefix = b"$JS.%b.API." % domain
    if not subject.startswith(prefix):
        return subject
    rest = subject[len(prefix) :]
    return rest if rest.startswith((b"$KV.", b"$OBJ.")) else b"$JS.API." + rest


def first_foreign(permissions: UserPermissions, headers: bytes) -> tuple[str, bytes] | None:
    """Returns (refused action, such as "Publish to"; subject) for the first subject of scheduling headers that the
    publisher may not use, or None. On its behalf, a stream publishes a scheduled message to its target, reads its
    source, and deletes the schedule whose last message this is."""
    if _SCHEDULE not in headers:
        return None
    for source in header_block.get_all(headers, _SCHEDULE + b"-Source"):
        if not permissions.can_subscribe(source, None):
            return "Subscription to", source
    for named in scheduled_for(headers):
        if not permissions.can_publish(named):
            return "Publish to", named
    return None


def scheduled_for(headers: bytes) -> list[bytes]:
    """Returns the subjects that a stream writes to or deletes for a header block with `Nats-Schedule`."""
    found = header_block.get_all(headers, _SCHEDULE + b"-Target")
    if any(_PURGE in value for value in header_block.get_all(headers, _SCHEDULE + b"-Next")):
        found += header_block.get_all(headers, _SCHEDULER)
    return found


def of_another_account(headers: bytes) -> bytes:
    """Returns the header block of a message from another account, marked so that streams do not schedule it: this
    account has not checked its publisher's permissions for the subjects it names."""
    return header_block.set_header(headers, REQUEST_INFO, b"{}") if _SCHEDULE in headers else headers


def _remember(cache: dict[_Key, bool], key: _Key, answer: bool, size: int) -> None:
    """Caches an answer unless the key is longer than MAX_CACHED_BYTES; `size`: bytes of the key."""
    if size > MAX_CACHED_BYTES:
        return
    if len(cache) >= MAX_CACHED:
        cache.clear()
    cache[key] = answer
