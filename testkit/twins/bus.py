"""`MemBus`: the twin of an account's router, for what publishes and subscribes on its own node."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jetcluster.protocol.bus import BulkCallback, Callback, Origin
from jetcluster.protocol.subjects import matches


class FakeOrigin(Origin):
    kind = "client"
    account = "A"

    def client_info(self) -> dict[str, Any]:
        return {"user": "u1"}


class MemSubscription:
    def __init__(self, subject: bytes, callback: Callback, queue: bytes | None, exclusive: bool) -> None:
        self.subject, self.callback, self.queue, self.exclusive = subject, callback, queue, exclusive


class MemBus:
    """Calls those who subscribed, at once."""

    account = "A"

    def __init__(self) -> None:
        self.subscriptions: list[MemSubscription] = []

    def subscribe(
        self,
        subject: bytes,
        callback: Callback,
        queue: bytes | None = None,
        *,
        local_only: bool = False,
        exclusive: bool = False,
        bulk: BulkCallback | None = None,
    ) -> MemSubscription:
        self.subscriptions.append(MemSubscription(subject, callback, queue, exclusive))
        return self.subscriptions[-1]

    def unsubscribe(self, subscription: Any) -> None:
        self.subscriptions.remove(subscription)

    def takers(self, subject: bytes) -> list[MemSubscription]:
        return [one for one in self.subscriptions if matches(subject, one.subject)]

    def ask(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int:
        return self.publish(subject, payload, reply, headers)

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int:
        takers = [taker for taker in self.takers(subject) if not taker.exclusive]
        for taker in takers:
            taker.callback(subject, reply, headers, payload, FakeOrigin())
        return len(takers)

    def publish_as_client(self, subject: bytes, payload: bytes = b"", reply: bytes = b"") -> None:
        takers = self.takers(subject)
        for taker in [taker for taker in takers if taker.exclusive] or takers:
            taker.callback(subject, reply, b"", payload, FakeOrigin())

    def publish_many(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        for subject, payload in messages:
            self.publish(subject, payload)

    def told(self, reply: bytes, stream: bytes, age: int) -> int:
        return 0

    def has_interest(self, subject: bytes) -> bool:
        return bool(self.takers(subject))

    def is_guarded(self, filter: bytes) -> bool:
        return filter.startswith(b"$")

    def has_listener(self, subject: bytes) -> bool:
        return False

    def collect(self, subject: bytes) -> list[tuple[bytes, dict[str, Any]]]:
        """Everything published to `subject` from now on, decoded."""
        got: list[tuple[bytes, dict[str, Any]]] = []
        self.subscribe(subject, lambda s, r, h, payload, o: got.append((s, json.loads(payload))))
        return got
