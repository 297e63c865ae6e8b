"""The wiring of JetStream on one node: the parts that need each other are made and connected here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from jetcluster.clock import Clock, Rng, Timers
from jetcluster.cluster.administration import Administration
from jetcluster.cluster.bootstrap import Founding
from jetcluster.cluster.cluster_id import ClusterId, Save
from jetcluster.cluster.consumer_requests import Ask, ConsumerRequests
from jetcluster.cluster.consumer_watch import ConsumerWatch
from jetcluster.cluster.every_node import EveryNode
from jetcluster.cluster.flusher import Flusher
from jetcluster.cluster.health_report import Durability, HealthReport, NodeWatch
from jetcluster.cluster.joining import Joining, Roster
from jetcluster.cluster.leader_reads import LeaderReads
from jetcluster.cluster.local_streams import LocalStreams
from jetcluster.cluster.meta_members import MetaMembers, NodeRegistry
from jetcluster.cluster.meta_replica import MetaReplica
from jetcluster.cluster.meta_rescue import MetaRescue
from jetcluster.cluster.meta_service import MetaService
from jetcluster.cluster.meta_voters import MetaVoters
from jetcluster.cluster.orphans import Orphans
from jetcluster.cluster.requests import Body, Handler, LeaderRequests
from jetcluster.cluster.restart_safety import RestartSafety
from jetcluster.cluster.scrubber import Scrubber
from jetcluster.cluster.store_care import StoreCare
from jetcluster.cluster.stream_requests import StreamRequests
from jetcluster.health.node_health import Aspect, NodeHealth
from jetcluster.mesh.core import KnownMembers, MeshCore, RaftReceiver
from jetcluster.meta.machine import MetaMachine
from jetcluster.meta.placement import PlacementRules
from jetcluster.meta.state import Assignment, Effect
from jetcluster.model.limits import AccountLimits
from jetcluster.raft.api import META_GROUP
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.node import RaftNode
from jetcluster.records import NamedTuple
from jetcluster.replica.leaders import LeaderTable
from jetcluster.replica.rounds import Background
from jetcluster.replica.services import Services
from jetcluster.replica.stream_archives import StreamArchives
from jetcluster.replica.stream_replica import StreamReplica
from jetcluster.stream.log.levels import LEVEL

if TYPE_CHECKING:
    from jetcluster.cluster.balancer import Balancer, BalanceRules
    from jetcluster.cluster.load import NodeLoad
    from jetcluster.cluster.replica_moves import ReplicaMoves

Linked = tuple[RaftNode, LeaderTable, Roster]


def link_raft(
    mesh: MeshCore, journal: Journal, machine: MetaMachine, replicas: Mapping[int, StreamReplica],
    clock: Clock, rng: Rng, timers: Timers, config: RaftConfig, report: Callable[[int, str], None],
    health: NodeHealth | None = None,
) -> Linked:  # fmt: skip
    """Makes the Raft of a node on its open `journal`, with the tables of the cluster's leaders and members, by which it
    knows whose frames count, and has it take the frames of `mesh`. `machine`: the meta group's."""

    def leader(gid: int) -> str | None:
        return raft.groups[gid].leader if gid in raft.groups else None

    def led(gid: int, term: int) -> None:
        """Stops reads under a leader whose term the replica does not know: the replica may have been removed."""
        replica = replicas.get(gid)
        if replica is not None and replica.group.term < term:
            replica.reads.leave()

    def level(peer: str) -> int:
        node = machine.nodes.get(peer)
        return 0 if node is None else node.level

    leaders = LeaderTable(mesh, leader, led)
    roster = Roster(mesh, journal, machine, leaders.ask)
    raft = RaftNode(
        mesh.me.peer_id, journal, mesh, clock, rng, timers, config, report, health, LEVEL, level, roster.vouched
    )
    admission = raft.admission
    known = admission.is_member, admission.knows, admission.is_voter
    members = KnownMembers(*known, roster.key_of, roster.logged_key_of)
    mesh.connect(RaftReceiver(raft.on_frame, raft.heard, raft.end_of_batch), members)
    return raft, leaders, roster


class NodeSide(NamedTuple):
    """The node's side of JetStream."""

    account_limits: Callable[[str], AccountLimits]
    expected_nodes: Callable[[], int]
    settled: Callable[[], bool]
    """Returns whether each configured route led somewhere (see `bootstrap`)."""
    placement_rules: Callable[[], PlacementRules] = PlacementRules
    save_cluster: Save = lambda cluster_id, member: None
    """Keeps the cluster's id; the kept id is in the mesh's own INFO."""
    renew_data: Callable[[str], None] = lambda reason: None
    start_again: Callable[[str], None] = lambda reason: None
    founding: Founding = Founding.TOGETHER
    balance_rules: Callable[[], BalanceRules] | None = None
    """None: all is balanced."""
    cpu_seconds: Callable[[], float] = lambda: 0.0
    """Returns the processor time of this process."""
    leaving: Callable[[], bool] = lambda: False
    """Returns True from the order to become a lame duck on."""
    removed: Callable[[], None] = lambda: None
    """Called when this server turns out to have been removed from the cluster before it started."""


class Hub(NamedTuple):
    """The calls of the parts to `JetStream`."""

    on_effects: Callable[[list[Effect]], None]
    on_meta_leading: Callable[[bool], None]
    on_meta_config: Callable[[], None]
    meta_request: Callable[[str, Body], Awaitable[Body]]
    stream_request: Ask
    handle_meta: Handler


class Parts:
    """The parts of JetStream on one node."""

    def __init__(
        self, hub: Hub, services: Services, replicas: dict[int, StreamReplica], roster: Roster, node: NodeSide
    ) -> None:
        runtime, network, known = services.runtime, services.network, services.known
        events, commits, mesh, log = services.events, services.commits, network.mesh, runtime.log
        self.background = Background(log)
        callbacks = hub.on_effects, hub.on_meta_leading, hub.on_meta_config
        voters = MetaVoters(mesh, known.machine)
        self.meta = meta = MetaReplica(network, commits, known.machine, log, *callbacks, voters.may_vote)
        network.catchup.owners[META_GROUP] = meta
        self.service = MetaService(
            meta.machine, clock=runtime.clock, propose=meta.propose, barrier=meta.barrier,
            online=lambda: {network.me, *mesh.peers}, well=network.raft.peers.is_well,
            cluster_name=network.cluster_name, clustered=bool(network.cluster_name),
            leader=network.leaders.get, level=network.raft.levels.known, rules=node.placement_rules, log=log,
        )  # fmt: skip
        self.members = MetaMembers(runtime, network, meta, self.service, voters)
        self.roster = roster
        self.cluster_id = ClusterId(mesh, node.save_cluster, log)
        self.broken: dict[int, tuple[Assignment, str]] = {}
        orphans = Orphans(commits.kv, network.raft, log)
        self.flusher = Flusher(runtime, network, commits, meta, replicas, orphans)
        self.restart_safety = RestartSafety(runtime, network, meta, replicas)
        held = replicas, self.broken, self.restart_safety, self.background
        self.store_care = StoreCare(runtime, network, commits, *held, node.renew_data, node.start_again)
        self.local = LocalStreams(
            services, replicas, self.broken, meta, self.service, self.background, orphans, self.flusher,
            ask_meta=hub.meta_request, ask_stream=hub.stream_request, unreadable=self.store_care.note,
        )  # fmt: skip
        consumers = ConsumerRequests(runtime, self.local.exchange)
        archives = StreamArchives(commits.kv, runtime.clock, runtime.timers, runtime.rng, runtime.budget)
        self.streams = StreamRequests(runtime, network, replicas, archives, consumers)
        asked = (mesh, network.leaders, runtime.clock)
        self.meta_requests = LeaderRequests("meta", *asked, hub.handle_meta, log)
        self.stream_requests = LeaderRequests("stream", *asked, self.streams.handle, log, runtime.budget)
        basis = runtime, network, events, meta
        self.administration = Administration(*basis, self.service, known, replicas, hub.stream_request)
        self.load: NodeLoad | None = None
        self.balancer: Balancer | None = None
        self.replica_moves: ReplicaMoves | None = None
        if network.cluster_name:  # a server that stands alone imports none of it
            from jetcluster.cluster.balancer import Balancer, BalanceRules
            from jetcluster.cluster.load import NodeLoad
            from jetcluster.cluster.replica_moves import ReplicaMoves

            own = node.cpu_seconds, node.leaving, node.placement_rules
            self.load = NodeLoad(runtime, network, replicas, *own)
            asks = hub.stream_request, self.administration.occupied
            self.replica_moves = moves = ReplicaMoves(runtime, network, meta, self.service, *asks)
            self.balancer = Balancer(runtime, network, events, meta, node.balance_rules or BalanceRules, moves)
        self.registry = NodeRegistry(*basis, self.service, self.members, self.cluster_id, self.administration)
        self.meta_rescue = MetaRescue(*basis, self.flusher)
        self.scrubber = Scrubber(commits.kv, runtime.clock, runtime.timers, log, replicas)
        self.consumer_watch = ConsumerWatch(services, replicas, self.background)
        self.health_report = HealthReport(runtime, network, events, replicas)
        self.durability = Durability(mesh, log)
        self.joining = Joining(
            runtime, network, meta, self.members, self.cluster_id, self.background,
            expected_nodes=node.expected_nodes, settled=node.settled, roster=roster, founding=node.founding,
            came_back=node.removed,
        )  # fmt: skip
        health = network.raft.health
        health.watch(Aspect.SPACE, lambda: commits.failing if commits.full else "")
        health.watch(Aspect.SPACE, services.settings.account_quota.trouble)
        health.watch(Aspect.STORE, lambda: "" if commits.full else commits.failing)
        health.watch(Aspect.STORE, commits.kv.trouble)
        self.watch = NodeWatch(mesh, network.raft, runtime.clock, runtime.pulse)
        LeaderReads(mesh, meta, replicas, services.events.bus)
        self.every_node = EveryNode(mesh, runtime.clock, log, meta, replicas)


async def journal_synced(journal: Journal) -> None:
    """Returns once the journal is synced: flushed data must not be ahead of the journal that it came from."""
    synced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    journal.barrier(lambda: None if synced.done() else synced.set_result(None))
    await synced
