"""The elections of a replica: PreVote first, so that no leader is disturbed that others still hear.

PreVote is section 9.6 of the Raft dissertation; pysyncobj has none (docs/reference/pysyncobj.md, D11). A replica grants
it only when it believes in no leader itself. Followers of a live leader have no deadline at all: the node's heartbeats
stand for all groups, and `Group.lost_leader` is called when they stop.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.raft import codec
from jetcluster.raft.group_state import GroupState


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
