"""`Liveness`: whether a cluster whose faults have healed works again. Not a safety matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.checks import Violation

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


class Liveness:
    """Looks once the cluster has settled. A group without a leader at that moment, as one may just be giving way to
    another, is looked at twice more within the same time again: both times it must have the same leader, of one term.
    """

    def __init__(self, sim: Simulation, healed_at: float) -> None:
        self._world = sim
        self._looks = [healed_at + share * sim.scenario.settle for share in (2.0, 1.5, 1.0)]
        self._leaders: dict[int, tuple[str, int] | None] = {}
        """Leader and term at the second look of each group that had no leader at the first."""

    @property
    def next_look(self) -> float:
        return self._looks[-1]

    def look(self) -> bool:
        """True when all is seen."""
        self._looks.pop()
        if not self._leaders:
            groups = range(1, self._world.scenario.groups + 1)
            self._leaders = {gid: None for gid in groups if self._leader(gid) is None and not self.excused(gid)}
            return not self._leaders
        if self._looks:
            self._leaders = {gid: self._leader(gid) for gid in self._leaders}
            return False
        return True

    def judge(self) -> None:
        """Raises Violation."""
        sim = self._world
        for gid in range(1, sim.scenario.groups + 1):
            leader = self._leader(gid)
            if leader is not None and self._leaders.get(gid, leader) == leader:
                continue
            if not self.excused(gid):
                sim.log("NO LEADER", gid)
                raise Violation("liveness", f"group {gid} has no leader that stays {sim.now - 1000:.1f} s on")
            sim.stats["excused"] += 1

    def _leader(self, gid: int) -> tuple[str, int] | None:
        node = self._world.healed_leader(gid)
        return None if node is None else (node.name, node.raft.groups[gid].term)

    def excused(self, gid: int) -> bool:
        """No majority of the voters is sound, nor one that was part of every decision, so there is nobody to vouch for
        a damaged one. Who is just being added counts as damaged too, and excuses nobody."""
        nodes = self._world.nodes.values()
        sound = {n.name: n.raft.groups[gid] for n in nodes if not n.dead and gid in n.raft.groups}
        sound = {name: group for name, group in sound.items() if not group.log.damaged and not group.stopped}
        if not sound:
            return True
        newest = max(sound.values(), key=lambda group: (group.log.last_term, group.log.last_index))
        return not newest.log.config.is_quorum(set(sound)) and not newest.decisive
