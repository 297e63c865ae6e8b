"""`ReplicaMoves`: the meta leader gives servers their share of replicas, one move after the other.

A replica that moves is a copy over the network, so nothing moves while anything else is amiss: all servers are there,
well and have been so for a while, none is drained, every stream has its replicas and a leader, no group changes its
members, and no replica is damaged or behind. The stream itself is looked at last: all of its replicas must have caught
up.

A move is a change of placement as any other (`members.follow_assignment`): the new replica first, then one change of
the voters. A replica counts as one, and as one more for each `STORED` bytes, which are measured and so have a margin of
noise. Bytes count whatever the size of a server's disk, but a server that is nearly full gets nothing.

What is refused is remembered, so that a round begins where the last one ended (`cluster.replica_rests`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from jetcluster.budget import BusyError, Steps
from jetcluster.cluster.balance_news import BalanceMove, Numbers
from jetcluster.cluster.load import LEAST_SECONDS, ONE, REPLICAS, REST_SECONDS, UNITS_METHOD, LoadReport
from jetcluster.cluster.replica_rests import ReplicaRests
from jetcluster.errors import ApiError
from jetcluster.mesh.api import MeshError
from jetcluster.meta.balance import Choices, Shift, Unit, Weight, needed_gap, noise_of, uneven
from jetcluster.replica.services import Network, Runtime
from jetcluster.stream.rules import RESTORING

if TYPE_CHECKING:
    from jetcluster.cluster.administration import AskStream
    from jetcluster.cluster.meta_replica import MetaReplica
    from jetcluster.cluster.meta_service import MetaService
    from jetcluster.meta.state import Assignment

STORED: Final = 256 << 20
ROOM: Final = 2
"""Times the bytes of a replica that a server must have free to get it: its log comes beside the copy."""
ATTEMPTS: Final = 16
"""Leaders of streams, asked for one move."""
PLACES: Final = 256
"""Places looked at for one move: placements may refuse the first ones."""
LOOKS: Final = 1024
"""Places looked at besides, so that replicas which must stay are not among those that are compared."""
MAX_UNITS: Final = 64
"""Replicas of one server that are compared for one move: the heaviest and the lightest."""
ROWS_PER_STEP: Final = 16
ASK_SECONDS: Final = 1.0
MEMBERS_SECONDS: Final = 2.0

KEY: Final = "balance", "replicas"
"""Its jobs take turns under this key (`LoopBudget`)."""

Row = tuple[str, int, int]
"""Peer id, group id and bytes of a replica."""


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
        self.rests = ReplicaRests(runtime.clock)

    async def move_one(self, reports: Mapping[str, LoadReport], fit: Sequence[str]) -> BalanceMove | None:
        """Begins a move and returns it, or None when there is none to make now. Raises as `MetaService.handle` does."""
        try:
            return await self._move_one(reports, fit)
        except BusyError:
            return None  # the loop has enough to do, and there is another round

    async def _move_one(self, reports: Mapping[str, LoadReport], fit: Sequence[str]) -> BalanceMove | None:
        machine, turns = self._meta.machine, self._runtime.budget
        if not self._all_is_well(reports, fit):
            return None
        loads = {peer: weight_of(machine.replicas_on(peer), reports[peer].stored) for peer in fit}
        if not uneven(loads, fit, ONE):
            return None
        choices = Choices(loads, fit)
        rows = await self._rows(loads, fit)
        await turns.run(KEY, self._fill(choices, rows, reports, loads))
        for _ in range(ATTEMPTS):
            shift = await turns.run(KEY, self._next(choices, loads))
            if shift is None:
                return None
            if (found := await self._caught_up(shift)) is not None:
                return await self._begin(found, shift)
            choices.drop(shift.unit)
        return None

    def _all_is_well(self, reports: Mapping[str, LoadReport], fit: Sequence[str]) -> bool:
        machine = self._meta.machine
        if any(node.peer not in fit for node in machine.nodes.values() if node.jetstream):
            return False
        if any(report.changing or report.amiss for report in reports.values()):
            return False
        if any(report.age > LEAST_SECONDS for report in reports.values()):
            return False  # it may know neither of the last move nor of what is amiss since
        return not (self._occupied() or machine.misplaced)

    # ---- what could move

    async def _rows(self, loads: Mapping[str, Weight], fit: Sequence[str]) -> list[Row]:
        """Returns replicas of the servers that have more than others."""
        least = min(load.total for load in loads.values())
        asked = [peer for peer in fit if loads[peer].total > least]
        answers = await asyncio.gather(*map(self._ask, asked))
        return [(peer, gid, stored) for peer, rows in zip(asked, answers, strict=True) for gid, stored in rows]

    async def _ask(self, peer: str) -> list[tuple[int, int]]:
        try:
            answer = await self._network.mesh.call(peer, UNITS_METHOD, REPLICAS.encode(), ASK_SECONDS)
            return [(int(gid), int(stored)) for gid, stored in json.loads(answer)]
        except (MeshError, ValueError, TypeError, RecursionError):
            return []

    def _fill(
        self, choices: Choices, rows: Sequence[Row], reports: Mapping[str, LoadReport], loads: Mapping[str, Weight]
    ) -> Steps[None]:
        """Takes the replicas with the servers that could have them: the one of them that carries least may."""
        found: dict[str, list[Unit]] = {peer: [] for peer in loads}
        numbers = {peer: number for number, peer in enumerate(loads)}
        looks = LOOKS
        for number, (peer, gid, stored) in enumerate(rows):
            if number % ROWS_PER_STEP == 0:
                yield
            assignment = self._meta.machine.by_gid(gid)
            if assignment is None or self.rests.rests(gid) or peer not in assignment.peers:
                continue
            heirs = self._heirs(assignment, peer, stored, reports, loads)
            while heirs and looks > 0:
                looks -= 1
                yield
                if self._service.may_take(assignment, peer, heirs[0]):
                    break
                self.rests.refuse(gid, heirs.pop(0))
            if heirs:
                found[peer].append(Unit((gid, numbers[peer]), peer, tuple(heirs), weight_of(1, stored)))
        yield from choices.fill([unit for units in found.values() for unit in _some(units)])

    def _heirs(
        self, assignment: Assignment, source: str, stored: int, reports: Mapping[str, LoadReport],
        loads: Mapping[str, Weight],
    ) -> list[str]:  # fmt: skip
        """Returns the servers that have none of the stream, carry enough less, have room for it, and did not refuse it,
        first the one that carries least."""
        weight, storage = weight_of(1, stored).total, assignment.config["storage"]
        heirs = [
            other
            for other, load in loads.items()
            if other not in assignment.peers
            and loads[source].total - load.total >= needed_gap(weight, noise_of(loads[source], load))
            and reports[other].free.get(storage, 0) >= ROOM * stored
            and not self.rests.is_refused(assignment.gid, other)
        ]
        return sorted(heirs, key=lambda other: loads[other].total)

    # ---- one move

    def _next(self, choices: Choices, loads: Mapping[str, Weight]) -> Steps[Shift | None]:
        """Returns a move that the stream's placement allows."""
        for _ in range(PLACES):
            shift = yield from choices.next(loads)
            if shift is None:
                return None
            gid, source = shift.unit.key[0], shift.unit.at
            assignment = self._movable(gid, source)
            if assignment is None:
                choices.drop(shift.unit)
            elif self._service.may_take(assignment, source, shift.target):
                return shift
            else:
                self.rests.refuse(gid, shift.target)
                choices.refuse(shift.unit, shift.target)
        return None

    def _movable(self, gid: int, source: str) -> Assignment | None:
        one = self._meta.machine.by_gid(gid)
        if one is None or source not in one.peers or one.config.get(RESTORING) or self.rests.rests(gid):
            return None
        return one

    async def _caught_up(self, shift: Shift) -> Assignment | None:
        """Returns the stream, if all of its replicas have caught up; else it rests."""
        gid, source = shift.unit.key[0], shift.unit.at
        assignment = self._movable(gid, source)
        if assignment is None:
            return None
        members = await self.members_of(assignment)
        settled = set(members.get("voters", ())) == set(assignment.peers)
        if settled and not (members["outgoing"] or members["learners"]) and members.get("behind") == []:
            return assignment
        self.rests.rest(gid, REST_SECONDS)
        return None

    async def members_of(self, assignment: Assignment) -> Mapping[str, Any]:
        """Returns the leader's answer to "members", or {} without one."""
        try:
            async with asyncio.timeout(MEMBERS_SECONDS):
                return await self._ask_stream(assignment, "members", {})
        except (ApiError, TimeoutError):
            return {}

    async def _begin(self, old: Assignment, shift: Shift) -> BalanceMove:
        source, target = shift.unit.at, shift.target
        peers = [target if peer == source else peer for peer in old.peers]
        nodes, machine = self._meta.machine.nodes, self._meta.machine
        counts = [machine.replicas_on(peer) for peer in (source, target)]
        names = [nodes[peer].name if peer in nodes else peer for peer in (source, target)]
        self.rests.moving(old.gid, tuple(peers))
        await self._service.set_peers(old, peers, self._runtime.rng.token(8).hex())
        weights, moved = (shift.source_load.total, shift.target_load.total), shift.unit.weight.total
        before = _numbers(counts[0], weights[0]), _numbers(counts[1], weights[1])
        after = _numbers(counts[0] - 1, weights[0] - moved), _numbers(counts[1] + 1, weights[1] + moved)
        why = " and ".join(
            f"{name} holds {one['count']} replicas of weight {one['weight']}"
            for name, one in zip(names, before, strict=True)
        )
        return BalanceMove(REPLICAS, old, "", names[0], names[1], why, before, after)


def weight_of(replicas: int, stored: int) -> Weight:
    """Returns the weight of as many replicas with as many bytes in all."""
    return Weight(ONE * replicas, ONE * stored // STORED)


def _some(units: list[Unit]) -> list[Unit]:
    """Returns at most MAX_UNITS of one server's replicas: heavy ones and light ones."""
    if len(units) <= MAX_UNITS:
        return units
    units.sort(key=lambda unit: unit.weight.total)
    return units[: MAX_UNITS // 2] + units[-MAX_UNITS // 2 :]


def _numbers(count: int, weight: int) -> Numbers:
    return {"count": count, "weight": weight}
