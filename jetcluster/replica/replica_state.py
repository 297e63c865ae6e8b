"""`ReplicaState`: the state of one replica of one stream, which its parts share (reads, consumers, repair, ...);
`StreamReplica` is this state with all of them on top."""

from __future__ import annotations

from jetcluster.consumer.state.table import ConsumerTable
from jetcluster.meta.state import Assignment
from jetcluster.raft.api import RaftGroup, Role
from jetcluster.raft.membership import Members, MembersError, decode_members, encode_members
from jetcluster.replica.checkpoints import Checkpoints
from jetcluster.replica.context import NodeContext
from jetcluster.store.api import DamagedError
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.levels import LEVEL, lowered
from jetcluster.stream.machine import StreamMachine
from jetcluster.stream.ports import SIDE_MEMBERS
from jetcluster.stream.rules import StreamRules


class ReplicaState:
    """One per replica. Making one raises DamagedError where what is stored cannot be read."""

    group: RaftGroup
    """Set before anything happens in it: `StreamReplica`."""

    def __init__(self, context: NodeContext, assignment: Assignment, rules: StreamRules) -> None:
        """`rules`: of the assignment; those in force are the machine's."""
        self.context = context
        self.assignment = assignment
        self.bus = context.bus(assignment.account)
        # Memory streams live in the same store: their Raft log is written but not waited for (`durable`), so they
        # lose nothing to a killed process, and what a power failure takes is what "memory" means.
        self.store = BlockStore(context.kv, assignment.gid, memory=rules.memory)
        self.table = ConsumerTable(self.store)
        self.machine = StreamMachine(assignment.name, rules, self.store, self.table)
        self.checkpoints = Checkpoints(self.machine.applied_index, self.machine.hash)
        self.damaged: str = ""
        """Damage that was found in the store; empty while nothing was."""
        self.suspect: str = ""
        """Why the own state is not to be trusted; it is being replaced by the leader's then."""
        self.doubt: str = ""
        """Why it may be wrong: it differs from the leader's, and who is right is not known yet."""
        self.installing = self.store.incomplete
        self.resting = False
        """It is left out of the ticks (`replica.rounds`)."""
        self.leader_since_ns = 0

    # -- verdicts

    @property
    def leading(self) -> bool:
        """It leads, and the node knows that the stream exists."""
        return self.group.role is Role.LEADER and self.group.ready and self.context.meta_current

    @property
    def failed(self) -> str:
        """Why this replica stopped and does not go on (its state machine raised); empty while it works."""
        return self.group.stopped

    @property
    def keeps_state(self) -> bool:
        """See `SnapshotOwner`."""
        return bool(self.damaged or self.suspect)

    @property
    def wants_state(self) -> bool:
        """See `SnapshotOwner`."""
        return self.keeps_state or self.group.lacks_state

    @property
    def state_index(self) -> int:
        """See `SnapshotOwner`."""
        return 0 if self.group.contradicted else self.machine.applied_index

    @property
    def sound(self) -> bool:
        """True when what is stored here is the stream as of `machine.applied_index`, all of it."""
        return not (self.installing or self.damaged or self.suspect or self.failed)

    @property
    def trusted(self) -> bool:
        """It is sound, and nothing speaks against its being what the others have."""
        return self.sound and not (self.doubt or self.group.contradicted or self.group.refused)

    @property
    def vouches(self) -> bool:
        """The node may answer for this replica, as far as its own health goes. Where no other replica's node is better
        it answers all the same: what it has is all there is."""
        raft = self.context.raft
        return raft.health.vouches or raft.peers.may_lead(self.group.peers)

    @property
    def retiring(self) -> bool:
        """The stream has no place here any more. This replica still votes until its group has done without it."""
        return self.context.me not in self.assignment.peers

    def config_is_current(self) -> bool:
        """The configuration that the meta group decided has been applied in the stream's own log."""
        return dict(self.assignment.config) == self.machine.config

    # -- members

    def members(self) -> Members | None:
        """The configuration that is kept with the state, which on_members told last. Raises DamagedError."""
        stored = self.store.side_get(SIDE_MEMBERS, b"")
        try:
            return decode_members(stored) if stored is not None else None
        except MembersError as error:
            raise DamagedError(self.store.first_seq, self.store.last_seq) from error

    def keep_members(self, members: Members | None = None) -> None:
        """Puts `members` beside the state, or the configuration in force once more."""
        if members is None:
            index = self.machine.applied_index
            members = Members(index, self.group.members_at(index))
        self.store.side_put(SIDE_MEMBERS, b"", encode_members(members))

    # -- levels

    @property
    def level(self) -> int:
        """The lowest level among the nodes of the group (`stream.levels`)."""
        return self.context.raft.levels.of(self.group.members_at(self.group.last_index))

    def understood(self, command: bytes) -> bytes | None:
        """`command` as all nodes of the group apply it (`stream.levels`); None: not now."""
        level = self.level
        return command if level >= LEVEL else lowered(command, level)

    # -- rest

    def set_resting(self, resting: bool) -> None:
        self.resting = resting

    def wake(self) -> None:
        """Something happened that the next tick may have to look at."""
        if self.resting:
            self.context.rounds.wake(self.assignment.gid)
