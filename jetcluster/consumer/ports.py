"""`DeliveryBus`: the bus as the delivery of consumers needs it; `server` implements it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from jetcluster.protocol.bus import Bus, Outgoing


class DeliveryBus(Bus, Protocol):
    """`Bus` with what deliveries need besides."""

    def deliver_many(self, target: bytes, messages: Sequence[Outgoing]) -> int:
        """Routes messages to the takers of `target`, in order; the takers see the messages' own subjects. Returns how
        many takers the last one found. (A consumer's delivery: routed by reply or deliver_subject.) Permissions to
        publish do not apply. In a queue group a member that reads goes before one that is far behind."""
        ...

    def queue_interest(self, subject: bytes, queue: bytes) -> bool:
        """True when a member of queue group `queue` would get what is published to `subject`."""
        ...

    def watch_interest(self, subject: bytes, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back when somebody begins, or ceases, to take the literal `subject`, here or at another node: in the
        middle of that change, so the callback only makes a note. Returns what ends the watch."""
        ...
