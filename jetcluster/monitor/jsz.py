"""/jsz: what JetStream holds on this node."""

from __future__ import annotations

from typing import Any

from jetcluster import API_LEVEL
from jetcluster.cluster.replica_info import cluster_object
from jetcluster.model.cluster_info import cluster_wire, group_name
from jetcluster.model.times import rfc3339
from jetcluster.monitor.source import Json, Query, flag, number
from jetcluster.monitor.view import NodeView, engine_of, now_text
from jetcluster.stream.info import state_object

DEFAULT_LIMIT = 1024
DEFAULT_SYNC_INTERVAL_NS = 120 * 10**9
"""What nats-server shows next to `sync_always`."""


def jsz(node: NodeView, query: Query) -> Json:
    """Raises QueryError."""
    engine = engine_of(node)
    account = query.get("acc", "")
    config, raft = flag(query, "config"), flag(query, "raft")
    streams = flag(query, "streams") or flag(query, "consumers") or config
    details = flag(query, "accounts") or streams or bool(account)
    leader_only, stream_leader_only = flag(query, "leader-only"), flag(query, "stream-leader-only")
    offset, limit = number(query, "offset", 0), number(query, "limit", DEFAULT_LIMIT)
    found = jetstream_stats(node)
    found |= {"server_id": node.server.server_id, "now": now_text(node)}
    if engine is None:
        config_off = {"max_memory": 0, "max_storage": 0}
        return found | {"disabled": True, "config": config_off, "limits": {}, "streams": 0, "consumers": 0, "total": 0}
    found |= {"config": jetstream_config(node), "limits": {}}
    if leader_only and not engine.meta.leading:
        # nats-server answers with the header fields alone too, so that a collector sees who is not the leader.
        return found | {"streams": 0, "consumers": 0, "messages": 0, "bytes": 0, "total": 0}
    found |= _totals(engine)
    meta = meta_cluster(node)
    if meta:
        found["meta_cluster"] = meta
    if engine.unassigned:
        # Ours, not nats-server's: data of streams that the meta group does not place here. It is kept.
        found["unassigned_streams"] = list(engine.unassigned)
    losses = getattr(getattr(engine.context, "raft", None), "losses", None)
    if losses:
        # Ours: what damage of the journal has taken from groups without another replica, found at this start.
        found["journal_losses"] = list(losses)
    accounts = sorted(_by_account(engine))
    if details:
        chosen = [name for name in accounts if not account or name == account][offset : offset + limit]
        if chosen:
            found["account_details"] = [
                _account(node, name, streams=streams, config=config, raft=raft, leader_only=stream_leader_only)
                for name in chosen
            ]
    found["total"] = len(accounts)
    return found


def jetstream_config(node: NodeView) -> Json:
    options, capacity = node.options.jetstream, node.jetstream.capacity
    found: Json = {
        "max_memory": capacity.max_memory,
        "max_storage": capacity.max_storage,
        "store_dir": node.jetstream.store_dir,
    }
    if options.sync_interval is None:
        found |= {"sync_interval": DEFAULT_SYNC_INTERVAL_NS, "sync_always": True}
    else:
        found["sync_interval"] = int(options.sync_interval * 1e9)
    if options.domain:
        found["domain"] = options.domain
    if options.strict:
        found["strict"] = True
    return found


def jetstream_stats(node: NodeView) -> Json:
    """Usage of this node, as /varz and /jsz both begin it."""
    engine = engine_of(node)
    if engine is None:
        api = {"level": 0, "total": 0, "errors": 0}
        return {**_usage([]), "accounts": 0, "ha_assets": 0, "api": api}
    replicas = list(engine.replicas.values())
    replicated = sum(1 for replica in replicas if len(replica.group.peers) > 1)
    return {
        **_usage(replicas),
        "accounts": len(node.jetstream.apis),
        "ha_assets": replicated + (1 if engine.clustered and engine.meta.group is not None else 0),
        "api": _api_counts(node.jetstream.apis.values()),
    }


def meta_cluster(node: NodeView) -> Json:
    """The meta group; {} on a node that stands alone or has not found its cluster yet."""
    engine = engine_of(node)
    if engine is None or not engine.clustered or engine.meta.group is None:
        return {}
    group = engine.meta.group
    found: Json = {"name": node.options.cluster_name}
    if group.leader is not None:
        found |= {"leader": _node_name(engine, group.leader), "peer": group.leader}
    if engine.meta.leading:
        found["replicas"] = [_meta_replica(engine, peer) for peer in group.peers if peer != engine.context.me]
    found["cluster_size"] = len(group.peers)
    found["pending"] = max(group.commit_index - group.applied_index, 0)
    return found


def _meta_replica(engine: Any, peer: str) -> Json:
    status = engine.meta.group.status()
    known = next((entry for entry in status.peers if entry.peer == peer), None)
    online = peer in engine.context.mesh.peers
    lag = max(status.commit_index - known.match_index, 0) if known is not None else status.commit_index
    found: Json = {"name": _node_name(engine, peer), "current": online and lag == 0}
    if not online:
        found["offline"] = True
    seen = known.last_seen if known is not None else 0.0
    found["active"] = int((engine.context.clock.monotonic() - seen) * 1e9) if seen else 0
    if lag:
        found["lag"] = lag
    return {**found, "peer": peer}


def _node_name(engine: Any, peer: str) -> str:
    if peer == engine.context.me:
        return str(engine.context.name)
    info = engine.context.mesh.peers.get(peer) or engine.context.nodes().get(peer)
    return info.name if info is not None else f"Server name unknown at this time (peerID: {peer})"


def _by_account(engine: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for replica in engine.replicas.values():
        found.setdefault(replica.assignment.account, []).append(replica)
    return found


def _usage(replicas: list[Any]) -> Json:
    """Bytes stored and, from max_bytes, promised, on this node."""
    found = {"memory": 0, "storage": 0, "reserved_memory": 0, "reserved_storage": 0}
    for replica in replicas:
        kind = "memory" if replica.assignment.memory else "storage"
        found[kind] += replica.store.state.bytes
        found[f"reserved_{kind}"] += max(int(replica.assignment.config["max_bytes"]), 0)
    return dict(found)


def _api_counts(apis: Any) -> Json:
    counters = [api.counters for api in apis]
    return {
        "level": API_LEVEL,
        "total": sum(counter.total for counter in counters),
        "errors": sum(counter.errors for counter in counters),
    }


def _totals(engine: Any) -> Json:
    replicas = list(engine.replicas.values())
    found: Json = {"streams": len(replicas)}
    leading = sum(1 for replica in replicas if replica.leading)
    if engine.clustered and leading:
        found["streams_leader"] = leading
    found |= {
        "consumers": 0,  # consumers come with a later release of jetcluster; until then none can exist
        "messages": sum(replica.store.state.messages for replica in replicas),
        "bytes": sum(replica.store.state.bytes for replica in replicas),
    }
    return found


def _account(node: NodeView, name: str, *, streams: bool, config: bool, raft: bool, leader_only: bool) -> Json:
    engine = engine_of(node)
    replicas = sorted(_by_account(engine)[name], key=lambda replica: str(replica.assignment.name))
    api = node.jetstream.apis.get(name)
    found: Json = {
        "name": name,
        "id": name,
        **_usage(replicas),
        "accounts": 0,
        "ha_assets": 0,
        "api": _api_counts([api] if api is not None else []),
    }
    if streams:
        shown = [replica for replica in replicas if replica.leading or not leader_only]
        if shown:
            found["stream_detail"] = [_stream(engine, replica, config=config, raft=raft) for replica in shown]
    return found


def _stream(engine: Any, replica: Any, *, config: bool, raft: bool) -> Json:
    assignment = replica.assignment
    found: Json = {
        "name": assignment.name,
        "created": rfc3339(assignment.created_ns),
        "cluster": stream_cluster(engine, replica),
    }
    if config:
        found["config"] = dict(assignment.config)
    found["state"] = state_object(replica.store)
    if raft and assignment.replicas > 1:
        found["stream_raft_group"] = group_name(assignment.gid, assignment.replicas, assignment.memory)
    return found


def stream_cluster(engine: Any, replica: Any) -> Json:
    """The `cluster` object from this replica's point of view. Only a leader knows how far the others are, so a follower
    leaves `replicas` out rather than show them as behind."""
    if replica.leading:
        return cluster_object(engine.context, replica)
    leader = replica.group.leader
    return cluster_wire(
        name=engine.context.cluster_name,
        leader=_node_name(engine, leader) if leader is not None else None,
        gid=replica.assignment.gid,
        replicas=len(replica.group.peers),
        memory=replica.assignment.memory,
    )
