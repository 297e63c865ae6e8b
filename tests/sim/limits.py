"""Times and sizes of a simulated cluster: small, so that everything that takes long happens within a second."""

from __future__ import annotations

from jetcluster.raft.config import JournalOptions, RaftConfig

FAST = RaftConfig(
    heartbeat=0.04,
    suspect_after=0.2,
    quorum_timeout=0.3,
    link_loss_jitter=(0.002, 0.04),
    retry=(0.03, 0.08),
    vote_timeout=(0.08, 0.2),
    start_delay=(0.05, 0.15),
    stateless_delay=0.4,
    digest=0.3,
    journal_hangs=0.25,
    second_opinion=0.1,
    give_way=0.15,
    give_way_pause=0.3,
    stall=0.15,
    lease=0.12,
    longest_lease=0.15,
    lease_reads=2,
    clock_drift=0.2,
    transfer_timeout=0.2,
    offer_retry=0.2,
    pin_seconds=3.0,
    frame_bytes=400,
    frame_entries=6,
    window_bytes=4_000,
    window_batches=6,
    max_uncommitted=20_000,
    promote_lag=8,
    promote_seconds=0.05,
    early_seconds=0.5,
)

JOURNAL = JournalOptions(
    segment_bytes=6_000,
    cache_bytes=400,
    idle_cache_bytes=100,
    retain_bytes=1_500,
    retain_entries=24,
    node_retain_bytes=24_000,
    reserve_bytes=0,
    retry_delay=0.05,
    max_queued_bytes=100_000,
)
