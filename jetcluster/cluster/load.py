"""`NodeLoad`: what this server leads and owns, measured when the meta leader asks, and the moves that it asks for.

Leaders and consumers are weighed alike: that there is one more of them, and what it does, in rates that are smoothed
over a minute (`MESSAGE`, `BYTES`). The processor time of a process is told as a whole: nothing says which stream took
it.

The meta leader decides by these reports (`cluster.balancer`). What it asks for is looked at once more here, where more
is known: the leader of a stream hands over only to a voter that has caught up, which it asks before.
"""

from __future__ import annotations

import asyncio
import json
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from jetcluster.budget import BusyError, Steps
from jetcluster.cluster.replica_load import ReplicaLoad
from jetcluster.consumer.owners import encode_moves
from jetcluster.consumer.state.rules import PINNED
from jetcluster.mesh.api import MeshError
from jetcluster.meta.balance import Weight
from jetcluster.records import NamedTuple
from jetcluster.replica.consumer_exchange import until
from jetcluster.replica.members import MAX_ENTRIES_BEHIND
from jetcluster.replica.services import Network, Runtime

if TYPE_CHECKING:
    from jetcluster.consumer.state.state import ConsumerState
    from jetcluster.health.node_health import Trouble
    from jetcluster.meta.placement import PlacementRules
    from jetcluster.replica.stream_replica import StreamReplica

LOAD_METHOD: Final = "balance.load"
UNITS_METHOD: Final = "balance.units"
FIT_METHOD: Final = "balance.fit"
MOVE_METHOD: Final = "balance.move"
ONE: Final = 100
"""Weight of a leader or a consumer that does nothing; by their rates they weigh about microseconds per second."""
MESSAGE: Final = 20
BYTES: Final = 100
"""Bytes per second that weigh 1."""
SMOOTH_SECONDS: Final = 60.0
"""Time constant of the rates."""
REST_SECONDS: Final = 60.0
"""Time for which a stream has kept its leader before it may move."""
OWNED_SECONDS: Final = 60.0
"""Time for which a consumer has kept its owner. Requests that wait there are answered 409, and clients ask again."""
LEAST_SECONDS: Final = 1.0
"""A question that comes sooner after the last one gets its answer."""
ANSWER_SECONDS: Final = 0.5
"""Time for an answer. A measurement that takes longer goes on, and the last report is told: an overloaded server must
be relieved."""
MAX_AGE: Final = 30.0
"""Most seconds for which a report is told again."""
MOVE_SECONDS: Final = 2.0
FIT_SECONDS: Final = 1.0
MAX_UNITS: Final = 512
"""Most leaders, or consumers, of one answer."""
MAX_EXPECTED: Final = 1024
UNKNOWN_SHARE: Final = 10
"""One part in so many of what a server leads may be unknown, and one stream always: somewhere a stream is always new,
and a wrong guess about one costs one move."""
CONSUMERS_PER_STEP: Final = 512
REPLICAS_PER_STEP: Final = 16
"""One takes about 5 us."""

Body = dict[str, Any]
LEADERS, CONSUMERS, REPLICAS = "leader", "consumer", "replica"


class _Led(NamedTuple):
    """A stream that this server leads, when it was measured."""

    term: int
    since: float
    """Monotonic seconds of the first measurement in this term."""
    last_seq: int
    rate: float
    """Weight per second; below 0 while it was measured once only."""
    delivered: Mapping[int, tuple[int, float]]
    """By consumer id: the last delivery's number, and the weight of its rate, of those that deliver."""


class LoadReport(NamedTuple):
    """A server's word about itself."""

    leads: Weight
    owns: Mapping[str, Weight]
    """By peer: the consumers of the streams that it leads."""
    unknown: int
    """Streams whose rate it does not know yet."""
    changing: int
    """Streams that it leads and whose members change, or are not those that are assigned."""
    amiss: int
    """Its replicas that are not current, or know of others that are not (`ReplicaLoad`)."""
    stored: int
    """Bytes of its replicas."""
    free: Mapping[str, int]
    """By storage, bytes that it may take besides."""
    busy: int
    """Thousandths of a core."""
    steady: float
    """Seconds for which it has been up and well; 0 while it is not."""
    leaving: bool
    age: float = 0.0
    """Seconds since its measurement began."""

    @property
    def is_known(self) -> bool:
        """False while it knows too little of what it leads to get more."""
        return self.unknown <= max(self.leads.fixed // ONE // UNKNOWN_SHARE, 1)

    @property
    def led(self) -> Weight:
        """The streams that it leads, where one whose rate is unknown counts with the mean of the others."""
        streams = self.leads.fixed // ONE
        known = streams - self.unknown
        return self.leads if known <= 0 else self.leads._replace(rate=self.leads.rate * streams // known)

    @classmethod
    def parse(cls, answer: bytes) -> LoadReport:
        """Raises ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError."""
        said = json.loads(answer)
        owns = {str(peer): Weight(*map(int, weight)) for peer, weight in said["owns"].items()}
        leads = Weight(*map(int, said["leads"]))
        unknown, changing, amiss = (int(said[key]) for key in ("unknown", "changing", "amiss"))
        stored, busy = int(said["stored"]), int(said["busy"])
        free = {str(storage): int(size) for storage, size in said["free"].items()}
        steady, leaving, age = float(said["steady"]), bool(said["leaving"]), float(said.get("age", 0.0))
        return cls(leads, owns, unknown, changing, amiss, stored, free, busy, steady, leaving, age)


class NodeLoad:
    """One per server; `cpu_seconds`: processor time of this process so far; `leaving`: it is a lame duck; `rules`: the
    bytes that may be stored here."""

    def __init__(
        self,
        runtime: Runtime,
        network: Network,
        replicas: Mapping[int, StreamReplica],
        cpu_seconds: Callable[[], float],
        leaving: Callable[[], bool],
        rules: Callable[[], PlacementRules],
    ) -> None:
        self._runtime, self._network, self._replicas = runtime, network, replicas
        self._cpu_seconds, self._leaving, self._rules = cpu_seconds, leaving, rules
        self._led: dict[int, _Led] = {}
        self._expected: dict[int, float] = {}
        """Rates of streams that this server was asked to lead, as their leaders measured them."""
        self._measured = self._well_since = runtime.clock.monotonic()
        self._cpu = cpu_seconds()
        self._busy = 0.0
        """Smoothed share of one core."""
        self._report: Body = {}
        self._named: dict[bool, int] = {}
        """The last stream of those that were named in their turn, without a placement and with one."""
        self._measuring: asyncio.Future[None] | None = None
        network.raft.health.on_change(self._health_changed)
        mesh = network.mesh
        mesh.serve(LOAD_METHOD, self._serve_load)
        mesh.serve(UNITS_METHOD, self._serve_units)
        mesh.serve(FIT_METHOD, self._serve_fit)
        mesh.serve(MOVE_METHOD, self._serve_move)

    def _health_changed(self, trouble: Trouble, began: bool) -> None:
        self._well_since = self._runtime.clock.monotonic()

    # ---- measurements

    async def _serve_load(self, peer: str, payload: bytes) -> bytes:
        """Answers a `LoadReport` in JSON."""
        clock = self._runtime.clock
        if self._measuring is None and (not self._report or clock.monotonic() - self._measured >= LEAST_SECONDS):
            self._begin()
        if self._measuring is not None:
            await asyncio.wait((self._measuring,), timeout=ANSWER_SECONDS)
        age = clock.monotonic() - self._measured
        if not self._report or age > MAX_AGE:
            raise MeshError("too busy to measure its load")
        steady = clock.monotonic() - self._well_since if self._network.raft.health.well else 0.0
        now = {"steady": round(steady, 3), "leaving": self._leaving(), "age": round(age, 3)}
        return json.dumps({**self._report, **now}).encode()

    def _begin(self) -> None:
        """Begins a measurement, which goes on when nobody waits for it any longer."""
        self._measuring = waits = asyncio.get_running_loop().create_future()

        def ended() -> None:
            self._measuring = None
            if not waits.done():
                waits.set_result(None)

        def done(report: Body) -> None:
            self._report = report
            ended()

        def failed(error: Exception) -> None:
            self._runtime.log.error("the load was not measured", error=repr(error))
            ended()

        now = self._runtime.clock.monotonic()
        try:
            self._runtime.budget.start(("balance", "load"), self._measure(now), done, failed)
        except BusyError:
            ended()

    def _measure(self, now: float) -> Steps[Body]:
        """Nothing is kept of a measurement that does not end."""
        seconds = now - self._measured
        fresh = 1.0 - math.exp(-seconds / SMOOTH_SECONDS)
        used = self._cpu_seconds()
        led: dict[int, _Led] = {}
        leads, held, owns = Weight(), ReplicaLoad(), dict[str, Weight]()
        unknown = changing = 0
        for number, gid in enumerate(list(self._replicas), 1):
            if number % REPLICAS_PER_STEP == 0:
                yield
            replica = self._replicas.get(gid)
            if replica is None:
                continue
            held.add(replica)
            if replica.leading:
                one = led[gid] = yield from self._look(gid, replica, now, seconds, fresh)
                leads = leads.plus(Weight(ONE, max(round(one.rate), 0)))
                unknown += one.rate < 0
                changing += not _is_settled(replica)
                for peer in replica.group.peers:
                    if count := replica.consumers.policy.owned(peer):
                        owns[peer] = owns.get(peer, Weight()).plus(Weight(ONE * count))
                for cid, (_, rate) in one.delivered.items():
                    if (state := replica.table.by_cid.get(cid)) is not None:
                        owns[state.owner] = owns.get(state.owner, Weight()).plus(Weight(0, round(rate)))
        self._led, self._measured = led, now
        self._note_processor(used, seconds, fresh)
        journal = self._network.raft.journal
        return {
            "leads": leads, "owns": owns, "unknown": unknown, "changing": changing, "busy": round(self._busy * 1000),
            "amiss": held.amiss, "stored": held.stored.total(),
            "free": held.free(self._rules(), journal.free, journal.disk_size),
        }  # fmt: skip

    def _note_processor(self, used: float, seconds: float, fresh: float) -> None:
        before, self._cpu = self._cpu, used
        if seconds > 0:
            self._busy += fresh * ((used - before) / seconds - self._busy)

    def _look(self, gid: int, replica: StreamReplica, now: float, seconds: float, fresh: float) -> Steps[_Led]:
        store, term = replica.store, replica.group.term
        last = self._led.get(gid)
        if last is not None and last.term != term:
            last = None
        old = {} if last is None else last.delivered
        delivered: dict[int, tuple[int, float]] = {}
        recent = self._runtime.clock.time_ns() - int(4 * SMOOTH_SECONDS * 1e9)
        for number, state in enumerate(list(replica.table.by_cid.values()), 1):
            if state.delivered_at >= recent:
                before, rate = old.get(state.cid, (state.delivered_cseq, 0.0))
                measured = max(state.delivered_cseq - before, 0) * MESSAGE / max(seconds, 0.001)
                delivered[state.cid] = state.delivered_cseq, rate + fresh * (measured - rate)
            if number % CONSUMERS_PER_STEP == 0:
                yield
        if last is None:
            return _Led(term, now, store.last_seq, self._expected.pop(gid, -1.0), delivered)
        size = store.byte_count // max(store.messages, 1)
        rate = max(store.last_seq - last.last_seq, 0) * (MESSAGE + size / BYTES) / max(seconds, 0.001)
        rate = rate if last.rate < 0 else last.rate + fresh * (rate - last.rate)
        return _Led(term, last.since, store.last_seq, rate, delivered)

    # ---- what could move

    async def _serve_units(self, peer: str, payload: bytes) -> bytes:
        """Takes the kind; answers leaders [gid, heirs, fixed, rate], consumers [gid, cid, epoch, owner, heirs, fixed,
        rate], or replicas [gid, bytes]."""
        kind = payload.decode()
        steps = {LEADERS: self._leaders, CONSUMERS: self._consumers, REPLICAS: self._others}.get(kind)
        if steps is None:
            raise MeshError(f"unknown kind {kind[:20]!r}")
        try:
            return json.dumps(await self._runtime.budget.run(("balance", "units"), steps())).encode()
        except BusyError as error:
            raise MeshError("too busy to say what could move") from error

    def _leaders(self) -> Steps[list[Any]]:
        found = []
        for gid, one in list(self._led.items()):
            replica = self._rested(gid)
            if replica is not None and one.rate >= 0 and (heirs := self._heirs(replica)):
                found.append([gid, heirs, ONE, round(one.rate)])
            yield
        return _some(found, lambda row: row[3])

    def _consumers(self) -> Steps[list[Any]]:
        found = []
        for gid, one in list(self._led.items()):
            replica = self._rested(gid)
            if replica is not None and replica.table.count:
                able = self._able_owners(replica)
                for number, state in enumerate(list(replica.table.by_cid.values()), 1):
                    if self._may_move(replica, state):
                        _, rate = one.delivered.get(state.cid, (0, 0.0))
                        heirs = [peer for peer in able if peer != state.owner]
                        found.append([gid, state.cid, state.epoch, state.owner, heirs, ONE, round(rate)])
                        if len(found) >= 4 * MAX_UNITS:
                            found = _some(found, lambda row: row[6])
                    if number % CONSUMERS_PER_STEP == 0:
                        yield
            yield
        return _some(found, lambda row: row[6])

    def _others(self) -> Steps[list[Any]]:
        """Replicas that this server does not lead, and those that have no other replica. Of very many, half at least
        are of streams without a placement, as far as there are any: the others may have to stay."""
        found: dict[bool, list[Any]] = {False: [], True: []}
        for gid in list(self._replicas):
            replica = self._replicas.get(gid)
            if replica is not None and (not replica.leading or len(replica.group.peers) == 1) and not replica.retiring:
                is_placed = bool(replica.assignment.config.get("placement"))
                found[is_placed].append([gid, replica.store.byte_count])
            yield
        placed = self._in_turn(True, found[True], MAX_UNITS - min(len(found[False]), MAX_UNITS // 2))
        return self._in_turn(False, found[False], MAX_UNITS - len(placed)) + placed

    def _in_turn(self, is_placed: bool, rows: list[Any], most: int) -> list[Any]:
        """Returns at most so many rows: heavy ones, light ones, and a half that goes on where the last answer ended. So
        none is left out for ever, whatever keeps the heaviest and the lightest where they are."""
        if len(rows) <= most:
            return rows
        rows.sort(key=lambda row: row[1])
        end = most // 4
        ends, others = rows[:end] + rows[len(rows) - end :], sorted(rows[end : len(rows) - end])
        at = bisect_left(others, [self._named.get(is_placed, -1) + 1])
        turn = (others[at:] + others[:at])[: most - 2 * end]
        self._named[is_placed] = turn[-1][0] if turn else -1
        return ends + turn

    def _rested(self, gid: int) -> StreamReplica | None:
        """Returns this server's replica, if it leads for long enough and its members do not change."""
        replica, one = self._replicas.get(gid), self._led.get(gid)
        if replica is None or one is None or not (replica.leading and replica.trusted):
            return None
        if replica.group.term != one.term or self._runtime.clock.monotonic() - one.since < REST_SECONDS:
            return None
        return replica if _is_settled(replica) else None

    def _heirs(self, replica: StreamReplica) -> list[str]:
        """Returns the voters that could lead at once."""
        status, is_well = replica.group.status(), self._network.raft.peers.is_well
        return [
            one.peer
            for one in status.peers
            if one.voter
            and one.connected
            and not (one.silent or one.recovering)
            and one.match_index + MAX_ENTRIES_BEHIND >= status.commit_index
            and is_well(one.peer)
        ]

    @staticmethod
    def _able_owners(replica: StreamReplica) -> list[str]:
        moves, policy = replica.consumers.moves, replica.consumers.policy
        return [peer for peer in moves.able_peers() if not policy.is_leaving(peer)]

    def _may_move(self, replica: StreamReplica, state: ConsumerState) -> bool:
        """A push consumer is where its subscriber is, and a pinned client keeps its pin."""
        if state.rules.push or state.rules.priority_policy == PINNED:
            return False
        age = (self._runtime.clock.time_ns() - state.created) / 1e9
        return age >= OWNED_SECONDS and replica.consumers.moves.rested(state.cid, OWNED_SECONDS)

    # ---- moves

    async def _serve_fit(self, peer: str, payload: bytes) -> bytes:
        """Takes {"gid", "rate"?}; answers why this server should not lead the stream now, or own a consumer of it: ""
        for nothing. `rate`: its leader's measurement."""
        asked = json.loads(payload)
        gid = int(asked["gid"])
        replica, health = self._replicas.get(gid), self._network.raft.health
        if replica is None or not replica.trusted or not replica.known.current:
            return b"its replica is not sound"
        if not health.well or self._leaving():
            return b"it is leaving" if self._leaving() else b"it is not well"
        if replica.group.applied_index + MAX_ENTRIES_BEHIND < replica.group.told_index:
            return b"its replica lags"
        if "rate" in asked:
            if len(self._expected) >= MAX_EXPECTED:
                self._expected.clear()
            self._expected[gid] = max(float(asked["rate"]), 0.0)
        return b""

    async def _serve_move(self, peer: str, payload: bytes) -> bytes:
        """Takes {"gid", "to"} or {"gid", "to", "cid", "epoch"}; answers {"moved": bool, "why": text, "consumer"?}."""
        asked = json.loads(payload)
        gid, to = int(asked["gid"]), str(asked["to"])
        replica = self._rested(gid)
        if replica is None:
            return _answer("this server does not lead the stream for long")
        is_consumer = "cid" in asked
        question = {"gid": gid} if is_consumer else {"gid": gid, "rate": self._led[gid].rate}
        try:
            why = await self._network.mesh.call(to, FIT_METHOD, json.dumps(question).encode(), FIT_SECONDS)
        except MeshError as error:
            return _answer(str(error))
        if why:
            return _answer(why.decode("utf-8", "replace"))
        if is_consumer:
            return await self._move_consumer(replica, to, int(asked["cid"]), int(asked["epoch"]))
        return await self._move_leader(replica, to)

    async def _move_leader(self, replica: StreamReplica, to: str) -> bytes:
        gid = replica.assignment.gid
        if self._rested(gid) is not replica or to not in self._heirs(replica) or not replica.group.transfer(to):
            return _answer("the voter cannot take it now")
        leader = self._network.leaders.get
        await until(lambda: leader(gid) not in (None, self._network.me), self._runtime.clock, MOVE_SECONDS)
        return _answer("" if leader(gid) == to else "it did not take it in time")

    async def _move_consumer(self, replica: StreamReplica, to: str, cid: int, epoch: int) -> bytes:
        state = replica.table.by_cid.get(cid)
        able = self._able_owners(replica)
        if state is None or state.epoch != epoch or to not in able or not self._may_move(replica, state):
            return _answer("the consumer cannot move now")
        if not replica.try_propose(encode_moves(self._runtime.clock.time_ns(), [(cid, epoch, to)])):
            return _answer("the stream takes no command now")
        await until(lambda: state.owner == to, self._runtime.clock, MOVE_SECONDS)
        return _answer("" if state.owner == to else "it did not move in time", state.rules.name)


def _is_settled(replica: StreamReplica) -> bool:
    """Returns whether the group of a leader has the assigned members, and does not change them."""
    config = replica.group.members_at(replica.group.last_index)
    return not (config.outgoing or config.learners) and set(config.voters) == set(replica.assignment.peers)


def _answer(why: str, consumer: str = "") -> bytes:
    return json.dumps({"moved": not why, "why": why, "consumer": consumer}).encode()


def _some(rows: list[Any], weight: Callable[[Any], int]) -> list[Any]:
    """Returns at most MAX_UNITS of the rows: heavy ones and light ones."""
    if len(rows) <= MAX_UNITS:
        return rows
    rows.sort(key=weight)
    return rows[: MAX_UNITS // 2] + rows[-MAX_UNITS // 2 :]
