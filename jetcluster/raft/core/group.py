"""One replica of one group: everything around pysyncobj's core.

Messages are decoded by the node, pass the term and membership rules here (docs/reference/pysyncobj.md: D7, D8, D9,
D21), are checked and rewritten (`receiver.py`), and only then reach the core (`engine.py`). Outgoing messages wait
until they are true on disk: an ack for the entries, a vote and a vote request for the term record (D12). Committed
entries are applied in slices of bounded time, and only as far as this node's own disk holds them, so that the applied
index of the state machine never overtakes the log after a crash.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster import faults
from jetcluster.raft import codec
from jetcluster.raft.api import (
    META_GROUP,
    BackpressureError,
    EntryTooLargeError,
    GroupStatus,
    LeavingError,
    NotLeaderError,
    PeerStatus,
    Role,
    StateMachine,
    StorageFullError,
)
from jetcluster.raft.codec import CONFIG, REGULAR
from jetcluster.raft.core.changes import Changes, MayVote
from jetcluster.raft.core.election import Election, HandOver
from jetcluster.raft.core.engine import Outbox
from jetcluster.raft.core.group_state import Credit, GroupState, Owner, PersistBeforeSend
from jetcluster.raft.core.lease import Lease
from jetcluster.raft.core.read_index import ReadRounds
from jetcluster.raft.core.receiver import Receiver
from jetcluster.raft.core.replicator import LedGroups, Replicator
from jetcluster.raft.core.snapshots import Rejoin, Snapshots
from jetcluster.raft.journal.log import GroupLog, JournalDamageError
from jetcluster.raft.membership import Config
from jetcluster.raft.node_state import NodeState


class Group(GroupState, Outbox):
    """Implements `api.RaftGroup`; made by `RaftNode.create_group`."""

    def __init__(
        self,
        node: NodeState,
        led: LedGroups,
        log: GroupLog,
        machine: StateMachine,
        applied_index: int,
        promotes: bool = True,
        may_vote: MayVote = lambda peer, voters: True,
    ) -> None:
        super().__init__(node, log, self, applied_index)
        self.machine = machine
        self.fault: BaseException | None = None
        self.leaderless_since: float | None = None
        self.passed_over_since: float | None = None
        self.left_out = False
        self.held = PersistBeforeSend()
        self.uncommitted = 0
        """Bytes proposed and not applied yet, on a leader."""
        self._overrun = False
        self._overrun_count = 0
        self._first_own = 0
        self._timed = (0, 0.0)
        """(index, monotonic seconds) of the proposal whose commit is being timed; index 0 for none."""
        self._shut_out: tuple[str, ...] = ()
        self.owner = Owner(self, machine, self.fail)
        self.election = Election(self, self.sync)
        self.lease = Lease(self, lambda: self.hand_over.target is not None)
        self.reads_now = self.lease.serves
        self.reads = ReadRounds(self, self.owner, self.resign)
        self.hand_over = HandOver(self, self.resign, self.lease.release)
        self.changes = Changes(self, self.follow_config, self.transfer, promotes=promotes, may_vote=may_vote)
        self.replicator = Replicator(self, led, self.reads, self.changes)
        self.snapshots = Snapshots(self, self.owner, self.hand_over, self.follow_config)
        self.rejoin = Rejoin(self, self.snapshots, self.reads, self.send_ack)
        self.receiver = Receiver(
            self,
            self.owner,
            self.election,
            self.replicator,
            self.snapshots,
            self.rejoin,
            self.lease,
            sync=self.sync,
            follow_config=self.follow_config,
            lost_leader=self.lost_leader,
            send_ack=self.send_ack,
        )
        self.credit = Credit(self)
        self.look_at_credit()
        self._note_leader()

    # -- api.RaftGroup

    @property
    def told_index(self) -> int:
        commit, receiver = self.engine.commit, self.receiver
        if not self.engine.leading:
            return max(commit, receiver.told)
        # A new leader may not have committed again what its predecessors had. Entries that it lacks were never
        # committed, or were lost by a majority that need not keep them (a memory stream).
        return max(commit, min(receiver.committed, self.log.last_index))

    def propose(self, command: bytes, reserve: bool = False) -> int:
        if self.role is not Role.LEADER or self.stopped:
            raise NotLeaderError(self.leader if self.leader != self.me else None)
        if self.hand_over.target is not None:
            raise LeavingError(None)
        size = len(command)
        if size > self.config.max_entry:
            raise EntryTooLargeError(f"a command of {size} bytes (the limit is {self.config.max_entry})")
        journal = self.node.journal
        if journal.stuck if reserve else journal.full:
            raise StorageFullError("no space left for the journal")
        if self.uncommitted and self.uncommitted + size > self.config.max_uncommitted:
            self._overrun_count += not self._overrun
            self._overrun = True
            raise BackpressureError(f"{self.uncommitted} bytes are waiting to be committed")
        if journal.queued_bytes > journal.options.max_queued_bytes:
            raise BackpressureError("the journal's queue is full")
        self._overrun = False
        self.uncommitted += size
        index = self.log.append(REGULAR, self.term, command)
        if not self._timed[0]:
            self._timed = index, self.now()
        if self.replicator.flows:  # a group of one has nothing to do until the entry is on disk
            self.node.turns.mark(self.gid)
        return index

    def read_index(self, callback: Callable[[bool], None]) -> None:
        if self.role is not Role.LEADER or self.stopped:
            self.node.timers.call_soon(self.owner.call, callback, False)
        else:
            self.reads.add(callback)

    def transfer(self, peer: str | None = None) -> bool:
        """Begin to hand the leadership to `peer`, or to the most advanced voter; proposals are refused meanwhile.
        Returns False when no voter can take it."""
        return self.hand_over.begin(peer)

    def resign(self) -> None:
        """Give up the leadership without a successor: peers are notified, and hold an election at once."""
        if self.role is Role.LEADER and not self.stopped:
            self.engine.abdicate()
            self.sync()

    def add_peer(self, peer: str) -> int:
        """Add `peer` as a learner, which becomes a voter once it has caught up if the group promotes learners. Returns
        the log index of the change. Raises NotLeaderError, MembershipError."""
        return self.changes.add(peer)

    def remove_peer(self, peer: str) -> int:
        """Remove `peer`. Returns the log index of the change. Raises NotLeaderError, MembershipError."""
        return self.changes.remove(peer)

    def change_voters(self, voters: tuple[str, ...]) -> int:
        """See `api.RaftGroup`."""
        return self.changes.change(voters)

    def compact(self, index: int) -> None:
        self.log.compactable = max(self.log.compactable, min(index, self.applied_index))
        if index and self.gid == META_GROUP:
            self.log.mark_kept()
        self.replicator.pin()
        self.node.journal.retention.trim(self.log)

    def suspend(self) -> None:
        if not self.stopped:
            self.snapshots.require()

    @property
    def lacks_state(self) -> bool:
        return self.needs_snapshot or self.snapshots.offered

    @property
    def contradicted(self) -> bool:
        """See `api.RaftGroup`."""
        return bool(self.snapshots.contradicted)

    def fetches(self, peer: str, index: int) -> None:
        self.replicator.fetches(peer, index)

    def command_at(self, index: int) -> tuple[int, bytes] | None:
        term = self.log.term_at(index)
        if term is None or self.log.kind_at(index) != REGULAR:
            return None
        return term, self.log.command(index)

    def members_at(self, index: int) -> Config:
        return self.log.config_at(index)

    def install(self, index: int, term: int, config: Config) -> None:
        if not self.stopped:
            self.snapshots.install(index, term, config)

    def status(self) -> GroupStatus:
        log = self.log
        flows = self.replicator.flows
        peers = [
            PeerStatus(
                peer=p,
                match_index=flows[p].match if p in flows else 0,
                last_seen=self.node.peers.last_seen(p),
                connected=self.node.peers.is_up(p),
                voter=log.config.has_vote(p),
                recovering=p in flows and flows[p].recovering,
                caught_up=self.changes.has_caught_up(p),
                silent=not self.node.peers.is_alive(p),
                acked_index=max(flows[p].match if p in flows else 0, self.engine.matches.get(p, 0)),
            )
            for p in log.config.others(self.me)
        ]
        return GroupStatus(
            gid=self.gid,
            role=self.role,
            term=self.term,
            leader=self.leader,
            first_index=log.base_index + 1,
            last_index=log.last_index,
            commit_index=self.engine.commit,
            applied_index=self.applied_index,
            durable_index=log.durable_index,
            peers=peers,
            ready=self.ready,
            damaged=log.damaged and not log.joining,
            needs_snapshot=self.needs_snapshot,
            stopped=self.stopped,
            overrun=self._overrun and self.role is Role.LEADER and self.uncommitted > self.config.max_uncommitted // 2,
            overrun_count=self._overrun_count,
        )

    # -- lifecycle

    def start(self, campaign: bool) -> None:
        """Begin to take part; called once by the node after construction."""
        self.sync()
        self.owner.tell_members()
        if self.log.damaged and self.log.fetching:
            self.snapshots.require()
        first = campaign and not self.log.last_index and not self.term and self.may_campaign()
        if first and self.node.health.may_vote and self.election.may_stamp():
            self.election.campaign()  # all logs are empty: PreVote would protect nothing
        elif self.log.config.is_only(self.me):
            self.election.schedule((0.0, 0.0))
        else:
            self.election.schedule(self.config.start_delay)
        self.snapshots.ask()
        self.mark()

    def stop(self, reason: str) -> None:
        """Stop for good. Followers of this replica are notified, because its node goes on sending heartbeats."""
        if self.stopped:
            return
        led = self.role is Role.LEADER
        self.stopped = reason
        if led:
            self.lease.end()
            self._resign(self.term)
            self.engine.abdicate()
            self._dropped()
        self.ready = False
        self.role = Role.FOLLOWER
        self.leader = None
        self.reads.fail()
        self.replicator.stop()
        self.election.stop()
        self.held.clear()

    def fail(self, error: BaseException | str) -> None:
        """Stop this replica, which cannot go on safely, and report it; the node goes on."""
        self.node.counters.stopped_groups += 1
        self.fault = error if isinstance(error, BaseException) else None
        reason = error if isinstance(error, str) else repr(error)
        self.report(f"stopped: {reason}")
        self.stop(reason)

    def follow_config(self) -> None:
        """Adopt the newest configuration of the log if it has changed."""
        config = self.log.configs[-1][1]
        if config is self.followed:
            return
        self.followed = config
        self.members = frozenset(config.members)
        self.fence(self._shut_out)
        self.engine.follow(config)
        self.look_at_credit()
        self._note_leader()
        if self.engine.leading:
            self.replicator.follow_config()
            self.lease.settle()
        elif not self.may_campaign():
            self.election.stop()
        elif self.election.at is None and not self.has_live_leader():
            self.election.schedule(self.config.start_delay)

    def goes_on_alone(self) -> None:
        """Go on after `raft.rescue` has healed the log, and may have replaced it."""
        self.snapshots.settle()
        self.engine.restore(self.applied_index, self.engine.commit)
        self.sync()
        self.follow_config()
        self.election.schedule((0.0, 0.0))
        self.mark()

    def fence(self, peers: tuple[str, ...]) -> None:
        config = self.log.config
        self._shut_out = peers
        self.fenced = frozenset((*peers, *config.fenced)).difference(config.members)

    # -- roles

    def sync(self) -> None:
        """Adopt the core's role, term and leader. Called after everything that may change them."""
        engine = self.engine
        role, term, leader = engine.role, engine.term, engine.leader
        if role is self.role and term == self.term and leader == self.leader:
            return
        led, old_term = self.role is Role.LEADER, self.term
        self.role, self.term, self.leader = role, term, leader
        self._note_leader()
        if term != old_term:
            self.held.keep_term(term)
        if led and (role is not Role.LEADER or term != old_term):
            self.ready = False
            self.hand_over.stop()
            self.replicator.stop()
            self.lease.end()
            self._resign(old_term)
            self._dropped()
            self.reads.fail()
        if role is Role.LEADER and not (led and term == old_term):
            self._lead()
        if role is not Role.LEADER:
            if leader is not None:
                self.election.stop()
            elif self.election.at is None:
                self.election.schedule(self.config.vote_timeout)
            self.owner.tell_role(role, leader)
            if leader is not None and self.needs_snapshot:
                self.snapshots.ask()

    def _lead(self) -> None:
        self.election.stop()
        self.reads.begin()
        self.lease.begin()
        self._first_own = self.log.last_index
        self.refused = ""
        self.uncommitted = self.log.commands_after(self.applied_index)
        self.replicator.start()
        self.mark()

    def _dropped(self) -> None:
        self._timed = 0, 0.0
        if self.log.last_index > self.applied_index:
            self.owner.dropped(max(self.applied_index + 1, self._first_own))

    def _resign(self, term: int) -> None:
        frame = codec.encode(codec.Resign(term))
        for peer in self.log.config.others(self.me):
            self.send(peer, frame)

    def lost_leader(self, peer: str) -> None:
        """Look for a new leader if `peer` led: its link broke, or it went silent, or it resigned."""
        if self.engine.leading or self.engine.leader != peer or self.stopped:
            return
        self.engine.forget_leader()
        self.election.schedule(self.config.link_loss_jitter, sooner=True)
        self.sync()

    def _note_leader(self) -> None:
        if self.leader is not None:
            self.leaderless_since = self.passed_over_since = None
            self.left_out = False
            return
        if self.leaderless_since is None:
            self.leaderless_since = self.now()
        config = self.log.config
        if not config.is_quorum([p for p in config.electorate if p == self.me or self.node.peers.is_up(p)]):
            self.passed_over_since = None
        elif self.passed_over_since is None:
            self.passed_over_since = self.now()

    def look_at_credit(self) -> None:
        self.credit.look(self.receiver.committed)

    def peer_up(self, peer: str) -> None:
        self.look_at_credit()
        self._note_leader()
        self.replicator.peer_changed(peer, up=True)
        if self.engine.leading:
            self.mark()
        elif self.leader is None and self.election.at is not None and peer in self.peers:
            self.election.schedule(self.config.link_loss_jitter, sooner=True)

    def peer_down(self, peer: str) -> None:
        self._note_leader()
        self.replicator.peer_changed(peer, up=False)
        self.held.drop_peer(peer)
        self.lost_leader(peer)

    def led_by(self, peer: str, term: int, commit: int) -> None:
        """Note from a digest that `peer` leads `term` and has committed up to `commit`."""
        if self.stopped or peer in self.fenced:
            return
        self.receiver.hear(term, commit)
        if self.engine.leader is not None or self.engine.leading:
            return
        if term < self.term:
            # A stale leader that is idle may not know of the higher term: while its disk hung it ignored votes.
            self.send(peer, codec.encode(codec.Reject(self.term, 0, self.log.last_index + 1, 0, self.log.damaged)))
        elif term == self.term:
            self.engine.receive_leader(peer, term, self.engine.commit)
            self.sync()

    # -- output of the core (engine.Outbox)

    def send_ack(self, peer: str, index: int) -> None:
        log, receiver = self.log, self.receiver
        term = self.engine.term
        frame = codec.encode_ack(term, index, receiver.context, log.damaged, log.life)
        receiver.context = 0
        if index <= log.written_index and log.election_gseq <= log.durable_gseq:
            self.node.send(peer, self.gid, frame)
        else:
            self.held.frames.append((term, index, log.election_gseq, peer, frame))

    def send_vote(self, peer: str, term: int) -> None:
        frame = codec.encode(codec.VoteReply(term, True))
        self.held.add(self.engine.term, 0, self.log.term_gseq, peer, frame)
        if self.election.at is not None:
            self.election.schedule(self.config.vote_timeout)

    def send_vote_request(self, peer: str, term: int, last_index: int, last_term: int) -> None:
        frame = codec.encode(codec.Vote(term, last_index, last_term, self.decisive))
        self.held.add(self.engine.term, 0, self.log.term_gseq, peer, frame)

    def on_durable(self) -> None:
        """Send the held frames that are true on disk now. `work` comes next."""
        for peer, frame in self.held.release(self.log, self.engine.term):
            self.node.send(peer, self.gid, frame)
        if self.log.damaged:
            self.rejoin.check()

    # -- work

    def work(self) -> None:
        """Do one turn's work: commit, send, apply. Called by the node for every marked group."""
        if self.stopped:
            return
        if self.engine.leading:
            if self.log.last_index > self.engine.commit:
                self._commit()
            if self.replicator.flows or self.reads.waiting:
                self.replicator.flush()
        if self.engine.commit > self.applied_index:
            self._apply()
        elif self.reads.waiting:
            self.reads.serve()
        if self.hand_over.target is not None:
            self.hand_over.proceed()
        if self.leader is None and self.election.at is None and not self.engine.leading:
            # Its log was healed, or has become readable, when its leader was gone: no election was due until then.
            self.election.schedule(self.config.start_delay)

    def _commit(self) -> None:
        """Commit what a majority has stored; this node counts once its own disk has it."""
        log, engine = self.log, self.engine
        if log.election_gseq > log.durable_gseq:
            return  # a term or a configuration counts only once on this disk, even where entries count earlier
        config = log.configs[-1][1]
        if not config.outgoing and config.voters == (self.me,):
            stored = log.written_index
        else:
            stored = config.quorum_index({**engine.matches, self.me: log.written_index})
        if stored > engine.commit and engine.commit_to(stored):
            index, since = self._timed
            if index and stored >= index:
                self._timed = 0, 0.0
                self.node.commit_latency.fresh.append(self.now() - since)

    def tick_engine(self) -> None:
        """Let the core run, with fresh knowledge of the live peers: its check-quorum runs in every turn."""
        for peer in self.log.config.electorate:
            if peer != self.me:
                flow = self.replicator.flows.get(peer)
                # A decisive leader needs no witness that there is no newer one.
                if flow is None or not flow.recovering or self.decisive:
                    self.engine.heard(peer, self.node.peers.last_seen(peer))
        self.engine.tick()
        self.sync()

    def _apply(self) -> None:
        log = self.log
        limit = min(self.engine.commit, log.written_index)
        applied = self.applied_index
        if applied >= limit or self.snapshot_wanted or applied < log.base_index:
            if self.reads.waiting:
                self.reads.serve()
            return
        turns = self.node.turns
        if turns.asks and self.gid != META_GROUP and not turns.may_apply():
            turns.hold(self.gid)
            return
        start = self.now()
        until = start + self.config.apply_slice
        machine_apply = self.machine.apply
        leads = self.engine.leading
        try:
            while applied < limit:
                applied += 1
                term, kind, command = log.entry(applied)
                if kind == REGULAR:
                    if faults.active:
                        faults.point("raft.apply")
                    if leads:
                        self.uncommitted = max(0, self.uncommitted - len(command))
                    # Set before the call: the machine may read the index, and a failed command is not retried (D15).
                    self.applied_index = self.machine_index = applied
                    machine_apply(applied, term, command)
                    if self.stopped or self.snapshot_wanted:  # suspended: the next commands need another state
                        return
                else:
                    self.applied_index = applied
                    if kind == CONFIG:
                        self._config_applied()
                if applied < limit and self.now() >= until:
                    break
        except JournalDamageError as error:
            self.applied_index = applied - 1
            self.report(str(error))
            self.snapshots.require()
        except Exception as error:  # noqa: BLE001 - a state machine that raises has diverged: this replica stops
            self.fail(error)
            return
        self.node.apply_latency.fresh.append(self.now() - start)
        if leads and not self.ready:
            self._get_ready()
        if self.reads.waiting:
            self.reads.serve()
        if self.applied_index < limit:
            self.mark()

    def _get_ready(self) -> None:
        """Become ready once the no-op of this term is applied: then all earlier committed entries are applied too."""
        if self.engine.leading and self.applied_index >= self.engine.noop_index():
            self.ready = True
            if self.log.fetching:
                self.snapshots.settle()
            self.owner.tell_role(Role.LEADER, self.me)
            self.changes.proceed()
            self.mark()

    def _config_applied(self) -> None:
        self.owner.tell_members()
        if self.engine.leading:
            self.lease.settle()
            self.changes.proceed()

    def on_time(self, now: float) -> None:
        """Run the parts that are due: a time that was asked for with `wake_at` has come."""
        if self.stopped:
            return
        self.election.on_time(now)
        self.snapshots.on_time(now)
        self.replicator.on_time(now)
        self.rejoin.on_time(now)
        self.changes.on_time(now)
        self.hand_over.proceed()
        self.sync()

    def next_time(self) -> float | None:
        """Return when `on_time` must be called next, in monotonic seconds."""
        handing_over = self.hand_over.next_time()
        at = self.election.at, self.snapshots.at, self.replicator.check_at, self.rejoin.at, self.changes.at
        parts = (*at, handing_over)
        return min((t for t in parts if t is not None), default=None)
