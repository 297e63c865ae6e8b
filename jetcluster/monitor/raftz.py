"""/raftz: Raft groups of this node, by account; the meta group is the system account's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetcluster.model import durations
from jetcluster.model.cluster_info import group_name
from jetcluster.model.times import rfc3339
from jetcluster.monitor.jsz import log_bytes, node_name
from jetcluster.monitor.source import Json, Query
from jetcluster.monitor.view import NodeView, engine_of
from jetcluster.raft.api import GroupStatus, Role
from jetcluster.raft.core.group import Group

if TYPE_CHECKING:
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.raft.api import PeerStatus, RaftGroup
    from jetcluster.replica.stream_replica import StreamReplica

META = "_meta_"


def raftz(node: NodeView, query: Query) -> Json:
    """`acc`: the account, the system account when absent; `group`: one group. {} where there is nothing."""
    engine = engine_of(node)
    system = node.options.system_account_name
    account, wanted = query.get("acc", "") or system, query.get("group", "")
    if engine is None or not engine.clustered:
        return {}
    found: Json = {}
    for name, group, replica in _groups(engine, account, system):
        if not wanted or name == wanted:
            found[name] = _group(engine, group, replica, system)
    return {account: found} if found else {}


def _groups(engine: JetStream, account: str, system: str) -> list[tuple[str, RaftGroup, StreamReplica | None]]:
    """(name, Raft group, stream replica or None)."""
    found: list[tuple[str, RaftGroup, StreamReplica | None]] = []
    if account == system and engine.meta.group is not None:
        found.append((META, engine.meta.group, None))
    for gid, replica in engine.replicas.items():
        assignment = replica.assignment
        if assignment.account == account and assignment.replicas > 1:
            found.append((group_name(gid, assignment.replicas, assignment.memory), replica.group, replica))
    return found


def _group(engine: JetStream, group: RaftGroup, replica: StreamReplica | None, system: str) -> Json:
    status = group.status()
    size = len(group.peers)
    found: Json = {
        "id": engine.context.me,
        "state": status.role.name,
        "size": size,
        "quorum_needed": size // 2 + 1,
        "committed": status.commit_index,
        "applied": status.applied_index,
    }
    if status.needs_snapshot or (replica is not None and replica.installing):
        found["catching_up"] = True
    if status.leader is not None:
        found["leader"] = status.leader
    voted = group.log.voted_for if isinstance(group, Group) else None
    since = replica.leader_since_ns if replica is not None else 0
    if since:
        found["leader_since"] = rfc3339(since)
    found |= {
        "ever_had_leader": status.leader is not None or status.term > 0,
        "term": status.term,
        **({"voted_for": voted} if voted else {}),
        **_queues(status),
        "pterm": status.term,
        "pindex": status.last_index,
        "system_account": True,
        "traffic_account": system,
        "wal": {
            "messages": max(status.last_index - status.first_index + 1, 0),
            "bytes": log_bytes(group),
            "first_seq": status.first_index,
            "last_seq": status.last_index,
            "durable_seq": status.durable_index,
        },
    }
    if status.stopped:
        found["wal_error"] = status.stopped
    found["peers"] = {peer.peer: _peer(engine, peer) for peer in status.peers}
    return found


def _queues(status: GroupStatus) -> Json:
    """Lengths of a group's queues, under nats-server's names: proposals that wait for their majority, entries for the
    journal's sync, committed entries for apply. Answers of followers never wait: each is worked off when it comes."""
    leads = status.role is Role.LEADER
    return {
        "ipq_proposal_len": max(status.last_index - status.commit_index, 0) if leads else 0,
        "ipq_entry_len": max(status.last_index - status.durable_index, 0),
        "ipq_resp_len": 0,
        "ipq_apply_len": max(status.commit_index - status.applied_index, 0),
    }


def _peer(engine: JetStream, peer: PeerStatus) -> Json:
    found: Json = {"name": node_name(engine, peer.peer), "known": True}
    if peer.match_index:
        found["last_replicated_index"] = peer.match_index
    if peer.last_seen:
        found["last_seen"] = durations.render(int(max(engine.context.clock.monotonic() - peer.last_seen, 0) * 1e9))
    return found
