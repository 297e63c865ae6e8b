"""Times and limits of a node's Raft groups. Seconds and bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class RaftConfig:
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
    """How long a candidate waits for votes."""
    start_delay: tuple[float, float] = (0.3, 0.8)
    """How long a replica waits for a leader to show up when it starts."""
    stateless_delay: float = 3.0
    """Added for a replica that waits for a snapshot: somebody with the state should lead."""
    digest: float = 2.0
    """Between two lists of "the groups I lead"."""
    stall: float = 1.0
    """A batch that was not answered for so long on a live link is sent again."""
    transfer_timeout: float = 1.0
    offer_retry: float = 2.0
    pin_seconds: float = 120.0
    """How long a leader keeps its log for a peer that fetches a snapshot."""
    pin_bytes: int = 256 << 20
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
    """Entries a learner may lack when it is made a voter."""
    early_frames: int = 64
    """Frames kept per group that this node does not have yet."""
    early_seconds: float = 5.0
    early_groups: int = 1_024
