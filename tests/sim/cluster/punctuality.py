"""By how much a stream may be late: its servers' clocks may be off, their disks slow, and it may have no leader who is
well.

Looked at while a run goes on, as `availability.py` does.
"""

from __future__ import annotations

import math

from jetcluster.raft.api import Role
from testkit.sim.deployment import Deployment
from testkit.sim.machine import UPTIME
from testkit.twins.storage.sim_disk import TAIL
from tests.sim.cluster.availability import Majorities
from tests.sim.cluster.invariants import jetstream_of, replicas

EVERY = 0.1
"""Seconds between two looks."""
SLACK = 1.0
"""Seconds by which something may come late or early where all is well."""
SYNCS = 3
"""Syncs that are slow at most, one after the other, before what is due is there."""
AGREED = 11.0
"""Seconds that slack for clocks comes to at most: they agree within five, and each may lead before and after."""


class Punctuality:
    """`begin` has everything looked at from then on."""

    def __init__(self, deployment: Deployment, cluster: str, stream: str) -> None:
        self._deployment = deployment
        self._majorities = Majorities(deployment)
        self._cluster, self._stream = cluster, stream
        self._wrong = 0.0
        """Seconds by which a clock of the cluster was wrong, at most."""
        self._troubles: list[list[float]] = []
        """Times in which nobody led who is well, could commit, and knew of the stream: [begin, end], the last one
        perhaps not over. A server that has started again serves no stream before the meta group tells it which there
        are, and while that has no majority nobody does (docs/membership/rescue.md); how long it takes otherwise is
        judged by `pulse.py`."""
        self._paces: list[tuple[float, float]] = []
        """(from when on, by what factor the slowest disk takes longer than usual), up to the next one. Remembered: an
        exam makes disks quick before this judges what was late before."""

    def begin(self) -> None:
        self.look()
        self._deployment.scheduler.after(EVERY, self.begin)

    def look(self) -> None:
        now, paces = self._deployment.scheduler.now, [1.0]
        for server in self._deployment.servers.values():
            if server.cluster == self._cluster:
                machine = self._deployment.machines[server.name]
                clock = machine.clock
                self._wrong = max(self._wrong, abs(clock.now() - UPTIME + clock.wall_ahead - now))
                paces.append(machine.disk.pace)
        if not self._paces or self._paces[-1][1] != max(paces):
            self._paces.append((now, max(paces)))
        if not self._is_led():
            if not self._troubles or self._troubles[-1][1] < now - 1.5 * EVERY:
                self._troubles.append([now - EVERY, now])
            self._troubles[-1][1] = now

    def _is_led(self) -> bool:
        found = [
            one
            for one in replicas(self._deployment)
            if one.cluster == self._cluster and one.stream is not None and one.stream.assignment.name == self._stream
        ]
        well = self._well()
        leaders = [one for one in found if one.group.role is Role.LEADER]
        if not leaders:
            return False
        newest = max(leaders, key=lambda one: int(one.group.term))
        return newest.machine.name in self._majorities.of(found, well) and bool(newest.stream.leading)

    def _well(self) -> set[str]:
        """Names of servers that are well and say so: one whose disk has room again looks for that every second or two,
        and commits nothing before. How long that may last is judged by `Availability`."""
        machines = self._deployment.machines
        known = {name: jetstream_of(machines[name]) for name in self._majorities.well()}
        return {name for name, one in known.items() if one is None or one.network.raft.health.well}

    @property
    def early(self) -> float:
        """Seconds by which something may come too early."""
        return SLACK + min(2 * self._wrong, AGREED)

    def latest(self, due: float) -> float:
        """The last time at which something may come that is due then, in true seconds."""
        late = self.early + self._slow(due)
        for began, ended in self._troubles:
            if began <= due + late and ended > due:
                due = ended
        return due + late if math.isfinite(due) else due

    def _slow(self, due: float) -> float:
        """Seconds by which slow disks make late what is due then: those of that time, or of soon after it. What a slow
        disk has begun takes as long when it is quick again."""
        ends = [*(began for began, _ in self._paces[1:]), math.inf]
        slow = 0.0
        for (began, pace), ended in zip(self._paces, ends, strict=True):
            if pace > 1.0 and began <= due + self.early and ended + TAIL[1] * pace > due:
                slow = max(slow, SYNCS * TAIL[1] * pace)
        return slow
