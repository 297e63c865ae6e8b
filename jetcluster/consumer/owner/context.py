"""`DeliveryContext`: one owned consumer as its acks and its delivery use it (`owner.ConsumerOwner`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jetcluster.clock import Clock, Rng
from jetcluster.consumer.owner import ack_subject
from jetcluster.consumer.owner.delivery import DeliveryBus
from jetcluster.consumer.owner.operation_log import OwnerTurns
from jetcluster.consumer.owner.pull_queue import WaitingRoom
from jetcluster.consumer.owner.scheduler import OwnerWakes
from jetcluster.consumer.owner.selection import Selection
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.consumer.state.turn import DELIVER, Value
from jetcluster.model import advisory as events
from jetcluster.model.advisory import Event
from jetcluster.protocol.bus import Bus, Origin
from jetcluster.store.block_store import BlockStore


class Advise:
    """Tells what happened to a consumer's messages, if somebody listens."""

    __slots__ = ("_bus", "_names", "_render", "_subjects")

    def __init__(self, bus: Bus, render: Callable[[Event], bytes], stream: str, consumer: str) -> None:
        self._bus = bus
        self._render = render
        self._names = stream, consumer
        self._subjects: dict[str, bytes] = {}

    def wanted(self, name: str) -> bool:
        """Somebody listens to the events called so in `model.advisory`."""
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


class OwnerDependencies(NamedTuple):
    """The services of the node that an owner calls."""

    bus: DeliveryBus
    messages: BlockStore
    turns: OwnerTurns
    wakes: OwnerWakes
    clock: Clock
    rng: Rng
    render: Callable[[Event], bytes]
    """Payload of an advisory."""
    unused: Callable[[], None]
    """The consumer was not used for its inactive_threshold: to be deleted. Asked again if nothing comes of it."""
    stream: str
    domain: str = ""
    replicated: bool = True
    """The stream has more than one replica."""
    waiting: WaitingRoom | None = None
    """The node's; None: the consumer has one of its own."""
    when_known: Callable[[Origin, Callable[[], None]], None] | None = None
    """Calls back once this replica has all that the requester may have been told is stored, or when that takes long."""


class DeliveryContext:
    __slots__ = (
        "_around",
        "advise",
        "bus",
        "clock",
        "renderer",
        "replicated",
        "rng",
        "run_soon",
        "selection",
        "sent_sseq",
        "state",
        "used_at",
        "waiting",
        "wake_at",
    )

    def __init__(self, state: ConsumerState, around: OwnerDependencies) -> None:
        """Raises DamagedError."""
        self._around = around
        self.state = state
        self.bus = around.bus
        self.clock = around.clock
        self.rng = around.rng
        self.replicated = around.replicated
        self.waiting = around.waiting
        self.run_soon = around.wakes.soon
        self.wake_at = around.wakes.at
        stream, name = around.stream.encode(), state.name.encode()
        self.advise = Advise(around.bus, around.render, around.stream, state.name)
        self.renderer = ack_subject.Renderer(stream, name, headers_only=state.rules.headers_only)
        self.selection = Selection(state, around.messages, around.clock)
        self.used_at = around.clock.time_ns()
        """When somebody last used the consumer."""
        self.sent_sseq = 0
        """Messages up to here may be with the client though the log does not know of their delivery yet."""

    def submit(self, kind: int, value: Value, token: object = None) -> None:
        """Puts an op into the log. Those of a delivery come back to its `applied`, those of acks to theirs."""
        if kind == DELIVER:
            assert isinstance(value, list), kind
            self.selection.in_flight += len(value)
        self._around.turns.submit(kind, value, token)
