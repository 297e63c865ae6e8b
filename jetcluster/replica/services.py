"""Services of one node that its replicas share; each part takes those that it uses.

`Services` has all of them, for what builds parts: `JetStream`, `LocalStreams` and `StreamReplica`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from jetcluster.budget import LoopBudget
from jetcluster.clock import Clock, Rng, Timers
from jetcluster.config.options import CompatOptions
from jetcluster.consumer.owner.delivery import DeliveryBus
from jetcluster.consumer.owner.pull_queue import WaitingRoom
from jetcluster.latency import Latency
from jetcluster.logs import Log
from jetcluster.meta.machine import MetaMachine
from jetcluster.mirror.ports import Paces, paces
from jetcluster.model.advisory import Advisories, Event
from jetcluster.objects.host import ObjectLimits
from jetcluster.records import dataclass
from jetcluster.replica.account_quota import AccountQuota
from jetcluster.replica.read_memory import MAX_NODE_BYTES, MAX_SLOW_NODE_BYTES, ReadMemory
from jetcluster.replica.rounds import Pulse, Rounds
from jetcluster.stream.lead.answers import MAX_PENDING_BYTES, MAX_PENDING_MESSAGES
from jetcluster.stream.lead.atomic_stage import BatchQuota

if TYPE_CHECKING:
    from jetcluster.mesh.core import MeshCore
    from jetcluster.raft.node import RaftNode
    from jetcluster.replica.catchup import CatchUp
    from jetcluster.replica.leaders import LeaderTable
    from jetcluster.replica.turn_commit import TurnCommit


@dataclass(slots=True)
class Runtime:
    """The process: its time, its turns, its log and its measurements."""

    clock: Clock
    rng: Rng
    timers: Timers
    log: Log
    budget: LoopBudget
    pulse: Pulse = field(default_factory=Pulse)
    rounds: Rounds = field(default_factory=Rounds)
    read_latency: Mapping[str, Latency] = field(
        default_factory=lambda: {role: Latency() for role in ("leader", "follower", "mirror")}
    )
    """Durations of Direct Gets answered here, by the replica's role; a sample of them is timed."""


@dataclass(slots=True)
class Network:
    """This node, by its peer id and name, among its peers."""

    me: str
    name: str
    cluster_name: str
    """"" when the node stands alone."""
    mesh: MeshCore
    raft: RaftNode
    leaders: LeaderTable
    catchup: CatchUp


class LocalReplica(Protocol):
    """A replica of this node, as the replicas of other streams see it."""

    @property
    def answers_reads(self) -> bool:
        """True when it is in the read group of its stream."""

    @property
    def last_stored(self) -> int:
        """Last sequence of its stream, 0 unless it is trusted."""


class Knowledge:
    """The meta group's decisions and the replicas of this node, as far as this node knows them."""

    def __init__(self, replicas: Mapping[int, LocalReplica]) -> None:
        self.machine = MetaMachine()
        self.replicas = replicas
        self.current = False
        """This node's meta replica has applied every entry committed before this process started: only then is it known
        which of the streams on disk still exist. Until then no replica takes publishes, requests or reads."""


class Events:
    """Events that the cluster causes by itself. An event without a subscriber is not built."""

    def __init__(self, bus: Callable[[str], DeliveryBus], advisories: Advisories, system_account: str) -> None:
        """`bus`: account name -> its bus."""
        self.bus = bus
        self.render = advisories.render
        self.system_account = system_account

    def tell(self, account: str, event: Event) -> None:
        bus = self.bus(account)
        if bus.has_interest(event.subject):
            bus.publish(event.subject, self.render(event, {"acc": account}))


@dataclass(slots=True)
class Settings:
    """The configuration of this node's streams, and their common quotas."""

    account_quota: AccountQuota
    domain: str = ""
    ack_v2: bool = False
    """True when the consumers of this node send reply subjects of version 2."""
    system_account: str = "$SYS"
    clock_drift: float = 0.1
    """Share by which this node's clock may run fast or slow."""
    batch_quota: BatchQuota = field(default_factory=BatchQuota)
    """Open atomic batches of all streams of this node, and their limits."""
    object_limits: ObjectLimits = field(default_factory=ObjectLimits)
    max_buffered: tuple[int, int] = (MAX_PENDING_MESSAGES, MAX_PENDING_BYTES)
    """Messages and bytes of one stream that may be proposed and not yet applied."""
    waiting: WaitingRoom = field(default_factory=WaitingRoom)
    read_memory: ReadMemory = field(default_factory=lambda: ReadMemory(MAX_NODE_BYTES))
    """Requests of reads that wait, of all streams of this node."""
    slow_read_memory: ReadMemory = field(default_factory=lambda: ReadMemory(MAX_SLOW_NODE_BYTES))
    """Those that wait until their requesters take the answers before."""
    unserved: dict[tuple[int, int], float] = field(default_factory=dict)
    """(stream's group, consumer id) -> monotonic seconds since its owner, on this node, has had messages and readers
    left after each of its runs: those that `cluster.consumer_watch` looks at."""
    compat: CompatOptions = field(default_factory=CompatOptions)
    """Used for answers rendered here and for commands that a leader makes; apply never reads it."""


@dataclass(slots=True, frozen=True)
class Services:
    """One per node."""

    runtime: Runtime
    network: Network
    commits: TurnCommit
    known: Knowledge
    events: Events
    settings: Settings
    link_paces: Paces = field(default_factory=paces)
    """Rates of the links of this node's mirrors and sources."""
