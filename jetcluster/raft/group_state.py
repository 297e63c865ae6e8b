"""`GroupState`: the state of one replica of a group, as figure 2 of the Raft paper lists it. The parts of a group
(elections, replication, ...) share it; `Group` is this state with all of them on top.

On disk: `log`, which holds term and vote as well. In memory: role, leader and commit index, which `engine` decides
and which are taken over by `Group.sync` once all that follows from them is done; the applied index; on a leader the
progress of every peer.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.raft import codec
from jetcluster.raft.api import Role
from jetcluster.raft.engine import Engine, Outbox
from jetcluster.raft.grouplog import GroupLog
from jetcluster.raft.membership import decisive
from jetcluster.raft.node_state import NodeState
from jetcluster.raft.peer_progress import PeerProgress


class GroupState:
    """Made with the log of the group; `outbox` sends what the core wants to be sent."""

    def __init__(self, node: NodeState, log: GroupLog, outbox: Outbox, applied_index: int) -> None:
        self.node = node
        self.me = node.me
        self.config = node.config
        self.gid = log.gid
        self.log = log
        self.now: Callable[[], float] = node.clock.monotonic
        self.applied_index = applied_index
        self.machine_index = applied_index
        """The newest command that the state machine was given; no-ops and configurations behind it are not told."""
        self.role = Role.FOLLOWER
        self.leader: str | None = None
        self.ready = False
        self.stopped = ""
        self.members = frozenset(log.config.members)
        """Whose frames count, by the newest configuration of the log (`RaftNode` judges others)."""
        self.followed = log.config
        """The configuration that `Group.follow_config` saw last."""
        self.fenced = frozenset(log.config.fenced)
        """Peers whose frames are ignored."""
        self.snapshot_wanted = False
        """Something in the log below the applied index is missing, also if the base says otherwise: see `Snapshots`."""
        self.matched_term = -1
        """A term whose leader's log was found equal to this one at or above its base."""
        self.matched_index = 0
        """The index up to which it is equal, at least."""
        self.refused = ""
        """See `api.RaftGroup`."""
        self.flows: dict[str, PeerProgress] = {}
        """One for each other member, while this replica leads."""
        self.engine = Engine(node.me, log.config, log, node.clock, outbox, node.config.quorum_timeout)
        self.engine.restore(applied_index, max(applied_index, log.commit_hint))
        self.term = self.engine.term

    @property
    def commit_index(self) -> int:
        return self.engine.commit

    @property
    def last_index(self) -> int:
        return self.log.last_index

    @property
    def peers(self) -> tuple[str, ...]:
        """The voters, by the newest configuration of the log; all of them while it is joint."""
        return self.log.config.electorate

    @property
    def needs_snapshot(self) -> bool:
        """The own state and the own log do not belong together."""
        return self.snapshot_wanted or self.applied_index < self.log.base_index

    @property
    def equal(self) -> int:
        """The log is known to be the present leader's up to here; 0 when nothing is known."""
        return self.matched_index if self.matched_term == self.term else 0

    # -- verdicts

    @property
    def decisive(self) -> bool:
        """This replica was part of every decision that there can have been."""
        return not self.log.damaged and decisive(self.log.configs_from(self.engine.commit), self.me)

    def may_campaign(self) -> bool:
        return (
            not self.stopped
            and not self.log.damaged
            and self.log.unreadable <= self.applied_index  # else it could neither apply nor send it
            and self.log.config.has_vote(self.me)
            and not self.engine.leading
            and self.term < codec.MAX_TERM
        )

    def has_live_leader(self) -> bool:
        leader = self.engine.leader
        return leader is not None and leader != self.me and self.node.peers.is_alive(leader)

    def hears(self, peer: str) -> bool:
        """May `peer`, which is no member by this replica's log, have become one since? (`admission`)"""
        return not self.engine.leading and (self.engine.leader == peer or not self.has_live_leader())

    # -- what all parts ask of the node

    def mark(self) -> None:
        """There is something to do in this turn."""
        self.node.turns.mark(self.gid)

    def wake_at(self, when: float) -> None:
        self.node.turns.wake_at(self.gid, when)

    def send(self, peer: str, frame: bytes) -> bool:
        return self.node.send(peer, self.gid, frame)

    def report(self, text: str) -> None:
        """Something an operator should read."""
        self.node.report(self.gid, text)
