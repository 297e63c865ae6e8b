"""Times and limits of a node's Raft groups and of the journal they share. Seconds and bytes."""

from __future__ import annotations

from jetcluster.records import dataclass


@dataclass(slots=True, frozen=True)
class RaftConfig:
    """The times and limits of elections, heartbeats and flow."""

    heartbeat: float = 0.1
    """Between two heartbeats of a pair of nodes; groups have none of their own."""
    alone: float = 0.25
    """The same while the node has no peer: it then only looks after itself."""
    suspect_after: float = 0.8
    """Silence of a node with a live link after which its followers look for a new leader."""
    quorum_timeout: float = 1.2
    """Silence of a majority after which a leader steps down."""
    link_loss_jitter: tuple[float, float] = (0.005, 0.08)
    """Before a follower campaigns when its leader's link broke."""
    retry: tuple[float, float] = (0.1, 0.25)
    """Before the next attempt when no majority answered a PreVote."""
    vote_timeout: tuple[float, float] = (0.3, 0.8)
    """A candidate's wait for votes."""
    start_delay: tuple[float, float] = (0.3, 0.8)
    """A replica's wait for a leader when it starts."""
    stateless_delay: float = 3.0
    """Added for a replica that waits for a snapshot: a replica with the state should lead."""
    digest: float = 2.0
    """Between two digests of the groups that a node leads."""
    digest_groups: int = 500
    """Groups that digests name per second: a node that leads more sends them less often."""
    clock_wait: float = 2.0
    """A group of one's wait at its start for a majority's time, while no other node disagrees."""
    journal_hangs: float = 1.0
    """Duration after which a write to the journal counts as hanging."""
    second_opinion: float = 0.25
    """Before an unhealthy node hands groups over: two heartbeats, by which the others report their own health."""
    give_way: float = 0.5
    """An unhealthy node's attempt to hand a group over, before it resigns."""
    give_way_pause: float = 2.0
    """Before the next attempt when the successor could not keep up."""
    deferrals: int = 5
    """Elections that a replica on an unhealthy node leaves to healthy voters, whose logs may not suffice to win."""
    wake_slice: float = 0.004
    wake_pause: float = 0.012
    """A node's work for groups whose times have come, and the pause after so much of it. When thousands of groups lose
    their leader, their elections leave three quarters of the loop to the answers, which end them, and to the links."""
    stall: float = 1.0
    """Before a batch without an answer is sent again over a live link."""
    transfer_timeout: float = 1.0
    """Before a leadership transfer is given up."""
    lease: float = 0.3
    """For so long a voter promises a leader that is read from to elect nobody else (`core/lease.py`); 0: no leases."""
    lease_reads: int = 8
    """Reads within a lease from which on a leader asks for one: with fewer, a proof for each costs less than what an
    election has to wait for the promises when the leader fails."""
    clock_drift: float = 0.1
    """Share by which a server's clock may run fast or slow."""
    longest_lease: float = 0.5
    """A replica's wait before its first vote, as it may have promised something before it was restarted. Servers of all
    versions keep to it: no voter promises more."""
    transfer_patience: float = 0.2
    """The leader's wait during a transfer until it has answered all accepted proposals. Below `give_way`."""
    offer_retry: float = 2.0
    """Before a snapshot is requested or offered again."""
    pin_seconds: float = 120.0
    """Silence of a peer that catches up after which a leader keeps its log for it no longer."""
    pin_bytes: int = 256 << 20
    pin_share: float = 0.25
    pin_most: int = 32 << 30
    pin_entries: int = 4 << 20
    """Limits of the logs that all groups of a node keep for such peers: `retention.PinLimits`. A full disk ends it."""
    frame_bytes: int = 256 << 10
    """Bytes of entries per AppendEntries."""
    frame_entries: int = 4_096
    window_bytes: int = 8 << 20
    """Bytes in flight per peer and group."""
    window_batches: int = 512
    max_entry: int = 8 << 20
    """Bytes of one command: at least the largest message of a client, at most what the mesh's frames hold."""
    max_uncommitted: int = 64 << 20
    """Bytes per group, proposed and not applied; more is refused with BackpressureError (one command always fits)."""
    apply_slice: float = 0.004
    """Time that a group may apply commands in one turn."""
    promote_lag: int = 64
    promote_seconds: float = 1.0
    """Entries that a learner may lack when it becomes a voter, or the time within which they were written."""
    early_frames: int = 64
    """Frames kept per group that this node does not have yet."""
    early_seconds: float = 5.0
    early_groups: int = 1_024
    early_bytes: int = 4 << 20
    """Bytes of all such frames."""
    hand_overs: int = 500
    """Groups that an unhealthy node hands over at a time."""
    free_term_leap: int = 1 << 21
    """Terms by which a voter's message may exceed this replica's term at any time: two rescues (`rescue.TERM_STEP`)."""
    max_term_leap: int = 1 << 28
    """The same, once in `leap_every`. A candidate waits at least 0.3 s per term, so that many elections take 2.5 years.
    A node that was away for longer must come back with an empty store."""
    leap_every: float = 60.0


@dataclass(slots=True, frozen=True)
class JournalOptions:
    """The sizes, retention and syncing of the journal."""

    segment_bytes: int = 32 << 20
    cache_bytes: int = 2 << 20
    """Bytes of commands kept in memory per group."""
    idle_cache_bytes: int = 64 << 10
    retain_bytes: int = 8 << 20
    """Bytes of compactable entries kept per group, so that a briefly absent follower needs no snapshot."""
    retain_entries: int = 8_192
    node_retain_bytes: int = 64 << 20
    """Bytes of all groups above which retention yields, and live entries of quiet groups are carried forward."""
    reserve_bytes: int = 64 << 20
    """Free bytes, plus one segment, below which the disk counts as full. At least what the data store keeps free, so
    that the store never has to refuse an entry of the log."""
    sync_interval: float | None = None
    """Seconds between two fsyncs (acked data can be lost). None: fsync before every ack and vote."""
    retry_delay: float = 0.5
    """Seconds between two attempts to write to a full disk."""
    max_queued_bytes: int = 64 << 20
    """Bytes that may wait for the disk; more is refused with BackpressureError."""
