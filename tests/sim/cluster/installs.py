"""States that replicas have fetched, at the moment at which each takes one: with the members of its index, and nothing
is given up of a log that goes on behind it. A mistake in either does harm only once that replica counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from jetcluster.raft.core.snapshots import Snapshots
from testkit.sim.deployment import Deployment
from testkit.sim.rafts import machine_of, raft_of

if TYPE_CHECKING:
    from testkit.sim.machine import Machine


class Installs:
    """It tells `deployment.failed` of what is wrong."""

    def __init__(self, deployment: Deployment) -> None:
        self.looked = 0
        self._deployment = deployment

    def members(self, machine: Machine, log: Any, index: int, config: Any) -> None:
        """The members that come with a state are not those of a later change: in the log of no replica."""
        self.looked += 1
        groups = self._others(machine, log)
        if any(group.log.configs[0] == (index, config) and group.me not in config.members for _, group in groups):
            return  # of one that came later itself, and begins with what it was told
        for other, group in groups:
            if group.log.base_index > index:
                continue
            changes = group.log.configs
            if group.me not in changes[0][1].voters and all(at > index for at, _ in changes[1:]):
                continue  # it came later, with what its server was told of the members: that is no entry
            later = [at for at, one in changes[1:] if at > index and one == config]
            if later and all(one != config for at, one in changes if at <= index):
                what = f"its state of {index} comes with the members of {later[0]}, by the log of {other.name}"
                self._broken(machine, log, what)

    def kept(self, machine: Machine, log: Any, index: int, last: int) -> None:
        """The log held the last entry of the state, and went on to `last`."""
        what = f"it has taken a state of {index}, and gives up what it had behind that, up to {last}"
        if log.last_index < last:
            self._broken(machine, log, what)

    def _others(self, machine: Machine, log: Any) -> list[tuple[Machine, Any]]:
        """The other replicas of the group."""
        cluster, found = self._cluster(machine), []
        for other in self._deployment.machines.values():
            raft = raft_of(other)
            group = raft.groups.get(log.gid) if raft is not None and self._cluster(other) == cluster else None
            if group is not None and group.log is not log:
                found.append((other, group))
        return found

    def _cluster(self, machine: Machine) -> str:
        return self._deployment.servers[machine.name].cluster or machine.name

    def _broken(self, machine: Machine, log: Any, what: str) -> None:
        self._deployment.failed(f"at {self._deployment.scheduler.now:.3f}: {machine.name}, group {log.gid}: {what}")


@contextmanager
def watched(deployment: Deployment) -> Iterator[Installs]:
    """All states that are taken are looked at meanwhile."""
    installs = Installs(deployment)
    usual: Callable[..., None] = Snapshots.install

    def install(self: Snapshots, index: int, term: int, config: Any) -> None:
        log = attrgetter("_state.log")(self)
        machine, last = machine_of(deployment.machines.values(), log), log.last_index
        goes_on = log.term_at(index) == term and not (self.contradicted or log.damaged)
        usual(self, index, term, config)
        if machine is not None:
            installs.members(machine, log, index, config)
            if goes_on:
                installs.kept(machine, log, index, last)

    with patch.object(Snapshots, "install", install):
        yield installs
