"""Times and limits of a node's Raft groups and of the journal they share. Seconds and bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class RaftConfig:
    """The times and limits of elections, heartbeats and flow."""

    heartbeat: float = 0.1
    """Between two heartbeats of a pair of nodes; there are none per group."""
    suspect_after: float = 0.8
    """Silence of a node with a live link after which the groups it leads look for a new leader."""
    quorum_timeout: float = 1.2
    """A leader that has not heard from a majority for so long steps down."""
    link_loss_jitter: tuple[float, float] = (0.005, 0.08)
    """When a follower campaigns after its leader's link broke."""
    retry: tuple[float, float] = (0.1, 0.25)
    """Until the next attempt when PreVote was not answered by a majority."""
    vote_timeout: tuple[float, float] = (0.3, 0.8)
    """Seconds that a candidate waits for votes."""
    start_delay: tuple[float, float] = (0.3, 0.8)
    """Seconds that a replica waits for a leader when it starts."""
    stateless_delay: float = 3.0
    """Added for a replica that waits for a snapshot: somebody with the state should lead."""
    digest: float = 2.0
    """Between two lists of "the groups I lead"."""
    clock_wait: float = 2.0
    """Seconds that a group of one waits at its start for a majority's time, while nobody is heard who disagrees."""
    journal_hangs: float = 1.0
    """A write to the journal that takes so long is taken for one that does not return."""
    second_opinion: float = 0.25
    """A node that is not well hands nothing over before it has been so for so long: two heartbeats of the others."""
    give_way: float = 0.5
    """Seconds that a node which should not lead tries to hand a group over before it resigns."""
    give_way_pause: float = 2.0
    """Until it tries again when the other one could not keep up with it."""
    deferrals: int = 5
    """Elections that a replica whose node is not well leaves to the others, one of which is well, before it stands:
    that one may not have the log to win."""
    stall: float = 1.0
    """A batch that was not answered for so long on a live link is sent again."""
    transfer_timeout: float = 1.0
    """Seconds after which a hand-over is given up."""
    transfer_patience: float = 0.2
    """Seconds of these for which the leader waits to have answered all that it accepted. Below `give_way`."""
    offer_retry: float = 2.0
    pin_seconds: float = 120.0
    """Seconds that a leader keeps its log for a peer that catches up and gives no sign of life."""
    pin_bytes: int = 256 << 20
    pin_share: float = 0.25
    pin_most: int = 32 << 30
    pin_entries: int = 4 << 20
    """The limits of what all groups of a node keep so, together: `retention.PinLimits`. A full disk ends all of it."""
    frame_bytes: int = 256 << 10
    """Entries per AppendEntries."""
    frame_entries: int = 4_096
    window_bytes: int = 8 << 20
    """Per peer and group, sent and not acknowledged."""
    window_batches: int = 512
    max_entry: int = 8 << 20
    """One command; at least the largest message a client may send. The mesh's frames must hold it."""
    max_uncommitted: int = 64 << 20
    """Per group, proposed and not applied; more is refused with BackpressureError (one command always fits)."""
    apply_slice: float = 0.004
    promote_lag: int = 64
    promote_seconds: float = 1.0
    """The most that a learner may lack when it is made a voter: so many entries, or those of so much time."""
    early_frames: int = 64
    """Frames kept per group that this node does not have yet."""
    early_seconds: float = 5.0
    early_groups: int = 1_024
    early_bytes: int = 4 << 20
    """Bytes of all frames that are kept so."""
    hand_overs: int = 500
    """Groups that a node which should not lead hands over at a time."""
    free_term_leap: int = 1 << 21
    """Terms by which a message of a voter may be ahead of this replica's at any time: a rescue takes `rescue.TERM_STEP`
    at once, of which two fit."""
    max_term_leap: int = 1 << 28
    """The same, once in `leap_every`. A candidate waits 0.3 s at least before it goes on to the next term, so that many
    elections take 2.5 years of nothing else. A node that was away for longer comes back with an empty store."""
    leap_every: float = 60.0


@dataclass(slots=True, frozen=True)
class JournalOptions:
    """The sizes, the retention and the syncing of the journal."""

    segment_bytes: int = 32 << 20
    cache_bytes: int = 2 << 20
    """Commands kept in memory per group."""
    idle_cache_bytes: int = 64 << 10
    retain_bytes: int = 8 << 20
    """Per group: entries kept behind what is compactable, so that a briefly absent follower needs no snapshot."""
    retain_entries: int = 8_192
    node_retain_bytes: int = 64 << 20
    """All groups together: above this, retention yields, and live entries of quiet groups are carried forward."""
    reserve_bytes: int = 64 << 20
    """Free space below this plus one segment counts as a full disk. Not less than what the data store keeps free, so
    that it never has to refuse what is in the log."""
    sync_interval: float | None = None
    """None: fsync before anything is vouched for. Seconds: only every so often (acked data can be lost)."""
    retry_delay: float = 0.5
    """Between two attempts to write to a full disk, seconds."""
    max_queued_bytes: int = 64 << 20
    """Bytes waiting for the disk; more is refused with back-pressure."""
