"""Changing a group's members: a new peer learns first, and when it has caught up the voters change through a joint
configuration, by which whatever is decided needs a majority of the old voters and one of the new (Raft paper,
section 6).

One change at a time, and a leader starts one only after an entry of its own term is committed, as its author corrected
the dissertation's single-server changes in 2015. Those are not used: between two sets of voters that differ by more
than one server they go over even numbers, where one lost server stops what none would have stopped before or after. And
two configurations of theirs may have only one server in common, which may be the one that forgot what it promised
(`membership.decisive`). pysyncobj never sets the variable that should keep changes apart (docs/reference/pysyncobj.md,
D5).

The leader leaves a joint configuration when it is committed. One that is no voter afterwards has a voter do that: it
hands the leadership over.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.raft.api import MembershipError, NotLeaderError
from jetcluster.raft.codec import CONFIG
from jetcluster.raft.core.group_state import GroupState
from jetcluster.raft.core.peer_progress import FlowState, PeerProgress
from jetcluster.raft.membership import Config, encode_config

_AGAIN, _AT_MOST = 1.0, 30.0
"""Seconds until the leadership is offered again, at first and later: while an offer stands proposals are refused."""


class Changes:
    """Changes of the members of one group. `follow_config`: has the group go by the newest configuration of its log;
    `transfer`: hands the leadership to another voter."""

    def __init__(
        self, state: GroupState, follow_config: Callable[[], None], transfer: Callable[[], bool], *, promotes: bool
    ) -> None:
        self._state = state
        self._follow_config = follow_config
        self._transfer = transfer
        self._promotes = promotes
        """A learner becomes a voter by itself when it has caught up; else the owner says when (`change`)."""
        self.at: float | None = None
        """When to offer the leadership again."""
        self._pause = _AGAIN

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
        """Refuses to take out a voter without whom the others, as far as they are there and sound, are no majority."""
        config = self._check()
        if peer not in config.members:
            raise MembershipError(f"{peer} is no member")
        if peer == self._state.me:
            raise MembershipError("a leader does not remove itself: transfer the leadership first")
        if peer in config.learners:
            return self._append(config.without(peer))
        return self._change(config, config.without(peer).voters)

    def change(self, voters: tuple[str, ...]) -> int:
        """Makes `voters` the voters: of those that there are, and of learners that have caught up."""
        config = self._check()
        if not voters or set(voters) == set(config.voters):
            raise MembershipError("no other voters are named")
        for peer in voters:
            if peer not in config.voters and not self.has_caught_up(peer):
                raise MembershipError(f"{peer} is no learner that has caught up")
        return self._change(config, voters)

    def _change(self, config: Config, voters: tuple[str, ...]) -> int:
        """Begins the change, which counts at once. A damaged voter is only healed by others, and has no vote before: a
        group that it is needed in could never commit the change, nor anything after it."""
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
        """A learner that could be a voter now."""
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
        """A learner that has nearly everything may be promoted."""
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
        if state.ready and state.log.config_index <= state.engine.commit and not config.outgoing:
            joint = config.joint((*config.voters, peer))
            if joint.is_quorum(self._sound(joint)):
                self._append(joint)

    def proceed(self) -> None:
        """Something of the log is applied, or time has passed: leaves a joint configuration that is committed, or
        promotes the next learner."""
        state = self._state
        config = state.log.config
        if not (state.engine.leading and state.ready and state.log.config_index <= state.engine.commit):
            return
        if not config.outgoing:
            self._pause = _AGAIN
            for flow in list(state.flows.values()):
                self.on_progress(flow)
        elif state.me in config.voters:
            self._append(config.left())
        elif self.at is None:
            self._transfer()
            self.at = state.now() + self._pause
            self._pause = min(2 * self._pause, _AT_MOST)
            state.wake_at(self.at)

    def on_time(self, now: float) -> None:
        if self.at is not None and now >= self.at:
            self.at = None
            self.proceed()
