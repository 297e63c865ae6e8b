"""Membership changes: a new peer joins as a learner, and once it has caught up the voters change through a joint
configuration, in which every decision needs a majority of the old voters and one of the new (Raft paper, section 6).

A group makes one change at a time, and a leader starts one only after an entry of its own term is committed (Ongaro's
correction of 2015 to the dissertation's single-server changes). Single-server changes are not used: on the way between
two sets of voters they pass even numbers, where the loss of one server stops a group that would survive it before and
after. Two of their configurations may also share only one server, which may be the one that lost its vote
(`membership.decisive`). pysyncobj never sets the variable that should keep changes apart (docs/reference/pysyncobj.md,
D5).

The leader leaves a joint configuration once it is committed. A leader that is no voter of the new configuration hands
the leadership to a voter, which leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from jetcluster.raft.api import MembershipError, NotLeaderError
from jetcluster.raft.codec import CONFIG
from jetcluster.raft.core.group_state import GroupState
from jetcluster.raft.core.peer_progress import FlowState, PeerProgress
from jetcluster.raft.membership import Config, encode_config

MayVote = Callable[[str, Collection[str]], bool]
"""Returns whether a learner may become a voter beside these voters."""

_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 30.0
"""First and longest pause between two attempts to transfer the leadership: proposals are refused during an attempt."""


class Changes:
    """Membership changes of one group. `follow_config` makes the group use the newest configuration of its log;
    `transfer` hands the leadership to another voter."""

    def __init__(
        self, state: GroupState, follow_config: Callable[[], None], transfer: Callable[[], bool], *, promotes: bool,
        may_vote: MayVote = lambda peer, voters: True,
    ) -> None:  # fmt: skip
        self._state = state
        self._follow_config = follow_config
        self._transfer = transfer
        self._promotes = promotes
        """True when learners that have caught up become voters by themselves; else the owner calls `change`."""
        self._may_vote = may_vote
        self.at: float | None = None
        """Time of the next attempt to transfer the leadership."""
        self._pause = _PAUSE_SECONDS

    def _check(self) -> Config:
        state = self._state
        if not state.engine.leading:
            raise NotLeaderError(state.leader)
        if not state.ready:
            raise MembershipError("the leader's first entry is not committed yet")
        if state.log.config_index > state.engine.commit or state.log.config.outgoing:
            raise MembershipError("another change is under way")
        return state.log.config

    def add(self, peer: str) -> int:
        config = self._check()
        if peer in config.members:
            raise MembershipError(f"{peer} is a member")
        return self._append(config.with_learner(peer))

    def remove(self, peer: str) -> int:
        """Remove `peer`. Raises MembershipError when the others that are connected and undamaged are no majority."""
        config = self._check()
        if peer not in config.members:
            raise MembershipError(f"{peer} is no member")
        if peer == self._state.me:
            raise MembershipError("a leader does not remove itself: transfer the leadership first")
        if peer in config.learners:
            return self._append(config.without(peer))
        return self._change(config, config.without(peer).voters)

    def change(self, voters: tuple[str, ...]) -> int:
        """Make `voters` the voters; each must be a voter already, or a learner that has caught up."""
        config = self._check()
        if not voters or set(voters) == set(config.voters):
            raise MembershipError("no other voters are named")
        for peer in voters:
            if peer not in config.voters and not self.has_caught_up(peer):
                raise MembershipError(f"{peer} is no learner that has caught up")
        return self._change(config, voters)

    def _change(self, config: Config, voters: tuple[str, ...]) -> int:
        """Begin the change, which takes effect at once. Damaged voters do not count for the majority: they have no vote
        until others have healed them, so a group that needs one could never commit the change or any later entry."""
        joint = config.joint(voters)
        sound = self._sound(joint)
        if not joint.is_quorum(sound):
            missing = ", ".join(p for p in joint.electorate if p not in sound)
            raise MembershipError(f"the group would have no majority: {missing} is away, or its journal damaged")
        return self._append(joint)

    def _sound(self, config: Config) -> set[str]:
        state = self._state
        flows = state.flows
        return {p for p in config.electorate if p == state.me or (flows[p].connected and flows[p].whole)}

    def has_caught_up(self, peer: str) -> bool:
        """True for a learner that could become a voter now."""
        state = self._state
        flow = state.flows.get(peer)
        if flow is None or peer not in state.log.config.learners or not self._follows(flow):
            return False
        near = state.config.promote_lag, state.config.promote_seconds
        return flow.is_near(state.log.last_index, state.now(), *near)

    @staticmethod
    def _follows(flow: PeerProgress) -> bool:
        return flow.state == FlowState.REPLICATE and not flow.recovering

    def _append(self, config: Config) -> int:
        state = self._state
        index = state.log.append(CONFIG, state.term, encode_config(config))
        self._follow_config()
        state.mark()
        return index

    def on_progress(self, flow: PeerProgress) -> None:
        """Promote the peer if it is a learner that has caught up."""
        state = self._state
        if flow.peer not in state.log.config.learners or not self._follows(flow):
            return
        near = state.config.promote_lag, state.config.promote_seconds
        if flow.caught_up(state.log.last_index, state.now(), *near):
            flow.near_at = state.now()
            if self._promotes:
                self._promote(flow.peer)

    def _promote(self, peer: str) -> None:
        state = self._state
        config = state.log.config
        free = state.ready and state.log.config_index <= state.engine.commit and not config.outgoing
        if free and self._may_vote(peer, config.voters):
            joint = config.joint((*config.voters, peer))
            if joint.is_quorum(self._sound(joint)):
                self._append(joint)

    def proceed(self) -> None:
        """Leave a joint configuration that is committed, or promote the next learner."""
        state = self._state
        config = state.log.config
        if not (state.engine.leading and state.ready and state.log.config_index <= state.engine.commit):
            return
        if not config.outgoing:
            self._pause = _PAUSE_SECONDS
            for flow in list(state.flows.values()):
                self.on_progress(flow)
        elif state.me in config.voters:
            self._append(config.left())
        elif self.at is None:
            self._transfer()
            self.at = state.now() + self._pause
            self._pause = min(2 * self._pause, _MAX_PAUSE_SECONDS)
            state.wake_at(self.at)

    def on_time(self, now: float) -> None:
        if self.at is not None and now >= self.at:
            self.at = None
            self.proceed()
