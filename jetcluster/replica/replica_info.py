"""A stream's replicas as its leader sees them, and the `cluster` objects of STREAM.INFO and CONSUMER.INFO.

A consumer's leader is its owner, and its group is the stream's. A consumer created with fewer replicas shows that
number, although every replica of the stream holds its state: clients compare the number with their configuration.
"""

from __future__ import annotations

from typing import Any

from jetcluster.consumer.state.state import ConsumerState
from jetcluster.model import advisory as events
from jetcluster.model.cluster_info import ReplicaInfo, cluster_wire, desired_wire, replica_wire
from jetcluster.raft.api import GroupStatus, PeerStatus
from jetcluster.replica.context import NodeContext
from jetcluster.replica.replica_state import ReplicaState, tell_both

ACTIVE_SECONDS = 10.0
"""A replica that was heard within this time, and lacks nothing, is current."""


def cluster_object(replica: ReplicaState) -> dict[str, Any]:
    context = replica.context
    peers = replica.group.peers
    return cluster_wire(
        name=context.cluster_name,
        leader=context.name,
        gid=replica.assignment.gid,
        replicas=len(peers),
        memory=replica.machine.rules.memory,
        leader_since_ns=replica.leader_since_ns,
        traffic_account=context.system_account,
        others=replica_infos(replica),
        desired=_desired(replica),
    )


def _desired(replica: ReplicaState) -> dict[str, Any] | None:
    """The target of a move in progress."""
    assignment, voters = replica.assignment, replica.group.peers
    origin = assignment.origin
    if origin is None or set(voters) == set(assignment.peers):
        return None
    context = replica.context
    nodes = context.nodes()
    named = [(nodes[peer].name if peer in nodes else "", peer) for peer in assignment.peers]
    return desired_wire(
        name=context.cluster_name,
        since_ns=origin.since_ns,
        peers=named,
        origin_replicas=len(origin.peers),
        origin_placement=origin.placement,
        catching_up=not set(assignment.peers) <= set(voters),
    )


def replica_infos(replica: ReplicaState) -> list[ReplicaInfo]:
    """All peers of the group except this node."""
    context = replica.context
    now = context.clock.monotonic()
    status = replica.group.status()
    seen = {peer.peer: peer for peer in status.peers}
    nodes = context.nodes()
    found = []
    voters = replica.group.peers
    for peer in dict.fromkeys((*voters, *replica.assignment.peers)):
        if peer == context.me:
            continue
        known, node = seen.get(peer), nodes.get(peer)
        online = peer in context.mesh.peers
        lag = _lag(replica, status, known) if known is not None else 0
        idle = now - known.last_seen if known is not None and known.last_seen else None
        found.append(
            ReplicaInfo(
                name=node.name if node is not None else f"Server name unknown at this time (peerID: {peer})",
                peer=peer,
                current=peer in voters and online and lag == 0 and idle is not None and idle < ACTIVE_SECONDS,
                active_ns=max(int(idle * 1e9), 0) if idle is not None else 0,  # a heartbeat may have come just now
                offline=not online,
                lag=lag,
            )
        )
    return found


def _lag(replica: ReplicaState, status: GroupStatus, peer: PeerStatus) -> int:
    """Log entries that the peer lacks; messages while it has to fetch the whole state."""
    missing = replica.context.catchup.missing(status.gid, peer.peer)
    if missing is not None:
        return max(missing, 1)
    if peer.match_index + 1 < status.first_index:
        return max(replica.store.messages, 1)
    return max(status.commit_index - peer.match_index, 0)


def own_replica_info(context: NodeContext) -> ReplicaInfo:
    return ReplicaInfo(name=context.name, peer=context.me, current=True, active_ns=0)


def consumer_cluster(
    replica: ReplicaState, state: ConsumerState, peers: list[ReplicaInfo], leader_since_ns: int = 0
) -> dict[str, Any] | None:
    """The `cluster` object as the stream's leader sees it; None on a single server. `peers`: `all_replicas`.
    `leader_since_ns`: when the owner began, 0 if unknown. The leader shows itself as seen just now: 0 means "never"."""
    context = replica.context
    if not context.cluster_name:
        return None
    asked = int(state.rules.config.get("num_replicas") or 0)
    replicas = min(asked or len(replica.group.peers), len(replica.group.peers))
    cluster = cluster_wire(
        name=context.cluster_name,
        leader=peer_name(context, state.owner),
        gid=replica.assignment.gid,
        replicas=replicas,
        memory=replica.assignment.memory,
        leader_since_ns=leader_since_ns,
        traffic_account=context.system_account,
        others=[
            other._replace(active_ns=1) if other.peer == context.me else other
            for other in peers
            if other.peer != state.owner
        ][: replicas - 1],
    )
    if "raft_group" in cluster:
        cluster["raft_group"] = "C" + cluster["raft_group"][1:]
    return cluster


def tell_elected(replica: ReplicaState, state: ConsumerState) -> None:
    """Send the advisory that this node owns the consumer now, to the stream's account and, with that account's name, to
    the system account. An owner in a group of one sends none."""
    if len(replica.group.peers) < 2:
        return
    event = events.consumer_leader_elected(replica.assignment.name, state.name, replica.context.name)
    tell_both(replica, event, replicas=lambda: [replica_wire(info) for info in all_replicas(replica)])


def all_replicas(replica: ReplicaState) -> list[ReplicaInfo]:
    context = replica.context
    return [own_replica_info(context), *replica_infos(replica)] if context.cluster_name else []


def peer_name(context: NodeContext, peer: str) -> str:
    if peer == context.me:
        return context.name
    node = context.nodes().get(peer)
    return node.name if node is not None else f"Server name unknown at this time (peerID: {peer})"
