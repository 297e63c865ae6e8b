"""Leases of leaders, held against what voters have promised: in true time, which no server knows. A lease that nobody
owes does no harm until another leader is elected within it, which takes a second accident."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from testkit.sim.rafts import quorum, raft_of

if TYPE_CHECKING:
    from testkit.sim.deployment import Deployment
    from testkit.sim.machine import MachineClock

NEAR = 0.002
"""Seconds by which clocks that are read at one moment differ: looking takes time, too."""


class Member(NamedTuple):
    """One group on a server that runs."""

    name: str
    clock: MachineClock
    group: Any

    def left(self, until: float) -> float:
        """Return the true seconds until this server's clock says `until`."""
        return self.clock.true_delay(until - self.clock.now())

    @property
    def keeps_time(self) -> bool:
        """Its clock is wrong by no more than leases allow for."""
        return bool(abs(self.clock.true_delay(1.0) ** -1 - 1.0) <= self.group.config.clock_drift + 1e-9)

    @property
    def promised(self) -> float:
        """Return the true seconds for which it still owes a leader not to elect another one."""
        return self.left(attrgetter("promise._until")(self.group))


def members(deployment: Deployment, cluster: str, gid: int) -> dict[str, Member]:
    """All that take part in a group, by Raft's id of the server."""
    found = {}
    for name, machine in deployment.machines.items():
        raft = raft_of(machine)
        group = raft.groups.get(gid) if raft is not None else None
        if group is not None and not group.stopped and (deployment.servers[name].cluster or name) == cluster:
            found[group.me] = Member(name, machine.clock, group)
    return found


def unkept(found: dict[str, Member]) -> Iterator[str]:
    """Leases by which a leader reads, and which a majority does not owe it for so long. A server that does not run owes
    it: when it starts it waits for as long as it may have promised."""
    if not all(member.keeps_time for member in found.values()):
        return  # nothing is promised then
    for me, member in found.items():
        group = member.group
        left = member.left(group.lease.until)
        if not (group.engine.leading and group.ready and left > 0.0):
            continue
        for config in group.log.configs_from(group.engine.commit):
            owing = {
                peer
                for peer in config.electorate
                if peer == me or peer not in found or found[peer].promised >= left - NEAR
            }
            if not quorum(config, owing):
                said = f"{member.name} reads by a lease of {left:.3f} s in term {group.engine.term}"
                yield f"{said}, and {sorted(owing)} owe it"


def broken(voter: Member, term: int) -> bool:
    """Return True when this vote of `term` breaks what the voter has promised to the leader of an earlier one. What it
    may have promised before it started does not count: it may have been the only voter when it voted."""
    to = attrgetter("promise._term")(voter.group)
    return voter.keeps_time and voter.promised > NEAR and not _alone(voter) and to is not None and to < term


def forgets(group: Any) -> bool:
    """Return True for a replica that has just begun with a log of before, and owes nobody anything: its process before
    may have promised not to vote, and no leader has released it yet."""
    promise = attrgetter("promise")(group)
    released = attrgetter("_released")(promise) != (0, 0) or group.engine.leader is not None
    return attrgetter("_until")(promise) == -math.inf and not released and not group.log.config.is_only(group.me)


def _alone(voter: Member) -> bool:
    return bool(voter.group.log.config.is_only(voter.group.me))
