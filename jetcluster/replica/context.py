"""`NodeContext`: the parts of one node that its replicas share, handed to each of them instead of module globals.

Also here: the advisories that tell on nats-server's subjects what happens to a stream; an event that nobody listens to
is not built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Final

from jetcluster.budget import LoopBudget
from jetcluster.clock import Clock, Rng, Timers
from jetcluster.config.options import CompatOptions
from jetcluster.consumer.owner.delivery import DeliveryBus
from jetcluster.consumer.owner.pull_queue import WaitingRoom
from jetcluster.latency import Latency
from jetcluster.logs import Log
from jetcluster.meta.placement import PlacementRules
from jetcluster.meta.state import Assignment, Node
from jetcluster.mirror.ports import Paces, paces
from jetcluster.model.advisory import Advisories, Event, StreamAction, stream_action
from jetcluster.objects.host import ObjectLimits
from jetcluster.records import dataclass
from jetcluster.replica.account_quota import AccountQuota
from jetcluster.replica.rounds import Rounds
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.stream.lead.answers import MAX_PENDING_BYTES, MAX_PENDING_MESSAGES
from jetcluster.stream.lead.atomic_stage import BatchQuota

if TYPE_CHECKING:
    from jetcluster.mesh.core import MeshCore
    from jetcluster.raft.node import RaftNode
    from jetcluster.replica.catchup import CatchUp
    from jetcluster.replica.leaders import LeaderTable
    from jetcluster.replica.turn_commit import TurnCommit


STOOD_STILL: Final = 1.0
"""Seconds without a tick."""


class Pulse:
    """One per node. Times are those of its monotonic clock."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._stops = 0

    def beat(self, now: float) -> None:
        """A tick."""
        self.stops(now)
        self._at = now

    def stops(self, now: float) -> int:
        """The number of times it stood still so far; a stop that lasts until `now` counts."""
        if self._at is not None and now - self._at > STOOD_STILL:
            self._stops += 1
            self._at = now
        return self._stops


@dataclass(slots=True)
class NodeContext:
    me: str
    """This node's peer id."""
    name: str
    cluster_name: str
    """"" when the node stands alone."""
    domain: str
    mesh: MeshCore
    raft: RaftNode
    kv: RocksKv
    turn_commit: TurnCommit
    bus: Callable[[str], DeliveryBus]
    """Account name -> its bus."""
    find_stream: Callable[[str, str], Assignment | None]
    """(account, name): where the meta group has placed such a stream; None when it knows none."""
    answers_reads: Callable[[int], bool]
    """(gid): does this node's own replica of the stream answer Direct Get?"""
    nodes: Callable[[], Mapping[str, Node]]
    """The cluster's members by peer id, connected or not."""
    leaders: LeaderTable
    catchup: CatchUp
    clock: Clock
    rng: Rng
    timers: Timers
    log: Log
    budget: LoopBudget
    stored_here: Callable[[int], int] = lambda gid: 0
    """(gid): last sequence of the stream as this node's own replica has it; 0: there is none."""
    meta_current: bool = False
    """This node's meta replica has applied all that was committed when this process started: only then is it known
    which of the streams on disk still exist. Until then no replica takes publishes, answers requests or reads."""
    erased: bool = False
    """A message was deleted whose bytes are to leave the journal as well (`flusher`)."""
    system_account: str = "$SYS"
    compat: CompatOptions = field(default_factory=CompatOptions)
    """For answers that are rendered here, and for what a leader puts into its commands: apply does not look at it."""
    account_quota: AccountQuota = field(default_factory=AccountQuota)
    pulse: Pulse = field(default_factory=Pulse)
    rounds: Rounds = field(default_factory=Rounds)
    waiting: WaitingRoom = field(default_factory=WaitingRoom)
    object_limits: ObjectLimits = field(default_factory=ObjectLimits)
    placement_rules: Callable[[], PlacementRules] = PlacementRules
    max_buffered: tuple[int, int] = (MAX_PENDING_MESSAGES, MAX_PENDING_BYTES)
    """Messages and bytes of a stream that may be proposed and not yet applied."""
    read_latency: Mapping[str, Latency] = field(
        default_factory=lambda: {role: Latency() for role in ("leader", "follower", "mirror")}
    )
    """The times of Direct Gets answered here, by the replica's role then: some of them are timed."""
    link_paces: Paces = field(default_factory=paces)
    """The paces of the links of this node's mirrors and sources."""
    batch_quota: BatchQuota = field(default_factory=BatchQuota)
    """Atomic batches that this node's streams have open together, and their limits."""


def advisories(context: NodeContext) -> Advisories:
    return Advisories(context.clock, context.rng, context.name, context.domain)


def tell_stream_action(context: NodeContext, assignment: Assignment, action: StreamAction) -> None:
    tell(context, assignment.account, stream_action(assignment.name, action))


def tell(context: NodeContext, account: str, event: Event) -> None:
    """For what the cluster does by itself."""
    bus = context.bus(account)
    if bus.has_interest(event.subject):
        bus.publish(event.subject, advisories(context).render(event, {"acc": account}))
