"""The leader's side of replication: batches to every peer, within its window; commit indexes; snapshot offers.

`LedGroups` are the groups that a node leads.
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
"""Voters, outgoing voters of a joint configuration, and learners."""


class LedGroups:
    """The groups that a node leads, by their members: many groups have the same ones, so the effects of a peer's
    absence are decided once for all of these. The groups' replicators keep it up to date."""

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
        """Add a group that leads, under the members of its newest configuration."""
        self.drop(state)
        config = state.log.config
        members = config.voters, config.outgoing, config.learners
        self._members[state.gid] = members
        self._by_members.setdefault(members, {})[state.gid] = state
        if _recovering(state):
            self._recovering[state.gid] = state

    def drop(self, state: GroupState) -> None:
        """Remove a group that leads no more."""
        members = self._members.pop(state.gid, None)
        self._recovering.pop(state.gid, None)
        if members is not None:
            groups = self._by_members[members]
            del groups[state.gid]
            if not groups:
                del self._by_members[members]

    def recovers(self, state: GroupState) -> None:
        """Note a peer with a damaged journal: though alive, it cannot prove that no newer leader exists."""
        if state.gid in self._members:
            self._recovering[state.gid] = state

    def endangered(self, is_alive: Callable[[str], bool]) -> list[GroupState]:
        """Return the groups that may have lost their quorum."""
        found = {gid: state for gid, state in self._recovering.items() if _recovering(state)}
        self._recovering = dict(found)
        me = self._node.me
        for (voters, outgoing, _), groups in self._by_members.items():
            alive = {peer for peer in (*voters, *outgoing) if peer == me or is_alive(peer)}
            if not is_quorum(voters, alive) or (outgoing and not is_quorum(outgoing, alive)):
                found.update(groups)
        return list(found.values())

    def of_others(self, may_lead: Callable[[tuple[str, ...]], bool]) -> Iterator[GroupState]:
        """Yield the groups that others should lead: this node may not lead their voters."""
        for (voters, _, _), groups in self._by_members.items():
            if not may_lead(voters):
                yield from groups.values()

    def tell(self, to: Iterable[str] | None = None) -> None:
        """Send each of the peers, or all, a digest of the groups that this node leads with it. The digest precedes
        anything else that is sent to the peer."""
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
        """Yield groups together with their members among `peers`, if there are any."""
        for parts, groups in self._by_members.items():
            members = [peer for peer in dict.fromkeys(itertools.chain(*parts)) if peer in peers]
            if members:
                yield members, groups.values()


def _recovering(state: GroupState) -> bool:
    return any(flow.recovering for flow in state.flows.values())


class Replicator:
    """The leader's part of one replica, on every replica; it has flows only while it leads."""

    def __init__(self, state: GroupState, led: LedGroups, reads: ReadRounds, changes: Changes) -> None:
        self._state = state
        self._led = led
        self._reads = reads
        self._changes = changes
        self.flows = state.flows
        self.check_at: float | None = None
        """Time of the next check for unanswered messages."""
        self.pinning = False
        """True while the log is kept for a peer that fetches the state, or has fetched it."""
        self._frame: tuple[int, int, int, int, bytes, int, int] | None = None
        """The newest frame: previous index, last index of the log (of a beat: the previous index), commit index,
        context, what `_batch` returns. Equal numbers are equal frames: a beat at the log's end is an empty batch."""

    def start(self) -> None:
        """Begin as the new leader."""
        self.flows.clear()
        self.follow_config()

    def stop(self) -> None:
        self._led.drop(self._state)
        self.flows.clear()
        self.check_at = None
        self.pin()
        self._frame = None

    def follow_config(self) -> None:
        """Keep one flow for each other member of the newest configuration."""
        state = self._state
        members = state.log.config.others(state.me)
        gone = [p for p in self.flows if p not in members]
        for peer in gone:
            del self.flows[peer]
        for peer in members:
            if peer not in self.flows:
                self.flows[peer] = PeerProgress(peer, state.log.last_index + 1, state.node.peers.is_up(peer))
        self._led.put(state)
        for peer in gone:  # it gets no more commit indexes, so it must learn that before it learns of later entries
            self._led.tell([peer])

    def peer_changed(self, peer: str, up: bool) -> None:
        flow = self.flows.get(peer)
        if flow is not None:
            flow.reset(self._state.log.last_index + 1, up)
            flow.heard = self._state.now()

    # -- sending

    def flush(self) -> None:
        """Send every peer what its window allows, the newest read context and the commit index."""
        if faults.active:
            faults.point("raft.flush")
        log = self._state.log
        if log.election_gseq > log.durable_gseq:
            # A replica that needs no other vote leads before its term is on disk. If it lost the record it would lead
            # the same term again with other entries (Raft paper, section 5: the term is on disk before any message).
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
            # A peer whose batch did not carry the commit index gets it now, before this node applies and acks: a client
            # that gets its ack through the peer then finds the message there, as the commit index came first on the
            # same link.
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
        """True when the log reaches back to what the peer needs. A refusal's hint skips a whole term, so the peer may
        lack less than it says: the entry at the log's base is probed once."""
        base = self._state.log.base_index
        if flow.next <= base and flow.base_probed != base:
            flow.base_probed = base
            flow.next = base + 1
        return flow.next > base

    def _batch(self, first: int, context: int) -> tuple[bytes, int, int]:
        """Return (frame, last index, bytes). The frame is reused for the next peer at the same place."""
        state = self._state
        log = state.log
        commit = state.engine.commit
        place = (first - 1, log.last_index, commit, context)
        cached = self._frame
        if cached is not None and cached[:4] == place:
            return cached[4:]
        entries = (
            log.slice(first, state.config.frame_bytes, state.config.frame_entries) if first <= log.last_index else []
        )
        prev_term = log.term_at(first - 1)
        assert prev_term is not None
        frame = codec.encode_append(state.term, first - 1, prev_term, commit, context, entries)
        last = first - 1 + len(entries)
        self._frame = (*place, frame, last, len(frame))
        return frame, last, len(frame)

    def beat(self, flow: PeerProgress, context: int) -> None:
        """Send an append without entries: it proves leadership, and carries a read context or the commit index."""
        state = self._state
        log = state.log
        if context != codec.NO_REPLY:
            prev = flow.match
        else:  # a follower that does not hold the probed entry still learns the commit index
            prev = flow.next - 1 if flow.probe_prev is None else flow.probe_prev
        prev = max(prev, log.base_index)
        term = log.last_term if prev == log.last_index else log.term_at(prev)
        if term is None:
            return
        commit = state.engine.commit
        place = (prev, prev, commit, context)
        if self._frame is None or self._frame[:4] != place:  # reused for the next peer at the same place
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
            flow.offered = message.hint - 1  # the peer got an older state elsewhere, and this log reaches back to it
        if flow.rejected(message.prev_index, message.hint, state.log.last_index):
            state.mark()

    def _speaks_of(self, flow: PeerProgress, life: int) -> None:
        """Note which log an answer is about. If it is a new one, the earlier answers do not count any more: the peer
        has deleted that log and begun again."""
        if flow.life is not None:
            flow.begin_anew(self._state.log.last_index + 1)
            self._state.engine.forget_match(flow.peer)
            self._state.mark()
        flow.life = life

    def _recovering(self, flow: PeerProgress, recovering: bool) -> None:
        """Note whether the peer's journal is damaged. If so, the peer counts neither for commits nor as proof that no
        newer leader exists, because it may have lost its vote."""
        if recovering and not flow.recovering:
            self._state.engine.forget_match(flow.peer)
            self._led.recovers(self._state)
        elif flow.recovering and not recovering and self._reads.waiting:
            flow.context_sent = 0  # its earlier answers did not count
            self._state.mark()
        flow.recovering = recovering
        flow.whole = not recovering

    # -- snapshots

    def offer(self, flow: PeerProgress) -> None:
        """Offer the peer a state to fetch: the log does not reach back to the entries that it needs."""
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
        """Note that `peer` fetches the state of `index` from this node, and will need the log after it."""
        flow = self.flows.get(peer)
        if flow is not None and index >= self._state.log.base_index:
            flow.heard = self._state.now()
            flow.pinned = index
            self.pin()

    def pin(self) -> None:
        """Keep the log for the peers that need it: those that receive it, those that fetch the state, and those that
        have fetched it and still lag. Gives up peers that have been silent for too long."""
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
