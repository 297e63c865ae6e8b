"""The judge of who answers reads: no replica that must not is a member of the queue group that Direct Gets go to.

What a read finds is judged by the workloads; here it is enough that a client could ask. Looked at while a run goes on,
as `invariants.py` does.
"""

from __future__ import annotations

from typing import Any

from jetcluster.raft.api import Role
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.machine import Machine
from tests.sim.cluster.invariants import Replica, jetstream_of, replicas

EVERY = 0.5
"""Seconds between two looks."""
LOST = 20.0
"""Seconds until a replica that hears of no commit answers no more, though its machine reaches a majority. It counts ten
(`reads.membership`), of a clock that may run slow, and looks once in a while. One that is cut off goes on reading."""
Key = tuple[str, int]
"""(server, group)"""


class Readers:
    """`begin` has everything looked at from then on; what is broken is raised as Violation from the scheduler."""

    def __init__(self, deployment: Deployment) -> None:
        self.looks = 0
        """Replicas that answered reads when they were looked at."""
        self._deployment = deployment
        self._heard: dict[Key, tuple[Any, int, float]] = {}
        """(the object of that process, its commit index, when that was last the newest one or had just changed, or the
        machine was cut off)."""

    def begin(self) -> None:
        self.look()
        self._deployment.scheduler.after(EVERY, self.begin)

    def look(self) -> None:
        found = list(replicas(self._deployment))
        machines = self._machines()
        led: dict[tuple[str, int], int] = {}
        for one in found:
            if one.group.role is Role.LEADER:
                key = one.cluster, one.gid
                led[key] = max(led.get(key, 0), one.group.commit_index)
        for one in found:
            silent = self._silent(one, led.get((one.cluster, one.gid), 0), machines)
            if one.stream is None or one.machine.paused or not one.stream.reads.own.joined:
                continue
            self.looks += 1
            if why := unfit(one):
                self._broken(one, why)
            if silent > LOST:
                self._broken(one, f"has heard of no commit for {silent:.1f} s while another one leads")

    def _machines(self) -> dict[str, Machine]:
        """Those that run, by the ids that their servers have as members of groups."""
        machines = self._deployment.machines.values()
        running = [(machine, jetstream_of(machine)) for machine in machines if not machine.paused]
        return {jetstream.network.raft.me: machine for machine, jetstream in running if jetstream is not None}

    def _reaches(self, one: Replica, machines: dict[str, Machine]) -> bool:
        """True when the machine of this replica can connect with its leader, or with a majority of its group."""
        network, me = self._deployment.network, one.machine

        def near(peer: str | None) -> bool:
            other = machines.get(peer or "")
            return other is not None and (other is me or network.joins(me.host.ip, other.host.ip))

        config = one.group.log.config
        return near(one.group.leader) or config.is_quorum([peer for peer in config.electorate if near(peer)])

    def _silent(self, one: Replica, newest: int, machines: dict[str, Machine]) -> float:
        """Seconds for which a process that runs and is not cut off has known no new commit, and a leader has."""
        key, now, commit = (one.machine.name, one.gid), self._deployment.scheduler.now, one.group.commit_index
        group, before, since = self._heard.get(key, (None, 0, now))
        fresh = group is not one.group or commit != before or commit >= newest
        if fresh or one.machine.paused or not self._reaches(one, machines):
            since = now
        self._heard[key] = one.group, commit, since
        return now - since

    def _broken(self, one: Replica, why: str) -> None:
        raise Violation(f"at {self._deployment.scheduler.now:.3f}: {one.where}: it answers reads, and {why}")


def unfit(one: Replica) -> str:
    """Why it has not, for certain, what its stream had at some time; "" where it has."""
    stream = one.stream
    if stream.installing:
        return "its state is only half there"
    if stream.rejected:
        return f"its state is not the others': {stream.rejected}"
    if stream.damaged:
        return f"it has something that cannot be read: {stream.damaged}"
    return ""
