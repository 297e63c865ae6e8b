"""The judge of failing over: how long a group may be without a leader that commits, while a majority of its servers is
well and connected. Looked at while a run goes on, as `invariants.py` does.
"""

from __future__ import annotations

import itertools
from typing import Any

from jetcluster.raft.api import Role
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.machine import UPTIME, Machine
from tests.sim.cluster.invariants import Replica, jetstream_of, replicas

EVERY = 0.5
"""Seconds between two looks."""
LONGEST = 10.0
"""Seconds until the next commit. Servers find a connection dead and vote within two or three; the rest is for disks
that take five times as long as usual."""
SLOWEST = 15.0
SLOW_PACE = 20.0
"""The same on disks that take twenty times as long: their writes take longer than a second again and again, so that
each server in turn says that it is not well. An election needs several writes, one after the other."""
CLOCKS = 1.0
"""Seconds by which a wall clock may be wrong and its server counts as well."""
FORGOTTEN = 15.0
"""Seconds after which a connection that leads nowhere any more is known to be dead."""
Key = tuple[str, int]
"""(cluster, group)"""


class Majorities:
    """Which servers are well, and which groups have a majority of such ones that are connected."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    def well(self) -> set[str]:
        """Names. Where the clocks of a cluster are wrong, nobody there knows the time, or leads."""
        machines = self._deployment.machines.items()
        return {name for name, one in machines if self.is_well(one) and self._knows_the_time(name)}

    def _knows_the_time(self, name: str) -> bool:
        servers = self._deployment.servers
        cluster = [one for one in servers if (servers[one].cluster or one) == (servers[name].cluster or name)]
        right = [one for one in cluster if self._is_right(self._deployment.machines[one])]
        return 2 * len(right) > len(cluster)

    def _is_right(self, machine: Machine) -> bool:
        clock = machine.clock
        return abs(clock.now() - UPTIME + clock.wall_ahead - self._deployment.scheduler.now) < CLOCKS

    def has_one(self, found: list[Replica], well: set[str]) -> bool:
        """True when a majority is well and connected by what every replica knows of the members; a replica that has
        lost something, or is not whole yet, does not count. False where none knows any: the only disk of a stream came
        back empty."""
        return bool(self.of(found, well))

    def of(self, found: list[Replica], well: set[str]) -> set[str]:
        """Names of the machines that have a place in each such majority; none where one is wanting."""
        whole = {one.group.me: one.machine for one in found if one.machine.name in well and _counts(one)}
        configs = [one.group.log.config for one in found]
        sets = {voters for config in configs for voters in (config.voters, config.outgoing) if voters}
        majorities = [self._majority(voters, whole) for voters in sets]
        return set().union(*majorities) if all(majorities) else set()

    def can_serve(self, found: list[Replica], well: set[str]) -> bool:
        """`has_one`, of servers that know which streams there are. Who has started again hears that from the meta
        group, and serves no stream while that has no majority (docs/membership/rescue.md), although it may lead one."""
        metas = [one for one in replicas(self._deployment) if one.stream is None]
        serving = {name: jetstream_of(self._deployment.machines[name]) for name in well}
        knowing = {name for name, one in serving.items() if one is not None and one.known.current}
        told = self.has_one([one for one in metas if one.cluster == found[0].cluster], well)
        return self.has_one(found, well if told else knowing)

    def _majority(self, voters: Any, whole: dict[str, Machine]) -> set[str]:
        """Names of the machines of a majority that hear each other, and nothing of those that are left. Whoever is
        heard now and then, or by some, may disturb it."""
        machines = [whole[voter] for voter in voters if voter in whole]
        for machine in machines:
            near = [other for other in machines if other is machine or not self.are_apart(machine, other)]
            alone = all(self.are_apart(one, other) for one in near for other in machines if other not in near)
            if 2 * len(near) > len(voters) and alone:
                hear = all(self._hear(one, other) for one, other in itertools.combinations(near, 2))
                return {one.name for one in near} if hear else set()
        return set()

    def are_apart(self, one: Machine, other: Machine) -> bool:
        """Nothing comes from either of them to the other one."""
        links = self._deployment.network.link
        ends = (one.host.ip, other.host.ip)
        return all(links(*way).cut_since is not None for way in (ends, ends[::-1]))

    def _hear(self, one: Machine, other: Machine) -> bool:
        links = self._deployment.network.link
        return links(one.host.ip, other.host.ip).is_calm and links(other.host.ip, one.host.ip).is_calm

    def is_well(self, machine: Machine) -> bool:
        disk, now = machine.disk, self._deployment.scheduler.now
        quick = not (disk.hung or disk.slowness or disk.ballast or disk.faults) and disk.free > disk.capacity // 16
        right = self._is_right(machine) and machine.clock.slowness == machine.usual_slowness
        return (
            machine.ready
            and not (machine.paused or machine.is_short)
            and quick
            and right
            and now - machine.forgotten > FORGOTTEN
        )


class Availability:
    """`begin` has everything looked at from then on; what takes too long is raised as Violation from the scheduler."""

    def __init__(self, deployment: Deployment) -> None:
        self.longest = 0.0
        """Seconds that a group with a majority was without a commit that it owed."""
        self._deployment = deployment
        self.majorities = Majorities(deployment)
        self._since: dict[Key, float] = {}
        """The time at which a group was last seen to be all right, or to have no majority that is well."""
        self._commits: dict[Key, int] = {}

    def begin(self) -> None:
        self.look()
        self._deployment.scheduler.after(EVERY, self.begin)

    def look(self) -> None:
        groups: dict[Key, list[Replica]] = {}
        for replica in replicas(self._deployment):
            groups.setdefault((replica.cluster, replica.gid), []).append(replica)
        self._since = {key: since for key, since in self._since.items() if key in groups}
        well = self.majorities.well()
        now = self._deployment.scheduler.now
        for key, found in groups.items():
            since = self._since.setdefault(key, now)
            if self._commits_what_it_has(key, found, well) or not self.majorities.has_one(found, well):
                self._since[key] = now
                continue
            self.longest = max(self.longest, now - since)
            slowest = any(one.machine.disk.pace >= SLOW_PACE for one in found)
            if now - since > (SLOWEST if slowest else LONGEST):
                raise Violation(f"at {now:.3f}: {found[0].where}: a majority is well and connected, and nothing was "
                                f"committed for {now - since:.1f} s")  # fmt: skip

    def _commits_what_it_has(self, key: Key, found: list[Replica], well: set[str]) -> bool:
        """Somebody leads and has committed all that it was given, or somebody knows of more that is committed than the
        last time: a leader may have come and gone in between. One that the majority does not hear leads nobody."""
        commit, before = max(one.group.commit_index for one in found), self._commits.get(key, 0)
        self._commits[key] = max(commit, before)
        if commit > before:
            return True
        leaders = [one for one in found if one.group.role is Role.LEADER and one.group.ready]
        if not leaders:
            return False
        leader = max(leaders, key=lambda one: int(one.group.term))
        apart = {one.machine.name for one in found if self.majorities.are_apart(leader.machine, one.machine)}
        if apart and (majority := self.majorities.of(found, well)) and majority <= apart:
            return False
        return bool(leader.group.commit_index >= leader.group.log.last_index)


def _counts(replica: Replica) -> bool:
    log = replica.group.log
    return not (log.damaged or log.joining or log.fetching or replica.group.stopped)
