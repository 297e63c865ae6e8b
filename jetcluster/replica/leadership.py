"""Advisories about a group's leadership: LEADER_ELECTED by the new leader, QUORUM_LOST by a replica that is left,
LEADER_REFUSED (ours) by one that cannot follow whom the others follow.

All go to the stream's account and, with that account's name, to the system account. A group of one
tells nothing.
"""

from __future__ import annotations

from typing import Any, Final

from jetcluster.model.advisory import Event, leader_elected, leader_refused, quorum_lost
from jetcluster.model.cluster_info import replica_wire
from jetcluster.replica.advisories import tell_both
from jetcluster.replica.replica_info import own_replica_info, replica_infos
from jetcluster.replica.replica_state import ReplicaState

LOST_SECONDS: Final = 5.0
"""So long a group has no leader, as its replica sees it, before that is told: elections take less."""
REPEAT_SECONDS: Final = 10.0


class Leadership:
    """The advisories about the leadership of one replica; `tick` it a few times per second."""

    def __init__(self, replica: ReplicaState) -> None:
        self._context = replica.context
        self._replica = replica
        self._led = False
        """The group had a leader since this process started: before that there is nothing to lose."""
        self._lost = False
        self._tell_at: float | None = None
        """Next, while there is no leader."""
        self._refused = ""

    def elected(self) -> None:
        """This replica leads now."""
        name, leader = self._replica.assignment.name, self._context.name
        self._tell(leader_elected(name, leader))

    def tick(self) -> None:
        now = self._context.clock.monotonic()
        refused = self._replica.group.refused
        if bool(refused) != bool(self._refused):
            self._refused = refused
            if refused:
                self._tell_refusal(refused)
        if self._replica.group.leader is not None or self._replica.retiring:
            self._led, self._lost = True, False
            self._tell_at = None
        elif self._led and self._tell_at is None:
            self._tell_at = (self._replica.group.leaderless_since or now) + LOST_SECONDS
        elif self._led and self._tell_at is not None and now >= self._tell_at:
            self._tell_at = now + REPEAT_SECONDS
            name = self._replica.assignment.name
            if not self._lost:
                self._lost = True
                self._context.log.warning("stream has no quorum", stream=name)
            self._tell(quorum_lost(name))

    def _tell_refusal(self, why: str) -> None:
        name, context = self._replica.assignment.name, self._context
        context.log.error("this replica cannot follow the leader of the others", stream=name, reason=why)
        self._tell(leader_refused(name, context.name, context.me, why))

    def _tell(self, event: Event) -> None:
        if len(self._replica.group.peers) > 1:
            tell_both(self._replica, event, replicas=self._replicas)

    def _replicas(self) -> list[dict[str, Any]]:
        infos = (*replica_infos(self._replica), own_replica_info(self._context))
        return [replica_wire(info) for info in infos]
