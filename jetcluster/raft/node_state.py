"""`NodeState`: what the groups of one node have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jetcluster.clock import Clock, Rng, Timers
from jetcluster.health.node_health import NodeHealth
from jetcluster.latency import Latency
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.journal import Journal
from jetcluster.raft.peers import Peers
from jetcluster.raft.turns import Turns

CONTROL_GID = 0
"""Frames of this group are the nodes' own."""


@dataclass(slots=True)
class RaftCounters:
    """Totals of this process for monitoring."""

    refused_frames: int = 0
    """Malformed, or impossible."""
    unknown_frames: int = 0
    """For groups that this node does not have."""
    stopped_groups: int = 0
    campaigns: int = 0


@dataclass(slots=True)
class NodeState:
    """Made by `RaftNode`, which acts on it; the groups read it, and ask `turns` for their turn."""

    me: str
    config: RaftConfig
    journal: Journal
    send: Callable[[str, int, bytes], bool]
    """Peer, group, frame: `Transport.send_raft`."""
    clock: Clock
    rng: Rng
    timers: Timers
    health: NodeHealth
    peers: Peers
    turns: Turns
    report: Callable[[int, str], None]
    """Group, and something about it that an operator should read."""
    counters: RaftCounters = field(default_factory=RaftCounters)
    commit_latency: Latency = field(default_factory=Latency)
    """From a proposal to its commit, on leaders: one entry at a time and group."""
    apply_latency: Latency = field(default_factory=Latency)
    """Seconds per turn in which a group applies what is committed."""
