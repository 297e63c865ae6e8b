"""`Advise`: tells what happened to a consumer's messages, if somebody listens."""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.model import consumer_advisory as events
from jetcluster.model.advisory import Event
from jetcluster.protocol.bus import Bus


class Advise:
    __slots__ = ("_bus", "_names", "_render", "_subjects")

    def __init__(self, bus: Bus, render: Callable[[Event], bytes], stream: str, consumer: str) -> None:
        self._bus = bus
        self._render = render
        self._names = stream, consumer
        self._subjects: dict[str, bytes] = {}

    def wanted(self, name: str) -> bool:
        """Somebody listens to the events called so in `model.consumer_advisory`."""
        subject = self._subjects.get(name)
        if subject is None:
            subject = self._subjects[name] = events.subject(name, *self._names)
        return self._bus.has_interest(subject)

    def exhausted(self, seq: int, deliveries: int) -> None:
        if self.wanted(events.MAX_DELIVERIES):
            self._tell(events.max_deliveries(*self._names, seq, deliveries))

    def naked(self, cseq: int, seq: int, deliveries: int) -> None:
        self._tell(events.naked(*self._names, cseq, seq, deliveries))

    def terminated(self, cseq: int, seq: int, deliveries: int, reason: bytes) -> None:
        self._tell(events.terminated(*self._names, cseq, seq, deliveries, reason.decode("utf-8", "replace")))

    def acked(self, cseq: int, seq: int, deliveries: int, ack_time: int) -> None:
        self._tell(events.ack_metric(*self._names, cseq, seq, deliveries, ack_time))

    def pinned(self, group: bytes, pin: bytes) -> None:
        if self.wanted(events.PINNED):
            self._tell(events.pinned(*self._names, group.decode(), pin.decode()))

    def unpinned(self, group: bytes, reason: str) -> None:
        if self.wanted(events.UNPINNED):
            self._tell(events.unpinned(*self._names, group.decode(), reason))

    def pause_ended(self, until: int) -> None:
        if self.wanted(events.PAUSE):
            self._tell(events.pause_ended(*self._names, until))

    def _tell(self, event: Event) -> None:
        self._bus.publish(event.subject, self._render(event))
