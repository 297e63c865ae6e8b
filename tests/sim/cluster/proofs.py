"""Proofs of how fresh a replica is, held against what leaders had committed: in true time, which no server knows. A
proof that says too much does no harm until something is stored in the meantime and asked for, which takes a second
accident."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from jetcluster.replica.reads.asked_stream import OwnStream
from jetcluster.replica.reads.confirm import ReadConfirmations
from jetcluster.replica.reads.waits import MAX_SECONDS, Read
from testkit.sim.deployment import Deployment

if TYPE_CHECKING:
    from testkit.sim.machine import Machine

NEAR = 0.005
"""Seconds by which a server may think that it is later than it is: looking takes time, too."""
EQUAL = 1e-6
"""Seconds within which two times are the same."""
DRIFT = 0.1
"""Share by which clocks may be wrong (`max_clock_drift`)."""


class Proofs:
    """The judge of proofs of freshness; it tells `deployment.failed` of those that are wrong."""

    def __init__(self, deployment: Deployment) -> None:
        self.looked = 0
        """Counts what was looked at."""
        self._deployment = deployment
        self._asked: WeakKeyDictionary[ReadConfirmations, float] = WeakKeyDictionary()
        """The `uptime` at which the question was asked that was answered last."""

    def proves(self, of: ReadConfirmations, began: float, wanted: int | None) -> None:
        """All that was committed at `began` has an index up to `wanted`."""
        machine, stream = self._machine(of), attrgetter("_ask.__self__")(of)
        if wanted is None or machine is None:
            return
        self._asked[of] = began
        if not isinstance(stream, OwnStream):
            return
        replica = attrgetter("_replica")(stream)
        log = replica.group.log
        alone = log.config.is_only(replica.group.me)
        if not log.durable or log.relaxed or alone or replica.network.raft.rescues(replica.group.gid):
            return  # what was committed may be lost
        self.looked += 1
        clock, now = machine.clock, self._deployment.scheduler.now
        at = now + min(clock.true_delay(began - clock.now()), 0.0) - NEAR
        known = self._deployment.vows.committed(self._cluster(machine), replica.group.gid, at)
        what = f"takes {wanted} for all that was committed {now - at:.3f} s ago, and {known} was"
        self._rule(machine, f"{replica.assignment.name} {what}", kept=known <= wanted)

    def tells(self, of: ReadConfirmations, began: float, told: float) -> None:
        """No less time than `told` has gone by since `began`."""
        machine = self._machine(of)
        if machine is None:
            return
        clock = machine.clock
        gone = clock.true_delay(clock.now() - began)
        if abs(clock.true_delay(1.0) ** -1 - 1.0) <= DRIFT + EQUAL:
            self.looked += 1
            self._rule(machine, f"tells an age of {told:.4f} s after {gone:.4f} s", kept=told >= gone - EQUAL)

    def confirms(self, of: ReadConfirmations, reads: Sequence[Read]) -> None:
        """The question was asked after these reads had come."""
        machine, asked = self._machine(of), self._asked.get(of)
        if machine is None or asked is None:
            return
        self.looked += 1
        late = [read for read in reads if read.deadline - MAX_SECONDS > asked + EQUAL]
        self._rule(machine, f"answers {len(late)} reads by a question of before", kept=not late)

    def _machine(self, of: ReadConfirmations) -> Machine | None:
        clock = attrgetter("_clock.uptime.__self__")(of)  # of the machine, below the cluster's
        return next((one for one in self._deployment.machines.values() if one.clock is clock), None)

    def _cluster(self, machine: Machine) -> str:
        return self._deployment.servers[machine.name].cluster or machine.name

    def _rule(self, machine: Machine, what: str, *, kept: bool) -> None:
        if not kept:
            self._deployment.failed(f"at {self._deployment.scheduler.now:.3f}: {machine.name}: {what}")


@contextmanager
def watched(deployment: Deployment) -> Iterator[Proofs]:
    """All proofs of the deployment are looked at meanwhile."""
    proofs = Proofs(deployment)

    def prove(usual: Callable[..., None], self: ReadConfirmations, began: float, wanted: int | None) -> None:
        usual(self, began, wanted)
        proofs.proves(self, began, wanted)

    def since(usual: Callable[..., float], self: ReadConfirmations, began: float) -> float:
        told = usual(self, began)
        proofs.tells(self, began, told)
        return told

    def confirmed(usual: Callable[..., None], self: ReadConfirmations, asked: list[Read], wanted: int) -> None:
        proofs.confirms(self, asked)
        usual(self, asked, wanted)

    looks: dict[str, Callable[..., Any]] = {"_prove": prove, "since": since, "_confirmed": confirmed}
    with patch.multiple(
        ReadConfirmations, **{name: _around(getattr(ReadConfirmations, name), look) for name, look in looks.items()}
    ):
        yield proofs


def _around(usual: Callable[..., Any], look: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(usual)
    def call(self: ReadConfirmations, *arguments: Any) -> Any:
        return look(usual, self, *arguments)

    return call
