"""The interface of `raft`: what a group needs from the rest (state machine, transport), and what it offers.

`raft` knows no streams. A group is one replicated log of opaque commands (bytes). A group id (gid) is a u32 that is
never reused: 1 is the meta group, and a stream's group id is its stream id.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import field
from typing import Protocol

from jetcluster.errors import PassingError
from jetcluster.raft.membership import Config, Members
from jetcluster.records import dataclass

META_GROUP = 1


class Role(enum.IntEnum):
    """The role of a replica in its term (section 5.1 of the Raft paper)."""

    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2


class RaftError(PassingError):
    """Base of the errors of `RaftGroup`; nothing was appended unless a subclass says otherwise."""


class NotLeaderError(RaftError):
    """This replica does not lead; `leader` is the peer that it believes to lead, or None."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"not the leader (leader: {leader})")
        self.leader = leader


class LeavingError(NotLeaderError):
    """This replica still leads, and is handing the leadership over; it knows of no other leader yet."""


class BackpressureError(RaftError):
    """Too many bytes are proposed and not yet committed, or the journal's queue is full."""


class StorageFullError(RaftError):
    """The disk is full or below its reserve: the journal refuses writes, while reads go on."""


class EntryTooLargeError(RaftError):
    """The command is above `RaftConfig.max_entry`: no other node would take it either."""

    blame = "caller"
    retriable = False


class MembershipError(RaftError):
    """The change of members is not allowed now (one at a time, only by a leader whose no-op is committed)."""

    blame = "caller"
    retriable = False


class StateMachine(Protocol):
    """The state machine of one replica. The same commands in the same order must give the same state."""

    def apply(self, index: int, term: int, command: bytes) -> None:
        """Apply one committed command. Indexes come in ascending order, each once. Must not raise: an exception stops
        the group on this node, which would diverge."""

    def on_role(self, role: Role, term: int, leader: str | None) -> None:
        """Note a new role or leader. `LEADER` comes only once the no-op of its term is applied: then all earlier
        committed entries are applied too."""

    def on_dropped(self, first_index: int) -> None:
        """Note the loss of the leadership: the outcome of the proposals from `first_index` on is unknown."""

    def on_members(self, members: Members) -> None:
        """Store the configuration in force at the applied index, in the same write as the state. Called at the start
        and at each change; `RaftNode.create_group` needs it at the next start. No replica may count a majority by a
        configuration older than its state, so a fetched state is flushed together with its own."""

    def on_contradicted(self) -> None:
        """Read the state no more: a leader lacks a committed entry of this replica, so another state replaces it."""

    def on_snapshot_needed(self, leader: str, index: int, term: int) -> None:
        """Fetch the state of at least `index` from a peer, then call `RaftGroup.install`: the entries that this replica
        lacks are no longer in the leader's journal, or its own state was lost."""


class Transport(Protocol):
    """The mesh, as a group sees it."""

    def send_raft(self, peer: str, gid: int, frame: bytes) -> bool:
        """Queue one frame on the ordered connection to `peer`. Returns False, and drops the frame, if there is none."""


@dataclass(slots=True)
class PeerStatus:
    """A peer of a group, as its leader knows it."""

    peer: str
    match_index: int
    """Highest log index known to be durable on the peer; 0 when unknown."""
    last_seen: float
    """Monotonic seconds of the peer's last frame; 0.0 if none."""
    connected: bool
    voter: bool
    recovering: bool = False
    """The peer has reported a damaged journal: it neither votes nor counts yet."""
    silent: bool = False
    """No frame has come from the peer for `RaftConfig.suspect_after`."""
    caught_up: bool = False
    """The peer is a learner that could become a voter now."""
    acked_index: int = 0
    """`match_index`, or what the peer acknowledged before its link broke: 0 then, until it answers again."""


@dataclass(slots=True)
class GroupStatus:
    """A snapshot of one replica, for monitoring only."""

    gid: int
    role: Role
    term: int
    leader: str | None
    first_index: int
    last_index: int
    commit_index: int
    applied_index: int
    durable_index: int
    peers: list[PeerStatus] = field(default_factory=list)
    ready: bool = False
    damaged: bool = False
    """The journal has lost durable records of this replica: it neither votes nor counts until it has caught up with a
    leader that a majority without it confirms (`Rejoin`)."""
    needs_snapshot: bool = False
    """The replica waits for `install`."""
    stopped: str = ""
    """Why this replica has stopped for good (its state machine raised, or replicas diverged); "" while it works."""
    overrun: bool = False
    """It leads, and refuses proposals: too much waits to be committed."""
    overrun_count: int = 0
    """Times that it began to refuse."""


class RaftGroup(Protocol):
    """One replica's handle on its group. All methods are synchronous and must be called from the event loop."""

    gid: int
    role: Role
    term: int
    leader: str | None
    """Peer id of the leader that this replica follows, or its own when it leads."""
    applied_index: int
    stopped: str
    """Why this replica has stopped for good; "" while it works."""
    fault: BaseException | None
    """The exception that stopped the replica, if one did."""
    ready: bool
    """True on a leader whose own no-op is applied (see `StateMachine.on_role`)."""
    leaderless_since: float | None
    """Monotonic seconds since when this replica knows no leader; None while it knows one, or leads."""
    passed_over_since: float | None
    """Monotonic seconds since when it is connected with a majority of the voters as well; None while it is cut off."""
    left_out: bool
    """True when the last leader's digest did not name this group: the replica may have been removed."""

    refused: str
    """The fault of a leader that this replica cannot follow, because it contradicts entries that are committed here for
    certain; "" while there is none, or another leader is followed."""

    @property
    def commit_index(self) -> int: ...

    @property
    def told_index(self) -> int:
        """Index up to which clients may have been acked, by what this replica has heard: above `commit_index` while it
        lacks entries of its leader, because its disk is full or it was away. May go down again."""

    @property
    def last_index(self) -> int: ...

    @property
    def peers(self) -> tuple[str, ...]:
        """Peer ids of the voters in the log's newest configuration; the old and the new ones while voters change."""

    @property
    def members(self) -> frozenset[str]:
        """Peer ids of `peers` and of the learners."""

    def propose(self, command: bytes, reserve: bool = False) -> int:
        """Append one command and return its log index. It is durable and committed when `apply` is called with it,
        which is never before this call has returned. `reserve`: the command may use reserved space, because commands
        that free space must still be accepted on a full disk. Raises NotLeaderError, BackpressureError,
        StorageFullError, EntryTooLargeError."""

    def read_index(self, callback: Callable[[bool], None]) -> None:
        """Call back with True once this replica is proven to lead *after* this call and has applied everything
        committed by then: a local read is then linearizable (Raft dissertation, section 6.4). False: this replica
        cannot prove it. All calls of one loop turn share one round."""

    def reads_now(self) -> bool:
        """True when a read of what is applied is linearizable without `read_index`: a lease holds at this moment, or
        this replica is the only voter. The read may follow later."""

    def transfer(self, peer: str | None = None) -> bool: ...

    def add_peer(self, peer: str) -> int: ...

    def remove_peer(self, peer: str) -> int: ...

    def change_voters(self, voters: tuple[str, ...]) -> int:
        """Replace the voters by `voters` in one change; each must be a voter, or a learner that has caught up
        (`PeerStatus.caught_up`). If this replica is none of them it hands the leadership to one. Returns the log index
        at which the change begins. Raises NotLeaderError, MembershipError."""

    def compact(self, index: int) -> None:
        """Note that the state machine is durable up to `index`: the journal may forget entries up to it."""

    def suspend(self) -> None:
        """Apply nothing until `install`, and ask the leader for a snapshot: the state is wrong, or being replaced."""

    @property
    def lacks_state(self) -> bool:
        """True while the state of `on_snapshot_needed` is still needed. The log may go on without it, as after an offer
        that was in flight while another state was installed."""

    @property
    def contradicted(self) -> bool:
        """True while the leader lacks entries that are committed here: a power failure took them from a majority that
        had not waited for the disk. The leader's state, which may be older, replaces this replica's."""

    def fetches(self, peer: str, index: int) -> None:
        """Note that `peer` fetches the state of `index` from this node: a leader keeps the log after it for the peer,
        until the peer has caught up or is silent for long, or the disk needs the space."""

    def command_at(self, index: int) -> tuple[int, bytes] | None:
        """Return (term, command) of a retained entry; None if it is no command. Raises JournalDamageError."""

    def members_at(self, index: int) -> Config:
        """Return the configuration at `index`, which the log must still have. The whole of it travels with a state: a
        replica that does not know of a rescue would follow the fenced peers again."""

    def install(self, index: int, term: int, config: Config) -> None:
        """Continue the log after `index`, whose state the state machine now holds durably. `config` is the one in force
        at that index (`members_at` of the replica that gave the state)."""

    def fail(self, error: BaseException | str) -> None:
        """Stop this replica, which cannot go on safely, and report it."""

    def fence(self, peers: tuple[str, ...]) -> None:
        """Ignore the frames of these peers, as of `Config.fenced`, unless they are members again. For peers that a
        rescue has left out (`rescue.py`) and that this replica's log may not name any more."""

    def status(self) -> GroupStatus: ...
