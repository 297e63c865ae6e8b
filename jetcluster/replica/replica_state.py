"""`ReplicaState`: the state of one replica of one stream, which its parts share (reads, consumers, repair, ...);
`StreamReplica` is this state with all of them on top.

`Checkpoints` is the rolling hash of a replica at the last few places in its log, for comparison with others.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from jetcluster.consumer.state.table import ConsumerTable
from jetcluster.meta.state import Assignment
from jetcluster.model.advisory import Event, for_system_account
from jetcluster.raft.api import RaftGroup, Role
from jetcluster.raft.membership import Members, MembersError, decode_members, encode_members
from jetcluster.replica.context import NodeContext, advisories
from jetcluster.store.api import DamagedError
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.log.levels import LEVEL, lowered
from jetcluster.stream.ports import SIDE_MEMBERS
from jetcluster.stream.rules import StreamRules

CHECKPOINT_EVERY = 64
"""Log entries between two remembered hashes; a power of two."""
CHECKPOINTS = 256
"""Remembered per replica: a follower that lags further than 64 * 256 entries is compared when it has caught up."""


class Checkpoints:
    """The rolling hash at the last few checkpoints, and at the newest applied index."""

    def __init__(self, index: int = 0, digest: bytes = b"") -> None:
        """`index` and `digest`: where the state machine stands."""
        self._hashes: dict[int, bytes] = {}
        self.newest: tuple[int, bytes] = (index, digest)

    def note(self, index: int, digest: bytes) -> None:
        self.newest = (index, digest)
        if not index & (CHECKPOINT_EVERY - 1):
            self._hashes[index] = digest
            if len(self._hashes) > CHECKPOINTS:
                del self._hashes[next(iter(self._hashes))]

    def at(self, index: int) -> bytes | None:
        return self.newest[1] if index == self.newest[0] else self._hashes.get(index)

    def newest_ones(self) -> list[tuple[int, bytes]]:
        """The newest hash and the newest checkpoints, newest first."""
        found = [self.newest] if self.newest[0] else []
        found += [
            (index, self._hashes[index]) for index in islice(reversed(self._hashes), 3) if index != self.newest[0]
        ]
        return found

    def to_tell(self) -> list[tuple[int, bytes]]:
        """The newest hash, and the newest checkpoint, which a follower that is a little behind can compare too."""
        told = [self.newest] if self.newest[0] else []
        if self._hashes:
            index = next(reversed(self._hashes))
            if index != self.newest[0]:
                told.append((index, self._hashes[index]))
        return told


class Condition(enum.Enum):
    """Verdicts on a replica's stored state, worst first; the first that applies counts (docs/reference/terms.md)."""

    DAMAGED = "damaged"
    REJECTED = "rejected"
    STOPPED = "stopped"
    INSTALLING = "installing"
    DISPUTED = "disputed"
    CONFIRMED = "confirmed"

    @property
    def sound(self) -> bool:
        return self in _SOUND

    @property
    def keeps_state(self) -> bool:
        return self in _KEPT


_SOUND = (Condition.DISPUTED, Condition.CONFIRMED)
"""All of the stream is there, as of the applied index: it is compared with others, scrubbed, flushed and counted."""
_KEPT = (Condition.DAMAGED, Condition.REJECTED)
"""The state may hold what the giver of another one lacks, so it is kept until that one has arrived whole."""


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
        """The damage that was found in the store."""
        self.rejected: str = ""
        """Why the state is wrong and must be replaced by another replica's."""
        self.disputed: str = ""
        """Why the state may be wrong: it differs from the leader's, and no majority has decided yet."""
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
    def condition(self) -> Condition:
        if self.damaged:
            return Condition.DAMAGED
        if self.rejected:
            return Condition.REJECTED
        if self.failed:
            return Condition.STOPPED
        if self.installing:
            return Condition.INSTALLING
        if self.disputed or self.group.contradicted or self.group.refused:
            return Condition.DISPUTED
        return Condition.CONFIRMED

    @property
    def sound(self) -> bool:
        """True when what is stored here is the stream as of `machine.applied_index`, all of it."""
        return self.condition.sound

    @property
    def trusted(self) -> bool:
        """True when the state is sound and undisputed."""
        return self.condition is Condition.CONFIRMED

    @property
    def keeps_state(self) -> bool:
        """See `SnapshotOwner`."""
        return self.condition.keeps_state

    @property
    def wants_state(self) -> bool:
        """See `SnapshotOwner`."""
        return self.keeps_state or self.group.lacks_state

    @property
    def state_index(self) -> int:
        """See `SnapshotOwner`."""
        return 0 if self.group.contradicted else self.machine.applied_index

    @property
    def may_answer(self) -> bool:
        """True while the node's health allows this replica to answer reads (`NodeHealth.may_answer`), and also where no
        other replica's node is healthier: its data is all there is."""
        raft = self.context.raft
        return raft.health.may_answer or raft.peers.may_lead(self.group.peers)

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
        """The lowest level among the nodes of the group (`stream.log.levels`)."""
        return self.context.raft.levels.of(self.group.members_at(self.group.last_index))

    def understood(self, command: bytes) -> bytes | None:
        """`command` as all nodes of the group apply it (`stream.log.levels`); None: not now."""
        level = self.level
        return command if level >= LEVEL else lowered(command, level)

    # -- rest

    def set_resting(self, resting: bool) -> None:
        self.resting = resting

    def wake(self) -> None:
        """Something happened that the next tick may have to look at."""
        if self.resting:
            self.context.rounds.wake(self.assignment.gid)


def tell_both(
    replica: ReplicaState, *events: Event, replicas: Callable[[], Sequence[Mapping[str, Any]]] | None = None
) -> None:
    """Publishes events to the stream's account and, with that account's name, to the system account. `replicas` makes
    the last field of each event, the replica objects of all peers; it is called only when somebody listens."""
    context, account = replica.context, replica.assignment.account
    system = [for_system_account(event, account) for event in events]
    listening = [(replica.bus, event) for event in events if replica.bus.has_interest(event.subject)]
    bus = context.bus(context.system_account)
    listening += [(bus, event) for event in system if bus.has_interest(event.subject)]
    more = {"replicas": replicas()} if listening and replicas is not None else {}
    for bus, event in listening:
        bus.publish(event.subject, advisories(context).render(event._replace(fields={**event.fields, **more})))
