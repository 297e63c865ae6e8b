"""Changing a group's members, one at a time: a new peer learns first and is promoted when it has caught up.

Single-server changes as in section 4.1 of the Raft dissertation, with the correction that its author published in
2015: a leader starts one only after an entry of its own term is committed. pysyncobj never sets the variable that
should keep changes apart (docs/reference/pysyncobj.md, D5).
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.raft.api import MembershipError, NotLeaderError
from jetcluster.raft.codec import CONFIG
from jetcluster.raft.group_state import GroupState
from jetcluster.raft.membership import Config, encode_config, is_quorum
from jetcluster.raft.peer_progress import FlowState, PeerProgress


class Changes:
    """Changes of the members of one group. `follow_config`: has the group go by the newest configuration of its log."""

    def __init__(self, state: GroupState, follow_config: Callable[[], None]) -> None:
        self._state = state
        self._follow_config = follow_config

    def _check(self) -> Config:
        state = self._state
        if not state.engine.leading:
            raise NotLeaderError(state.leader)
        if not state.ready:
            raise MembershipError("the leader's first entry is not committed yet")
        if state.log.config_index > state.engine.commit:
            raise MembershipError("another change is under way")
        return state.log.config

    def add(self, peer: str) -> int:
        config = self._check()
        if peer in config.voters or peer in config.learners:
            raise MembershipError(f"{peer} is a member")
        return self._append(config.with_learner(peer))

    def remove(self, peer: str) -> int:
        """Refuses to take out a voter without whom the others, as far as they are there and sound, are no majority."""
        config = self._check()
        if peer not in config.voters and peer not in config.learners:
            raise MembershipError(f"{peer} is no member")
        if peer == self._state.me:
            raise MembershipError("a leader does not remove itself: transfer the leadership first")
        if peer in config.voters:
            self._check_rest(config.without(peer))
        return self._append(config.without(peer))

    def _check_rest(self, config: Config) -> None:
        """The new configuration counts at once. A damaged voter is only healed by a majority without it, and has no
        vote before: a group that it is needed in could never commit the change, nor anything after it."""
        state = self._state
        flows = state.flows
        sound = {p for p in config.voters if p == state.me or (flows[p].connected and flows[p].whole)}
        if not is_quorum(config.voters, sound):
            missing = ", ".join(p for p in config.voters if p not in sound)
            raise MembershipError(f"without it the group has no majority: {missing} is away, or its journal damaged")

    def _append(self, config: Config) -> int:
        state = self._state
        index = state.log.append(CONFIG, state.term, encode_config(config))
        self._follow_config()
        state.mark()
        return index

    def on_progress(self, flow: PeerProgress) -> None:
        """Promotes a learner that has nearly everything."""
        state = self._state
        config = state.log.config
        if (
            flow.peer in config.learners
            and flow.state == FlowState.REPLICATE
            and not flow.recovering
            and state.ready
            and state.log.config_index <= state.engine.commit
            and flow.caught_up(
                state.log.last_index, state.now(), state.config.promote_lag, state.config.promote_seconds
            )
        ):
            self._append(config.promoted(flow.peer))
