"""Limits of the product scaled down, in some of the seeds: work that is cut into pieces once there are thousands of
messages is cut with a handful, so that faults come between two pieces, and whoever leads next goes on.

Only limits that no client sees are here. All servers of a run have the same, as all versions of the product do. A
module that takes one of them by name is named with it; `test_small.py` looks for those that are not.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from jetcluster.store.slices import Step

STEP: Final = Step(subjects=3, messages=4, looked=16, blocks=3, size=4_000, cut=8, cut_blocks=2, rest=4)


class Limit(NamedTuple):
    module: str
    name: str
    small: Any
    takers: tuple[str, ...] = ()
    """Other modules that import it by name."""


WORKLOADS: Final = "tests.sim.cluster.workloads."
LIMITS: Final = (
    Limit("jetcluster.store.slices", "STEP", STEP),
    Limit("jetcluster.store.block_writer", "REWRITE_BYTES", 64),
    Limit("jetcluster.store.block_writer", "MIN_SCAN_BLOCKS", 4),
    Limit("jetcluster.stream.log.commands", "PART_BYTES", 700),
    Limit("jetcluster.stream.lead.ingest", "BATCH_MESSAGES", 8, ("jetcluster.replica.stream_replica",)),
    Limit("jetcluster.stream.lead.answers", "FIRST_WINDOW_BYTES", 8 << 10),
    Limit("jetcluster.stream.lead.answers", "MIN_WINDOW_BYTES", 4 << 10),
    Limit("jetcluster.stream.lead.answers", "MAX_WINDOW_BYTES", 16 << 10),
    Limit("jetcluster.stream.apply.jobs", "MAX_DIRECT_REMOVALS", 6),
    Limit("jetcluster.stream.apply.jobs", "CONSUMERS_PER_WEIGHT", 1),
    Limit("jetcluster.stream.apply.expiry", "MAX_MESSAGES", 4),
    Limit("jetcluster.stream.apply.scheduler", "MAX_FIRINGS", 2),
    Limit("jetcluster.stream.apply.scheduler", "MAX_PLANS", 2),
    Limit("jetcluster.stream.apply.due_index", "SWEEP_SLACK", 8),
    Limit("jetcluster.stream.apply.due_index", "SWEEP_ENTRIES", 8),
    Limit("jetcluster.stream.apply.dedupe", "SWEEP_IDS", 8),
    Limit("jetcluster.stream.apply.staging", "MAX_BLOCK_BYTES", 400),
    Limit("jetcluster.stream.read.msg_get", "STEP_LINES", 4),
    Limit("jetcluster.consumer.state.retention", "MESSAGES_PER_STEP", 4),
    Limit("jetcluster.consumer.state.retention", "MAX_CACHED_SUBJECTS", 2),
    Limit("jetcluster.consumer.state.archived", "ENTRIES_PER_STEP", 4),
    Limit("jetcluster.consumer.state.archived", "HELD_PER_STEP", 4),
    Limit("jetcluster.consumer.owner.acks", "MAX_ACKS_PER_OP", 4),
    Limit("jetcluster.consumer.owner.operation_log", "MAX_TURN_MESSAGES", 4),
    Limit("jetcluster.consumer.owner.delivery", "MESSAGES_PER_STEP", 4),
    Limit("jetcluster.consumer.owner.owner", "MAX_SETTLED_PER_OP", 2),
    Limit("jetcluster.consumer.owner.owner", "LOOKED_UP", 2),
    Limit("jetcluster.consumer.owner.selection", "MAX_BATCH_MESSAGES", 4),
    Limit("jetcluster.consumer.owner.push", "SLICE_MESSAGES", 3),
    Limit("jetcluster.consumer.owner.push", "FIRST_WINDOW_BYTES", 8_000),
    Limit("jetcluster.consumer.owner.push", "MAX_WINDOW_BYTES", 32_000),
    Limit("jetcluster.consumer.owner.push", "MESSAGES_PER_ADVANCE", 4),
    Limit("jetcluster.consumer.owner.pull", "REAPED_PER_STEP", 2),
    Limit("jetcluster.consumer.owner.pull_queue", "BLOCK_VALUES", 2),
    Limit("jetcluster.consumer.owner.pull_queue", "MAX_STALE_ALARMS", 2),
    Limit("jetcluster.consumer.owner.pull_dispatch", "MAX_TURN_MESSAGES", 4),
    Limit("jetcluster.consumer.owner.pull_dispatch", "MAX_TURN_LOOKS", 8),
    Limit("jetcluster.consumer.owner.pull_dispatch", "REQUESTS_PER_RETURN", 2),
    Limit("jetcluster.consumer.owner.key_order", "KEYS_PER_STEP", 2),
    Limit("jetcluster.consumer.owner.key_order", "MAX_SETTLED_AT_ONCE", 4),
    Limit("jetcluster.consumer.owner.key_order", "MAX_LOOKED_AT", 16),
    Limit("jetcluster.mirror.inflow", "COMMAND_MESSAGES", 4),
    Limit("jetcluster.mirror.inflow", "FLIGHT_BYTES", 2_000),
    Limit("jetcluster.mirror.upstream", "SEARCH_STEP_MESSAGES", 2),
    Limit("jetcluster.objects.uploads", "SCAN_BYTES", 300),
    Limit("jetcluster.api.restore", "COMMAND_RUNS", 3),
    Limit("jetcluster.replica.leadership", "SUBJECTS_AT_ONCE", 1),
    Limit("jetcluster.replica.leadership", "SUBJECTS_PER_STEP", 1),
    Limit("jetcluster.replica.rounds", "VISITS_AT_ONCE", 2, ("jetcluster.cluster.health_report",)),
    Limit("jetcluster.replica.reads.runs", "MAX_RUN", 4),
    Limit("jetcluster.replica.reads.pages", "SLICE_BYTES", 1_000),
    Limit("jetcluster.replica.reads.pages", "MAX_BACKLOG", 4_000),
    Limit("jetcluster.replica.reads.answers", "RUN_BYTES", 200),
    Limit("jetcluster.replica.reads.waits", "MAX_DUE_TURN", 2),
    Limit("jetcluster.replica.exports", "SLICE_BYTES", 4_000, ("jetcluster.replica.catchup",)),
    Limit("jetcluster.replica.exports", "CHUNK_BYTES", 1_000, ("jetcluster.replica.catchup",)),
    Limit("jetcluster.replica.catchup", "MAX_CHUNKS_AHEAD", 1),
    Limit("jetcluster.replica.drift", "MAX_PER_NOTICE", 2),
    Limit(
        "jetcluster.cluster.load",
        "REST_SECONDS",
        4.0,
        ("jetcluster.cluster.replica_moves", "jetcluster.cluster.replica_rests"),
    ),
    Limit("jetcluster.cluster.load", "CONSUMERS_PER_STEP", 2),
    Limit("jetcluster.cluster.load", "REPLICAS_PER_STEP", 2),
    Limit("jetcluster.cluster.load", "MAX_UNITS", 4),
    Limit("jetcluster.cluster.balancer", "ROUND_SECONDS", 1.0),
    Limit("jetcluster.cluster.balancer", "STEADY_SECONDS", 2.0),
    Limit("jetcluster.consumer.owner.push", "SLICE_BYTES", 1_000),
    Limit("jetcluster.consumer.owner.push", "MAX_BACKLOG_BYTES", 4_000),
    Limit("jetcluster.consumer.owner.pull_dispatch", "MAX_TURN_BYTES", 2_000),
    Limit("jetcluster.consumer.owner.pull_dispatch", "MAX_FLIGHT_BYTES", 4_000),
    Limit("jetcluster.consumer.owner.pull_dispatch", "MAX_BACKLOG_BYTES", 4_000),
    Limit("jetcluster.consumer.owner.delivery", "MAX_UNCONFIRMED_MESSAGES", 16),
    Limit("jetcluster.mesh.link", "HIGH_WATER_BYTES", 4_096),
    Limit("jetcluster.mesh.link", "LOW_WATER_BYTES", 1_024),
    Limit("jetcluster.mesh.link", "SLICE_BYTES", 2_048),
    Limit("jetcluster.mesh.link", "FULL_LANE_BYTES", 8_192),
    Limit("jetcluster.mesh.link", "GREETING_FRAMES", 4),
    Limit("jetcluster.mesh.mesh", "MAX_STRANGERS", 8),
    Limit("jetcluster.mesh.peer_link", "MAX_GATHERED_BYTES", 1_000),
    Limit("jetcluster.mesh.peer_link", "EXPECT_BYTES", 500),
    Limit("jetcluster.server.accounts.remote_peers", "ASK_BYTES", 1_000),
    Limit("jetcluster.raft.node_state", "WAKES_AT_ONCE", 1),
    Limit("jetcluster.raft.admission", "MAX_REPORTED_PEERS", 1),
    Limit("jetcluster.raft.admission", "MAX_LEAPT_GROUPS", 1),
    Limit("jetcluster.raft.journal.journal", "_SPACE_CHECK_BYTES", 4_096),
    Limit("jetcluster.consumer.owner.operation_log", "MAX_TURNS_IN_FLIGHT", 2),
    Limit("jetcluster.consumer.owner.operation_log", "MAX_BYTES_IN_FLIGHT", 2_000),
    Limit("jetcluster.consumer.owner.operation_log", "MAX_TURN_BYTES", 1_000),
    Limit("jetcluster.consumer.owner.operation_log", "MAX_COLLECTED_BYTES", 16_000),
    Limit("jetcluster.consumer.owner.letters", "MAX_BYTES_IN_FLIGHT", 400),
    Limit("jetcluster.consumer.owner.selection", "_PRUNE_ABOVE_ENTRIES", 4),
    Limit("jetcluster.consumer.owner.scheduler", "MIN_STALE_ENTRIES", 4),
    Limit("jetcluster.consumer.owners", "MAX_MOVES", 1),
    Limit("jetcluster.replica.exports", "MAX_OPEN_EXPORTS", 1),
    Limit("jetcluster.replica.exports", "LIST_BYTES", 2_000),
    Limit("jetcluster.replica.members", "LEAST_REMEMBERED", 2),
    Limit("jetcluster.replica.leaders", "MAX_ENTRIES_PER_NOTICE", 8),
    Limit("jetcluster.replica.consumer_host", "MAX_WOKEN_OWNERS", 1),
    Limit("jetcluster.replica.consumer_host", "MAX_UNUSED_CONSUMERS", 1),
    Limit("jetcluster.replica.reads.waits", "MAX_WAITING", 40),
    Limit("jetcluster.replica.reads.waits", "MIN_DUE_TURN", 1),
    Limit("jetcluster.replica.reads.waits", "MAX_DUE_LOOKS", 2),
    Limit("jetcluster.replica.reads.waits", "MAX_REPLY_BACKLOG", 4_000),
    Limit("jetcluster.replica.reads.confirm", "MAX_PROOFS", 2),
    Limit("jetcluster.replica.reads.confirm", "MAX_ASKED_REPLIES", 2),
    Limit("jetcluster.replica.reads.membership", "TIMED_EVERY", 4, ("jetcluster.monitor.metrics",)),
    Limit("jetcluster.replica.read_memory", "MAX_SLOW_MEMBER_BYTES", 200, ("jetcluster.replica.reads.membership",)),
    Limit("jetcluster.mirror.origin", "MAX_WAITING", 2),
    Limit("jetcluster.cluster.consumer_requests", "INFOS_PER_SLICE", 1),
    Limit("jetcluster.cluster.consumer_requests", "CONSUMERS_PER_SLICE", 1),
    Limit("jetcluster.cluster.meta_service", "SUBJECTS_PER_SLICE", 1),
    Limit("jetcluster.cluster.flusher", "COMPACTED_AT_ONCE", 2),
    Limit("jetcluster.cluster.flusher", "ENCODED_AT_ONCE", 1),
    Limit("jetcluster.cluster.joining", "MAX_LOOKED_ENTRIES", 8),
    Limit("jetcluster.cluster.requests", "MAX_LONG_REQUESTS", 1),
    Limit("jetcluster.mesh.frames", "MAX_CACHED_ACCOUNTS", 1),
    Limit("jetcluster.mesh.link", "FULL_READ_BYTES", 2_000),
    Limit("jetcluster.mesh.peer_link", "MAX_ACCOUNTS", 2),
    Limit("jetcluster.api.endpoints", "MAX_PURGED_AT_ONCE", 1),
    Limit("jetcluster.api.streams", "MAX_LISTED_AT_ONCE", 1),
    Limit("jetcluster.api.dispatch", "MAX_RUNNING", 4),
    Limit("jetcluster.consumer.owner.key_queues", "_MIN_STALE", 4),
    Limit("jetcluster.consumer.owner.key_table", "MIN_PLACES", 4),
    Limit("jetcluster.consumer.owner.key_order", "MAX_WAITING_MESSAGES", 24),
    Limit(
        "jetcluster.consumer.state.letters",
        "MAX_LETTERS",
        3,
        (
            "jetcluster.consumer.owner.context",
            "jetcluster.consumer.state.archived",
            "jetcluster.consumer.state.ops",
            "jetcluster.consumer.state.state",
        ),
    ),
    Limit("jetcluster.consumer.state.retention", "MAX_EXHAUSTED_GONE", 2),
    Limit("jetcluster.consumer.state.retention", "MAX_CONSUMERS_ASKED", 1),
    Limit("jetcluster.consumer.state.pending", "_MAX_STALE_KEYS", 4),
    Limit("jetcluster.stream.apply.checks", "MAX_COMBINATIONS", 2),
    Limit("jetcluster.stream.apply.staging", "MAX_STAGED_TOTALS_BYTES", 200),
    Limit("jetcluster.stream.apply.due_index", "SWEEP_ROWS", 1),
    Limit("jetcluster.mirror.inflow", "COMMAND_BYTES", 1_000),
    Limit("jetcluster.replica.applying", "MOST_UNTOLD", 4),
    Limit("jetcluster.replica.stream_archives", "PIECE_BYTES", 1_000),
    Limit("jetcluster.raft.journal.retention", "_DENSE_DIVISOR", 64),
    Limit("jetcluster.mesh.mesh", "MAX_REFUSAL_LOGS", 1),
    Limit("jetcluster.mesh.interest", "MAX_CLOSED_VALVES", 1),
    Limit("jetcluster.cluster.meta_members", "MAX_NAMES", 2),
    Limit("jetcluster.cluster.load", "MAX_EXPECTED", 1),
    Limit("jetcluster.cluster.refusals", "MAX_KEPT", 1),
    Limit("jetcluster.cluster.consumer_watch", "MAX_LINES", 1),
    Limit("jetcluster.cluster.consumer_facts", "MAX_FILTERS", 1),
    Limit("jetcluster.cluster.local_streams", "EVENTS_PER_STEP", 2),
    Limit(
        "jetcluster.cluster.requests",
        "LIST_STEP_BYTES",
        300,
        ("jetcluster.cluster.consumer_requests", "jetcluster.cluster.meta_service"),
    ),
    Limit("jetcluster.store.search.kept_filters", "MIN_KEPT_WIDTH", 2, ("jetcluster.stream.lead.ingest",)),
    Limit("jetcluster.stream.read.msg_get", "LONG_HEADER_BYTES", 64),
    Limit("jetcluster.stream.read.msg_get", "SUBJECTS_BYTES", 900),
    Limit("jetcluster.api.restore_tar", "STEP_CONSUMERS", 1),
    Limit("jetcluster.api.spool", "RECORD_BYTES", 600),
    Limit(f"{WORKLOADS}large", "COUNT", 300),
    Limit(f"{WORKLOADS}large", "AT_ONCE", 100),
    Limit(f"{WORKLOADS}batches", "LONG_BYTES", 300),
    Limit(f"{WORKLOADS}batches", "MOST_LONG", 20),
)
RAFT: Final = {
    "window_batches": 4, "window_bytes": 16 << 10, "max_uncommitted": 128 << 10, "pin_seconds": 4.0, "pin_entries": 64,
    "pin_bytes": 64 << 10, "digest_groups": 2, "hand_overs": 2, "early_frames": 4,
    "promote_lag": 4,
}  # fmt: skip
"""Fields of `jetcluster.raft.config.RaftConfig`."""
SLOW_BEAT: Final = {"heartbeat": 0.25, "second_opinion": 0.6}
"""The same for seeds in which servers tell each other less often that they are alive, which is most of what idle
servers do. Three beats in a row are missed, not eight, when a server is suspected. Seeds that judge how long clients
wait for an ack (`pulse.py`) have the product's own."""
READINGS: Final = Limit("jetcluster.health.cluster_clock", "READINGS_PER_PEER", 8)
"""Those of as long a time: the newest ones of a clock that was set count as soon."""


def raft_limits(*, small: bool, slow_beat: bool) -> dict[str, Any]:
    """Fields of RaftConfig that are not as usual."""
    return (RAFT if small else {}) | (SLOW_BEAT if slow_beat else {})


@contextmanager
def scaled(*, small: bool, slow_beat: bool = False) -> Iterator[None]:
    """The limits are small meanwhile, and those that go with `slow_beat`; without both nothing changes."""
    chosen = (*(LIMITS if small else ()), *((READINGS,) if slow_beat else ()))
    places = [
        (importlib.import_module(name), limit) for limit in chosen for name in (limit.module, *limit.takers)
    ]  # all are imported before the first one changes
    before = [getattr(module, limit.name) for module, limit in places]
    for module, limit in places:
        setattr(module, limit.name, limit.small)
    try:
        yield
    finally:
        for (module, limit), value in zip(places, before, strict=True):
            setattr(module, limit.name, value)
