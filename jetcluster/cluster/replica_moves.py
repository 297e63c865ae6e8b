"""`ReplicaMoves`: the meta leader gives servers their share of replicas, one move after the other.

A replica that moves is a copy over the network, so nothing moves while anything else is amiss: all servers are there,
well and have been so for a while, none is drained, every stream has its replicas, and no group changes its members. The
stream itself is looked at last: all of its replicas must have caught up.

A move is a change of placement as any other (`members.follow_assignment`): the new replica first, then one change of
the voters. A replica counts as one, and as one more for each `STORED` bytes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from jetcluster.cluster.balance_news import BalanceMove, Numbers
from jetcluster.cluster.load import ONE, REPLICAS, REST_SECONDS, UNITS_METHOD, LoadReport
from jetcluster.errors import ApiError
from jetcluster.mesh.api import MeshError
from jetcluster.meta.balance import Shift, Unit, Weight, spread, uneven
from jetcluster.replica.services import Network, Runtime
from jetcluster.stream.rules import RESTORING

if TYPE_CHECKING:
    from jetcluster.cluster.administration import AskStream
    from jetcluster.cluster.meta_replica import MetaReplica
    from jetcluster.cluster.meta_service import MetaService
    from jetcluster.meta.state import Assignment

STORED: Final = 256 << 20
ATTEMPTS: Final = 16
"""Streams that are looked at for one move: placements may refuse the first ones."""
ASK_SECONDS: Final = 1.0
MEMBERS_SECONDS: Final = 2.0
MAX_RECENT: Final = 256


class ReplicaMoves:
    """One per server; it acts on the meta leader."""

    def __init__(
        self, runtime: Runtime, network: Network, meta: MetaReplica, service: MetaService, ask_stream: AskStream,
        occupied: Callable[[], bool],
    ) -> None:  # fmt: skip
        """`occupied`: the meta leader moves replicas for another reason."""
        self._runtime, self._network = runtime, network
        self._meta, self._service = meta, service
        self._ask_stream, self._occupied = ask_stream, occupied
        self._recent: dict[int, float] = {}
        """By stream, when a replica of it moved last (monotonic seconds)."""

    async def move_one(self, reports: Mapping[str, LoadReport], fit: Sequence[str]) -> BalanceMove | None:
        """Begins a move and returns it, or None when there is none to make now. Raises as `MetaService.handle` does."""
        machine = self._meta.machine
        if not self._all_is_well(reports, fit):
            return None
        loads = {peer: self._load(machine.replicas_on(peer), reports[peer].stored) for peer in fit}
        if not uneven(loads, fit, ONE):
            return None
        units = await self._units(loads, fit)
        for _ in range(ATTEMPTS):
            shifts = spread(loads, units, fit, 1)
            if not shifts:
                return None
            if (found := await self._allowed(shifts[0])) is not None:
                return await self._begin(found, shifts[0])
            units = [_without(unit, shifts[0]) for unit in units]
        return None

    def _all_is_well(self, reports: Mapping[str, LoadReport], fit: Sequence[str]) -> bool:
        machine = self._meta.machine
        members = [node.peer for node in machine.nodes.values() if node.jetstream]
        if any(peer not in fit for peer in members) or any(report.changing for report in reports.values()):
            return False
        return not (self._occupied() or machine.misplaced)

    async def _units(self, loads: Mapping[str, Weight], fit: Sequence[str]) -> list[Unit]:
        """Returns replicas of the servers that have more than others, with the servers that have none of the stream."""
        least = min(load.total for load in loads.values())
        asked = [peer for peer in fit if loads[peer].total > least]
        answers = await asyncio.gather(*map(self._ask, asked))
        now = self._runtime.clock.monotonic()
        self._recent = {gid: at for gid, at in self._recent.items() if now - at < REST_SECONDS}
        units = []
        for peer, rows in zip(asked, answers, strict=True):
            for gid, stored in rows:
                assignment = self._meta.machine.by_gid(gid)
                if assignment is None or gid in self._recent or peer not in assignment.peers:
                    continue
                heirs = tuple(other for other in fit if other not in assignment.peers)
                units.append(Unit((gid, fit.index(peer)), peer, heirs, self._load(1, stored)))
        return units

    async def _allowed(self, shift: Shift) -> Assignment | None:
        """Returns the stream, if its placement allows the move and all of its replicas have caught up."""
        gid, source = shift.unit.key[0], shift.unit.at
        assignment = self._meta.machine.by_gid(gid)
        if assignment is None or assignment.config.get(RESTORING) or source not in assignment.peers:
            return None
        if not self._service.may_take(assignment, source, shift.target):
            return None
        try:
            async with asyncio.timeout(MEMBERS_SECONDS):
                members = await self._ask_stream(assignment, "members", {})
        except (ApiError, TimeoutError):
            return None
        settled = set(members["voters"]) == set(assignment.peers) and not (members["outgoing"] or members["learners"])
        return assignment if settled and members.get("behind") == [] else None

    async def _begin(self, old: Assignment, shift: Shift) -> BalanceMove:
        peers = [shift.target if peer == shift.unit.at else peer for peer in old.peers]
        machine = self._meta.machine
        counts = [machine.replicas_on(peer) for peer in (shift.unit.at, shift.target)]
        await self._service.set_peers(old, peers, self._runtime.rng.token(8).hex())
        if len(self._recent) < MAX_RECENT:
            self._recent[old.gid] = self._runtime.clock.monotonic()
        source, target = (machine.nodes[peer].name for peer in (shift.unit.at, shift.target))
        weights = shift.source_load.total, shift.target_load.total
        moved = shift.unit.weight.total
        before = _numbers(counts[0], weights[0]), _numbers(counts[1], weights[1])
        after = _numbers(counts[0] - 1, weights[0] - moved), _numbers(counts[1] + 1, weights[1] + moved)
        why = " and ".join(
            f"{name} holds {one['count']} replicas of weight {one['weight']}"
            for name, one in zip((source, target), before, strict=True)
        )
        return BalanceMove(REPLICAS, old, "", source, target, why, before, after)

    @staticmethod
    def _load(replicas: int, stored: int) -> Weight:
        return Weight(ONE * replicas + ONE * stored // STORED)

    async def _ask(self, peer: str) -> list[tuple[int, int]]:
        try:
            answer = await self._network.mesh.call(peer, UNITS_METHOD, REPLICAS.encode(), ASK_SECONDS)
            return [(int(gid), int(stored)) for gid, stored in json.loads(answer)]
        except (MeshError, ValueError, TypeError, RecursionError):
            return []


def _without(unit: Unit, shift: Shift) -> Unit:
    """Returns the unit without the server to which it may not go."""
    if unit.key != shift.unit.key:
        return unit
    return unit._replace(heirs=tuple(peer for peer in unit.heirs if peer != shift.target))


def _numbers(count: int, weight: int) -> Numbers:
    return {"count": count, "weight": weight}
