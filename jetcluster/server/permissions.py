"""What the user of one connection may do, with the answers cached, and the reply subjects opened for it."""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.clock import Clock
from jetcluster.server.options import Permissions

_MAX_CACHED = 4096
_MAX_REPLIES = 65_536
"""Open reply subjects of a connection; the oldest goes first."""


class ConnectionPermissions:
    """`Permissions` of a user as one connection asks them (reference sheet core 2.3)."""

    def __init__(self, permissions: Permissions, clock: Clock) -> None:
        self.of_user = self._permissions = permissions
        self._clock = clock
        self._publish: dict[bytes, bool] = {}
        self._deliver: dict[bytes, bool] = {}
        self._can_deliver: Callable[[bytes], bool] | None = getattr(permissions, "can_deliver", None)
        self._responses: tuple[int, float] | None = getattr(permissions, "allow_responses", None)
        self._replies: dict[bytes, tuple[int, float]] = {}

    @property
    def watches_deliveries(self) -> bool:
        """True when `admits` has work to do for a delivery."""
        return self._can_deliver is not None or self._responses is not None

    def can_subscribe(self, subject: bytes, queue: bytes | None) -> bool:
        return self._permissions.can_subscribe(subject, queue)

    def can_publish(self, subject: bytes) -> bool:
        answer = self._publish.get(subject)
        if answer is None:
            answer = self._permissions.can_publish(subject)
            _remember(self._publish, subject, answer)
        return answer or (bool(self._replies) and self._use_reply(subject))

    def admits(self, subject: bytes, reply: bytes) -> bool:
        """True when a message may be delivered; its reply subject is then open for the user's answer."""
        if self._can_deliver is not None:
            answer = self._deliver.get(subject)
            if answer is None:
                answer = self._can_deliver(subject)
                _remember(self._deliver, subject, answer)
            if not answer:
                return False
        if reply and self._responses is not None:
            count, seconds = self._responses
            self._replies.pop(reply, None)
            if len(self._replies) >= _MAX_REPLIES:
                del self._replies[next(iter(self._replies))]
            self._replies[reply] = (count, self._clock.monotonic() + seconds)
        return True

    def _use_reply(self, subject: bytes) -> bool:
        left, until = self._replies.get(subject, (0, 0.0))
        if left <= 0:
            return False
        if left == 1 or self._clock.monotonic() > until:
            del self._replies[subject]
        else:
            self._replies[subject] = (left - 1, until)
        return self._clock.monotonic() <= until


def _remember(cache: dict[bytes, bool], subject: bytes, answer: bool) -> None:
    if len(cache) >= _MAX_CACHED:
        cache.clear()
    cache[subject] = answer
