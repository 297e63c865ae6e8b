"""`Balancer`: the meta leader spreads the leaders of streams and the owners of consumers over the servers.

Every few seconds it asks the servers what they carry (`cluster.load`), decides (`meta.balance`), and asks the leaders
of a few streams to hand over. It keeps nothing: the next meta leader sees the same, and the time for which a stream has
kept its leader is known by that leader. Nothing of this is in a log, so no clock decides what replicas apply.

A server gets something only while it is connected and well, stays (no lame duck, not drained), has been so for
`STEADY_SECONDS`, has measured all that it leads, and is not busier than who gives.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from jetcluster.cluster.balance_news import BalanceMove, Numbers
from jetcluster.cluster.load import CONSUMERS, LEADERS, LOAD_METHOD, MOVE_METHOD, ONE, UNITS_METHOD, LoadReport
from jetcluster.errors import ApiError
from jetcluster.mesh.api import MeshError
from jetcluster.meta.balance import Shift, Unit, Weight, spread, uneven
from jetcluster.raft.api import RaftError
from jetcluster.records import NamedTuple
from jetcluster.replica.proposals import OutcomeUnknownError
from jetcluster.replica.services import Events, Network, Runtime

if TYPE_CHECKING:
    from jetcluster.cluster.meta_replica import MetaReplica
    from jetcluster.cluster.replica_moves import ReplicaMoves
    from jetcluster.meta.state import Assignment

ROUND_SECONDS: Final = 5.0
REPLICA_SECONDS: Final = 1.0
"""Least time between two moves of replicas."""
STREAM_SECONDS: Final = 0.002
"""With very many streams rounds are so far apart, for each: a report takes about 5 us per replica."""
STEADY_SECONDS: Final = 30.0
"""Time for which a server must have been up and well before it gets anything."""
MOVES_PER_ROUND: Final = 4
"""Leaders, and consumers, that move in one round."""
MAX_TOLD: Final = 16
ASK_SECONDS: Final = 1.0
HAND_SECONDS: Final = 4.0
BUSY: Final = 300
"""Thousandths of a core from which on a server's processor time counts."""
BUSIER: Final = 1.2
"""Factor by which a server may be busier than the one that gives."""


class BalanceRules(NamedTuple):
    """The kinds of moves that the server that leads the meta group may make (`jetstream { balance }`)."""

    leaders: bool = True
    """Leaders of streams, and owners of consumers."""
    replicas: bool = True


class Balancer:
    """One per server; it acts on the meta leader."""

    def __init__(
        self, runtime: Runtime, network: Network, events: Events, meta: MetaReplica, rules: Callable[[], BalanceRules],
        replicas: ReplicaMoves,
    ) -> None:  # fmt: skip
        self._runtime, self._network, self._events = runtime, network, events
        self._meta = meta
        self.rules = rules
        self._replicas = replicas
        self.moved: Counter[str] = Counter()
        """By kind, the moves that this server has brought about as the meta leader (monitoring)."""
        self.last: deque[BalanceMove] = deque(maxlen=MAX_TOLD)
        """The newest of them (monitoring)."""
        self._leaders_at = 0.0

    async def keep(self, term: int) -> None:
        """Balances while this server leads the meta group in `term`."""
        pause = ROUND_SECONDS
        while True:
            await asyncio.sleep(pause)
            if self._meta.group is None or not self._meta.leading or self._meta.group.term != term:
                return
            try:
                pause = await self._round()
            except (ApiError, RaftError, OutcomeUnknownError) as error:
                self._runtime.log.debug("the cluster is not balanced now", error=str(error))

    async def _round(self) -> float:
        """Returns the seconds until the next one."""
        rules = self.rules()
        if not (rules.leaders or rules.replicas) or len(self._meta.machine.nodes) < 2:
            return ROUND_SECONDS
        reports = await self._reports()
        fit = [peer for peer, report in reports.items() if self._is_fit(peer, report)]
        now = self._runtime.clock.monotonic()
        if rules.leaders and now >= self._leaders_at:
            self._leaders_at = now + ROUND_SECONDS
            await self._move_leaders(reports, fit)
            await self._move_consumers(reports, fit)
        streams = sum(report.leads.fixed for report in reports.values()) // ONE
        if not rules.replicas or (told := await self._replicas.move_one(reports, fit)) is None:
            return max(ROUND_SECONDS, streams * STREAM_SECONDS)
        self._tell(told)
        return max(REPLICA_SECONDS, streams * STREAM_SECONDS / 4)

    async def _reports(self) -> dict[str, LoadReport]:
        """Returns what the servers say that answer."""
        nodes, peers = self._meta.machine.nodes, (self._network.me, *self._network.mesh.peers)
        asked = [peer for peer in sorted(peers) if peer in nodes and nodes[peer].jetstream]
        answers = await asyncio.gather(*(self._ask(peer, LOAD_METHOD, b"") for peer in asked))
        reports = {}
        for peer, answer in zip(asked, answers, strict=True):
            try:
                if answer is not None:
                    reports[peer] = LoadReport.parse(answer)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                self._runtime.log.warning("malformed load", of=peer, error=repr(error))
        return reports

    def _is_fit(self, peer: str, report: LoadReport) -> bool:
        node = self._meta.machine.nodes.get(peer)
        stays = node is not None and not node.draining and not report.leaving
        return stays and self._network.raft.peers.is_well(peer) and report.steady >= STEADY_SECONDS

    # ---- leaders and consumers

    async def _move_leaders(self, reports: Mapping[str, LoadReport], fit: Sequence[str]) -> None:
        loads = {peer: report.leads for peer, report in reports.items()}
        targets = [peer for peer in fit if not reports[peer].unknown]
        units = [
            Unit((int(gid),), at, _peers(heirs), Weight(int(fixed), int(rate)))
            for at, (gid, heirs, fixed, rate) in await self._units(LEADERS, loads, targets, reports)
        ]
        for shift in spread(loads, units, targets, MOVES_PER_ROUND, _less_busy(reports)):
            (gid,) = shift.unit.key
            body = {"gid": gid, "to": shift.target}
            await self._hand_over(LEADERS, shift.unit.at, self._meta.machine.by_gid(gid), shift, body)

    async def _move_consumers(self, reports: Mapping[str, LoadReport], fit: Sequence[str]) -> None:
        """Each consumer is told, and moved, by the leader of its stream."""
        loads = dict.fromkeys(reports, Weight())
        for report in reports.values():
            for peer, weight in report.owns.items():
                if peer in loads:
                    loads[peer] = loads[peer].plus(weight)
        by_key: dict[tuple[int, ...], tuple[str, int]] = {}
        units = []
        for leader, (gid, cid, epoch, at, heirs, fixed, rate) in await self._units(CONSUMERS, loads, fit, reports):
            key = int(gid), int(cid)
            by_key[key] = leader, int(epoch)
            units.append(Unit(key, str(at), _peers(heirs), Weight(int(fixed), int(rate))))
        for shift in spread(loads, units, fit, MOVES_PER_ROUND, _less_busy(reports)):
            gid, cid = shift.unit.key
            leader, epoch = by_key[shift.unit.key]
            body = {"gid": gid, "to": shift.target, "cid": cid, "epoch": epoch}
            await self._hand_over(CONSUMERS, leader, self._meta.machine.by_gid(gid), shift, body)

    async def _units(
        self, kind: str, loads: Mapping[str, Weight], targets: Sequence[str], reports: Mapping[str, LoadReport]
    ) -> list[tuple[str, list[Any]]]:
        """Returns what could move, with the server that said so; nobody is asked while the loads are even."""
        if not uneven(loads, targets, ONE):
            return []
        least = min(loads[peer].total for peer in targets)
        asked = [peer for peer in reports if kind == CONSUMERS or loads[peer].total > least]
        answers = await asyncio.gather(*(self._ask(peer, UNITS_METHOD, kind.encode()) for peer in asked))
        found = []
        for peer, answer in zip(asked, answers, strict=True):
            found += [(peer, row) for row in json.loads(answer or b"[]")]
        return found

    async def _hand_over(
        self, kind: str, asked: str, assignment: Assignment | None, shift: Shift, body: Mapping[str, Any]
    ) -> None:
        answer = await self._ask(asked, MOVE_METHOD, json.dumps(body).encode(), HAND_SECONDS)
        said = {} if answer is None else json.loads(answer)
        if assignment is None or not said.get("moved"):
            why = said.get("why", "no answer")
            self._runtime.log.debug("a move for balance was not made", kind=kind, group=body["gid"], reason=why)
            return
        self._tell(self._told(kind, assignment, shift, str(said.get("consumer") or "")))

    def _tell(self, told: BalanceMove) -> None:
        self.moved[told.kind] += 1
        self.last.append(told)
        told.tell(self._runtime.log, self._events)

    def _told(self, kind: str, assignment: Assignment, shift: Shift, consumer: str) -> BalanceMove:
        verb = "leads {} streams" if kind == LEADERS else "owns {} consumers"
        weight = shift.unit.weight
        before = _numbers(shift.source_load), _numbers(shift.target_load)
        after = _numbers(shift.source_load.plus(weight, -1)), _numbers(shift.target_load.plus(weight))
        nodes = self._meta.machine.nodes
        source, target = (nodes[peer].name if peer in nodes else peer for peer in (shift.unit.at, shift.target))
        why = " and ".join(
            f"{name} {verb.format(said['count'])} of weight {said['weight']}"
            for name, said in zip((source, target), before, strict=True)
        )
        return BalanceMove(kind, assignment, consumer, source, target, why, before, after)

    # ---- helpers

    async def _ask(self, peer: str, method: str, payload: bytes, seconds: float = ASK_SECONDS) -> bytes | None:
        """Returns the answer, or None: the server is gone, too busy, or of a version that does not balance."""
        try:
            return await self._network.mesh.call(peer, method, payload, seconds)
        except MeshError:
            return None


def _numbers(load: Weight) -> Numbers:
    return {"count": load.fixed // ONE, "weight": load.total}


def _peers(heirs: Any) -> tuple[str, ...]:
    return tuple(str(peer) for peer in heirs)


def _less_busy(reports: Mapping[str, LoadReport]) -> Callable[[str, str], bool]:
    """Returns whether one server may give to another by their processor time: a process may be busy with what is not
    counted here, such as its clients."""

    def may(source: str, target: str) -> bool:
        gives, takes = (reports[peer].busy if peer in reports else 0 for peer in (source, target))
        return takes <= max(BUSY, gives * BUSIER)

    return may
