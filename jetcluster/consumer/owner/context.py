"""`DeliveryContext`: the part of an owned consumer that its acks and its delivery use (`owner.ConsumerOwner`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jetcluster.clock import OnwardClock, Rng
from jetcluster.consumer.owner import ack_subject
from jetcluster.consumer.owner.delivery import DeliveryBus
from jetcluster.consumer.owner.operation_log import OwnerTurns
from jetcluster.consumer.owner.pull_queue import WaitingRoom
from jetcluster.consumer.owner.scheduler import OwnerWakes
from jetcluster.consumer.owner.selection import Selection
from jetcluster.consumer.state.letters import MAX_LETTERS
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.consumer.state.turn import BURY, DELIVER, FIRST, Value, delivered_by
from jetcluster.model import advisory as events
from jetcluster.model.advisory import Event
from jetcluster.protocol.bus import Bus, Origin
from jetcluster.records import NamedTuple
from jetcluster.store.block_store import BlockStore


class Advise:
    """Publishes advisories about a consumer's messages to which clients subscribe."""

    __slots__ = ("_bus", "_names", "_render", "_subjects")

    def __init__(self, bus: Bus, render: Callable[[Event], bytes], stream: str, consumer: str) -> None:
        self._bus = bus
        self._render = render
        self._names = stream, consumer
        self._subjects: dict[str, bytes] = {}

    def wanted(self, name: str) -> bool:
        """Return True when a client subscribes to the events with this name in `model.advisory`."""
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

    def letters_fail(self, waiting: int, error: str) -> None:
        if self.wanted(events.DEAD_LETTERS):
            self._tell(events.dead_letters_fail(*self._names, waiting, error))

    def pause_ended(self, until: int) -> None:
        if self.wanted(events.PAUSE):
            self._tell(events.pause_ended(*self._names, until))

    def _tell(self, event: Event) -> None:
        self._bus.publish(event.subject, self._render(event))


class OwnerDependencies(NamedTuple):
    """The services of the node for an owner."""

    bus: DeliveryBus
    messages: BlockStore
    turns: OwnerTurns
    wakes: OwnerWakes
    clock: OnwardClock
    rng: Rng
    render: Callable[[Event], bytes]
    """Returns the payload of an advisory."""
    unused: Callable[[], None]
    """Requests the deletion of a consumer unused for its inactive_threshold; called again while it stays."""
    unserved: Callable[[bool], None]
    """Told that messages and readers are left after a run (True), and that it is so no more."""
    stream: str
    domain: str = ""
    ack_v2: bool = False
    """True when deliveries have reply subjects of version 2."""
    replicated: bool = True
    """True when the stream has more than one replica."""
    waiting: WaitingRoom | None = None
    """The node's waiting room; None: the consumer has its own."""
    understood: Callable[[], bool] = lambda: True
    """Returns True when all replicas understand the ops of order per key (`consumer.state.turn.LEVELS`)."""
    buries: Callable[[], bool] = lambda: True
    """Returns True when all replicas understand `consumer.state.turn.BURY`."""
    when_known: Callable[[Origin, Callable[[], None]], None] | None = None
    """Calls back once this replica has all that was acked to the requester, or when that takes long."""


class DeliveryContext:
    """Base of `owner.ConsumerOwner`: a consumer's state, selection and services."""

    __slots__ = (
        "_around",
        "ack_prefixes",
        "advise",
        "burying",
        "bus",
        "clock",
        "may_order_by_key",
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
        self.may_order_by_key = around.understood
        self.run_soon = around.wakes.soon
        self.wake_at = around.wakes.at
        stream, name = around.stream.encode(), state.name.encode()
        self.advise = Advise(around.bus, around.render, around.stream, state.name)
        domain = around.domain.encode()
        self.ack_prefixes: Final = (
            ack_subject.prefix(stream, name),
            ack_subject.prefix_v2(domain, around.bus.account, stream, name),
        )
        """Beginnings of the subjects of acks, of version 1 and 2."""
        self.renderer = ack_subject.Renderer(self.ack_prefixes[around.ack_v2], headers_only=state.rules.headers_only)
        self.selection = Selection(state, around.messages, around.clock)
        self.used_at = around.clock.time_ns()
        """Unix nanoseconds of the last use by a client."""
        self.burying = 0
        """Messages of BURYs under way."""
        self.sent_sseq = 0
        """Messages up to here may have reached the client before the log has their delivery."""

    @property
    def buries(self) -> bool:
        """True while all replicas understand BURY and BURIED: an older server may come at any time."""
        return self._around.buries()

    @property
    def room_to_bury(self) -> int:
        """Number of messages that may become dead letters now, besides those that are about to."""
        return max(0, MAX_LETTERS - len(self.state.letters) - self.burying) if self.buries else 0

    def stored(self, seq: int) -> bool:
        """Return True while the message at `seq` is stored."""
        return self._around.messages.contains(seq)

    def submit(self, kind: int, value: Value, token: object = None, messages: int = 0) -> None:
        """Put an op into the log; it returns to the `applied` of the delivery or the acks. `messages`: how many it may
        settle, if more than it names."""
        if kind in FIRST:
            self.selection.ops_in_flight += 1
            self.selection.in_flight += len(value if kind == DELIVER else delivered_by(kind, value))  # type: ignore[arg-type]
        elif kind == BURY:
            self.burying += len(value)  # type: ignore[arg-type]
        self._around.turns.submit(kind, value, token, messages)
