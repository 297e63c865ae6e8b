"""`DeliveryContext`: one owned consumer as its acks and its delivery use it (`owner.ConsumerOwner`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jetcluster.clock import Clock, Rng
from jetcluster.consumer import ack_subject
from jetcluster.consumer.advise import Advise
from jetcluster.consumer.operation_log import OwnerTurns
from jetcluster.consumer.ports import DeliveryBus
from jetcluster.consumer.scheduler import OwnerWakes
from jetcluster.consumer.selection import Selection
from jetcluster.consumer.state import ConsumerState
from jetcluster.consumer.turn import Value
from jetcluster.consumer.waiting_room import WaitingRoom
from jetcluster.model.advisory import Event
from jetcluster.protocol.bus import Origin
from jetcluster.store.block_store import BlockStore


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
        raise NotImplementedError
