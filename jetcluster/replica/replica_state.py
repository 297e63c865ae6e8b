"""`ReplicaState`: the state of one replica of one stream, which its parts share. `Checkpoints`: its rolling hashes."""

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
from jetcluster.replica.services import Services
from jetcluster.store.api import DamagedError
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.log.levels import LEVEL, lowered
from jetcluster.stream.ports import SIDE_MEMBERS
from jetcluster.stream.rules import StreamRules

CHECKPOINT_EVERY = 64
"""Log entries between two remembered hashes; a power of two."""
CHECKPOINTS = 256
"""Hashes kept per replica: a follower that lags more than 64 * 256 entries is compared when it has caught up."""


class Checkpoints:
    """The rolling hash at the last few checkpoints, and at the newest applied index."""

    def __init__(self, index: int = 0, digest: bytes = b"") -> None:
        """`index` and `digest`: the state machine's."""
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
        """The newest hash, and the newest checkpoint, which a follower that lags a little can compare too."""
        told = [self.newest] if self.newest[0] else []
        if self._hashes:
            index = next(reversed(self._hashes))
            if index != self.newest[0]:
                told.append((index, self._hashes[index]))
        return told


class Condition(enum.IntEnum):
    """Verdicts on a replica's stored state, worst first; the first that applies counts (docs/reference/terms.md)."""

    DAMAGED = 0
    REJECTED = 1
    STOPPED = 2
    INSTALLING = 3
    DISPUTED = 4
    CONFIRMED = 5


class ReplicaState:
    """One per replica. The constructor raises DamagedError where the stored state cannot be read."""

    group: RaftGroup
    """Set by `StreamReplica` before the group starts."""

    def __init__(self, services: Services, assignment: Assignment, rules: StreamRules) -> None:
        """`rules`: the assignment's; the rules in force are the machine's."""
        self.runtime, self.network, self.commits = services.runtime, services.network, services.commits
        self.known, self.events = services.known, services.events
        self.assignment = assignment
        self.placed_ns = services.runtime.clock.time_ns()
        """When this server learned that the stream was to have other peers, Unix nanoseconds. One more change before
        that is done keeps the time of the first, as nats-server's `desired` does."""
        self.scaled_ns = 0
        """`Scaled.since_ns` of the first change of the number that is not done; 0 where this server does not know of an
        earlier one than the assignment's."""
        self.bus = services.events.bus(assignment.account)
        # Memory streams use the same store. Acks do not wait for their log's fsync (`durable`): a killed process loses
        # nothing, a power failure may, which is the meaning of "memory".
        self.store = BlockStore(self.commits.kv, assignment.gid, memory=rules.memory)
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
        """Ticks skip this replica (`replica.rounds`)."""
        self.leader_since_ns = 0

    def propose_data(self, command: bytes) -> int:
        """Propose a command with messages and return its index. Raises RaftError."""
        raise NotImplementedError

    def try_propose(self, command: bytes) -> bool:
        """Propose a command whose outcome no caller awaits. Returns False when that is impossible now."""
        raise NotImplementedError

    def report_damage(self, error: DamagedError) -> None:
        """Stop answering reads: a stored record fails its checksum here, and other replicas hold the data."""
        raise NotImplementedError

    # -- verdicts

    @property
    def leading(self) -> bool:
        """True while it leads and the node knows that the stream exists."""
        return self.group.role is Role.LEADER and self.group.ready and self.known.current

    @property
    def failed(self) -> str:
        """Why this replica stopped for good (its state machine raised), "" while it works."""
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
        return self.condition >= Condition.DISPUTED

    @property
    def trusted(self) -> bool:
        """True when the state is sound and undisputed."""
        return self.condition is Condition.CONFIRMED

    @property
    def keeps_state(self) -> bool:
        """See `SnapshotOwner`."""
        return self.condition <= Condition.REJECTED

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
        raft = self.network.raft
        return raft.health.may_answer or raft.peers.may_lead(self.group.peers)

    @property
    def retiring(self) -> bool:
        """True when the stream is not assigned here any more. The replica votes until its group is without it."""
        return self.network.me not in self.assignment.peers

    def config_is_current(self) -> bool:
        """True when the stream's log has applied the configuration that the meta group decided."""
        return dict(self.assignment.config) == self.machine.config

    # -- members

    def members(self) -> Members | None:
        """The configuration stored with the state, from the last `on_members`. Raises DamagedError."""
        stored = self.store.side_get(SIDE_MEMBERS, b"")
        try:
            return decode_members(stored) if stored is not None else None
        except MembersError as error:
            raise DamagedError(self.store.first_seq, self.store.last_seq) from error

    def keep_members(self, members: Members | None = None) -> None:
        """Store `members` with the state; None stores the configuration in force."""
        if members is None:
            index = self.machine.applied_index
            members = Members(index, self.group.members_at(index))
        self.store.side_put(SIDE_MEMBERS, b"", encode_members(members))

    # -- levels

    @property
    def level(self) -> int:
        """The lowest level among the nodes of the group (`stream.log.levels`)."""
        return self.network.raft.levels.of(self.group.members_at(self.group.last_index))

    def understood(self, command: bytes) -> bytes | None:
        """`command` as all nodes of the group apply it (`stream.log.levels`); None: not now."""
        level = self.level
        return command if level >= LEVEL else lowered(command, level)

    # -- rest

    def set_resting(self, resting: bool) -> None:
        self.resting = resting

    def wake(self) -> None:
        """Let the next tick visit this replica."""
        if self.resting:
            self.runtime.rounds.wake(self.assignment.gid)


def tell_both(
    replica: ReplicaState, *events: Event, replicas: Callable[[], Sequence[Mapping[str, Any]]] | None = None
) -> None:
    """Publish events to the stream's account and, with that account's name, to the system account. `replicas` makes the
    last field of each event, the replica objects of all peers; it is called only for an event with a subscriber."""
    service, account = replica.events, replica.assignment.account
    system = [for_system_account(event, account) for event in events]
    listening = [(replica.bus, event) for event in events if replica.bus.has_interest(event.subject)]
    bus = service.bus(service.system_account)
    listening += [(bus, event) for event in system if bus.has_interest(event.subject)]
    more = {"replicas": replicas()} if listening and replicas is not None else {}
    for bus, event in listening:
        bus.publish(event.subject, service.render(event._replace(fields={**event.fields, **more})))
