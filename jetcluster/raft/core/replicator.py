"""The leader's side of replication: batches to every peer, within its window; commit pushes; snapshot offers.

`LedGroups` are the groups of a node that it leads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator

from jetcluster import faults
from jetcluster.raft import codec
from jetcluster.raft.core.changes import Changes
from jetcluster.raft.core.group_state import GroupState
from jetcluster.raft.core.peer_progress import FlowState, PeerProgress
from jetcluster.raft.core.read_index import ReadRounds
from jetcluster.raft.journal.log import NO_PIN, JournalDamageError
from jetcluster.raft.membership import is_quorum
from jetcluster.raft.node_state import CONTROL_GID, NodeState

Members = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""Voters, those of before where the configuration is joint, and learners."""


class LedGroups:
    """The groups that a node leads, by their members: many have the same, so that what follows from who is there is
    decided once for all of them. Kept by the groups' replicators, which work while their group leads."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._by_members: dict[Members, dict[int, GroupState]] = {}
        self._members: dict[int, Members] = {}
        self._recovering: dict[int, GroupState] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[GroupState]:
        return (state for groups in self._by_members.values() for state in groups.values())

    def put(self, state: GroupState) -> None:
        """It leads, with the members of its newest configuration."""
        self.drop(state)
        config = state.log.config
        members = config.voters, config.outgoing, config.learners
        self._members[state.gid] = members
        self._by_members.setdefault(members, {})[state.gid] = state
        if _recovering(state):
            self._recovering[state.gid] = state

    def drop(self, state: GroupState) -> None:
        """It does not lead any more."""
        members = self._members.pop(state.gid, None)
        self._recovering.pop(state.gid, None)
        if members is not None:
            groups = self._by_members[members]
            del groups[state.gid]
            if not groups:
                del self._by_members[members]

    def recovers(self, state: GroupState) -> None:
        """A peer of the group has a damaged journal: it is there, and is no witness that no newer leader exists."""
        if state.gid in self._members:
            self._recovering[state.gid] = state

    def endangered(self, is_alive: Callable[[str], bool]) -> list[GroupState]:
        """The groups that may have no quorum any more."""
        found = {gid: state for gid, state in self._recovering.items() if _recovering(state)}
        self._recovering = dict(found)
        me = self._node.me
        for (voters, outgoing, _), groups in self._by_members.items():
            alive = {peer for peer in (*voters, *outgoing) if peer == me or is_alive(peer)}
            if not is_quorum(voters, alive) or (outgoing and not is_quorum(outgoing, alive)):
                found.update(groups)
        return list(found.values())

    def tell(self, to: Iterable[str] | None = None) -> None:
        """Which groups this node leads with each of these peers, or with all, by now and before anything else that it
        sends there."""
        node = self._node
        lists: dict[str, list[tuple[int, int, int]]] = {p: [] for p in to or node.peers.states if node.peers.is_up(p)}
        for peers, groups in self._told(lists):
            leads = [state for state in groups if state.engine.leading and not state.stopped]
            entries = [(state.gid, state.term, state.commit_index) for state in leads]
            for peer in peers:
                lists[peer] += entries
        for peer, entries in lists.items():
            node.send(peer, CONTROL_GID, codec.encode_digest(entries))

    def _told(self, peers: Collection[str]) -> Iterator[tuple[list[str], Collection[GroupState]]]:
        """Groups, and those of their members that are among `peers`; none that has no such member."""
        for parts, groups in self._by_members.items():
            members = [peer for peer in dict.fromkeys(itertools.chain(*parts)) if peer in peers]
            if members:
                yield members, groups.values()


def _recovering(state: GroupState) -> bool:
    return any(flow.recovering for flow in state.flows.values())


class Replicator:
    """Exists on every replica; has flows only while it leads."""

    def __init__(self, state: GroupState, led: LedGroups, reads: ReadRounds, changes: Changes) -> None:
        self._state = state
        self._led = led
        self._reads = reads
        self._changes = changes
        self.flows = state.flows
        self.check_at: float | None = None
        """When something that is under way becomes overdue."""
        self.pinning = False
        """Something is kept for a peer that fetches the state, or has."""
        self._frame: tuple[int, int, int, int, bytes, int, int] | None = None

    def start(self) -> None:
        """This node became leader."""
        self.flows.clear()
        self.follow_config()

    def stop(self) -> None:
        self._led.drop(self._state)
        self.flows.clear()
        self.check_at = None
        self.pin()
        self._frame = None

    def follow_config(self) -> None:
        """One flow for each other member of the newest configuration."""
        state = self._state
        members = state.log.config.others(state.me)
        gone = [p for p in self.flows if p not in members]
        for peer in gone:
            del self.flows[peer]
        for peer in members:
            if peer not in self.flows:
                self.flows[peer] = PeerProgress(peer, state.log.last_index + 1, state.node.peers.is_up(peer))
        self._led.put(state)
        for peer in gone:  # it hears of no commit any more: before anybody there hears of what comes after these
            self._led.tell([peer])

    def peer_changed(self, peer: str, up: bool) -> None:
        flow = self.flows.get(peer)
        if flow is not None:
            flow.reset(self._state.log.last_index + 1, up)
            flow.heard = self._state.now()

    # -- sending

    def flush(self) -> None:
        """Sends every peer what its window allows, the newest read context and the commit index."""
        if faults.active:
            faults.point("raft.flush")
        log = self._state.log
        if log.election_gseq > log.durable_gseq:
            # Who needs nobody's vote leads before the disk has its term, and would lead the same one again, with other
            # entries, if it lost the record (Raft section 5: the term is on the disk before anybody hears of it).
            return
        reads, last = self._reads, log.last_index
        context = reads.context_to_send() if reads.waiting else 0
        commit = self._state.engine.commit
        for flow in self.flows.values():
            if flow.next <= last or flow.state != FlowState.REPLICATE:
                self._fill(flow, context)
            if not flow.connected:
                continue
            if context and flow.context_sent < context:
                self.beat(flow, context)
            # Who has not heard of the commit index with a batch hears of it now, before this node applies and acks. A
            # client that is told "stored" over the link to its own node finds the message there: the commit came over
            # the same link first.
            if flow.sent_commit < commit and (flow.state == FlowState.REPLICATE or flow.probe_prev is not None):
                self.beat(flow, codec.NO_REPLY)

    def _fill(self, flow: PeerProgress, context: int) -> None:
        state = self._state
        config, log = state.config, state.log
        while flow.window_open(config.window_bytes, config.window_batches):
            if flow.next <= log.base_index and not self._reaches(flow):
                self.offer(flow)
                return
            try:
                frame, last, size = self._batch(flow.next, context)
            except JournalDamageError as error:
                state.report(str(error))
                self.offer(flow)
                return
            if not state.node.send(flow.peer, state.gid, frame):
                flow.reset(flow.next, connected=False)
                return
            now = state.now()
            flow.sent(flow.next - 1, last, size, now)
            flow.sent_commit = state.engine.commit
            if context:
                flow.context_sent = context
            if self.check_at is None:
                self._watch(now)
            if last >= log.last_index:
                return

    def _reaches(self, flow: PeerProgress) -> bool:
        """True when the log goes back to what the peer needs. A refusal's hint skips a whole term, so the peer may lack
        less than it says: it is asked once whether it holds the entry at the log's base."""
        base = self._state.log.base_index
        if flow.next <= base and flow.base_probed != base:
            flow.base_probed = base
            flow.next = base + 1
        return flow.next > base

    def _batch(self, first: int, context: int) -> tuple[bytes, int, int]:
        """(frame, last index, bytes); the frame made for one peer serves the next one that stands at the same place."""
        state = self._state
        log = state.log
        commit = state.engine.commit
        cached = self._frame
        if cached is not None and cached[:4] == (first, log.last_index, commit, context):
            return cached[4:]
        entries = (
            log.slice(first, state.config.frame_bytes, state.config.frame_entries) if first <= log.last_index else []
        )
        prev_term = log.term_at(first - 1)
        assert prev_term is not None
        frame = codec.encode_append(state.term, first - 1, prev_term, commit, context, entries)
        last = first - 1 + len(entries)
        self._frame = (first, log.last_index, commit, context, frame, last, len(frame))
        return frame, last, len(frame)

    def beat(self, flow: PeerProgress, context: int) -> None:
        """An append without entries: proves leadership, carries a read context or the commit index."""
        state = self._state
        log = state.log
        if context != codec.NO_REPLY:
            prev = flow.match
        else:  # where a probe stands the follower may not be, but it hears of the commit index all the same
            prev = flow.next - 1 if flow.probe_prev is None else flow.probe_prev
        prev = max(prev, log.base_index)
        term = log.last_term if prev == log.last_index else log.term_at(prev)
        if term is None:
            return
        commit = state.engine.commit
        place = (prev, prev, commit, context)
        if self._frame is None or self._frame[:4] != place:  # the next one may stand at the same place
            frame = codec.encode_append(state.term, prev, term, commit, context, [])
            self._frame = (*place, frame, prev, len(frame))
        if state.node.send(flow.peer, state.gid, self._frame[4]):
            if context == codec.NO_REPLY:
                flow.sent_commit = commit
            else:
                flow.context_sent = max(flow.context_sent, context)

    # -- answers

    def on_ack(self, peer: str, message: codec.Ack) -> None:
        state = self._state
        flow = self.flows.get(peer)
        if flow is None:
            return
        if message.match > state.log.last_index:
            state.node.counters.refused_frames += 1
            return
        if message.life != flow.life:
            self._speaks_of(flow, message.life)
        if message.recovering or not flow.whole:
            self._recovering(flow, message.recovering)
        flow.acked(message.match, state.now())
        if not message.recovering:
            state.engine.receive_match(peer, message.match)
            if message.context:
                self._reads.on_answer(peer, message.context)
        if state.log.configs[-1][1].learners:
            self._changes.on_progress(flow)

    def on_reject(self, peer: str, message: codec.Reject) -> None:
        state = self._state
        flow = self.flows.get(peer)
        if flow is None:
            return
        flow.heard = state.now()
        if message.life != flow.life:
            self._speaks_of(flow, message.life)
        self._recovering(flow, message.recovering)
        if not message.recovering:
            self._reads.on_answer(peer, message.context)
        if flow.state == FlowState.SNAPSHOT and state.log.base_index < message.hint <= flow.offered:
            flow.offered = message.hint - 1  # it got an older state from somebody else, and this log reaches back to it
        if flow.rejected(message.prev_index, message.hint, state.log.last_index):
            state.mark()

    def _speaks_of(self, flow: PeerProgress, life: int) -> None:
        """The log that an answer speaks of. After another one nothing counts that was said before: the peer deleted
        that log, and has begun anew."""
        if flow.life is not None:
            flow.begin_anew(self._state.log.last_index + 1)
            self._state.engine.forget_match(flow.peer)
            self._state.mark()
        flow.life = life

    def _recovering(self, flow: PeerProgress, recovering: bool) -> None:
        """A peer with a damaged journal counts for nothing: not for commits, and not as a witness that no newer leader
        exists, because it may have forgotten its vote."""
        if recovering and not flow.recovering:
            self._state.engine.forget_match(flow.peer)
            self._led.recovers(self._state)
        elif flow.recovering and not recovering and self._reads.waiting:
            flow.context_sent = 0  # what it answered so far did not count
            self._state.mark()
        flow.recovering = recovering
        flow.whole = not recovering

    # -- snapshots

    def offer(self, flow: PeerProgress) -> None:
        """The log does not reach back to what the peer needs: it has to fetch the state of a replica."""
        state = self._state
        log = state.log
        index = state.machine_index
        term = log.term_at(index)
        if not flow.connected or term is None or state.needs_snapshot:
            return
        now = state.now()
        if flow.state == FlowState.SNAPSHOT and flow.offered >= log.base_index:
            index, term = flow.offered, log.term_at(flow.offered)
            assert term is not None
        else:
            flow.snapshot(index, now)
        if flow.pinned is None or flow.pinned < log.base_index:
            flow.pinned = index
        flow.waiting_since = now
        self.pin()
        state.send(flow.peer, codec.encode_snap_offer(state.term, index, term, log.config_at(index)))
        self._watch(now)

    def on_snap_request(self, peer: str) -> None:
        flow = self.flows.get(peer)
        if flow is not None:
            flow.heard = self._state.now()
            self.offer(flow)

    def fetches(self, peer: str, index: int) -> None:
        """`peer` is being given the state of `index` by this node, and goes on behind it."""
        flow = self.flows.get(peer)
        if flow is not None and index >= self._state.log.base_index:
            flow.heard = self._state.now()
            flow.pinned = index
            self.pin()

    def pin(self) -> None:
        """Keeps the log for peers that need it: those that are connected and take it, those that fetch the state, and
        those that have and are not there yet. Sees who has been silent for too long."""
        log, config, now = self._state.log, self._state.config, self._state.now()
        pin, self.pinning = NO_PIN, False
        for flow in self.flows.values():
            needed = flow.needs(log.base_index, log.last_index, now, config.pin_seconds, config.promote_lag)
            if needed is not None:
                pin = min(pin, needed)
            self.pinning |= flow.pinned is not None
        log.pin = pin
        if self.pinning:
            self._state.node.turns.stir(self._state.gid)

    # -- time

    def _watch(self, now: float) -> None:
        if self.check_at is None:
            self.check_at = now + self._state.config.stall
            self._state.wake_at(self.check_at)

    def on_time(self, now: float) -> None:
        if self.check_at is not None and now >= self.check_at:
            self.check_at = None
            self._check(now)

    def _check(self, now: float) -> None:
        state = self._state
        config = state.config
        busy = False
        for flow in self.flows.values():
            if flow.state == FlowState.SNAPSHOT:
                if flow.stalled(now, config.offer_retry):
                    self.offer(flow)
            elif flow.stalled(now, config.stall * 0.9):
                flow.reset(flow.match + 1 if flow.match else state.log.last_index + 1, flow.connected)
                state.mark()
            busy = busy or flow.connected
        if busy and any(
            f.probe_prev is not None or f.out or f.state == FlowState.SNAPSHOT for f in self.flows.values()
        ):
            self._watch(now)
