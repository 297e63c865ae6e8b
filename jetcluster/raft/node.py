"""All Raft groups of a node: one journal, one timer, one heartbeat per pair of nodes.

An idle group costs nothing here, and neither does an absent peer where a majority is left without it
(`replicator.LedGroups`). Liveness belongs to nodes, not to groups: each pair of nodes exchanges a heartbeat every 100
ms (as gid 0), and every two seconds, or less often if they are many, a digest of the groups that they lead. A leader
that steps down while its node lives sends `Resign`, so followers may rely on it as long as the link is up and not
silent."""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.clock import Clock, Rng, Timers
from jetcluster.health.cluster_clock import ClusterClock
from jetcluster.health.node_health import Aspect, LoopWatch, NodeHealth
from jetcluster.raft import codec
from jetcluster.raft.admission import Admission, EarlyFrames, FrameDelivery, Standing
from jetcluster.raft.api import StateMachine, Transport
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.core.changes import MayVote
from jetcluster.raft.core.group import Group
from jetcluster.raft.core.replicator import LedGroups
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.journal.journal_state import PinLimits
from jetcluster.raft.journal.log import GroupLog
from jetcluster.raft.membership import Config, Members
from jetcluster.raft.node_state import CONTROL_GID, Levels, NodeState, Peers, PeerState, Turns
from jetcluster.raft.rescue import go_on, is_lone


class RaftNode:
    """All groups of this node. `journal` must be open. Methods run on the event loop; no frame makes them raise."""

    def __init__(
        self,
        me: str,
        journal: Journal,
        transport: Transport,
        clock: Clock,
        rng: Rng,
        timers: Timers,
        config: RaftConfig | None = None,
        on_report: Callable[[int, str], None] | None = None,
        health: NodeHealth | None = None,
        level: int = 0,
        recorded: Callable[[str], int] = lambda peer: 0,
        vouched: Callable[[str], bool] = lambda peer: False,
    ) -> None:
        """`recorded`: see `Levels`; `vouched`: see `Admission`."""
        self.me = me
        self.journal = journal
        self.clock = clock
        self.health = health or NodeHealth(clock, ClusterClock(clock, others=lambda: journal.other_voters(me)))
        """Checked with every heartbeat."""
        self.levels = Levels(me, level, recorded)
        self.timers = timers
        self.config = config or RaftConfig()
        self.peers = Peers(me, clock, self.config, self.health)
        self.turns = Turns(clock, timers, self.end_of_batch, self._wake)
        report = on_report or (lambda gid, text: None)
        self.state = NodeState(
            me=me,
            config=self.config,
            journal=journal,
            send=transport.send_raft,
            clock=clock,
            rng=rng,
            timers=timers,
            health=self.health,
            peers=self.peers,
            turns=self.turns,
            report=report,
        )
        self.counters = self.state.counters
        self.groups: dict[int, Group] = {}
        self.admission = Admission(self.groups, self.state, vouched)
        self._delivery = FrameDelivery(self.admission, self.state)
        self.led = LedGroups(self.state)
        self.commit_latency, self.apply_latency = self.state.commit_latency, self.state.apply_latency
        self.losses: list[str] = []
        """Entries that groups without another replica lost to journal damage found at this start (monitoring)."""
        self._working = False
        self._early = EarlyFrames(self.config)
        self._sequence = 0
        self._digest_at = 0.0
        self._housekeep_at = 0.0
        self._last_beat = clock.monotonic()
        self._writing = (0, 0.0)
        """The journal's batch in flight, and when it was first seen (monotonic seconds)."""
        self._loop = LoopWatch()
        self._closed = False
        pins = self.config.pin_bytes, self.config.pin_share, self.config.pin_most, self.config.pin_entries
        journal.serve(self._on_durable, report, PinLimits(*pins))
        self.health.watch(Aspect.JOURNAL, self._journal_trouble)
        self.health.watch(Aspect.DELETED, lambda: journal.missing)
        self.health.watch(Aspect.SPACE, lambda: "no space is left on the disk" if self.full else "")
        self.health.watch(Aspect.LOOP, lambda: self._loop.trouble)
        self._period = self.config.heartbeat
        """Seconds from the last beat to the next one."""
        self._beat_handle = timers.call_later(self._period, self._beat)

    # -- groups

    def knows(self, gid: int) -> bool:
        """True when the journal holds this group, from this process or an earlier one."""
        return gid in self.journal.groups

    def is_alone(self, gid: int, *, clustered: bool) -> bool:
        """True when no other node votes in the group by the journal. If the journal does not know, `not clustered`."""
        log = self.journal.groups.get(gid)
        return log.config.is_only(self.me) if log is not None and log.config.voters else not clustered

    def is_damaged(self, gid: int) -> bool:
        """True if the group has lost entries, and is not to get all of them from others anyhow."""
        log = self.journal.groups.get(gid)
        return log is not None and log.damaged and not log.joining

    def in_doubt(self, gid: int, *, alone: bool = False) -> bool:
        """True if the group has lost entries, and no other node is known to have voted in it (`rescue.is_lone`).
        `alone`: it is to be on this node only, so the lost entries may be those by which others have left it."""
        log = self.journal.groups.get(gid)
        lone = log is not None and is_lone(self.me, log.config, damaged=log.damaged, joining=log.joining)
        return lone or (alone and self.is_damaged(gid))

    def is_unfounded(self, gid: int) -> bool:
        """True for a founder's replica without entries or known voters: no leader has reached it yet."""
        log = self.journal.groups.get(gid)
        return log is not None and not (log.damaged or log.last_index or self.me in log.config.voters)

    def holds_all(self, gid: int) -> bool:
        """True when the journal has the group's log whole, from its beginning."""
        log = self.journal.groups.get(gid)
        return log is not None and not log.base_index and not log.damaged

    def was_kept(self, gid: int) -> bool:
        """True when, by the journal, the state machine's state was durable outside of the journal."""
        log = self.journal.groups.get(gid)
        return log is not None and (log.kept or log.base_index > 0)

    def rescues(self, gid: int) -> int:
        """Return the number of the group's rescues from a lost majority (`rescue.py`) known to the journal."""
        log = self.journal.groups.get(gid)
        return 0 if log is None else log.rescues

    def forced(self, gid: int) -> int:
        """Return the number of the newest rescue if it made this replica the only voter; else 0."""
        log = self.journal.groups.get(gid)
        if log is None or not log.rescues:
            return 0
        first = next(config for _, config in log.configs if config.rescue == log.rescues)
        return log.rescues if first.voters == (self.me,) else 0

    def orphans(self) -> list[int]:
        """Return the groups in the journal that were not created in this process; `remove_group` forgets one."""
        return sorted(self.journal.groups.keys() - self.groups.keys())

    def create_group(
        self,
        gid: int,
        peers: tuple[str, ...],
        machine: StateMachine,
        applied_index: int = 0,
        applied_term: int = 0,
        durable: bool = True,
        campaign: bool = False,
        attach: Callable[[Group], None] | None = None,
        members: Members | None = None,
        sole: bool = False,
        promotes: bool = True,
        founder: bool = False,
        may_vote: MayVote = lambda peer, voters: True,
    ) -> Group:
        """Create or continue a group.

        `peers`: the first voters, used only if the journal has no record of the group. A node that joins passes the
        present voters without itself, and the leader adds it; a node that has left the group joins in the same way, as
        it never begins again with a vote. `applied_index`, `applied_term`: the state machine's position. `members`: the
        last argument of `StateMachine.on_members`, None if unknown. `campaign`: hold a new group's first election at
        once. `attach` is called with the group before it starts. `sole`: certainly no other node has a replica, so a
        group of one goes on after damage; otherwise it waits for `go_on_alone` or for the others. `founder`: this node
        has been a member since the group began; if it never had the group it has promised nothing, and votes, even if
        `peers` does not name it. `promotes`: learners become voters by themselves, where
        `may_vote` allows it; otherwise by `change_voters`.
        """
        assert gid != CONTROL_GID, "group 0 is the nodes' own"
        assert gid not in self.groups, f"group {gid} exists"
        log = self.journal.groups.get(gid)
        credited = log is not None and log.relaxed  # of the process that wrote it: `settle_relaxed` replaces it
        if log is None:
            log = self._begin(gid, tuple(peers), durable, founder=founder, has_state=applied_index > 0)
        log.durable = durable
        if sole and self.in_doubt(gid):
            self._told_lost(gid, go_on(log, self.me, applied_index, applied_term))
        elif applied_index >= log.base_index and log.term_at(applied_index) != applied_term:
            self._behind_its_state(log, applied_index, applied_term, members, credited)
        log.settle_relaxed()
        group = self.groups[gid] = Group(self.state, self.led, log, machine, applied_index, promotes, may_vote)
        if attach is not None:
            attach(group)
        group.start(campaign)
        for _, peer, frame in self._early.pop(gid):
            self._delivery.deliver(group, peer, frame)
        self.turns.schedule()
        return group

    def _begin(self, gid: int, peers: tuple[str, ...], durable: bool, *, founder: bool, has_state: bool) -> GroupLog:
        left = self.journal.has_left(gid)
        if left:
            peers = tuple(peer for peer in peers if peer != self.me)
        log = self.journal.create(gid, Config(peers), durable)
        if has_state:
            log.mark_damaged()  # a state without a log: the log was lost
        elif self.me not in peers and (left or not founder):
            log.mark_joining()
        return log

    def go_on_alone(self, gid: int, *, alone: bool = False) -> None:
        """Let a replica that is `in_doubt` go on: all other nodes have reported that they have nothing of the group."""
        group = self.groups.get(gid)
        if group is None or group.stopped or group.leader is not None or not self.in_doubt(gid, alone=alone):
            return
        log = group.log
        term = log.term_at(group.applied_index) or 0
        if term > group.term:
            group.engine.step_down(term)
        lost = go_on(log, self.me, group.applied_index, term)
        group.goes_on_alone()
        self._told_lost(gid, lost)
        self.turns.schedule()

    def found(self, gid: int, voters: tuple[str, ...]) -> None:
        """Let a replica that `is_unfounded` begin the group: all other nodes have reported that it never began."""
        group = self.groups.get(gid)
        if group is None or group.stopped or group.leader is not None or not self.is_unfounded(gid):
            return
        group.log.set_members(Config(voters))
        group.follow_config()
        self.turns.schedule()

    def _told_lost(self, gid: int, lost: str) -> None:
        self.losses.append(f"group {gid}: {lost}")
        self.state.report(gid, f"the journal is damaged; {lost}. No other replica has this group")

    def _behind_its_state(self, log: GroupLog, index: int, term: int, members: Members | None, credited: bool) -> None:
        """Continue a log that does not hold the entry of its state. Entries are applied only once they count as stored
        here, so there are three causes. A fetched state became durable, and a crash came before `install` did. Or
        entries counted before they were on disk, and power failed: a loss that the operator has accepted. Or the log
        has lost durable entries: damage. Only a log of an earlier process can have `credited` entries; terms and votes
        are never on credit, and a new log beside a state has lost them.

        The state is good, and keeps the members that it knows: the log's configuration may be older."""
        fetched = log.fetching
        foreign = fetched and (members is None or members.state_index != index)
        config = members.config if members is not None else log.config
        log.install(index, term, config)
        if len(config.electorate) < 2:
            return
        if foreign:  # the voters that decided this state are unknown here: it is fetched again, with its members
            log.set_fetching(True)
        if foreign or not (fetched or credited):
            log.mark_damaged()

    def stop_group(self, gid: int) -> None:
        """Stop the replica for good; its log stays in the journal until `remove_group`."""
        group = self.groups.pop(gid, None)
        if group is not None:
            group.stop("removed")
            self.turns.drop(gid)

    def remove_group(self, gid: int) -> None:
        """Stop the replica and forget its log."""
        self.stop_group(gid)
        self.journal.remove(gid)

    # -- the mesh

    def peer_up(self, peer: str, waits: bool | None = None) -> None:
        """Note a new link to `peer`; frames of an earlier link do not come any more. `waits`: `PeerState.waits`."""
        if self.peers.is_up(peer):
            self.peer_down(peer)
        state = self.peers.states.setdefault(peer, PeerState())
        state.up = state.well = True
        state.level = 0
        state.waits = waits
        self.heard(peer)
        self._say_alive([peer])  # at once: the peer may need this node's time to hold an election
        if self._period > self.config.heartbeat:
            self._beat_handle.cancel()
            self._last_beat = self.clock.monotonic()
            self._beat_after(self.config.heartbeat)
        for group in list(self.groups.values()):
            if not group.stopped:
                group.peer_up(peer)

    def peer_down(self, peer: str) -> None:
        self.peers.states.setdefault(peer, PeerState()).up = False
        self.health.time.forget(peer)
        self.levels.lost(peer)
        self._early.drop_peer(peer)
        if not self.admission.belongs(peer):  # a stranger may link under any name
            del self.peers.states[peer]
            self.levels.forget(peer)
        for group in list(self.groups.values()):
            if not group.stopped:
                group.peer_down(peer)

    def heard(self, peer: str) -> bool:
        """Note that bytes have come from `peer`, if only a part of a long frame. Returns False if it has no link."""
        state = self.peers.states.get(peer)
        if state is None or not state.up:
            return False
        state.last_seen, state.suspected = self.clock.monotonic(), False
        return True

    def on_frame(self, peer: str, gid: int, frame: bytes) -> str:
        """Handle one frame from `peer`, the peer of its link. Returns "", or the fault of a frame that no member would
        send: the caller must then close the link. `end_of_batch` must be called after the last frame of a read."""
        state = self.peers.states.get(peer)
        if self._closed or state is None or not state.up:
            self.counters.refused_frames += 1
            return ""
        state.last_seen, state.suspected = self.clock.monotonic(), False  # as in `heard`
        if gid == CONTROL_GID:
            return self._on_control(peer, frame)
        group = self.groups.get(gid)
        if group is not None:
            self.turns.busy = True  # `end_of_batch` comes after the frames of this read
            self.turns.marked[gid] = None
            return self._delivery.deliver(group, peer, frame)
        if not self.admission.is_member(peer):
            self.admission.refuse(peer, gid)
        elif not self._early.keep(gid, peer, frame, self.peers.last_seen(peer)):
            self.counters.unknown_frames += 1
        return ""

    def _on_control(self, peer: str, frame: bytes) -> str:
        """Handle a heartbeat or a digest; those of strangers are ignored."""
        try:
            message = codec.decode_control(frame)
        except codec.CodecError as error:
            self.counters.refused_frames += 1
            return f"heartbeat: {error}"
        if not self.admission.is_member(peer):
            return ""
        if isinstance(message, codec.Digest):
            self._on_digest(peer, message)
            return ""
        self.peers.states[peer].well = message.well
        self.peers.states[peer].level = message.level
        self.levels.heard(peer, message.level)
        if message.wall_ns and self.admission.is_voter(peer):
            self.health.time.heard(peer, message.wall_ns, message.trusted_ns)
        return ""

    def _on_digest(self, peer: str, message: codec.Digest) -> None:
        led: set[int] = set()
        for gid, term, commit in message.groups:
            led.add(gid)
            group = self.groups.get(gid)
            if group is None or (group.leader == peer and commit <= group.receiver.committed):
                continue  # nothing is new, as for all groups at rest
            if self.admission.standing(group, peer) is Standing.VOTER:
                group.led_by(peer, term, commit)
        for group in self.groups.values():
            if group.leader == peer and group.gid not in led:
                group.left_out = True
                group.lost_leader(peer)

    # -- turns

    def end_of_batch(self) -> None:
        """Do the work of all marked groups, once each; groups marked meanwhile wait for the next turn."""
        turns, groups = self.turns, self.groups
        if self._working:
            return
        turns.busy = False
        if self._closed or not turns.marked:
            return
        self._working = turns.busy = True
        marked, turns.marked = turns.marked, {}
        turns.stirred.update(marked)
        for gid in marked:
            group = groups.get(gid)
            if group is None:
                continue
            if group.engine.commit <= group.applied_index and not group.engine.leading and not group.reads.waiting:
                continue  # a follower with nothing to apply
            try:
                group.work()
            except Exception as error:  # noqa: BLE001 - as in `FrameDelivery`
                group.fail(error)
        self._working = turns.busy = False
        if turns.marked:
            turns.schedule()

    def _on_durable(self, logs: list[GroupLog]) -> None:
        for log in logs:
            group = self.groups.get(log.gid)
            if group is not None and not group.stopped:
                if group.held.frames or log.damaged:
                    group.on_durable()
                self.turns.marked[log.gid] = None
        self.end_of_batch()

    # -- time

    def _wake(self) -> None:
        """Call the groups whose times have come, the oldest first, as far as a slice permits."""
        if self._closed:
            return
        now = self.clock.monotonic()
        turns, until = self.turns, now + self.config.wake_slice
        pause = 0.0
        while some := turns.due(now):
            for gid in some:
                self._call(gid, now)
            if self.clock.monotonic() >= until:
                pause = self.config.wake_pause
                break
        turns.rearm(pause)
        self.end_of_batch()

    def _call(self, gid: int, now: float) -> None:
        group = self.groups.get(gid)
        wanted = None if group is None else group.next_time()
        if group is None or wanted is None or wanted > now:
            return
        try:
            group.on_time(now)
        except Exception as error:  # noqa: BLE001 - as in `FrameDelivery`
            group.fail(error)

    def _beat(self) -> None:
        """Send heartbeats, check the health of this node and the others, and do periodic work."""
        if self._closed:
            return
        now = self.clock.monotonic()
        period = self._period
        stall = now - self._last_beat - period
        self._last_beat = now
        self._loop.beat(period, stall)
        if stall > 2 * period:
            # This process stood still, and frames of that time are unread: no peer may be suspected for it.
            for state in self.peers.states.values():
                state.last_seen += stall
        self.health.look()
        self._say_alive([peer for peer, state in self.peers.states.items() if state.up])
        if not self.health.well:
            self._give_way()
        self._suspect(now)
        if now >= self._digest_at:
            self._digest_at = now + max(self.config.digest, len(self.led) / self.config.digest_groups)
            self.led.tell()
        if now >= self._housekeep_at:
            self._housekeep_at = now + 1.0
            self._housekeep(now)
        self._beat_after(self.config.heartbeat if self.peers.states else self.config.alone)
        self.end_of_batch()

    def _beat_after(self, period: float) -> None:
        self._period = period
        self._beat_handle = self.timers.call_later(period, self._beat)

    def _say_alive(self, peers: list[str]) -> None:
        health = self.health
        self._sequence += 1
        times = health.time.wall_ns, health.time.trusted_ns
        frame = codec.encode_heartbeat(self._sequence, *times, health.well, self.levels.own)
        for peer in peers:
            self.state.send(peer, CONTROL_GID, frame)

    def _give_way(self) -> None:
        """Hand over each group that this node leads and a healthy voter could lead. It first waits for the others'
        reports (`second_opinion`): the same fault may affect all nodes."""
        if self.health.ill_since > self.clock.monotonic() - self.config.second_opinion:
            return
        under_way = 0
        for gid in [state.gid for state in self.led.of_others(self.peers.may_lead)]:
            group = self.groups.get(gid)
            if group is not None and group.engine.leading and not group.stopped:
                under_way += group.hand_over.give_way()
                if under_way >= self.config.hand_overs:
                    break
        if self.journal.missing:
            self._resign()

    def _resign(self) -> None:
        """Lead nothing, also where nobody takes it: no entry of this node would become durable here."""
        led = [group for group in self.groups.values() if group.engine.leading and group.hand_over.target is None]
        for group in led[: self.config.hand_overs]:
            group.resign()

    def _journal_trouble(self) -> str:
        """Return a text while a write of the journal hangs. A write that fails ends the process instead."""
        seq, since = self._writing
        now = self.clock.monotonic()
        if self.journal.in_flight != seq:
            self._writing = self.journal.in_flight, now
        elif seq and now - since >= self.config.journal_hangs:
            return f"a write has not returned for {now - since:.1f} s"
        return ""

    def _suspect(self, now: float) -> None:
        silent = False
        for peer, state in list(self.peers.states.items()):
            if not state.up or now - state.last_seen < self.config.suspect_after:
                silent = silent or not state.up
                continue
            silent = True
            if not state.suspected:
                state.suspected = True
                for group in list(self.groups.values()):
                    group.lost_leader(peer)
        if silent:
            for led in self.led.endangered(self.peers.is_alive):
                if led.engine.leading and not led.stopped and led.gid in self.groups:
                    self.groups[led.gid].tick_engine()

    def _housekeep(self, now: float) -> None:
        for gid in self.turns.take_stirred():
            group = self.groups.get(gid)
            if group is None:
                continue
            commit = min(group.commit_index, group.log.last_index)
            if commit > group.log.commit_hint and not group.stopped:
                group.log.set_commit_hint(commit)
            if group.replicator.pinning:
                group.replicator.pin()
            if group.log.credit:
                group.look_at_credit()
        self.commit_latency.sort()
        self.apply_latency.sort()
        self.journal.housekeep()
        self.counters.unknown_frames += self._early.expire(now)

    @property
    def wants_compaction(self) -> bool:
        """True when the journal holds too much: owners should make their state durable and call `compact`."""
        return self.journal.retention.wants_compaction

    @property
    def full(self) -> bool:
        """True when no space is left for publishes on this node's disk: another node should lead."""
        return self.journal.full and not self.journal.missing

    def close(self) -> None:
        """Stop the timers; the journal is closed by its owner."""
        self._closed = True
        self._beat_handle.cancel()
        self.turns.close()
