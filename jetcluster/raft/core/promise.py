"""`Promise`: what a voter owes to a leader that reads by a lease (`lease.py`): no vote for anybody else for a while.

It is kept in memory. A replica that starts has forgotten what it promised, so it waits as long as the longest promise
(`RaftConfig.longest_lease`) before it votes or campaigns; one whose term was never above 0, or that is the only voter,
has promised nothing that matters.
"""

from __future__ import annotations

import math

from jetcluster.raft import codec
from jetcluster.raft.journal.log import GroupLog
from jetcluster.raft.node_state import NodeState


class Promise:
    """The promise of one replica. Times are seconds of `Clock.uptime`."""

    def __init__(self, node: NodeState, log: GroupLog) -> None:
        self._node = node
        self._log = log
        forgetful = log.term > 0 or log.damaged
        self._until = node.clock.uptime() + node.config.longest_lease if forgetful else -math.inf
        self._term: int | None = None
        """Term of the leader that it was given to; None for what was promised before the start."""
        self._number = 0
        self._released = 0, 0
        """(term, number): requests of that leader up to this number ask for nothing any more."""

    @property
    def remaining(self) -> float:
        """Seconds for which this replica must not vote for another leader, or campaign; at most 0 when it may."""
        if self._until == -math.inf or self._log.config.is_only(self._node.me):
            return 0.0  # the leader of a group with this one voter has no lease unless it is this replica
        return self._until - self._node.clock.uptime()

    @property
    def binds(self) -> bool:
        """True while this replica must not vote for another leader, or campaign."""
        return self.remaining > 0.0

    def give(self, message: codec.LeaseRequest) -> bool:
        """Promise the leader of this replica's term what it asks for. Returns False when that may not be: the answer
        would be about a log or a term that a restart could undo, the clock is in doubt, or the lease was released."""
        log, config = self._log, self._node.config
        seconds = message.microseconds / 1e6
        if log.damaged or log.election_gseq > log.durable_gseq or not self._node.health.keeps_time:
            return False
        if seconds > config.longest_lease or (
            message.term == self._released[0] and message.number <= self._released[1]
        ):
            return False
        self._until = max(self._until, self._node.clock.uptime() + seconds)
        self._term, self._number = message.term, message.number
        return True

    def release(self, term: int, number: int, *, by_leader: bool) -> None:
        """Note that the leader of `term` reads by none of its leases up to `number`. Only its own word, which comes on
        the same ordered link as its requests, frees from promises that this replica may have forgotten."""
        self._released = max(self._released, (term, number))
        kept = (self._term == term and self._number <= number) or (self._term is None and by_leader)
        if kept:
            self._until = -math.inf

    def released(self, term: int) -> int | None:
        """Return the number up to which the leader of `term` has released its leases; None if it has not."""
        return self._released[1] if self._released[0] == term else None

    def end(self) -> None:
        """Note that the leader to which this replica is bound has resigned."""
        self._until = -math.inf
