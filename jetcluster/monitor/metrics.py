"""/metrics for Prometheus.

`gnatsd_*` is what prometheus-nats-exporter makes of /varz, /connz, /routez, /leafz, /subsz, /accstatz and /healthz,
`jetstream_*` what it makes of /jsz with all its details: the same names and labels, so that its dashboards work here.
`server_id` is the server's name, as with the exporter's `-use_internal_server_name`: the id changes with every start.
`jetcluster_*` are this server's own metrics: replicas, latencies, batches, damage.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jetcluster import REPORTED_VERSION, __version__
from jetcluster.health.node_health import Aspect
from jetcluster.model.times import MILLISECOND, SECOND, parse_rfc3339
from jetcluster.monitor.connz import DEFAULT_LIMIT
from jetcluster.monitor.exposition import Exposition, Labels
from jetcluster.monitor.jsz import each_consumer, node_name, stream_group_name, stream_leader
from jetcluster.monitor.lag import LagNotes
from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.source import Health, Json, Query, QueryError
from jetcluster.monitor.view import engine_of, figures, leaf_links, links_of, mesh_of, untold_streams
from jetcluster.node.node import Node
from jetcluster.replica.reads.membership import TIMED_EVERY
from jetcluster.store.api import DamagedError

if TYPE_CHECKING:
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.replica.stream_replica import StreamReplica

_CONNECTION_LABELS = (
    "cid", "kind", "type", "ip", "port", "name", "lang", "version", "tls_version", "tls_cipher_suite",
)  # fmt: skip
_TEXTS = ("server_id", "server_name", "version", "cluster_name", "jetstream_meta_leader", "jetstream_meta_name")
_TIMES = ("start", "config_load_time")
_NO_LIMIT = ("conn", "data", "exports", "imports", "leaf", "payload", "subs", "wildcards")
"""The exporter shows limits of JWT accounts, and 0 where an account comes from the configuration."""


def server_metrics(out: Exposition, node: Node, source: NodeSource, core: str, query: Query) -> None:
    """`core`: the prefix, `gnatsd` unless asked otherwise."""
    own: Labels = (("server_id", node.server.name),)
    _numbers(out, f"{core}_varz", source.page("varz", {}), own)
    _connections(out, f"{core}_connz", node, own)
    if query.get("connections"):
        _each_connection(out, f"{core}_connz", node, source, own, query)
    _routes(out, f"{core}_routez", node, own)
    _leafs(out, f"{core}_leafz", node, own)
    _numbers(out, f"{core}_subsz", source.page("subsz", {}), own)
    stats = source.page("accstatz", {"unused": "1"})["account_statz"]
    _account_stats(out, f"{core}_accstatz", stats, own)
    _account_details(out, f"{core}_accountz", node, stats, own)


def health_metric(out: Exposition, node: Node, core: str, health: Health) -> None:
    own = (("server_id", node.server.name),)
    out.gauge(f"{core}_healthz_status", "0 is healthy", 0 if health.status == 200 else 1, own)
    out.gauge(f"{core}_healthz_status_value", "status", 1, (*own, ("value", health.body["status"])))


def _numbers(out: Exposition, prefix: str, page: Mapping[str, Any], labels: Labels, path: str = "") -> None:
    """Adds every number of a page, with joined names for nested objects, and a few texts as labels."""
    for key, value in page.items():
        at = f"{path}_{key}" if path else key
        name = f"{prefix}_{at}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            out.gauge(name, at, value, labels)
        elif at in _TEXTS:
            out.gauge(name, at, 1, (*labels, ("value", value)))
        elif at in _TIMES:
            out.gauge(name, "Unix time in milliseconds", parse_rfc3339(value) // MILLISECOND, labels)
        elif at == "http_req_stats":
            for page_path, count in value.items():
                out.gauge(f"{name}_{page_path.strip('/').replace('/', '_')}", "requests", count, labels)
        elif isinstance(value, dict) and at != "metadata":
            _numbers(out, prefix, value, labels, at)


def _connections(out: Exposition, prefix: str, node: Node, labels: Labels) -> None:
    clients = list(node.server.clients)
    totals = {
        "num_connections": min(len(clients), DEFAULT_LIMIT),
        "total": len(clients),
        "offset": 0,
        "limit": DEFAULT_LIMIT,
        "pending_bytes": sum(client.pending for client in clients),
        "subscriptions": sum(len(client.subscriptions) for client in clients),
    }
    sums = Counter[str]()
    for client in clients:
        sums.update(figures(client))
    for key in ("in_bytes", "out_bytes", "in_msgs", "out_msgs"):
        out.counter(f"{prefix}_{key}", key, sums[key], labels)
    out.gauges(prefix, labels, totals)


def _each_connection(out: Exposition, prefix: str, node: Node, source: NodeSource, own: Labels, query: Query) -> None:
    """Adds a page of connections, each with its own labels; times in milliseconds, the rtt in microseconds."""
    asked = {key: query[key] for key in ("limit", "offset", "sort") if key in query}
    now, now_ns = node.clock.monotonic(), node.clock.time_ns()
    for shown in source.page("connz", {"auth": "1", **asked})["connections"]:
        client = node.server.clients.get(shown["cid"])
        assert client is not None, "it was on the page"
        account = (("account", client.account), ("account_id", client.account), ("name_tag", client.account))
        labels = (*own, *((name, shown.get(name, "")) for name in _CONNECTION_LABELS), *account)
        idle = int((now - client.last_activity) * 1000)
        out.gauges(prefix, labels, {
            "pending_bytes": client.pending,
            "subscriptions": len(client.subscriptions),
            "start": client.start_ns // MILLISECOND,
            "last_activity": now_ns // MILLISECOND - idle,
            "rtt": round(client.rtt * 1e6),
            "uptime": (now_ns - client.start_ns) // MILLISECOND,
            "idle": idle,
        })  # fmt: skip
        for key, value in figures(client).items():
            out.counter(f"{prefix}_{key}", key, value, labels)


def _routes(out: Exposition, prefix: str, node: Node, own: Labels) -> None:
    links = sorted(links_of(node), key=lambda link: int(link.stats.rid))
    out.gauge(f"{prefix}_num_routes", "num_routes", len(links), own)
    for key, value in (("server_id", node.server.server_id), ("server_name", node.server.name)):
        out.gauge(f"{prefix}_{key}", key, 1, (*own, ("value", value)))
    now = node.clock.monotonic()
    for link in links:
        stats, info = link.stats, link.info
        labels = (*own, ("rid", stats.rid))
        remote = (("remote_id", link.peer_id), ("remote_name", info.name if info is not None else ""))
        details = (*labels, *remote, ("account", ""), ("ip", stats.ip), ("compression", "off"))
        out.gauge(f"{prefix}_route_info", "route_info", 1, details)
        out.gauge(f"{prefix}_route_rtt_seconds", "rtt_seconds", stats.rtt, labels)
        out.gauge(f"{prefix}_route_uptime_seconds", "uptime_seconds", round(now - stats.started, 3), labels)
        wanted = sum(router.peers.wanted_by(link) for router in node.server.accounts)
        out.gauge(f"{prefix}_route_subscriptions", "subscriptions", wanted, labels)
        out.gauges(f"{prefix}_route", labels, figures(stats))


def _leafs(out: Exposition, prefix: str, node: Node, own: Labels) -> None:
    links = leaf_links(node)
    out.gauge(f"{prefix}_conn_nodes_total", "nodes_total", len(links), own)
    for link in links:
        account = (("account", link.account), ("account_id", link.account))
        labels = (*own, *account, ("ip", link.ip), ("port", link.port), ("name", link.remote_name))
        out.gauge(f"{prefix}_info", "info", 1, labels)
        out.gauge(f"{prefix}_conn_rtt", "rtt", link.rtt, labels)
        out.gauge(f"{prefix}_conn_subscriptions_total", "subscriptions_total", link.wanted, labels)
        out.gauges(f"{prefix}_conn", labels, figures(link))


def _account_stats(out: Exposition, prefix: str, stats: list[Json], own: Labels) -> None:
    for stat in stats:
        name = stat["acc"]
        labels = (*own, ("account", name), ("account_id", name), ("account_name", name))
        out.gauges(prefix, labels, {
            "current_connections": stat["conns"],
            "total_connections": stat["total_conns"],
            "subscriptions": stat["num_subscriptions"],
            "leaf_nodes": stat["leafnodes"],
            "sent_messages": stat["sent"]["msgs"],
            "sent_bytes": stat["sent"]["bytes"],
            "received_messages": stat["received"]["msgs"],
            "received_bytes": stat["received"]["bytes"],
            "slow_consumers": stat["slow_consumers"],
        })  # fmt: skip


def _account_details(out: Exposition, prefix: str, node: Node, stats: list[Json], own: Labels) -> None:
    apis = node.jetstream.apis if node.jetstream is not None else {}
    for stat in stats:
        name = stat["acc"]
        labels = (*own, ("account_id", name), ("account_name", name))
        out.gauges(prefix, labels, {
            "expired": False,
            "complete": True,
            "jetstream_enabled": name in apis,
            "is_system": name == node.options.system_account_name,
            "leafnode_connections": stat["leafnodes"],
            "client_connections": stat["conns"],
            "subscriptions": stat["num_subscriptions"],
        })  # fmt: skip
        for key in _NO_LIMIT:
            out.gauge(f"{prefix}_limit_{key}", f"limit_{key}", 0, labels)


def node_metrics(out: Exposition, node: Node) -> None:
    """Adds the metrics that a server has with or without JetStream."""
    out.gauge("jetcluster_info", "Versions", 1, (("version", __version__), ("speaks", REPORTED_VERSION)))
    out.gauge("jetcluster_start_time_seconds", "Unix time of the start", node.server.start_ns / 1e9)
    out.gauge("jetcluster_lame_duck", "The server is going away", node.server.lame_duck)
    mesh = mesh_of(node)
    if mesh is not None:
        counters = mesh.counters
        for name, help, value in (
            ("dropped_msgs", "Messages not forwarded to a node because its link was congested", counters.dropped_msgs),
            ("slow", "Links to nodes closed because too much was pending", counters.slow),
            ("stale", "Links to nodes closed because they were silent", counters.stale),
            ("refused", "Links refused: wrong secret, cluster or version", counters.refused),
            ("links_up", "Links to nodes that came up", counters.links_up),
            ("links_down", "Links to nodes that went down", counters.links_down),
        ):
            out.counter(f"jetcluster_mesh_{name}_total", help, value)
    for account, api in node.jetstream.apis.items() if node.jetstream is not None else ():
        labels = (("account", account),)
        out.counter("jetcluster_api_requests_total", "API requests answered here", api.counters.total, labels)
        out.counter("jetcluster_api_errors_total", "API requests refused here", api.counters.errors, labels)
        out.counter("jetcluster_api_dropped_total", "API requests dropped: too many waited", api.dropped, labels)


def latency_metrics(out: Exposition, node: Node) -> None:
    engine = engine_of(node)
    if engine is None:
        return
    raft, latencies = engine.network.raft, engine.runtime.read_latency
    out.histogram("jetcluster_fsync_seconds", "Journal writes that are made durable", raft.journal.sync_latency)
    out.histogram(
        "jetcluster_commit_seconds", "From proposal to commit on leaders, one entry at a time", raft.commit_latency
    )
    out.histogram("jetcluster_apply_seconds", "Applying what a group has committed, per turn", raft.apply_latency)
    for role, latency in latencies.items():
        text = f"Direct Gets, one of {TIMED_EVERY}, by what the replica was"
        out.histogram("jetcluster_direct_get_seconds", text, latency, (("role", role),))


def peer_metrics(out: Exposition, node: Node) -> None:
    """The other members, as this one hears them: a dead server has no samples of its own."""
    engine = engine_of(node)
    group = engine.meta.group if engine is not None else None
    if engine is None or group is None:
        return
    network = engine.network
    others = sorted(group.members - {network.me})
    seen = [peer for peer in others if peer in network.mesh.peers and network.raft.peers.is_alive(peer)]
    out.gauge("jetcluster_peers_expected", "Other members of the cluster", len(others))
    out.gauge("jetcluster_peers_seen", "Those of them that this server hears", len(seen))
    for peer in others:
        labels = (("peer", node_name(engine, peer)),)
        out.gauge("jetcluster_peer_seen", "Whether this server hears the member", int(peer in seen), labels)
    untold = untold_streams(engine)
    out.gauge("jetcluster_streams_lost", "Streams that are on no server of the cluster any more", len(untold.lost))
    out.gauge("jetcluster_streams_away", "Streams with no replica on a server that this one reaches", len(untold.away))


def storage_metrics(out: Exposition, node: Node) -> None:
    engine = engine_of(node)
    if engine is None:
        return
    raft, room = engine.network.raft, engine.services.settings.batch_quota
    for aspect in Aspect:
        labels = (("aspect", aspect.value),)
        wrong = aspect in raft.health.troubles
        out.gauge("jetcluster_node_trouble", "What keeps this server from leading", int(wrong), labels)
    skew = round(raft.health.time.skew, 6)
    out.gauge("jetcluster_clock_skew_seconds", "How far the wall clock is ahead of the cluster's time", skew)
    renewed = node.jetstream.renewed_at if node.jetstream else 0
    out.gauge("jetcluster_data_renewed_seconds", "Unix time at which damaged data was set aside; 0: never", renewed)
    journal, replicas, watch = raft.journal, list(engine.replicas.values()), engine.consumer_watch
    moved = Counter[str]() if engine.balancer is None else engine.balancer.moved
    out.gauge("jetcluster_atomic_batches_open", "Atomic batches being collected", room.open)
    out.gauge("jetcluster_fast_batches_open", "Fast-ingest batches that streams led here have open", room.fast_open)
    out.gauge("jetcluster_atomic_batch_bytes", "Bytes of atomic batches being collected", room.staged_bytes)
    streaming = sum(replica.reads.answers.pages.streaming for replica in replicas)
    out.gauge("jetcluster_direct_get_batches_streaming", "Direct Get batches being sent", streaming)
    for name, help, value in (
        ("journal_batches", "Journal writes", journal.counters.batches),
        ("journal_bytes", "Bytes written to the journal", journal.counters.bytes),
        ("journal_shortages", "Writes of the journal that waited for a file descriptor", journal.counters.shortages),
        ("journal_full", "Times the journal found its disk full", journal.counters.full_episodes),
        ("journal_pins_given_up", "Logs not kept for a catch-up, for want of space", journal.counters.pins_given_up),
        ("journal_read_failures", "Journal records that could not be read back", journal.counters.read_failures),
        ("campaigns", "Elections this node stood in", raft.counters.campaigns),
        ("groups_stopped", "Replicas stopped for good since the start", raft.counters.stopped_groups),
        ("hashes_compared", "State hashes compared with the leader's", engine.drift.compared),
        ("replicas_rebuilt", "Replicas rebuilt because their state differed", sum(r.divergences for r in replicas)),
        ("commands_refused", "Commands that no replica could carry out", sum(r.applying.refusals for r in replicas)),
        ("scrub_passes", "Passes of the scrub over all replicas", engine.scrubber.passes),
        ("scrub_bytes", "Bytes verified by the scrub", engine.scrubber.bytes),
        ("damage_found", "Damaged records found", sum(r.repair.found for r in replicas)),
        ("damage_repaired", "Replicas rebuilt because of damage", sum(r.repair.repaired for r in replicas)),
        ("balance_leaders", "Leaders that went elsewhere for balance", moved["leader"]),
        ("balance_consumers", "Consumers that went elsewhere for balance", moved["consumer"]),
        ("balance_replicas", "Replicas that went elsewhere for balance", moved["replica"]),
    ):
        out.counter(f"jetcluster_{name}_total", help, value)
    for name, help, value in (
        ("disk_full", "Publishes are refused: no space left", int(raft.full)),
        ("journal_losses", "Groups that lost records to journal damage found at the start", len(raft.losses)),
        ("replicas_failed", "Replicas that stopped for good", sum(bool(r.failed) for r in replicas)),
        ("replicas_damaged", "Replicas with records that cannot be read", sum(bool(r.damaged) for r in replicas)),
        ("replicas_quarantined", "Replicas out of service, being rebuilt", sum(bool(r.rejected) for r in replicas)),
        ("replicas_refusing", "Replicas that cannot follow their leader", sum(bool(r.group.refused) for r in replicas)),
        ("sync_intervals_differing", "Linked servers with another sync_interval", len(engine.durability.differing)),
        ("replicas_undecided", "Replicas that differ while no majority agrees", len(engine.drift.votes.undecided)),
        ("replicas_broken", "Streams whose replica could not be started here", len(engine.broken)),
        ("replicas_catching_up", "Replicas fetching their state from a node", len(engine.network.catchup.progress())),
        ("consumers_stuck", "Consumers that deliver nothing though messages and readers wait", len(watch.stuck)),
        ("streams_unassigned", "Data of streams that are not placed here", len(engine.unassigned)),
        ("streams_led", "Streams led here", sum(bool(r.leading) for r in replicas)),
    ):  # fmt: skip
        out.gauge(f"jetcluster_{name}", help, value)


def replica_metrics(out: Exposition, node: Node, notes: LagNotes) -> Iterator[None]:
    """Yields after each stream."""
    engine = engine_of(node)
    if engine is None:
        return
    for replica in list(engine.replicas.values()):
        assignment, group = replica.assignment, replica.group
        stream = (("account", assignment.account), ("stream", assignment.name))
        behind = max(group.commit_index - group.applied_index, 0)
        out.gauge("jetcluster_replica_unapplied_entries", "Committed, not yet applied here", behind, stream)
        out.counter("jetcluster_direct_gets_total", "Direct Gets answered here", replica.reads.answers.answered, stream)
        if replica.leading:
            _peers(out, engine, replica, notes, stream)
            _links(out, replica, stream)
        _letters(out, replica, engine.runtime.clock.time_ns(), stream)
        _keys(out, replica, stream)
        yield


def _letters(out: Exposition, replica: StreamReplica, now: int, stream: tuple[tuple[str, str], ...]) -> None:
    """Adds the dead letters that wait of the consumers that this node owns and that have the option."""
    for hosted in list(replica.consumers.running.values()):
        state = hosted.owner.state
        if state.rules.letters is not None or state.letters:
            labels, oldest = (*stream, ("consumer", state.name)), state.letters.oldest
            out.gauge("jetcluster_dead_letters_waiting", "Letters no stream confirmed", len(state.letters), labels)
            seconds = max(now - oldest.time, 0) / SECOND if oldest else 0.0
            out.gauge("jetcluster_dead_letters_oldest_seconds", "Time since the first was given up", seconds, labels)


def _keys(out: Exposition, replica: StreamReplica, stream: tuple[tuple[str, str], ...]) -> None:
    """Adds the consumers in order per key that this node owns: four samples for each, however many keys there are."""
    for hosted in list(replica.consumers.running.values()):
        owner = hosted.owner
        held = owner.state.unacked.held
        if owner.state.rules.keys is None and not held:
            continue
        labels, sharing = (*stream, ("consumer", owner.state.name)), owner.key_sharing
        for name, help, value in (
            ("keys_waiting", "Keys of which messages wait for an earlier one's ack", sharing.waiting),
            ("key_messages_waiting", "Those messages", held),
            ("key_members", "Clients that share the keys", sharing.members),
        ):
            out.gauge(f"jetcluster_{name}", help, value, labels)
        spilled = "Messages that went to another client than their key's, since the owner began"
        out.counter("jetcluster_keys_spilled_total", spilled, sharing.spilled, labels)


def _peers(
    out: Exposition, engine: JetStream, replica: StreamReplica, notes: LagNotes, stream: tuple[tuple[str, str], ...]
) -> None:
    for peer, lag in notes.peers(engine, replica):
        labels = (*stream, ("replica", node_name(engine, peer)))
        out.gauge("jetcluster_replica_lag_entries", "Log entries a replica lacks, says its leader", lag.entries, labels)
        out.gauge("jetcluster_replica_lag_messages", "Messages a replica lacks, about", lag.messages, labels)
        out.gauge(
            "jetcluster_replica_lag_seconds", "How old the first of them is, about", round(lag.seconds, 3), labels
        )


def _links(out: Exposition, replica: StreamReplica, stream: tuple[tuple[str, str], ...]) -> None:
    found = replica.mirrors.links.info(seconds=True)
    for link in [found["mirror"]] if "mirror" in found else found.get("sources", ()):
        labels = (*stream, ("upstream", link["name"]))
        out.gauge("jetcluster_upstream_lag_messages", "Messages a mirror or source lacks", link["lag"], labels)
        seconds = link["lag_seconds"]
        out.gauge("jetcluster_upstream_lag_seconds", "How old the newest one here is meanwhile", seconds, labels)
        silent = link["silent_seconds"]
        out.gauge("jetcluster_upstream_silent_seconds", "Time since the upstream was heard", silent, labels)


MAX_ACCOUNTS = 10_000


def jetstream_metrics(out: Exposition, node: Node, source: NodeSource, system: str, query: Query) -> Iterator[None]:
    """Yields after each stream and each consumer, so that clients are served in between. `consumers=0` leaves the
    latter out."""
    page = source.page("jsz", {})
    meta = page.get("meta_cluster", {})
    leader = meta.get("leader", "")
    name = node.server.name
    own: Labels = (
        ("server_id", name),
        ("server_name", name),
        ("cluster", meta.get("name", "")),
        ("domain", page["config"].get("domain", "")),
        ("meta_leader", leader),
        ("is_meta_leader", _truth(not meta or leader == name)),
    )
    out.gauges(f"{system}_server", own, {
        "jetstream_disabled": int(page.get("disabled", False)),
        "max_memory": page["config"]["max_memory"],
        "max_storage": page["config"]["max_storage"],
        "total_streams": page["streams"],
        "total_consumers": page["consumers"],
        "total_messages": page.get("messages", 0),
        "total_message_bytes": page.get("bytes", 0),
    })  # fmt: skip
    engine = engine_of(node)
    if engine is None:
        return
    _accounts(out, source, system, own)
    with_consumers = query.get("consumers", "1") not in ("0", "false")
    for replica in list(engine.replicas.values()):
        if replica.failed:
            continue
        labels = _stream(out, engine, replica, system, own, name)
        if with_consumers:
            yield from _consumers(out, engine, replica, system, labels, name)
        yield


def _accounts(out: Exposition, source: NodeSource, system: str, own: Labels) -> None:
    """Adds accounts as the exporter shows them: its `max_...` are the bytes that streams have reserved."""
    for account in source.page("jsz", {"accounts": "1", "limit": str(MAX_ACCOUNTS)}).get("account_details", ()):
        name = account["name"]
        labels = (*own, ("account", name), ("account_id", name), ("account_name", name))
        for key, field in (
            ("max_memory", "reserved_memory"),
            ("max_storage", "reserved_storage"),
            ("memory_used", "memory"),
            ("storage_used", "storage"),
        ):
            out.gauge(f"{system}_account_{key}", key, account[field], labels)


def _stream(out: Exposition, engine: JetStream, replica: StreamReplica, system: str, own: Labels, name: str) -> Labels:
    assignment, state = replica.assignment, replica.store.state
    leader = stream_leader(engine, replica)
    account = assignment.account
    labels = (
        *own,
        ("account", account),
        ("account_id", account),
        ("account_name", account),
        ("stream_name", assignment.name),
        ("stream_leader", leader),
        ("is_stream_leader", _truth(leader == name)),
        ("stream_raft_group", stream_group_name(replica)),
    )
    out.gauges(f"{system}_stream", labels, {
        "total_messages": state.messages,
        "total_bytes": state.bytes,
        "first_seq": state.first_seq,
        "last_seq": state.last_seq,
        "consumer_count": replica.machine.consumer_count,
        "subject_count": state.num_subjects,
        "limit_bytes": assignment.config["max_bytes"],
        "limit_messages": assignment.config["max_msgs"],
    })  # fmt: skip
    _guard(out, replica, system, labels)
    return labels


def _guard(out: Exposition, replica: StreamReplica, system: str, labels: Labels) -> None:
    """Adds what waits for the stream's retention guard, if it has one."""
    guard, now = replica.machine.guard, replica.runtime.clock.time_ns()
    if guard.rules.guard is None:
        return
    oldest = guard.oldest
    out.gauges(f"{system}_stream_guard", labels, {
        "waiting_messages": guard.waiting,
        "waiting_seconds": max(now - oldest, 0) / SECOND if oldest else 0,
        "refuses": int(guard.refuses_now(now) is not None),
        "overrun_messages": guard.overrun.messages,
    })  # fmt: skip


def _consumers(
    out: Exposition, engine: JetStream, replica: StreamReplica, system: str, stream: Labels, name: str
) -> Iterator[None]:
    try:
        for info in each_consumer(engine, replica, config=True):
            leader = info.get("cluster", {}).get("leader", "")
            labels = (
                *stream,
                ("consumer_name", info["name"]),
                ("consumer_leader", leader),
                ("is_consumer_leader", _truth(not leader or leader == name)),
                ("consumer_desc", info["config"].get("description", "")),
            )
            out.gauges(f"{system}_consumer", labels, _consumer_values(info))
            for key, help_, seconds in _ages(info):
                out.gauge(f"{system}_consumer_{key}", help_, seconds, labels)
            yield
    except DamagedError:
        return  # jetcluster_replicas_damaged reports it


def _ages(info: Json) -> Iterator[tuple[str, str, float]]:
    """Yields the seconds since the last delivery and the last ack, which show a consumer that has stopped when
    num_pending is not 0. Each is left out before the first delivery or ack."""
    now = parse_rfc3339(info["ts"])
    for key, what, help_ in (
        ("last_delivery_seconds", "delivered", "Seconds since last message delivery to consumer"),
        ("last_ack_seconds", "ack_floor", "Seconds since last ack from consumer"),
    ):
        last = info[what].get("last_active")
        if last:
            yield key, help_, max((now - parse_rfc3339(last)) / SECOND, 0.0)


def _consumer_values(info: Json) -> dict[str, int]:
    return {
        "delivered_consumer_seq": info["delivered"]["consumer_seq"],
        "delivered_stream_seq": info["delivered"]["stream_seq"],
        **{key: info[key] for key in ("num_ack_pending", "num_redelivered", "num_waiting", "num_pending")},
        "ack_floor_stream_seq": info["ack_floor"]["stream_seq"],
        "ack_floor_consumer_seq": info["ack_floor"]["consumer_seq"],
    }


def _truth(value: bool) -> str:
    return "true" if value else "false"


CORE, JETSTREAM = "gnatsd", "jetstream"
STREAMS_PER_TURN = 20


class Metrics:
    """The metrics of one node."""

    def __init__(self, node: Node, source: NodeSource) -> None:
        self._node = node
        self._source = source
        notes = node.monitoring.notes
        assert isinstance(notes, LagNotes), "NodeMonitoring has them"
        self._notes = notes

    async def scrape(self, query: Query) -> bytes:
        """Returns the text; `prefix` replaces the exporter's `gnatsd` and `jetstream`. Raises QueryError."""
        prefix = query.get("prefix", "")
        if prefix and not (prefix.isascii() and prefix.replace("_", "a").isalnum() and not prefix[0].isdigit()):
            raise QueryError(f"invalid prefix: {prefix[:80]}")
        core, system = prefix or CORE, prefix or JETSTREAM
        node, source, out = self._node, self._source, Exposition()
        self._notes.asked()
        server_metrics(out, node, source, core, query)
        health_metric(out, node, core, await source.healthz({}))
        node_metrics(out, node)
        latency_metrics(out, node)
        peer_metrics(out, node)
        storage_metrics(out, node)
        await _spread(jetstream_metrics(out, node, source, system, query))
        await _spread(replica_metrics(out, node, self._notes))
        return out.render()


async def _spread(work: Iterator[None]) -> None:
    """Runs `work` in turns, between which clients are served: a node may hold thousands of streams."""
    for count, _ in enumerate(work, 1):
        if not count % STREAMS_PER_TURN:
            await asyncio.sleep(0)
