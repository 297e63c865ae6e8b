"""Reads that a leader confirms to itself, held against what leaders had committed when each was asked for. The harm
takes a client that reads in the moment between two leaders; what is confirmed then is wrong whether one does or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from jetcluster.raft.core.read_index import ReadRounds
from testkit.sim.deployment import Deployment
from testkit.sim.rafts import machine_of, raft_of

if TYPE_CHECKING:
    from testkit.sim.machine import Machine


class Rounds:
    """It tells `deployment.failed` of reads that are confirmed and lack something."""

    def __init__(self, deployment: Deployment) -> None:
        self.looked = 0
        self._deployment = deployment

    def around(self, of: ReadRounds, callback: Callable[[bool], None]) -> Callable[[bool], None]:
        """The callback of a read that is asked for now."""
        state = attrgetter("_state")(of)
        machine = machine_of(self._deployment.machines.values(), state.log)
        if machine is None:
            return callback
        log, asked = state.log, self._deployment.scheduler.now
        lasts = log.durable and not log.relaxed and not log.config.is_only(state.me)

        def called(confirmed: bool) -> None:
            if confirmed and lasts and not machine.disk_troubled():
                self._confirms(machine, state, asked)
            callback(confirmed)

        return called

    def _confirms(self, machine: Machine, state: Any, asked: float) -> None:
        self.looked += 1
        gid, cluster = state.log.gid, self._deployment.servers[machine.name].cluster or machine.name
        raft = raft_of(machine)
        if raft is None or raft.rescues(gid):
            return  # what was committed may be lost
        known = self._deployment.vows.committed(cluster, gid, asked)
        if known > state.applied_index:
            what = f"reads at {state.applied_index}, and {known} was committed before it was asked"
            self._deployment.failed(f"at {self._deployment.scheduler.now:.3f}: {machine.name}, group {gid}: {what}")


@contextmanager
def watched(deployment: Deployment) -> Iterator[Rounds]:
    """All reads of leaders are looked at meanwhile."""
    rounds = Rounds(deployment)
    usual: Callable[..., None] = ReadRounds.add

    def add(self: ReadRounds, callback: Callable[[bool], None], exclude: str | None = None) -> None:
        usual(self, callback if exclude is not None else rounds.around(self, callback), exclude)

    with patch.object(ReadRounds, "add", add):
        yield rounds
