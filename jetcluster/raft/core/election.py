"""The elections of a replica (`Election`), and the handover of a group by its leader (`HandOver`).

PreVote comes first, so that no leader is disturbed that others still hear.

PreVote is section 9.6 of the Raft dissertation; pysyncobj has none (docs/reference/pysyncobj.md, D11). A replica grants
it only when it believes in no leader itself. Followers of a live leader have no deadline at all: the node's heartbeats
stand for all groups, and `Group.lost_leader` is called when they stop.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.raft import codec
from jetcluster.raft.api import Role
from jetcluster.raft.core.group_state import GroupState
from jetcluster.raft.core.peer_progress import PeerProgress


class Election:
    """The elections of one replica. `sync`: has the group take over what the core decided."""

    def __init__(self, state: GroupState, sync: Callable[[], None]) -> None:
        self._state = state
        self._sync = sync
        self._since = state.now()
        self.at: float | None = None
        """When to campaign; None while there is a leader, or nothing to win."""
        self._asked = 0
        """Term that PreVote is being asked for; 0 when it is not."""
        self._granted: set[str] = set()
        self._deferred = 0
        """Elections left to others since there was a leader."""

    def schedule(self, bounds: tuple[float, float], sooner: bool = False) -> None:
        """Campaigns in a random time within `bounds`; with `sooner`, only if that is earlier than planned."""
        state = self._state
        if not state.may_campaign():
            self.at = None
            return
        delay = state.node.rng.uniform(*bounds)
        if state.needs_snapshot and not state.log.config.is_only(state.me):
            delay += state.config.stateless_delay
        when = state.now() + delay
        if not sooner or self.at is None or when < self.at:
            self.at = when
            state.wake_at(when)

    def stop(self) -> None:
        """There is a leader, or nothing to win."""
        self.at = None
        self._asked = self._deferred = 0

    def on_time(self, now: float) -> None:
        if self.at is not None and now >= self.at:
            self.pre_vote()

    def pre_vote(self) -> None:
        """Asks whether an election could be won; holds it when a majority says so."""
        state = self._state
        if not state.may_campaign():
            self.stop()
            return
        if not self.may_stamp():
            self.schedule(state.config.retry)
            return
        config = state.log.config
        if config.is_only(state.me):
            self.campaign()
            return
        if self._deferred < state.config.deferrals and not state.node.peers.may_lead(config.electorate):
            self._deferred += 1
            self.schedule(state.config.retry)  # somebody else should; if nobody does, this node may be well by then
            return
        self._asked = state.term + 1
        self._granted = {state.me}
        frame = codec.encode(codec.PreVote(self._asked, state.log.last_index, state.log.last_term, state.decisive))
        for peer in config.electorate:
            if peer != state.me:
                state.send(peer, frame)
        self.schedule(state.config.retry)

    def may_stamp(self) -> bool:
        """True when the time to stamp is the cluster's, not only that of the own clock."""
        state = self._state
        return state.node.peers.may_stamp(state.log.config.electorate, self._since)

    def campaign(self) -> None:
        state = self._state
        self._asked = 0
        state.engine.campaign()
        self.schedule(state.config.vote_timeout)
        self._sync()

    def on_pre_vote(self, peer: str, message: codec.PreVote) -> None:
        state = self._state
        log = state.log
        granted = (
            message.term > state.term
            and not state.engine.leading
            and state.node.health.may_vote
            and not state.has_live_leader()
            and (message.decisive if log.damaged else message.end >= (log.last_term, log.last_index))
        )
        state.send(peer, codec.encode(codec.PreVoteReply(state.term, message.term, granted)))

    def on_pre_vote_reply(self, peer: str, message: codec.PreVoteReply) -> None:
        state = self._state
        if not message.granted or message.asked != self._asked or self._asked != state.term + 1:
            return
        if state.has_live_leader():
            self._asked = 0
            return
        self._granted.add(peer)
        if state.log.config.is_quorum(self._granted):
            self.campaign()


class HandOver:
    """The handover of a group by its leader: the target catches up, while proposals are refused, and is told to
    campaign. One per group; does something on its leader only. `resign`: leads no more, without naming a successor.

    The leader answers what it had accepted before: only it knows whom, so what it has not applied when it goes is never
    answered, and its publishers wait until they give up.

    Leadership transfer is section 3.10 of the Raft dissertation. Here it is also what a node does that is not well
    (`health.node_health`): its groups go to voters that are. Only where one of these could win at once, though: if a
    leader gave up for a voter that lags, nobody would lead until somebody as advanced does, who may be no better."""

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
