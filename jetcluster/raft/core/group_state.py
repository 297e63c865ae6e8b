"""`GroupState`: the state of one replica of a group, as figure 2 of the Raft paper lists it. The parts of a group
(elections, replication, ...) share it; `Group` is this state with all of them on top.

On disk: `log`, with term and vote. In memory: role, leader and commit index, which `engine` decides and `Group.sync`
adopts; the applied index; on a leader the progress of every peer.

Also here are helpers that need only this state: `Owner`, `PersistBeforeSend`, `Credit`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jetcluster.raft import codec
from jetcluster.raft.api import Role, StateMachine
from jetcluster.raft.core.engine import Engine, Outbox
from jetcluster.raft.core.peer_progress import PeerProgress
from jetcluster.raft.core.promise import Promise
from jetcluster.raft.journal.log import ALL_ON_CREDIT, GroupLog
from jetcluster.raft.membership import Config, Members, decisive
from jetcluster.raft.node_state import NodeState


class GroupState:
    """The state shared by the parts of one group, made from its log. `outbox` sends the core's messages."""

    def __init__(self, node: NodeState, log: GroupLog, outbox: Outbox, applied_index: int) -> None:
        self.node = node
        self.me = node.me
        self.config = node.config
        self.gid = log.gid
        self.log = log
        self.now: Callable[[], float] = node.clock.monotonic
        self.applied_index = applied_index
        self.machine_index = applied_index
        """Index of the newest command given to the state machine, which does not see no-ops and configurations."""
        self.role = Role.FOLLOWER
        self.leader: str | None = None
        """Role, leader and `term` as this replica has acted upon them. `engine` may be a step ahead within one message:
        `Group.sync` compares the two and acts on the difference."""
        self.ready = False
        self.stopped = ""
        self.members = frozenset(log.config.members)
        """Members of the log's newest configuration; `RaftNode` judges the frames of other peers."""
        self.followed = log.config
        """The last configuration seen by `Group.follow_config`."""
        self.fenced = frozenset(log.config.fenced)
        """Peers whose frames are ignored."""
        self.snapshot_wanted = False
        """True when the replica needs another state although its log reaches back far enough: see `Snapshots`."""
        self.matched_term = -1
        """Term whose leader's log was found equal to this one at or above its base."""
        self.matched_index = 0
        """Index up to which the two are known to be equal."""
        self.refused = ""
        """See `api.RaftGroup`."""
        self.promise = Promise(node, log)
        self.flows: dict[str, PeerProgress] = {}
        """Progress of each other member, while this replica leads."""
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
        """The voters of the log's newest configuration; while it is joint, the old and the new ones."""
        return self.log.config.electorate

    @property
    def needs_snapshot(self) -> bool:
        """True when this replica's state cannot be continued from its log."""
        return self.snapshot_wanted or self.applied_index < self.log.base_index

    @property
    def equal(self) -> int:
        """Index up to which the log is known to equal the current leader's; 0 when unknown."""
        return self.matched_index if self.matched_term == self.term else 0

    # -- verdicts

    @property
    def decisive(self) -> bool:
        """True when no quorum can have been without this replica (`membership.decisive`)."""
        return not self.log.damaged and decisive(self.log.configs_from(self.engine.commit), self.me)

    def may_campaign(self) -> bool:
        return (
            not self.stopped
            and not self.log.damaged
            and not self.node.journal.missing
            and self.log.unreadable <= self.applied_index  # else it could neither apply nor send that entry
            and self.log.config.has_vote(self.me)
            and not self.engine.leading
            and self.term < codec.MAX_TERM
        )

    def has_live_leader(self) -> bool:
        leader = self.engine.leader
        return leader is not None and leader != self.me and self.node.peers.is_alive(leader)

    def hears(self, peer: str) -> bool:
        """True if `peer`, no member by this replica's log, may have become one since (`admission`)."""
        return not self.engine.leading and (self.engine.leader == peer or not self.has_live_leader())

    # -- the node's services

    def mark(self) -> None:
        """Have `Group.work` called in this turn."""
        self.node.turns.mark(self.gid)

    def wake_at(self, when: float) -> None:
        self.node.turns.wake_at(self.gid, when)

    def send(self, peer: str, frame: bytes) -> bool:
        return self.node.send(peer, self.gid, frame)

    def report(self, text: str) -> None:
        """Log `text` for the operator."""
        self.node.report(self.gid, text)


class Owner:
    """Calls to the owner of a group's state machine. An exception of the owner stops, by `fail`, this group only."""

    def __init__(self, state: GroupState, machine: StateMachine, fail: Callable[[BaseException | str], None]) -> None:
        self.fail = fail
        self._state = state
        self._machine = machine
        self._role: tuple[Role, int, str | None] | None = None
        self._members: Config | None = None

    def call(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call the owner's code; whatever it raises, the node goes on."""
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
        """Report the configuration at the applied index: the owner stores it with its state."""
        state = self._state
        index = max(state.applied_index, state.log.base_index)
        config = state.log.config_at(index)
        if config != self._members:
            self._members = config
            self.call(self._machine.on_members, Members(index, config))

    def restored(self, index: int) -> None:
        """Note that the state machine is at `index` now: a snapshot was installed."""
        self._state.applied_index = self._state.machine_index = index
        self._members = None
        self.tell_members()

    def dropped(self, first_index: int) -> None:
        self.call(self._machine.on_dropped, first_index)

    def contradicted(self) -> None:
        self.call(self._machine.on_contradicted)

    def needs_snapshot(self, leader: str, index: int, term: int) -> None:
        self.call(self._machine.on_snapshot_needed, leader, index, term)


class PersistBeforeSend:
    """Frames that must not leave before their content is true on disk (docs/reference/pysyncobj.md: D10, D12).

    They keep their order, and the leader's window bounds them, since every ack answers a batch."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int, int, str, bytes]] = []
        """(term, index, record, peer, frame): see `add`."""

    def add(self, term: int, index: int, record: int, peer: str, frame: bytes) -> None:
        """Hold `frame` for `peer` until `index` and `record` (a gseq) are durable; it is valid in `term`."""
        self.frames.append((term, index, record, peer, frame))

    def release(self, log: GroupLog, term: int) -> list[tuple[str, bytes]]:
        """Remove and return the frames that may leave now, and drop those of other terms: acks of truncated tails."""
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
        """Drop the frames for a peer whose connection is gone; it asks again if it still needs an answer."""
        self.frames = [f for f in self.frames if f[3] != peer]

    def clear(self) -> None:
        self.frames.clear()


class Credit:
    """Decides how far the log is on credit: which committed entries may rest on acks that a power failure undoes.

    A voter with a sync interval acknowledges entries before they are on its disk, and a power failure takes them back.
    An entry on this node's own disk is lost too if it was counted together with such an ack and the remaining voters do
    not have it. Every member must know that, or one that has kept more than the others would never follow their leader
    (`Receiver._refuse`).

    Nodes announce in the greeting of a link how they sync. While one voter is known to acknowledge on credit, the whole
    log is on credit (`GroupLog.credit`), also after a restart. Once all voters are known to wait for their disks, the
    entries so far stay on credit until a later one is committed: a voter that waits for its disk has on it everything
    before an entry that it acknowledges. A voter about which nothing is known changes nothing. So in a cluster where no
    server ever had a sync interval no log is on credit, and no replica gives up a committed entry.

    The alternative, to count only entries on disk while one voter waits for its own, was not taken: every publish would
    wait for that voter while the servers change over one by one, and the entries counted before would still be lost."""

    def __init__(self, state: GroupState) -> None:
        self._state = state

    def look(self, heard: int) -> None:
        """Decide again after a change of the voters, of what is known of them, or of the commit index. `heard`: the
        highest commit index that a leader has sent."""
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
        """True if `peer` waits for its disk before it acknowledges; None if unknown."""
        if peer == self._state.me:
            return self._state.node.journal.options.sync_interval is None
        return self._state.node.peers.waits_for_disk(peer)
