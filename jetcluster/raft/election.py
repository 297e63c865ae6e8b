"""The elections of a replica: PreVote first, so that no leader is disturbed that others still hear.

PreVote is section 9.6 of the Raft dissertation; pysyncobj has none (docs/reference/pysyncobj.md, D11). A replica grants
it only when it believes in no leader itself. Followers of a live leader have no deadline at all: the node's heartbeats
stand for all groups, and `Group.lost_leader` is called when they stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetcluster.raft import codec
from jetcluster.raft.membership import is_quorum

if TYPE_CHECKING:
    from jetcluster.raft.group import Group


class Election:
    def __init__(self, group: Group) -> None:
        self._group = group
        self._since = group.now()
        self.at: float | None = None
        """When to campaign; None while there is a leader, or nothing to win."""
        self._asked = 0
        """Term that PreVote is being asked for; 0 when it is not."""
        self._granted: set[str] = set()
        self._deferred = 0
        """Elections left to others since there was a leader."""

    def schedule(self, bounds: tuple[float, float], sooner: bool = False) -> None:
        """Campaigns in a random time within `bounds`; with `sooner`, only if that is earlier than planned."""
        group = self._group
        if not group.may_campaign():
            self.at = None
            return
        delay = group.node.rng.uniform(*bounds)
        if group.snapshots.needed and len(group.log.config.voters) > 1:
            delay += group.config.stateless_delay
        when = group.now() + delay
        if not sooner or self.at is None or when < self.at:
            self.at = when
            group.wake_at(when)

    def stop(self) -> None:
        """There is a leader, or nothing to win."""
        self.at = None
        self._asked = self._deferred = 0

    def on_time(self, now: float) -> None:
        if self.at is not None and now >= self.at:
            self.pre_vote()

    def pre_vote(self) -> None:
        """Asks whether an election could be won; holds it when a majority says so."""
        group = self._group
        if not group.may_campaign():
            self.stop()
            return
        if not self.may_stamp():
            self.schedule(group.config.retry)
            return
        if group.log.config.voters == (group.me,):
            self.campaign()
            return
        if self._deferred < group.config.deferrals and not group.node.may_lead(group.log.config.voters):
            self._deferred += 1
            self.schedule(group.config.retry)  # somebody else should; if nobody does, this node may be well by then
            return
        self._asked = group.term + 1
        self._granted = {group.me}
        frame = codec.encode(codec.PreVote(self._asked, group.log.last_index, group.log.last_term))
        for peer in group.log.config.voters:
            if peer != group.me:
                group.send(peer, frame)
        self.schedule(group.config.retry)

    def may_stamp(self) -> bool:
        """True when the time to stamp is the cluster's, not only that of the own clock."""
        group = self._group
        return group.node.may_stamp(group.log.config.voters, self._since)

    def campaign(self) -> None:
        group = self._group
        self._asked = 0
        group.engine.campaign()
        self.schedule(group.config.vote_timeout)
        group.sync()

    def on_pre_vote(self, peer: str, message: codec.PreVote) -> None:
        group = self._group
        log = group.log
        granted = (
            message.term > group.term
            and not group.engine.leading
            and not log.damaged
            and group.node.health.may_vote
            and not group.has_live_leader()
            and (message.last_term, message.last_index) >= (log.last_term, log.last_index)
        )
        group.send(peer, codec.encode(codec.PreVoteReply(group.term, message.term, granted)))
        if group.engine.leading and message.term <= group.term + 1:
            # It does not know its leader, who may be idle: tell it.
            flow = group.replicator.flows.get(peer)
            if flow is not None:
                group.replicator.beat(flow, 0)

    def on_pre_vote_reply(self, peer: str, message: codec.PreVoteReply) -> None:
        group = self._group
        if not message.granted or message.asked != self._asked or self._asked != group.term + 1:
            return
        if group.has_live_leader():
            self._asked = 0
            return
        self._granted.add(peer)
        if is_quorum(group.log.config.voters, self._granted):
            self.campaign()
