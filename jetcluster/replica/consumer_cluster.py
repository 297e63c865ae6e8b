"""The `cluster` object of a consumer: its leader is its owner, its
group the stream's. One that was asked for with fewer replicas shows as many as it was given, though its state is where
the stream is: clients compare what is shown with what they asked for."""

from __future__ import annotations

from typing import Any

from jetcluster.consumer.state.state import ConsumerState
from jetcluster.model import consumer_advisory as events
from jetcluster.model.cluster_info import ReplicaInfo, cluster_wire, replica_wire
from jetcluster.replica.advisories import tell_both
from jetcluster.replica.context import NodeContext
from jetcluster.replica.replica_info import own_replica_info, replica_infos
from jetcluster.replica.replica_state import ReplicaState


def consumer_cluster(
    replica: ReplicaState, state: ConsumerState, peers: list[ReplicaInfo], leader_since_ns: int = 0
) -> dict[str, Any] | None:
    """As the stream's leader sees it; None on a single server. `peers`: `all_replicas`. `leader_since_ns`: when the
    owner began, 0: nobody knows. The leader has seen itself just now: 0 would be "never"."""
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
    """This node owns the consumer now: told to the stream's account and, with that account's name, to the system
    account. The owner in a group of one tells nothing."""
    if len(replica.group.peers) < 2:
        return
    event = events.leader_elected(replica.assignment.name, state.name, replica.context.name)
    tell_both(replica, event, replicas=lambda: [replica_wire(info) for info in all_replicas(replica)])


def all_replicas(replica: ReplicaState) -> list[ReplicaInfo]:
    context = replica.context
    return [own_replica_info(context), *replica_infos(replica)] if context.cluster_name else []


def peer_name(context: NodeContext, peer: str) -> str:
    if peer == context.me:
        return context.name
    node = context.nodes().get(peer)
    return node.name if node is not None else f"Server name unknown at this time (peerID: {peer})"
