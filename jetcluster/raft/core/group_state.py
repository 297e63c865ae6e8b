"""`GroupState`: the state of one replica of a group, as figure 2 of the Raft paper lists it. The parts of a group
(elections, replication, ...) share it; `Group` is this state with all of them on top.

On disk: `log`, which holds term and vote as well. In memory: role, leader and commit index, which `engine` decides
and which are taken over by `Group.sync` once all that follows from them is done; the applied index; on a leader the
progress of every peer.

Beside it stand what the parts use of it alone: `Owner`, `PersistBeforeSend`, `Credit`.

"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jetcluster.raft import codec
from jetcluster.raft.api import Role, StateMachine
from jetcluster.raft.core.engine import Engine, Outbox
from jetcluster.raft.core.peer_progress import PeerProgress
from jetcluster.raft.journal.log import ALL_ON_CREDIT, GroupLog
from jetcluster.raft.membership import Config, Members, decisive
from jetcluster.raft.node_state import NodeState


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
        """Role, leader and `term` as this replica has acted upon them. Within one message `engine` may be a step ahead:
        `Group.sync` compares the two, does what follows from the step, and needs to know from where it was made."""
        self.ready = False
        self.stopped = ""
        self.members = frozenset(log.config.members)
        """Peers whose frames count, by the newest configuration of the log (`RaftNode` judges others)."""
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


class Owner:
    """The owner of a group's state machine, as the group tells it of roles, members and snapshots. An exception of the
    owner stops this group and nothing else: `fail` does."""

    def __init__(self, state: GroupState, machine: StateMachine, fail: Callable[[BaseException | str], None]) -> None:
        self.fail = fail
        self._state = state
        self._machine = machine
        self._role: tuple[Role, int, str | None] | None = None
        self._members: Config | None = None

    def call(self, callback: Callable[..., Any], *args: Any) -> None:
        """Calls the owner's code; the node must live, whatever it raises."""
        try:
            callback(*args)
        except Exception as error:  # noqa: BLE001 - as above
            self.fail(error)

    def tell_role(self, role: Role, leader: str | None) -> None:
        state = self._state
        news = (role, state.term, leader)
        if news != self._role and not state.stopped:
            self._role = news
            self.call(self._machine.on_role, role, state.term, leader)

    def tell_members(self) -> None:
        """The owner keeps with its state by whom that was decided."""
        state = self._state
        index = max(state.applied_index, state.log.base_index)
        config = state.log.config_at(index)
        if config != self._members:
            self._members = config
            self.call(self._machine.on_members, Members(index, config))

    def restored(self, index: int) -> None:
        """The state machine holds `index` now (a snapshot was installed)."""
        self._state.applied_index = self._state.machine_index = index
        self._members = None
        self.tell_members()

    def dropped(self, first_index: int) -> None:
        self.call(self._machine.on_dropped, first_index)

    def needs_snapshot(self, leader: str, index: int, term: int) -> None:
        self.call(self._machine.on_snapshot_needed, leader, index, term)


class PersistBeforeSend:
    """Frames that may not leave before what they say is on disk (docs/reference/pysyncobj.md: D10, D12).

    They are kept in order, and bounded by the leader's window, since every ack answers a batch."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int, int, str, bytes]] = []
        """(term, index, record, peer, frame): see `add`."""

    def add(self, term: int, index: int, record: int, peer: str, frame: bytes) -> None:
        """`frame` to `peer` is true in `term` once `index` and `record` are durable."""
        self.frames.append((term, index, record, peer, frame))

    def release(self, log: GroupLog, term: int) -> list[tuple[str, bytes]]:
        """Frames that may leave now. Those of another term are dropped: a truncated tail's ack is stale by its term."""
        free: list[tuple[str, bytes]] = []
        held, self.frames = self.frames, []
        for item in held:
            of_term, index, record, peer, frame = item
            if of_term != term:
                continue
            if index <= log.written_index and record <= log.durable_gseq:
                free.append((peer, frame))
            else:
                self.frames.append(item)
        return free

    def keep_term(self, term: int) -> None:
        self.frames = [f for f in self.frames if f[0] == term]

    def drop_peer(self, peer: str) -> None:
        """Its connection is gone; it asks again for what it still needs."""
        self.frames = [f for f in self.frames if f[3] != peer]

    def clear(self) -> None:
        self.frames.clear()


class Credit:
    """Tells how far what a replica knows to be committed may rest on entries that were not on a disk yet.

    A voter with a sync interval acknowledges what it has written, and a loss of power takes it back. So what a loss of
    power may take from a group is not decided by what this node does: an entry that is on its own disk, and counted
    together with such an acknowledgement, is lost all the same where the voters that go on do not have it. Every member
    has to know that, or one that has kept more than the others would never follow their leader (`Receiver._refuse`).

    Nodes tell each other in the greeting of a link how they sync. While one voter is known to acknowledge on credit,
    all of the log counts as such (`GroupLog.credit`), also after a restart. When all voters are known to wait for their
    disks, what there is by then does so still, until an entry behind it is committed: a voter that waits for its disk
    has on it all that is before what it acknowledges, whoever wrote that, and in whatever life. A voter of which
    nothing is known, as it is away or of a version that does not tell, changes nothing. So in a cluster where nobody
    ever had a sync interval no log is on credit, and nobody gives up what it knows to be committed.

    Counting only what is on disks while one voter waits for its own would be another way: then two servers with an
    interval would let every publish wait for it while it is taken out one by one, and what was counted before would
    still be lost."""

    def __init__(self, state: GroupState) -> None:
        self._state = state

    def look(self, heard: int) -> None:
        """Voters, or what is known of them, or the commit index, may be others than before. `heard`: the most that a
        leader said is committed."""
        state, log = self._state, self._state.log
        if not log.durable:
            return  # on credit by itself (`GroupLog.relaxed`)
        waits = {self._waits(peer) for peer in log.config.electorate}
        if False in waits:
            log.set_credit(ALL_ON_CREDIT)
        elif None not in waits and log.credit == ALL_ON_CREDIT:
            log.set_credit(max(heard, state.engine.commit, log.last_index))
        elif None not in waits and log.credit < state.engine.commit:
            log.set_credit(0)

    def _waits(self, peer: str) -> bool | None:
        """It waits for its disk before it acknowledges; None while that is not known."""
        if peer == self._state.me:
            return self._state.node.journal.options.sync_interval is None
        return self._state.node.peers.waits_for_disk(peer)
