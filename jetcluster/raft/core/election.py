"""The elections of a replica (`Election`), and leadership transfer (`HandOver`).

PreVote (Raft dissertation, section 9.6) precedes every election, so that a leader that others still hear is not
disturbed; pysyncobj has none (docs/reference/pysyncobj.md, D11). A replica grants it only when it knows no live leader.
Followers of a live leader have no election deadline: the node's heartbeats serve all of its groups, and
`Group.lost_leader` is called when they stop.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.raft import codec
from jetcluster.raft.api import Role
from jetcluster.raft.core.group_state import GroupState
from jetcluster.raft.core.peer_progress import PeerProgress


class Election:
    """The elections of one replica. `sync` makes the group adopt the core's decisions."""

    def __init__(self, state: GroupState, sync: Callable[[], None]) -> None:
        self._state = state
        self._sync = sync
        self._since = state.now()
        self.at: float | None = None
        """Time of the next campaign; None while there is a leader, or this replica may not campaign."""
        self._asked = 0
        """Term of the PreVote in progress; 0 when there is none."""
        self._granted: set[str] = set()
        self._deferred = 0
        """Elections left to other replicas since the last leader."""

    def schedule(self, bounds: tuple[float, float], sooner: bool = False) -> None:
        """Campaign after a random delay within `bounds` (seconds); with `sooner`, only if earlier than planned."""
        state = self._state
        if not state.may_campaign():
            self.at = None
            return
        delay = state.node.rng.uniform(*bounds)
        if state.needs_snapshot and not state.log.config.is_only(state.me):
            delay += state.config.stateless_delay
        if (bound := state.promise.remaining) > 0.0:
            delay = max(delay, bound + state.node.rng.uniform(*state.config.link_loss_jitter))
        when = state.now() + delay
        if not sooner or self.at is None or when < self.at:
            self.at = when
            state.wake_at(when)

    def stop(self) -> None:
        """Cancel the next election: there is a leader, or this replica may not campaign."""
        self.at = None
        self._asked = self._deferred = 0

    def on_time(self, now: float) -> None:
        if self.at is not None and now >= self.at:
            self.pre_vote()

    def pre_vote(self) -> None:
        """Ask the voters whether an election could be won; `on_pre_vote_reply` holds it when a quorum agrees."""
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
        if state.promise.binds:
            self.schedule(state.config.retry)
            return
        if self._deferred < state.config.deferrals and not state.node.peers.may_lead(config.electorate):
            self._deferred += 1
            self.schedule(state.config.retry)  # a healthy voter should lead; if none does, this node may be well later
            return
        self._asked = state.term + 1
        self._granted = {state.me}
        frame = codec.encode(codec.PreVote(self._asked, state.log.last_index, state.log.last_term, state.decisive))
        for peer in config.electorate:
            if peer != state.me:
                state.send(peer, frame)
        self.schedule(state.config.retry)

    def may_stamp(self) -> bool:
        """True when this node's clock agrees with the cluster's: a leader's clock stamps messages."""
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
            and not state.promise.binds
            and (message.decisive if log.damaged else message.end >= (log.last_term, log.last_index))
        )
        state.send(peer, codec.encode(codec.PreVoteReply(state.term, message.term, granted)))

    def on_pre_vote_reply(self, peer: str, message: codec.PreVoteReply) -> None:
        state = self._state
        if not message.granted or message.asked != self._asked or self._asked != state.term + 1:
            return
        if state.has_live_leader() or state.promise.binds:
            self._asked = 0
            return
        self._granted.add(peer)
        if state.log.config.is_quorum(self._granted):
            self.campaign()


class HandOver:
    """Leadership transfer (Raft dissertation, section 3.10): while proposals are refused the target catches up, and is
    then sent TimeoutNow. One per group, active on the leader only. `resign` gives up the leadership without a
    successor, `release` the leases (`lease.py`), which bind the target.

    The leader first answers the proposals that it has accepted: only it knows their publishers, so a proposal that it
    has not applied when it leaves is never answered, and its publisher waits for a timeout.

    An unhealthy node (`health.node_health`) transfers its groups to healthy voters, but only to one that could win at
    once: after a transfer to one that lags, the group would have no leader for longer, and perhaps no healthier one."""

    def __init__(self, state: GroupState, resign: Callable[[], None], release: Callable[[], None]) -> None:
        self._state = state
        self._resign = resign
        self._release = release
        self.target: str | None = None
        """The successor; None while no transfer is in progress."""
        self.until: float | None = None
        """Time at which the transfer is given up."""
        self._patient_until: float | None = None
        """Until then TimeoutNow waits for the last answer; None once it need not wait."""
        self._told = False
        """True once TimeoutNow was sent."""
        self._way_since: float | None = None
        """Time at which `give_way` began its attempt."""
        self._not_before = 0.0
        """Earliest time of the next attempt of `give_way`."""

    def begin(self, peer: str | None = None) -> bool:
        """Begin a transfer to `peer`, or to the most advanced voter, healthy ones first. Returns False when there is no
        such voter, a transfer is in progress, or `peer`, unlike this node, is unhealthy: it might be unable to
        campaign."""
        state = self._state
        if state.role is not Role.LEADER or state.stopped or self.target is not None:
            return False
        flows = [flow for flow in self._heirs() if peer in (None, flow.peer)]
        if not flows or (peer is not None and state.node.health.well and not state.node.peers.is_well(peer)):
            return False
        self._start(max(flows, key=self._fitness).peer)
        return True

    def _fitness(self, flow: PeerProgress) -> tuple[bool, bool, int]:
        """Return a sort key. A leader that waits for a state has none to give: a voter below its base comes last."""
        state = self._state
        reached = flow.match >= state.log.base_index or not state.needs_snapshot
        return reached, state.node.peers.is_well(flow.peer), flow.match

    def give_way(self) -> bool:
        """Transfer the leadership from an unhealthy node to a healthy voter that has all committed entries; stay while
        there is none. If a transfer takes longer than `RaftConfig.give_way` it resigns, provided that the target could
        win. Called repeatedly while the node should not lead. Returns True while a transfer is in progress."""
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
        """Send TimeoutNow when the target has caught up, or give up the transfer when it is too late."""
        if self.target is None or self.until is None:
            return
        state = self._state
        flow = state.flows.get(self.target)
        if flow is None or not flow.connected or state.now() >= self.until:
            self.stop()
        elif self._has_answered() and not self._told and flow.match == state.log.last_index:
            self._release()
            state.send(self.target, codec.encode(codec.TimeoutNow(state.term)))
            self._told = True

    def stop(self) -> None:
        self.target = self.until = self._patient_until = self._way_since = None
        self._told = False

    def next_time(self) -> float | None:
        """Return the time of the next call of `proceed`, None for none."""
        return self.until if self._patient_until is None else self._patient_until

    def _has_answered(self) -> bool:
        """True when all proposals are applied here, or will not be soon for want of a state or a fast disk."""
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
