"""Turns of consumers' owners, at the moment at which a replica applies each: those of one owner count in their order,
without a gap, and nobody but its owner changes anything of a consumer. What an owner of before says is mostly true, and
what is missing comes again, so that it takes a second accident until a client has lost something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from jetcluster.consumer.state import turn
from jetcluster.consumer.state.table import ConsumerTable
from jetcluster.consumer.state.turn import Turn, TurnResult
from jetcluster.stream.log.commands import CONSUMER_TURN, CommandError
from testkit.sim.deployment import Deployment
from tests.sim.cluster.invariants import jetstream_of

if TYPE_CHECKING:
    from testkit.sim.machine import Machine

Session = tuple[int, int]
"""Number of a session, and the serial of its newest turn."""


class OwnerTurns:
    """It tells `deployment.failed` of turns that should not count."""

    def __init__(self, deployment: Deployment) -> None:
        self.looked = 0
        self._deployment = deployment

    def counts(self, table: ConsumerTable, came: Turn, before: Session | None) -> None:
        """A turn counts that came after this one of its owner."""
        self.looked += 1
        if came.first:
            follows = before is None or came.session > before[0]
        else:
            follows = before == (came.session, came.serial - 1)
        if not follows:
            self._broken(table, came, f"turn {came.serial} of session {came.session} counts after {before}")

    def changes(self, table: ConsumerTable, came: Turn, owners: dict[int, str], result: TurnResult) -> None:
        """`owners`: of each consumer of the turn, when it came."""
        servers = {one.network.me for one in map(jetstream_of, self._deployment.machines.values()) if one is not None}
        if came.owner.decode(errors="replace") not in servers:
            return  # of a workload that writes commands of its own
        for op, outcome in zip(came.ops, result.outcomes, strict=True):
            if outcome is not None and owners.get(op.cid, "").encode() != came.owner:
                what = f"an op {op.kind} of epoch {op.epoch} changes consumer {op.cid}, which {owners.get(op.cid)} owns"
                self._broken(table, came, what)

    def _broken(self, table: ConsumerTable, came: Turn, what: str) -> None:
        machine = self._machine(table)
        if machine is not None:
            now, owner = self._deployment.scheduler.now, came.owner.decode(errors="replace")
            self._deployment.failed(f"at {now:.3f}: {machine.name}: of {owner}, {what}")

    def _machine(self, table: ConsumerTable) -> Machine | None:
        for machine in self._deployment.machines.values():
            jetstream = jetstream_of(machine)
            if jetstream is not None and any(one.table is table for one in jetstream.replicas.values()):
                return machine
        return None


@contextmanager
def watched(deployment: Deployment) -> Iterator[OwnerTurns]:
    """All turns are looked at meanwhile."""
    turns = OwnerTurns(deployment)
    usual: Callable[..., Any] = ConsumerTable.apply

    def apply(self: ConsumerTable, kind: int, ts: int, index: int, body: bytes, sift: Any) -> Any:
        came = _decoded(body) if kind == CONSUMER_TURN else None
        if came is None:
            return usual(self, kind, ts, index, body, sift)
        before = self.session_of(came.owner)
        owners = {op.cid: self.by_cid[op.cid].owner for op in came.ops if op.cid in self.by_cid}
        result = usual(self, kind, ts, index, body, sift)
        if isinstance(result, TurnResult) and result.accepted:
            turns.counts(self, came, before)
            turns.changes(self, came, owners, result)
        return result

    with patch.object(ConsumerTable, "apply", apply):
        yield turns


def _decoded(body: bytes) -> Turn | None:
    try:
        return turn.decode(body)
    except CommandError:
        return None
