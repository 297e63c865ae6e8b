"""`jetcluster_*`: what nats-server's names have no room for: replicas, latencies, batches, damage."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from jetcluster import REPORTED_VERSION, __version__
from jetcluster.health.node_health import Aspect
from jetcluster.monitor.exposition import Exposition
from jetcluster.monitor.jsz import node_name
from jetcluster.monitor.lag import LagNotes
from jetcluster.monitor.view import NodeView, engine_of, mesh_of
from jetcluster.replica.read_group import TIMED_EVERY

if TYPE_CHECKING:
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.replica.stream_replica import StreamReplica


def node_metrics(out: Exposition, node: NodeView) -> None:
    """The metrics of any server, with JetStream or without."""
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


def latency_metrics(out: Exposition, node: NodeView) -> None:
    engine = engine_of(node)
    if engine is None:
        return
    raft, context = engine.context.raft, engine.context
    out.histogram("jetcluster_fsync_seconds", "Journal writes that are made durable", raft.journal.sync_latency)
    out.histogram(
        "jetcluster_commit_seconds", "From proposal to commit on leaders, one entry at a time", raft.commit_latency
    )
    out.histogram("jetcluster_apply_seconds", "Applying what a group has committed, per turn", raft.apply_latency)
    for role, latency in context.read_latency.items():
        text = f"Direct Gets, one of {TIMED_EVERY}, by what the replica was"
        out.histogram("jetcluster_direct_get_seconds", text, latency, (("role", role),))


def storage_metrics(out: Exposition, node: NodeView) -> None:
    engine = engine_of(node)
    if engine is None:
        return
    raft, room = engine.context.raft, engine.context.batch_quota
    for aspect in Aspect:
        labels = (("aspect", aspect.value),)
        wrong = aspect in raft.health.troubles
        out.gauge("jetcluster_node_trouble", "What keeps this server from leading", int(wrong), labels)
    skew = round(raft.health.time.skew, 6)
    out.gauge("jetcluster_clock_skew_seconds", "How far the wall clock is ahead of the cluster's time", skew)
    journal, replicas = raft.journal, list(engine.replicas.values())
    out.gauge("jetcluster_atomic_batches_open", "Atomic batches being collected", room.open)
    out.gauge("jetcluster_fast_batches_open", "Fast-ingest batches that streams led here have open", room.fast_open)
    out.gauge("jetcluster_atomic_batch_bytes", "Bytes of atomic batches being collected", room.staged_bytes)
    streaming = sum(replica.reads.streaming for replica in replicas)
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
    ):
        out.counter(f"jetcluster_{name}_total", help, value)
    for name, help, value in (
        ("disk_full", "Publishes are refused: no space left", int(journal.full)),
        ("journal_losses", "Groups that lost records to journal damage found at the start", len(raft.losses)),
        ("replicas_failed", "Replicas that stopped for good", sum(bool(r.failed) for r in replicas)),
        ("replicas_damaged", "Replicas with records that cannot be read", sum(bool(r.damaged) for r in replicas)),
        ("replicas_quarantined", "Replicas out of service, being rebuilt", sum(bool(r.suspect) for r in replicas)),
        ("replicas_refusing", "Replicas that cannot follow their leader", sum(bool(r.group.refused) for r in replicas)),
        ("sync_intervals_differing", "Linked servers with another sync_interval", len(engine.durability.differing)),
        ("replicas_undecided", "Replicas that differ while no majority agrees", len(engine.drift.votes.undecided)),
        ("replicas_broken", "Streams whose replica could not be started here", len(engine.broken)),
        ("replicas_catching_up", "Replicas fetching their state from a node", len(engine.context.catchup.progress())),
        ("streams_unassigned", "Data of streams that are not placed here", len(engine.unassigned)),
        ("streams_led", "Streams led here", sum(bool(r.leading) for r in replicas)),
    ):  # fmt: skip
        out.gauge(f"jetcluster_{name}", help, value)


def replica_metrics(out: Exposition, node: NodeView, notes: LagNotes) -> Iterator[None]:
    """Yields after each stream."""
    engine = engine_of(node)
    if engine is None:
        return
    for replica in list(engine.replicas.values()):
        assignment, group = replica.assignment, replica.group
        stream = (("account", assignment.account), ("stream", assignment.name))
        behind = max(group.commit_index - group.applied_index, 0)
        out.gauge("jetcluster_replica_unapplied_entries", "Committed, not yet applied here", behind, stream)
        out.counter("jetcluster_direct_gets_total", "Direct Gets answered here", replica.reads.answered, stream)
        if replica.leading:
            _peers(out, engine, replica, notes, stream)
            _links(out, replica, stream)
        yield


def _peers(
    out: Exposition, engine: JetStream, replica: StreamReplica, notes: LagNotes, stream: tuple[tuple[str, str], ...]
) -> None:
    gid = replica.group.gid
    for peer in replica.group.status().peers:
        labels = (*stream, ("replica", node_name(engine, peer.peer)))
        lag = notes.of(replica, peer.match_index, partial(engine.context.catchup.missing, gid, peer.peer))
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
