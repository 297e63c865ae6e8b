"""`Balancer`: the meta leader spreads the leaders of streams and the owners of consumers over the servers.

Every few seconds it asks the servers what they carry (`cluster.load`), decides (`meta.balance`), and asks the leaders
of a few streams to hand over. It keeps nothing: the next meta leader sees the same, and the time for which a stream has
kept its leader is known by that leader. Nothing of this is in a log, so no clock decides what replicas apply.

A server gets something only while it is connected and well, stays (no lame duck, not drained), has been so for
`STEADY_SECONDS`, has measured most of what it leads, and is not busier than who gives.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jetcluster.cluster.balance_news import BalanceMove, Numbers
from jetcluster.cluster.load import CONSUMERS, LEADERS, LOAD_METHOD, MAX_AGE, MOVE_METHOD, ONE, UNITS_METHOD, LoadReport
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
    from jetcluster.mesh.api import NodeInfo
    from jetcluster.meta.state import Assignment

T = TypeVar("T")

ROUND_SECONDS: Final = 5.0
REPLICA_SECONDS: Final = 1.0
"""Least time between two moves of replicas."""
STREAM_SECONDS: Final = 0.002
"""With very many streams rounds are so far apart, for each: a report takes about 5 us per replica."""
STEADY_SECONDS: Final = 30.0
"""Time for which a server must have been up and well before it gets anything."""
MOVES_PER_ROUND: Final = 4
"""Leaders, and consumers, that move in one round."""
BACK_SECONDS: Final = 600.0
"""Time for which nothing moves back to a server that it left for balance: rates that waver must not make it bounce."""
MAX_LEFT: Final = 16_384
"""Moves that are remembered for that."""
MAX_TOLD: Final = 16
ASK_SECONDS: Final = 4.0
"""A server that is overloaded answers late, and has to be relieved most of all."""
LONGEST_PAUSE: Final = 60.0
"""Between two rounds in which nothing could move: what is new does not move earlier either (`load.REST_SECONDS`)."""
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


_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""Raised by the parsing of another server's answer."""


class _Pace:
    """The times at which leaders, or consumers, are looked at: ever more rarely while the loads are uneven and nothing
    can move, such as push consumers and leaders of streams with one replica."""

    def __init__(self) -> None:
        self._at = self._last = 0.0
        self._pause = ROUND_SECONDS
        self._targets: Sequence[str] = ()

    def is_due(self, now: float, targets: Sequence[str]) -> bool:
        if targets != self._targets:
            self._targets, self._pause = targets, ROUND_SECONDS
            self._at = self._last + ROUND_SECONDS
        return now >= self._at

    def note(self, now: float, in_vain: bool) -> None:
        """After a round that began at `now`."""
        pause = self._pause if in_vain else ROUND_SECONDS
        self._at, self._last = now + pause, now
        self._pause = min(2 * pause, LONGEST_PAUSE) if in_vain else ROUND_SECONDS


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
        self._paces: dict[str, _Pace] = {}
        self._away: dict[str, float] = {}
        """By peer, when it was last seen to go, to come or not to be well (monotonic seconds)."""
        self._changed: dict[tuple[str, str], float] = {}
        """By kind and peer, when a move last changed what the peer reports."""
        self._left: dict[tuple[str, tuple[int, ...], str], float] = {}
        """By kind, key and the server that it left, when a move was made, the oldest first."""
        network.mesh.on_peers(self._link_changed, self._link_changed)

    def _link_changed(self, node: NodeInfo) -> None:
        now = self._runtime.clock.monotonic()
        self._away = {peer: at for peer, at in self._away.items() if now - at < STEADY_SECONDS}
        self._away[node.peer_id] = now

    async def keep(self, term: int) -> None:
        """Balances while this server leads the meta group in `term`."""
        pause = ROUND_SECONDS
        self._paces = {LEADERS: _Pace(), CONSUMERS: _Pace()}
        while True:
            await asyncio.sleep(pause)
            if self._meta.group is None or not self._meta.leading or self._meta.group.term != term:
                return
            try:
                pause = await self._round()
            except (ApiError, RaftError, OutcomeUnknownError) as error:
                self._runtime.log.debug("the cluster is not balanced now", error=str(error))
            except Exception as error:  # noqa: BLE001 - one round's failure must not end the balance of a whole term
                pause = ROUND_SECONDS
                self._runtime.log.error("a round of balance failed", error=repr(error))  # noqa: TRY400

    async def _round(self) -> float:
        """Returns the seconds until the next one."""
        rules = self.rules()
        if not (rules.leaders or rules.replicas) or len(self._meta.machine.nodes) < 2:
            return ROUND_SECONDS
        reports = await self._reports()
        now = self._runtime.clock.monotonic()
        fit = [peer for peer, report in reports.items() if self._is_fit(peer, report, now)]
        if rules.leaders:
            for kind, move in ((LEADERS, self._move_leaders), (CONSUMERS, self._move_consumers)):
                if self._paces[kind].is_due(now, fit):
                    self._paces[kind].note(now, not await move(reports, fit, now))
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
            except _MALFORMED as error:
                self._runtime.log.warning("malformed load", of=peer, error=repr(error))
        return reports

    def _is_fit(self, peer: str, report: LoadReport, now: float) -> bool:
        """The peer's own word does not know of a link that flaps; this server's links do."""
        if not self._network.raft.peers.is_well(peer):
            self._away[peer] = now
        node = self._meta.machine.nodes.get(peer)
        stays = node is not None and not node.draining and not report.leaving
        return stays and report.steady >= STEADY_SECONDS and now - self._away.get(peer, -inf) >= STEADY_SECONDS

    # ---- leaders and consumers: each of these returns False when the loads are uneven, and nothing could move

    async def _move_leaders(self, reports: Mapping[str, LoadReport], fit: Sequence[str], now: float) -> bool:
        loads = {peer: report.led for peer, report in reports.items() if self._is_new(LEADERS, peer, report, now)}
        targets = [peer for peer in fit if peer in loads and reports[peer].is_known]
        if not uneven(loads, targets, ONE):
            return True
        least = min(loads[peer].total for peer in targets)
        found = await self._units(LEADERS, [peer for peer in loads if loads[peer].total > least], _leader)
        units = [self._not_back(LEADERS, unit, now) for unit in found]
        moved = False
        for shift in spread(loads, units, targets, MOVES_PER_ROUND, _less_busy(reports)):
            (gid,) = shift.unit.key
            self._note_change(LEADERS, shift.unit.at, shift.target)
            moved |= await self._hand_over(LEADERS, shift.unit.at, shift, {"gid": gid, "to": shift.target})
        return moved

    async def _move_consumers(self, reports: Mapping[str, LoadReport], fit: Sequence[str], now: float) -> bool:
        """Each consumer is told, and moved, by the leader of its stream."""
        if not all(self._is_new(CONSUMERS, peer, report, now) for peer, report in reports.items()):
            return True  # a server's load is the sum of what all of them say
        loads = dict.fromkeys(reports, Weight())
        for report in reports.values():
            for peer, weight in report.owns.items():
                if peer in loads:
                    loads[peer] = loads[peer].plus(weight)
        if not uneven(loads, fit, ONE):
            return True
        offers = {offer.unit.key: offer for offer in await self._units(CONSUMERS, list(reports), _consumer)}
        units = [self._not_back(CONSUMERS, offer.unit, now) for offer in offers.values()]
        moved = False
        for shift in spread(loads, units, fit, MOVES_PER_ROUND, _less_busy(reports)):
            gid, cid = shift.unit.key
            offer = offers[shift.unit.key]
            body = {"gid": gid, "to": shift.target, "cid": cid, "epoch": offer.epoch}
            self._note_change(CONSUMERS, offer.leader)
            moved |= await self._hand_over(CONSUMERS, offer.leader, shift, body)
        return moved

    def _not_back(self, kind: str, unit: Unit, now: float) -> Unit:
        """Without the heirs that it left lately."""
        left = [self._left.get((kind, unit.key, heir), -inf) for heir in unit.heirs]
        return unit._replace(
            heirs=tuple(heir for heir, at in zip(unit.heirs, left, strict=True) if now - at >= BACK_SECONDS)
        )

    def _note_change(self, kind: str, *peers: str) -> None:
        """Before a move is asked for: one whose answer is lost may be made all the same."""
        now = self._runtime.clock.monotonic()
        self._changed = {key: at for key, at in self._changed.items() if now - at < 2 * MAX_AGE}
        self._changed.update({(kind, peer): now for peer in peers})

    def _is_new(self, kind: str, peer: str, report: LoadReport, now: float) -> bool:
        """Returns whether a report knows of the moves that were made: by an older one too much would move."""
        return now - report.age > self._changed.get((kind, peer), -inf)

    async def _units(self, kind: str, asked: Sequence[str], parse: Callable[[str, Any], T]) -> list[T]:
        """Returns what could move; a server that answers nonsense offers nothing."""
        answers = await asyncio.gather(*(self._ask(peer, UNITS_METHOD, kind.encode()) for peer in asked))
        found: list[T] = []
        for peer, answer in zip(asked, answers, strict=True):
            try:
                found += [parse(peer, row) for row in json.loads(answer or b"[]")]
            except _MALFORMED as error:
                self._runtime.log.warning("malformed answer to what could move", of=peer, kind=kind, error=repr(error))
        return found

    async def _hand_over(self, kind: str, asked: str, shift: Shift, body: Mapping[str, Any]) -> bool:
        """Returns whether the move was made."""
        assignment = self._meta.machine.by_gid(body["gid"])
        if assignment is None:
            return False
        answer = await self._ask(asked, MOVE_METHOD, json.dumps(body).encode(), HAND_SECONDS)
        moved, why, consumer = _outcome(answer)
        if not moved:
            self._runtime.log.debug("a move for balance was not made", kind=kind, group=body["gid"], reason=why)
            return False
        key = kind, shift.unit.key, shift.unit.at
        self._left.pop(key, None)
        self._left[key] = self._runtime.clock.monotonic()
        if len(self._left) > MAX_LEFT:
            del self._left[next(iter(self._left))]
        self._tell(self._told(kind, assignment, shift, consumer))
        return True

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


class _Offer(NamedTuple):
    """A consumer that could move, with the leader of its stream, and its epoch."""

    unit: Unit
    leader: str
    epoch: int


def _leader(peer: str, row: Any) -> Unit:
    gid, heirs, fixed, rate = row
    return Unit((int(gid),), peer, tuple(map(str, heirs)), Weight(int(fixed), int(rate)))


def _consumer(peer: str, row: Any) -> _Offer:
    gid, cid, epoch, at, heirs, fixed, rate = row
    unit = Unit((int(gid), int(cid)), str(at), tuple(map(str, heirs)), Weight(int(fixed), int(rate)))
    return _Offer(unit, peer, int(epoch))


def _outcome(answer: bytes | None) -> tuple[bool, str, str]:
    """Returns whether a move was made, why not, and the consumer's name."""
    if answer is None:
        return False, "no answer", ""
    try:
        said = json.loads(answer)
        return bool(said["moved"]), str(said["why"]), str(said.get("consumer") or "")
    except _MALFORMED as error:
        return False, f"malformed answer: {error!r}", ""


def _less_busy(reports: Mapping[str, LoadReport]) -> Callable[[str, str], bool]:
    """Returns whether one server may give to another by their processor time: a process may be busy with what is not
    counted here, such as its clients."""

    def may(source: str, target: str) -> bool:
        gives, takes = (reports[peer].busy if peer in reports else 0 for peer in (source, target))
        return takes <= max(BUSY, gives * BUSIER)

    return may
