"""`NodeContext`: the services of one node that its replicas share.

Also here: advisories on nats-server's subjects. An event without a subscriber is not built.
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


STANDSTILL_SECONDS: Final = 1.0
"""Time without a tick after which the process counts as having stood still."""


class Pulse:
    """Counts how often this process stood still (SIGSTOP, a suspended machine). One per node; times are monotonic."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._stops = 0

    def beat(self, now: float) -> None:
        """Note a tick."""
        self.stops(now)
        self._at = now

    def stops(self, now: float) -> int:
        """Number of standstills so far, including one that lasts until `now`."""
        if self._at is not None and now - self._at > STANDSTILL_SECONDS:
            self._stops += 1
            self._at = now
        return self._stops


@dataclass(slots=True)
class NodeContext:
    """One per node."""

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
    """(account, name): the stream's assignment by the meta group, None if unknown."""
    answers_reads: Callable[[int], bool]
    """(gid): True when this node's replica of the stream answers Direct Gets."""
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
    """(gid): last sequence of the stream in this node's replica, 0 without one."""
    meta_current: bool = False
    """This node's meta replica has applied every entry committed before this process started: only then is it known
    which of the streams on disk still exist. Until then no replica takes publishes, requests or reads."""
    erased: bool = False
    """A message was securely erased, so its bytes must leave the journal too (`flusher`)."""
    system_account: str = "$SYS"
    compat: CompatOptions = field(default_factory=CompatOptions)
    """Used for answers rendered here and for commands that a leader makes; apply never reads it."""
    account_quota: AccountQuota = field(default_factory=AccountQuota)
    pulse: Pulse = field(default_factory=Pulse)
    rounds: Rounds = field(default_factory=Rounds)
    waiting: WaitingRoom = field(default_factory=WaitingRoom)
    object_limits: ObjectLimits = field(default_factory=ObjectLimits)
    placement_rules: Callable[[], PlacementRules] = PlacementRules
    max_buffered: tuple[int, int] = (MAX_PENDING_MESSAGES, MAX_PENDING_BYTES)
    """Messages and bytes of one stream that may be proposed and not yet applied."""
    read_latency: Mapping[str, Latency] = field(
        default_factory=lambda: {role: Latency() for role in ("leader", "follower", "mirror")}
    )
    """Durations of Direct Gets answered here, by the replica's role; a sample of them is timed."""
    link_paces: Paces = field(default_factory=paces)
    """Rates of the links of this node's mirrors and sources."""
    batch_quota: BatchQuota = field(default_factory=BatchQuota)
    """Open atomic batches of all streams of this node, and their limits."""


def advisories(context: NodeContext) -> Advisories:
    return Advisories(context.clock, context.rng, context.name, context.domain)


def tell_stream_action(context: NodeContext, assignment: Assignment, action: StreamAction) -> None:
    tell(context, assignment.account, stream_action(assignment.name, action))


def tell(context: NodeContext, account: str, event: Event) -> None:
    """Publish an event that the cluster caused by itself."""
    bus = context.bus(account)
    if bus.has_interest(event.subject):
        bus.publish(event.subject, advisories(context).render(event, {"acc": account}))
