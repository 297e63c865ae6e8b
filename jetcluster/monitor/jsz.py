"""/jsz: the content of JetStream on this node; consumers as this node's replica of their stream knows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Final, NamedTuple

from jetcluster import API_LEVEL
from jetcluster.budget import Steps
from jetcluster.consumer.info import NO_SHARING, consumer_info
from jetcluster.model.cluster_info import cluster_wire, group_name
from jetcluster.model.consumer_rules import shown
from jetcluster.model.times import rfc3339
from jetcluster.monitor.claims_view import account_name
from jetcluster.monitor.lag import LagNotes
from jetcluster.monitor.source import Json, NotAskedError, Query, flag, number
from jetcluster.monitor.view import apis_of, assignments_of, engine_of, now_text, untold_streams
from jetcluster.node.node import Node
from jetcluster.raft.core.group import Group
from jetcluster.stream.read.msg_get import state_object

if TYPE_CHECKING:
    from jetcluster.api.dispatch import JetStreamApi
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.raft.api import RaftGroup
    from jetcluster.replica.stream_replica import StreamReplica


MAX_UNTOLD: Final = 20
MAX_UNTOLD_LISTED: Final = 1000
"""Streams of which no server tells that are named; all are counted. The latter where streams are asked for."""


def consumer_count(replica: StreamReplica) -> int:
    """Returns the number of a stream's consumers, without those of mirrors and sources."""
    return sum(1 for state in replica.consumers.table.by_cid.values() if not state.rules.direct)


def each_consumer(engine: JetStream, replica: StreamReplica, *, config: bool, direct: bool = False) -> Iterator[Json]:
    """Yields a ConsumerInfo for each consumer, in order of their names; `direct`: for those of mirrors and sources
    instead. Waiting pulls and bound push consumers are only known on the node that owns them; only a leader knows the
    positions of the replicas. Consumers may come and go between two steps. Raises DamagedError."""
    host, clock = replica.consumers, engine.runtime.clock
    peers = replica.infos.all() if replica.leading else []
    for name in sorted(host.table.by_name):
        state = host.table.by_name.get(name)
        if state is None or state.rules.direct != direct:
            continue
        hosted = host.running.get(state.cid)
        owner = hosted.owner if hosted is not None else None
        info = consumer_info(
            replica.assignment.name,
            state,
            replica.store,
            clock.time_ns(),
            replica.machine.rules,
            num_waiting=owner.num_waiting if owner is not None else 0,
            push_bound=owner is not None and owner.push_bound,
            sharing=owner.key_sharing if owner is not None else NO_SHARING,
            letter_error=owner.letter_trouble if owner is not None else "",
            cluster=replica.infos.consumer_cluster(state, peers, hosted.since if hosted is not None else 0),
        )
        if config:
            info["config"] = shown(info["config"])
        else:
            del info["config"]
        yield info


DEFAULT_LIMIT = 1024
DEFAULT_SYNC_INTERVAL_NS = 120 * 10**9
"""The interval that nats-server shows beside `sync_always`."""


def jsz_steps(node: Node, query: Query) -> Steps[Json]:
    """Raises QueryError, NotAskedError. The streams and consumers are read at different times."""
    engine = engine_of(node)
    account = query.get("acc", "")
    config, raft = flag(query, "config"), flag(query, "raft")
    consumers, direct = flag(query, "consumers"), flag(query, "direct-consumers")
    streams = flag(query, "streams") or consumers
    details = flag(query, "accounts") or streams or bool(account)
    leader_only, stream_leader_only = flag(query, "leader-only"), flag(query, "stream-leader-only")
    offset, limit = number(query, "offset", 0), number(query, "limit", DEFAULT_LIMIT)
    stream_offset, stream_limit = number(query, "stream-offset", 0), number(query, "stream-limit", 0)
    found = jetstream_stats(node)
    found |= {"server_id": node.server.server_id, "now": now_text(node)}
    if engine is None:
        config_off = {"max_memory": 0, "max_storage": 0}
        return found | {"disabled": True, "config": config_off, "limits": {}, "streams": 0, "consumers": 0, "total": 0}
    found |= {"config": jetstream_config(node), "limits": jetstream_limits(node)}
    if leader_only and not engine.meta.leading:
        raise NotAskedError("filtered response: not leader")
    found |= _totals(engine)
    meta = meta_cluster(node, MAX_UNTOLD_LISTED if streams else MAX_UNTOLD)
    if meta:
        found["meta_cluster"] = meta
    rescues = engine.meta.machine.rescues
    if rescues:
        # Ours: when the meta group went on without its majority, and without which servers.
        found["rescues"] = [
            {
                "number": rescue.number,
                "time": rfc3339(rescue.at_ns),
                "by": rescue.by,
                "survivors": sorted(rescue.survivors.values()),
                "left_out": sorted(rescue.lost.values()),
            }
            for rescue in rescues
        ]
    if engine.unassigned:
        # Ours, not nats-server's: data of streams that the meta group does not place here. It is kept.
        found["unassigned_streams"] = list(engine.unassigned)
    found["disk"] = {"free": engine.network.raft.journal.free, "size": engine.network.raft.journal.disk_size}  # ours
    found["scrub"] = {  # ours
        "passes": engine.scrubber.passes,
        "bytes": engine.scrubber.bytes,
        "damaged_replicas": sum(bool(replica.damaged) for replica in engine.replicas.values()),
        "damage_found": sum(replica.repair.found for replica in engine.replicas.values()),
        "replicas_repaired": sum(replica.repair.repaired for replica in engine.replicas.values()),
    }
    found["hashes"] = {  # ours: replicas compare themselves
        "compared": engine.drift.compared,
        "rebuilt": sum(replica.divergences for replica in engine.replicas.values()),
        "undecided": [_stream_name(engine, gid) for gid in engine.drift.votes.undecided],
    }
    catching_up = engine.network.catchup.progress()
    if catching_up:
        # Ours: streams whose state is being fetched from another node, with what was compared and fetched so far.
        found["catching_up"] = [
            {
                "account": _account_of(engine, pull.gid),
                "stream": _stream_name(engine, pull.gid),
                "bytes": pull.compared,
                "fetched_bytes": pull.fetched,
                "total_bytes": pull.size,
                "lag": pull.missing,  # messages
                "seconds": round(seconds, 1),
            }
            for pull, seconds in catching_up
        ]
    if losses := engine.network.raft.losses:
        # Ours: what damage of the journal has taken from groups without another replica, found at this start.
        found["journal_losses"] = list(losses)
    by_account = _by_account(engine)
    accounts = sorted({*by_account, *apis_of(node)})
    if details:
        # A named account is shown regardless of its position: the pages are of all accounts.
        chosen = [name for name in accounts if name == account] if account else accounts[offset : offset + limit]
        notes = _notes(node) if flag(query, "lag") else None
        wanted, shown = _Wanted(streams, consumers, direct, config, raft, stream_leader_only, notes), []
        page: Mapping[str, list[StreamReplica]] = {}
        if streams and stream_limit:
            # Ours: the streams of all accounts in pages, of which each has the accounts that have a stream on it.
            of = {name: by_account[name] for name in ([account] if account else accounts) if name in by_account}
            page, found["stream_total"] = _page(of, wanted, stream_offset, stream_limit)
            chosen = list(page)
        for name in chosen:
            replicas = by_account.get(name, [])
            shown.append((yield from _account(node, engine, name, replicas, wanted, page.get(name))))
            yield
        if shown:
            found["account_details"] = shown
    found["total"] = len(accounts)
    return found


def jetstream_config(node: Node) -> Json:
    options, jetstream = node.options.jetstream, node.jetstream
    assert jetstream is not None and jetstream.capacity is not None
    capacity = jetstream.capacity
    found: Json = {
        "max_memory": capacity.max_memory,
        "max_storage": capacity.max_storage,
        "store_dir": jetstream.store_dir,
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


def jetstream_limits(node: Node) -> Json:
    """The limits in force, durations in nanoseconds. A limit that is not set is left out, except
    `default_max_consumers`, which nats-server always shows."""
    options = node.options.jetstream
    found = {
        "max_request_batch": options.max_request_batch,
        "max_ack_pending": options.max_ack_pending,
        "max_ha_assets": options.max_ha_assets,
        "max_duplicate_window": int(options.duplicate_window * 1e9),
        "max_batch_inflight_per_stream": options.max_batch_inflight_per_stream,
        "max_batch_inflight_total": options.max_batch_inflight_total,
        "max_batch_size": options.max_batch_size,
        "max_batch_timeout": int(options.max_batch_timeout * 1e9),
        "default_max_consumers": options.default_max_consumers or -1,
    }
    return {name: value for name, value in found.items() if value}


def jetstream_stats(node: Node) -> Json:
    """Returns the usage of this node, which /varz and /jsz share."""
    engine = engine_of(node)
    if engine is None:
        api = {"level": 0, "total": 0, "errors": 0}
        return {**_usage([]), "accounts": 0, "ha_assets": 0, "api": api}
    replicas = list(engine.replicas.values())
    replicated = sum(1 for replica in replicas if len(replica.group.peers) > 1)
    return {
        **_usage(replicas),
        "accounts": len(apis_of(node)),
        "ha_assets": replicated + (1 if engine.clustered and engine.meta.group is not None else 0),
        "api": _api_counts(apis_of(node).values()),
    }


def meta_cluster(node: Node, untold: int = MAX_UNTOLD) -> Json:
    """Returns the meta group, with the first `untold` streams of each kind of `UntoldStreams`. Only its name until this
    node has found its cluster; {} on a standalone server."""
    engine = engine_of(node)
    if engine is None or not engine.clustered:
        return {}
    group = engine.meta.group
    found: Json = {"name": node.options.cluster_name}
    if group is None:
        return found | {"cluster_size": 0}
    if group.leader is not None:
        found |= {"leader": node_name(engine, group.leader), "peer": group.leader}
    # All others; without a leader this server, too. The stock tool takes whichever server answers first, and counts.
    # A server left out of a rescue is shown until SERVER.REMOVE or a successor takes it off the list.
    machine = engine.meta.machine
    left_out = [peer for peer in machine.left_out if peer in machine.nodes]
    listed = *group.peers, *sorted(group.members.difference(group.peers)), *left_out
    alone = engine.network.me if group.leader is not None else None
    found["replicas"] = [_meta_replica(engine, peer) for peer in listed if peer != alone]
    found |= {"cluster_size": len(group.members), "quorum_needed": len(group.peers) // 2 + 1}
    found["pending"] = max(group.commit_index - group.applied_index, 0)
    waiting = [api.waiting() for api in apis_of(node).values()]
    found["pending_requests"] = sum(total - infos for total, infos in waiting)
    found["pending_infos"] = sum(infos for _, infos in waiting)
    if group.leader in (engine.network.me, None):
        for kind, gids in untold_streams(engine)._asdict().items():
            if gids:
                found[kind] = {"streams": len(gids), "first": _places_of(engine, gids, untold)}
    status = group.status()
    found["snapshot"] = {
        "pending_entries": max(status.last_index - status.first_index + 1, 0),
        "pending_size": log_bytes(group),
    }
    return found


def _places_of(engine: JetStream, gids: Set[int], most: int) -> list[Json]:
    """The servers are those of the replicas; of one that is no member any more nobody knows the name."""
    nodes = engine.meta.machine.nodes
    return [
        {
            "account": one.account,
            "name": one.name,
            "servers": [node_name(engine, peer) for peer in one.peers if peer in nodes],
        }
        for one in assignments_of(engine, gids, most)
    ]


def log_bytes(group: RaftGroup) -> int:
    """Bytes of the group's entries in the journal."""
    return group.log.bytes if isinstance(group, Group) else 0


def _meta_replica(engine: JetStream, peer: str) -> Json:
    assert engine.meta.group is not None
    status = engine.meta.group.status()
    known = next((entry for entry in status.peers if entry.peer == peer), None)
    if peer == engine.network.me:
        return {"name": node_name(engine, peer), "current": True, "active": 0, "peer": peer}
    online = peer in engine.network.mesh.peers
    lag = max(status.commit_index - known.match_index, 0) if known is not None else status.commit_index
    seen = known.last_seen if known is not None else 0.0
    if not engine.meta.leading and engine.meta.group.leader is not None:
        lag, seen = 0, engine.network.raft.peers.last_seen(peer)  # how far others are only the leader knows
    found: Json = {"name": node_name(engine, peer), "current": online and lag == 0}
    if not online:
        found["offline"] = True
    found["active"] = int((engine.runtime.clock.monotonic() - seen) * 1e9) if seen else 0
    if lag:
        found["lag"] = lag
    return {**found, "peer": peer}


def node_name(engine: JetStream, peer: str) -> str:
    if peer == engine.network.me:
        return str(engine.network.name)
    info = engine.network.mesh.peers.get(peer) or engine.known.machine.nodes.get(peer)
    return info.name if info is not None else f"Server name unknown at this time (peerID: {peer})"


def _account_of(engine: JetStream, gid: int) -> str:
    replica = engine.replicas.get(gid)
    return str(replica.assignment.account) if replica is not None else ""


def _stream_name(engine: JetStream, gid: int) -> str:
    replica = engine.replicas.get(gid)
    return str(replica.assignment.name) if replica is not None else "_meta_"


def _by_account(engine: JetStream) -> dict[str, list[StreamReplica]]:
    found: dict[str, list[StreamReplica]] = {}
    for replica in engine.replicas.values():
        found.setdefault(replica.assignment.account, []).append(replica)
    return found


def _usage(replicas: list[StreamReplica]) -> Json:
    """Bytes stored and, from max_bytes, promised, on this node."""
    found = {"memory": 0, "storage": 0, "reserved_memory": 0, "reserved_storage": 0}
    for replica in replicas:
        kind = "memory" if replica.assignment.memory else "storage"
        found[kind] += replica.store.state.bytes
        found[f"reserved_{kind}"] += max(int(replica.assignment.config["max_bytes"]), 0)
    return dict(found)


def _api_counts(apis: Iterable[JetStreamApi]) -> Json:
    counters = [api.counters for api in apis]
    return {
        "level": API_LEVEL,
        "total": sum(counter.total for counter in counters),
        "errors": sum(counter.errors for counter in counters),
    }


def _totals(engine: JetStream) -> Json:
    replicas = list(engine.replicas.values())
    found: Json = {"streams": len(replicas)}
    leading = sum(1 for replica in replicas if replica.leading)
    if engine.clustered and leading:
        found["streams_leader"] = leading
    found["consumers"] = sum(consumer_count(replica) for replica in replicas)
    owned = sum(replica.consumers.hosted for replica in replicas)
    if engine.clustered and owned:
        found["consumers_leader"] = owned
    found |= {
        "messages": sum(replica.store.state.messages for replica in replicas),
        "bytes": sum(replica.store.state.bytes for replica in replicas),
        # Ours, not nats-server's: uploads to `$OBJ` buckets that are under way on leaders of this node.
        "object_uploads": sum(replica.objects.open_uploads for replica in replicas if replica.objects is not None),
    }
    return found


def account_detail(node: Node, account: str, query: Query) -> Steps[Json | None]:
    """Makes an account as in `account_details`, with zeros when it has nothing here; None until JetStream runs.
    Raises QueryError."""
    engine = engine_of(node)
    if engine is None:
        return None
    replicas = _by_account(engine).get(account, [])
    config, consumers = flag(query, "config"), flag(query, "consumers")
    streams = flag(query, "streams") or consumers
    wanted = _Wanted(
        streams, consumers, flag(query, "direct-consumers"), config, flag(query, "raft"), flag(query, "leader-only"),
        _notes(node) if flag(query, "lag") else None,
    )  # fmt: skip
    return (yield from _account(node, engine, account, replicas, wanted))


def _notes(node: Node) -> LagNotes | None:
    """The notes that all pages of the node share, told that they are asked for."""
    notes = node.monitoring.notes
    if not isinstance(notes, LagNotes):
        return None
    notes.asked()
    return notes


class _Wanted(NamedTuple):
    """The parts of an account that a query asks for."""

    streams: bool
    consumers: bool
    direct: bool
    config: bool
    raft: bool
    leader_only: bool
    lag: LagNotes | None
    """None when the lag of replicas is not asked for."""


def _by_name(replicas: Iterable[StreamReplica]) -> list[StreamReplica]:
    return sorted(replicas, key=lambda replica: str(replica.assignment.name))


def _page(
    accounts: Mapping[str, list[StreamReplica]], wanted: _Wanted, offset: int, limit: int
) -> tuple[dict[str, list[StreamReplica]], int]:
    """Returns (streams by account, how many there are of all), of `limit` streams behind the first `offset`, in order
    of `accounts` and of their names."""
    found: dict[str, list[StreamReplica]] = {}
    total = 0
    for name, replicas in accounts.items():
        listed = [replica for replica in replicas if replica.leading or not wanted.leader_only]
        start, end = max(offset - total, 0), max(offset + limit - total, 0)
        total += len(listed)
        if start < len(listed) and end > 0:  # only what is on the page is sorted
            found[name] = _by_name(listed)[start:end]
    return found, total


def _account(
    node: Node,
    engine: JetStream,
    name: str,
    replicas: list[StreamReplica],
    wanted: _Wanted,
    page: list[StreamReplica] | None = None,
) -> Steps[Json]:
    """Makes an account as in `account_details`; `page`: the streams of it that are shown, None for all."""
    api = apis_of(node).get(name)
    found: Json = {
        "name": account_name(node, name),
        "id": name,
        **_usage(replicas),
        "accounts": 0,
        "ha_assets": 0,
        "api": _api_counts([api] if api is not None else []),
    }
    if wanted.streams:
        shown = []
        for replica in _by_name(replicas) if page is None else page:
            gone = engine.replicas.get(replica.assignment.gid) is not replica  # between two steps
            if not gone and (replica.leading or not wanted.leader_only):
                shown.append((yield from _stream(engine, replica, wanted)))
                yield
        if shown:
            found["stream_detail"] = shown
    return found


def _stream(engine: JetStream, replica: StreamReplica, wanted: _Wanted) -> Steps[Json]:
    assignment = replica.assignment
    found: Json = {
        "name": assignment.name,
        "created": rfc3339(assignment.created_ns),
        "cluster": stream_cluster(engine, replica),
    }
    if wanted.lag is not None and replica.leading:
        _add_lag(found["cluster"], engine, replica, wanted.lag)
    if wanted.config:
        found["config"] = dict(assignment.config)
    found["state"] = state_object(replica.store, consumers=replica.machine.consumer_count)
    # `lag_seconds` and `silent_seconds` are ours: how old the data may be, and when the upstream was heard.
    found |= replica.mirrors.links.info(seconds=True)
    if wanted.consumers:
        details = yield from _consumers(engine, replica, config=wanted.config)
        if details:
            found["consumer_detail"] = details
    if wanted.direct:
        details = yield from _consumers(engine, replica, config=wanted.config, direct=True)
        if details:
            found["direct_consumer_detail"] = details
    name = stream_group_name(replica)
    if wanted.raft and name:
        found["stream_raft_group"] = name
        # A stream's consumers live in its own log.
        consumers = sorted(replica.consumers.table.by_name)
        if consumers:
            found["consumer_raft_groups"] = [{"name": consumer, "raft_group": name} for consumer in consumers]
    return found


def _add_lag(cluster: Json, engine: JetStream, replica: StreamReplica, notes: LagNotes) -> None:
    """Adds `lag_messages` and `lag_seconds` (ours) to the replicas."""
    lags = {node_name(engine, peer): lag for peer, lag in notes.peers(engine, replica)}
    for one in cluster.get("replicas", ()):
        if (lag := lags.get(one["name"])) is not None:
            one |= {"lag_messages": lag.messages, "lag_seconds": round(lag.seconds, 3)}


def _consumers(engine: JetStream, replica: StreamReplica, *, config: bool, direct: bool = False) -> Steps[list[Json]]:
    found = []
    for consumer in each_consumer(engine, replica, config=config, direct=direct):
        found.append(consumer)
        yield
        if engine.replicas.get(replica.assignment.gid) is not replica:
            break  # the stream has gone meanwhile
    return found


def stream_group_name(replica: StreamReplica) -> str:
    """Returns "" for a stream with one replica, as in nats-server."""
    assignment = replica.assignment
    if assignment.replicas == 1:
        return ""
    return group_name(assignment.gid, assignment.replicas, assignment.memory)


def stream_leader(engine: JetStream, replica: StreamReplica) -> str:
    """The leader's name; "" without a leader."""
    leader = engine.network.me if replica.leading else replica.group.leader
    return node_name(engine, leader) if leader is not None else ""


def stream_cluster(engine: JetStream, replica: StreamReplica) -> Json:
    """Returns the `cluster` object as this replica sees it. Only a leader knows the positions of the others, so a
    follower leaves `replicas` out rather than show them as late."""
    if replica.leading:
        return replica.infos.cluster_object()
    leader = replica.group.leader
    return cluster_wire(
        name=engine.network.cluster_name,
        leader=node_name(engine, leader) if leader is not None else None,
        gid=replica.assignment.gid,
        replicas=len(replica.group.peers),
        memory=replica.assignment.memory,
        traffic_account=engine.services.settings.system_account,
    )
