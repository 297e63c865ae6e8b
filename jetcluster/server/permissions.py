"""The rights of one connection's user, with the answers cached, and the reply subjects opened for it."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TypeVar

from jetcluster.auth.permissions import UserPermissions
from jetcluster.clock import Clock
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.sublist import LONGEST_CACHED

_Key = TypeVar("_Key", bound=Hashable)

_SCHEDULE = b"Nats-Schedule"
_SCHEDULER = b"Nats-Scheduler"
_PURGE = b"purge"
REQUEST_INFO = b"Nats-Request-Info"
"""Header of what comes from another account by an import: says who asks."""
MAX_CACHED = 4096
"""Decisions that a connection remembers, of publishes and of deliveries each."""
MAX_REPLIES = 65_536
MAX_REPLIES_BYTES = 8 << 20
"""Open reply subjects of a connection, and their bytes; the oldest goes first."""


class ConnectionPermissions:
    """`UserPermissions` as one connection asks them."""

    def __init__(self, permissions: UserPermissions, clock: Clock, domain: str = "") -> None:
        """`domain`: of this server's JetStream."""
        self.of_user = self._permissions = permissions
        self._domain = domain.encode()
        self._clock = clock
        self._publish: dict[bytes, bool] = {}
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

    def can_publish(self, subject: bytes) -> bool:
        answer = self._publish.get(subject)
        if answer is None:
            answer = self._permissions.can_publish(self.judged(subject))
            _remember(self._publish, subject, answer, len(subject))
        return answer or (bool(self._replies) and self._use_reply(subject))

    def can_publish_all(self, filter: bytes) -> bool:
        """May the user publish to all subjects that `filter` takes?"""
        return self._permissions.can_publish_all(self.judged(filter))

    def judged(self, subject: bytes) -> bytes:
        """The subject that must be allowed for a publish to `subject`. The names that this server's domain gives to its
        API and its buckets are no way around what is said of their own; nats-server maps them before it asks for
        permissions."""
        return without_domain(subject, self._domain) if self._domain else subject

    def admits(self, subject: bytes, reply: bytes, queue: bytes | None = None) -> bool:
        """True when a message may be delivered to a subscription of `queue`; its reply subject is then open for the
        user's answer."""
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
    """`$JS.<domain>.API.$KV.b.k` as `$KV.b.k`, the same of `$OBJ`, and `$JS.<domain>.API.X` as `$JS.API.X`."""
    prefix = b"$JS.%b.API." % domain
    if not subject.startswith(prefix):
        return subject
    rest = subject[len(prefix) :]
    return rest if rest.startswith((b"$KV.", b"$OBJ.")) else b"$JS.API." + rest


def first_foreign(permissions: UserPermissions, headers: bytes) -> tuple[str, bytes] | None:
    """A stream publishes a scheduled message to its target in the publisher's place, reads its source, and deletes the
    schedule that a message says it is the last one of: the first of these that is not the publisher's to use, with what
    it may not ("Publish to"), or None."""
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
    """The subjects that a block with `Nats-Schedule` headers would have a stream write to, or delete."""
    found = header_block.get_all(headers, _SCHEDULE + b"-Target")
    if any(_PURGE in value for value in header_block.get_all(headers, _SCHEDULE + b"-Next")):
        found += header_block.get_all(headers, _SCHEDULER)
    return found


def of_another_account(headers: bytes) -> bytes:
    """The block of a message that comes from another account: streams see by it that it may schedule nothing here,
    where nobody has asked whether its publisher may use the subjects it names."""
    return header_block.set_header(headers, REQUEST_INFO, b"{}") if _SCHEDULE in headers else headers


def _remember(cache: dict[_Key, bool], key: _Key, answer: bool, size: int) -> None:
    """`size`: bytes of the key. Those of great length are decided each time."""
    if size > LONGEST_CACHED:
        return
    if len(cache) >= MAX_CACHED:
        cache.clear()
    cache[key] = answer
