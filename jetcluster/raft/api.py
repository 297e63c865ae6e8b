"""The border of `raft`: the types of what a group needs from the rest (state machine, transport) and of what it offers.

`raft` knows no streams. A group is one replicated log of opaque commands (bytes); `group id` (gid) is a u32 that is
never reused: 1 is the meta group, every stream's group id is its stream id.
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
    """Base of what `propose` and friends raise; nothing was appended unless a subclass says otherwise."""


class NotLeaderError(RaftError):
    """This replica does not lead; `leader` is its best knowledge of who does."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"not the leader (leader: {leader})")
        self.leader = leader


class LeavingError(NotLeaderError):
    """This replica leads still, and is handing that over: as far as it knows nobody else leads yet."""


class BackpressureError(RaftError):
    """Too many bytes proposed and not yet committed (or the journal's queue is full)."""


class StorageFullError(RaftError):
    """The journal cannot grow: the disk is full or below its reserve. Reads go on; writes are refused."""


class EntryTooLargeError(RaftError):
    """The command is above `RaftConfig.max_entry`: no other node would take it either."""

    blame = "caller"
    retriable = False


class MembershipError(RaftError):
    """A change of peers that is not allowed now (one at a time, only by a leader whose no-op is committed)."""

    blame = "caller"
    retriable = False


class StateMachine(Protocol):
    """One per group and replica. Deterministic: the same commands in the same order give the same state."""

    def apply(self, index: int, term: int, command: bytes) -> None:
        """Applies one committed command. Indexes come in order, without gaps, each once. Must not raise: an exception
        stops the group on this node (it would diverge)."""
        ...

    def on_role(self, role: Role, term: int, leader: str | None) -> None:
        """The replica's role or its idea of the leader changed. `LEADER` is told only once the leader's own no-op of
        its term is applied: from then on everything committed before is applied here."""
        ...

    def on_dropped(self, first_index: int) -> None:
        """This replica lost the leadership: the outcome of its proposals from `first_index` on is unknown."""
        ...

    def on_members(self, members: Members) -> None:
        """The configuration in force at the applied index, told at the start and whenever it is another one. To be kept
        with the state, in the same write: `RaftNode.create_group` wants it back. No replica may count a majority by a
        configuration older than its state, so what is fetched is flushed together with its own."""
        ...

    def on_snapshot_needed(self, leader: str, index: int, term: int) -> None:
        """The log that this replica lacks is no longer in the leader's journal (or its own state was lost). The owner
        fetches the state of at least `index` from a peer, then calls `RaftGroup.install`."""
        ...


class Transport(Protocol):
    """The mesh, as a group sees it."""

    def send_raft(self, peer: str, gid: int, frame: bytes) -> bool:
        """Queues one frame on the ordered connection to `peer`; False when there is none (the frame is dropped)."""
        ...


@dataclass(slots=True)
class PeerStatus:
    """A peer of a group as its leader knows it."""

    peer: str
    match_index: int
    """Highest log index known durable on the peer (leader's view; 0 when unknown)."""
    last_seen: float
    """Monotonic seconds of the last frame from the peer; 0.0 when never."""
    connected: bool
    voter: bool
    recovering: bool = False
    """It said that its journal is damaged: it neither votes nor counts yet."""
    silent: bool = False
    """Nothing has come from it for longer than from a node that lives (`RaftConfig.suspect_after`)."""
    caught_up: bool = False
    """It is a learner that could be a voter now."""


@dataclass(slots=True)
class GroupStatus:
    """A snapshot of one replica for monitoring; nothing decides by it."""

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
    """The journal lost records of this replica that had been durable: it does not vote or count until it has been
    brought up by a leader that a majority without it confirms (`Rejoin`)."""
    needs_snapshot: bool = False
    """Waiting for `install`."""
    stopped: str = ""
    """Why this replica stopped and does not go on (its state machine raised, or replicas diverged); "" while it
    works."""


class RaftGroup(Protocol):
    """One replica's handle on its group. All methods are synchronous and must be called from the event loop."""

    gid: int
    role: Role
    term: int
    leader: str | None
    """Peer id of the leader this replica follows (itself when it leads)."""
    applied_index: int
    stopped: str
    """Why this replica stopped and does not go on; "" while it works."""
    fault: BaseException | None
    """The exception that stopped it, if it was one."""
    ready: bool
    """True on a leader whose own no-op is applied (see `StateMachine.on_role`)."""
    leaderless_since: float | None
    """Monotonic seconds since when this replica knows of no leader; None while it knows one, or leads."""
    passed_over_since: float | None
    """Since when that is so although it is connected with a majority of the voters; None while it is cut off, too."""
    left_out: bool
    """The leader says that it does not lead this replica (it may have been removed); until the next leader is known."""

    refused: str
    """The fault of a leader that others follow and this replica cannot: it contradicts what is committed here for
    certain. "" while there is none, or another one is followed."""

    @property
    def commit_index(self) -> int: ...

    @property
    def told_index(self) -> int:
        """The index up to which somebody may have been told that entries are stored, as far as this replica has heard:
        above `commit_index` while it lacks entries that its leader has, because its disk is full or it was away. May go
        down again."""
        ...

    @property
    def last_index(self) -> int: ...

    @property
    def peers(self) -> tuple[str, ...]:
        """Voters' peer ids in the newest configuration in the log, this one included if it is a voter; old and new ones
        while voters change."""
        ...

    def propose(self, command: bytes, reserve: bool = False) -> int:
        """Appends one command and returns its log index; it is durable and committed when `apply` is called with it,
        which is never before this call has returned.
        `reserve`: it may use the space that is kept in reserve (what frees space must still get in on a full disk).
        Raises NotLeaderError, BackpressureError, StorageFullError, EntryTooLargeError."""
        ...

    def read_index(self, callback: Callable[[bool], None]) -> None:
        """Calls back with True once this replica is proven to lead *after* this call and has applied everything
        committed by then: a local read is then linearizable (Raft section 6.4 of the dissertation). False: ask again
        elsewhere. All calls of one loop turn share one round."""
        ...

    def transfer(self, peer: str | None = None) -> bool: ...

    def add_peer(self, peer: str) -> int: ...

    def remove_peer(self, peer: str) -> int: ...

    def change_voters(self, voters: tuple[str, ...]) -> int:
        """Has the group decide by `voters` instead, in one change: by those that there are, and learners that have
        caught up (`PeerStatus.caught_up`). Where this replica is none of them it hands the leadership over to one.
        Returns the log index at which the change begins. Raises NotLeaderError, MembershipError."""
        ...

    def compact(self, index: int) -> None:
        """The state machine is durable up to `index`; the journal may forget entries up to it."""
        ...

    def suspend(self) -> None:
        """The state machine's state is not to be built upon (it was found wrong, or is being replaced): nothing is
        applied until `install`, and the leader is asked for a snapshot, as in `on_snapshot_needed`."""
        ...

    @property
    def lacks_state(self) -> bool:
        """The state of `on_snapshot_needed` is needed still: the log has not gone on without it, as it does after an
        offer that was on its way while another state was installed."""
        ...

    @property
    def contradicted(self) -> bool:
        """The leader does not have what this replica counts as committed: a loss of power took it from a majority that
        had not waited for the disk. The leader's state replaces the own one, and may be older."""
        ...

    def fetches(self, peer: str, index: int) -> None:
        """`peer` fetches the state of `index` from this node, and was heard of just now: a leader keeps the log behind
        it for the peer, until that has caught up or is silent for long, or the disk wants the space."""
        ...

    def command_at(self, index: int) -> tuple[int, bytes] | None:
        """Term and command of an entry above what was made durable with the state (`compact`); None for an entry that
        is not the state machine's. Raises JournalDamageError."""
        ...

    def members_at(self, index: int) -> Config:
        """The configuration at `index`, which the log still has. It travels with a state, as a whole: a replica
        that does not know of a rescue, and of whom it left out, would follow those again."""
        ...

    def install(self, index: int, term: int, config: Config) -> None:
        """The state machine now holds (durably) the state of `index`; the log continues after it. `config` is the one
        as of that index (`members_at` of the replica that gave the state)."""
        ...

    def fail(self, error: BaseException | str) -> None:
        """This replica cannot go on safely: it stops, and says so."""
        ...

    def fence(self, peers: tuple[str, ...]) -> None:
        """Frames of these peers are ignored, unless they are members again; also those of `Config.fenced`. For peers
        that a rescue has left out (`rescue.py`) and of which this replica's log need not know any more."""
        ...

    def status(self) -> GroupStatus: ...
