"""The leader's side of replication: batches to every peer, within its window; commit pushes; snapshot offers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetcluster import faults
from jetcluster.raft import codec
from jetcluster.raft.flow import Flow, FlowState
from jetcluster.raft.grouplog import JournalDamageError

if TYPE_CHECKING:
    from jetcluster.raft.group import Group


class Replicator:
    """Exists on every replica; has flows only while it leads."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.flows: dict[str, Flow] = {}
        self.check_at: float | None = None
        """When something that is under way becomes overdue."""
        self._pin_since = 0.0
        self._frame: tuple[int, int, int, int, bytes, int, int] | None = None

    def start(self) -> None:
        """This node became leader."""
        self.flows.clear()
        self.follow_config()

    def stop(self) -> None:
        self.flows.clear()
        self.check_at = None
        self._group.log.pin = NO_PIN
        self._frame = None

    def follow_config(self) -> None:
        """One flow for each other member of the newest configuration."""
        group = self._group
        members = group.log.config.others(group.me)
        for peer in [p for p in self.flows if p not in members]:
            del self.flows[peer]
        for peer in members:
            if peer not in self.flows:
                self.flows[peer] = Flow(peer, group.log.last_index + 1, group.node.is_up(peer))

    def peer_changed(self, peer: str, up: bool) -> None:
        flow = self.flows.get(peer)
        if flow is not None:
            flow.reset(self._group.log.last_index + 1, up)

    # -- sending

    def flush(self) -> None:
        """Sends every peer what its window allows, and the newest read context."""
        faults.point("raft.flush")
        context = self._group.reads.context_to_send()
        for flow in self.flows.values():
            self._fill(flow, context)
            if context and flow.connected and flow.context_sent < context:
                self.beat(flow, context)
        self.push_commit()

    def _fill(self, flow: Flow, context: int) -> None:
        group = self._group
        config, log = group.config, group.log
        while flow.window_open(config.window_bytes, config.window_batches):
            if flow.next <= log.base_index:
                self.offer(flow)
                return
            if flow.next > log.last_index and flow.state != FlowState.PROBE:
                return
            try:
                frame, last, size = self._batch(flow.next, context)
            except JournalDamageError as error:
                group.node.report(group, str(error))
                self.offer(flow)
                return
            if not group.send(flow.peer, frame):
                flow.reset(flow.next, connected=False)
                return
            now = group.now()
            flow.sent(flow.next - 1, last, size, now)
            flow.sent_commit = group.engine.commit_index()
            if context:
                flow.context_sent = context
            self._watch(now)

    def _batch(self, first: int, context: int) -> tuple[bytes, int, int]:
        """(frame, last index, bytes); the frame made for one peer serves the next one that stands at the same place."""
        group = self._group
        log = group.log
        commit = group.engine.commit_index()
        cached = self._frame
        if cached is not None and cached[:4] == (first, log.last_index, commit, context):
            return cached[4:]
        entries = (
            log.slice(first, group.config.frame_bytes, group.config.frame_entries) if first <= log.last_index else []
        )
        prev_term = log.term_at(first - 1)
        assert prev_term is not None
        frame = codec.encode_append(group.term, first - 1, prev_term, commit, context, entries)
        last = first - 1 + len(entries)
        self._frame = (first, log.last_index, commit, context, frame, last, len(frame))
        return frame, last, len(frame)

    def beat(self, flow: Flow, context: int) -> None:
        """An append without entries: proves leadership, carries a read context or the commit index."""
        group = self._group
        log = group.log
        if context != codec.NO_REPLY:
            prev = flow.match
        else:  # where a probe stands the follower may not be, but it hears of the commit index all the same
            prev = flow.next - 1 if flow.probe_prev is None else flow.probe_prev
        prev = max(prev, log.base_index)
        term = log.term_at(prev)
        if term is None:
            return
        commit = group.engine.commit_index()
        if group.send(flow.peer, codec.encode_append(group.term, prev, term, commit, context, [])):
            if context == codec.NO_REPLY:
                flow.sent_commit = commit
            else:
                flow.context_sent = max(flow.context_sent, context)

    def push_commit(self) -> None:
        """Everybody who has not heard of the commit index with a batch hears of it now, before this node applies and
        acks. A client that is told "stored" over the link to its own node finds the message there: the commit came
        over the same link first."""
        commit = self._group.engine.commit_index()
        for flow in self.flows.values():
            told = flow.state == FlowState.REPLICATE or flow.probe_prev is not None
            if flow.connected and told and flow.sent_commit < commit:
                self.beat(flow, codec.NO_REPLY)

    # -- answers

    def on_ack(self, peer: str, message: codec.Ack) -> None:
        group = self._group
        flow = self.flows.get(peer)
        if flow is None:
            return
        if message.match > group.log.last_index:
            group.node.counters.refused_frames += 1
            return
        self._recovering(flow, message.recovering)
        state = flow.state
        flow.acked(message.match, group.now())
        if state == FlowState.SNAPSHOT != flow.state:
            self._unpin()
        if not message.recovering:
            group.engine.receive_match(peer, message.match)
            group.reads.on_answer(peer, message.context)
        group.changes.on_progress(flow)
        group.mark()

    def on_reject(self, peer: str, message: codec.Reject) -> None:
        group = self._group
        flow = self.flows.get(peer)
        if flow is None:
            return
        self._recovering(flow, message.recovering)
        if not message.recovering:
            group.reads.on_answer(peer, message.context)
        state = flow.state
        if flow.rejected(message.prev_index, message.hint, group.log.last_index):
            if state == FlowState.SNAPSHOT:
                self._unpin()
            group.mark()

    def _recovering(self, flow: Flow, recovering: bool) -> None:
        """A peer with a damaged journal counts for nothing: not for commits, and not as a witness that no newer leader
        exists, because it may have forgotten its vote."""
        if recovering and not flow.recovering:
            self._group.engine.forget_match(flow.peer)
        flow.recovering = recovering

    # -- snapshots

    def offer(self, flow: Flow) -> None:
        """The log does not reach back to what the peer needs: it has to fetch the state of a replica."""
        group = self._group
        log = group.log
        index = group.machine_index
        term = log.term_at(index)
        if not flow.connected or term is None or group.snapshots.needed:
            return
        now = group.now()
        if flow.state == FlowState.SNAPSHOT and flow.offered >= log.base_index:
            index, term = flow.offered, log.term_at(flow.offered)
            assert term is not None
        else:
            flow.snapshot(index, now)
            self._pin_since = now
        flow.waiting_since = now
        log.pin = min(log.pin, index)
        group.send(flow.peer, codec.encode_snap_offer(group.term, index, term, log.config_at(index)))
        self._watch(now)

    def on_snap_request(self, peer: str) -> None:
        flow = self.flows.get(peer)
        if flow is not None:
            self.offer(flow)

    def _unpin(self) -> None:
        offered = [f.offered for f in self.flows.values() if f.state == FlowState.SNAPSHOT]
        self._group.log.pin = min(offered, default=NO_PIN)

    # -- time

    def _watch(self, now: float) -> None:
        if self.check_at is None:
            self.check_at = now + self._group.config.stall
            self._group.wake_at(self.check_at)

    def on_time(self, now: float) -> None:
        if self.check_at is not None and now >= self.check_at:
            self.check_at = None
            self._check(now)

    def _check(self, now: float) -> None:
        group = self._group
        config = group.config
        if group.log.pin != NO_PIN and (
            now - self._pin_since > config.pin_seconds or group.log.bytes > config.pin_bytes
        ):
            group.log.pin = NO_PIN
        busy = False
        for flow in self.flows.values():
            if flow.state == FlowState.SNAPSHOT:
                if flow.stalled(now, config.offer_retry):
                    self.offer(flow)
            elif flow.stalled(now, config.stall * 0.9):
                flow.reset(flow.match + 1 if flow.match else group.log.last_index + 1, flow.connected)
                group.mark()
            busy = busy or flow.connected
        if busy and any(
            f.probe_prev is not None or f.out or f.state == FlowState.SNAPSHOT for f in self.flows.values()
        ):
            self._watch(now)


NO_PIN = 1 << 62
