"""The handover of a group by its leader: the target catches up, while proposals are refused, and is told to campaign.

The leader answers what it had accepted before: only it knows whom, so what it has not applied when it goes is never
answered, and its publishers wait until they give up.

Leadership transfer is section 3.10 of the Raft dissertation. Here it is also what a node does that is not well
(`health.node_health`): its groups go to voters that are. Only where one of these could win at once, though: if a leader
gave up for a voter that lags, nobody would lead until somebody as advanced does, who may be no better.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.raft import codec
from jetcluster.raft.api import Role
from jetcluster.raft.group_state import GroupState
from jetcluster.raft.peer_progress import PeerProgress


class HandOver:
    """One per group; does something on its leader only. `resign`: leads no more, without naming a successor."""

    def __init__(self, state: GroupState, resign: Callable[[], None]) -> None:
        self._state = state
        self._resign = resign
        self.target: str | None = None
        """To whom; None while the leader means to stay."""
        self.until: float | None = None
        """When it is given up."""
        self._patient_until: float | None = None
        """Until then the target is not told before everything is answered."""
        self._told = False
        self._way_since: float | None = None
        """Since when `give_way` has been trying."""
        self._not_before = 0.0
        """`give_way` found nobody who could take over; it looks again then."""

    def begin(self, peer: str | None = None) -> bool:
        """To `peer`, or to the most advanced voter, a well one first. False when there is none, or one is under way, or
        `peer` is not well: it may not even be able to campaign. Unless this node is not well either."""
        state = self._state
        if state.role is not Role.LEADER or state.stopped or self.target is not None:
            return False
        flows = [flow for flow in self._heirs() if peer in (None, flow.peer)]
        if not flows or (peer is not None and state.node.health.well and not state.node.peers.is_well(peer)):
            return False
        self._start(max(flows, key=self._fitness).peer)
        return True

    def _fitness(self, flow: PeerProgress) -> tuple[bool, bool, int]:
        """A leader that waits for a state has none to give, so nobody gets ahead by it whom its log does not reach."""
        state = self._state
        reached = flow.match >= state.log.base_index or not state.needs_snapshot
        return reached, state.node.peers.is_well(flow.peer), flow.match

    def give_way(self) -> bool:
        """This node should not lead: has a voter lead that is well and has all that is committed, or stays while there
        is none. Resigns if that one cannot be told within `RaftConfig.give_way`. Called again as long as it is so.
        Whether a hand-over is under way now."""
        state = self._state
        now = state.now()
        if self._way_since is not None and self.target is not None:
            if now - self._way_since < state.config.give_way:
                return True
            flow = state.flows.get(self.target)
            if flow is not None and self._could_win(flow):
                self._resign()
            else:
                self.stop()
                self._not_before = now + state.config.give_way_pause
        elif self.target is None and now >= self._not_before:
            flows = [flow for flow in self._heirs() if state.node.peers.is_well(flow.peer) and self._could_win(flow)]
            if flows:
                self._way_since = now
                self._start(max(flows, key=lambda flow: flow.match).peer)
        return self.target is not None

    def proceed(self) -> None:
        """Something has moved, or time has passed."""
        if self.target is None or self.until is None:
            return
        state = self._state
        flow = state.flows.get(self.target)
        if flow is None or not flow.connected or state.now() >= self.until:
            self.stop()
        elif self._has_answered() and not self._told and flow.match == state.log.last_index:
            state.send(self.target, codec.encode(codec.TimeoutNow(state.term)))
            self._told = True

    def stop(self) -> None:
        self.target = self.until = self._patient_until = self._way_since = None
        self._told = False

    def next_time(self) -> float | None:
        """When `proceed` is wanted next, whatever moves."""
        return self.until if self._patient_until is None else self._patient_until

    def _has_answered(self) -> bool:
        """All that was proposed is applied here, or will not be soon: this node's disk, or the state that it lacks, may
        be the reason to go."""
        state = self._state
        if self._patient_until is not None and (state.needs_snapshot or state.now() >= self._patient_until):
            self._patient_until = None
        return self._patient_until is None or state.applied_index == state.log.last_index

    def _start(self, peer: str) -> None:
        state = self._state
        now = state.now()
        self.target, self.until, self._told = peer, now + state.config.transfer_timeout, False
        self._patient_until = now + min(state.config.transfer_patience, state.config.transfer_timeout / 2)
        for moment in (self._patient_until, self.until):
            state.wake_at(moment)
        state.mark()

    def _heirs(self) -> list[PeerProgress]:
        state = self._state
        flows, staying = state.flows.values(), state.log.config.voters
        return [flow for flow in flows if flow.connected and not flow.recovering and flow.peer in staying]

    def _could_win(self, flow: PeerProgress) -> bool:
        return flow.match >= self._state.commit_index
