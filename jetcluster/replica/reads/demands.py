"""`Demands`: requests that ask how fresh their answer must be (`stream.read.freshness`), at one membership.

Each wish is a wait with a bound, one after the other: `min_last_seq`, then what `consistency` asks for, and at last
`max_staleness`, as the others would add to the age. A wish that cannot be kept is refused with a 503 that says what
this replica has.

A leader's confirmation is also a proof for later requests: what it confirmed was current when it was asked. So
`max_staleness` asks a leader only when the last proof is older, however many requests come.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
from collections.abc import Callable
from typing import Final

from jetcluster.clock import TimerHandle
from jetcluster.ordered import OrderedSet
from jetcluster.protocol.bus import TOLD_ANYTHING, Origin, Outgoing
from jetcluster.records import NamedTuple
from jetcluster.replica.reads.answers import TOO_MANY, Answering, Answers
from jetcluster.replica.reads.asked_stream import AskedStream
from jetcluster.replica.reads.confirm import ReadConfirmations
from jetcluster.replica.reads.waits import Call, Read, ReadAround, ReadRoom, ReadWaits, report, size_of
from jetcluster.replica.replica_state import ReplicaState
from jetcluster.stream.read import freshness
from jetcluster.stream.read.freshness import Freshness, FreshnessError

SEQUENCE_SECONDS: Final = 1.0
"""Longest wait for `min_last_seq`."""
_BEHIND: Final = b"503 Min Last Sequence"
_LATE: Final = b"503 Not Caught Up"
_NO_LEADER: Final = b"503 No Leader"


class SequenceWaits:
    """Reads that wait until a sequence is stored, in any order."""

    def __init__(self, around: ReadAround) -> None:
        self._clock, self._timers, self._due = around.clock, around.timers, around.due
        self._room = ReadRoom(around.memory)
        self._numbers = itertools.count()
        self.waiting: list[tuple[int, int]] = []
        """A heap of (sequence, number), with some of reads that were refused meanwhile."""
        self._reads: dict[int, tuple[float, Read]] = {}
        """Number -> (deadline, read), in the order of the deadlines."""
        self._timer: TimerHandle | None = None

    def hold(self, seq: int, answer: Call, refuse: Call, size: int = 0) -> bool:
        """Call `answer` once `reached` is called with `seq` or more, `refuse` after SEQUENCE_SECONDS. False, and
        nothing is called, where there is no room. `size`: bytes of the request."""
        read = Read(None, b"", answer, refuse, refuse, size=size)
        if not self._room.enter(read):
            return False
        number = next(self._numbers)
        if self._timer is None:
            self._timer = self._timers.call_later(SEQUENCE_SECONDS, self._expire)
        self._reads[number] = self._clock.monotonic() + SEQUENCE_SECONDS, read
        heapq.heappush(self.waiting, (seq, number))
        return True

    def reached(self, seq: int) -> None:
        """Answer all that wait for this sequence or an earlier one."""
        due = []
        while self.waiting and self.waiting[0][0] <= seq:
            _, number = heapq.heappop(self.waiting)
            known = self._reads.pop(number, None)
            if known is not None:
                due.append(known[1])
        self._due.add(due)
        self._due.answer()

    def clear(self) -> None:
        """Refuse all."""
        reads, self._reads = self._reads, {}
        self.waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for _, read in reads.values():
            read.leave()
            read.refuse()

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        late = list(itertools.takewhile(lambda one: one[1][0] <= now, self._reads.items()))
        for number, _ in late:
            del self._reads[number]
        if self._reads:
            deadline, _ = next(iter(self._reads.values()))
            self._timer = self._timers.call_later(max(deadline - now, 0.0), self._expire)
        if len(self.waiting) > 2 * len(self._reads):  # most are of reads that were refused
            self.waiting[:] = [one for one in self.waiting[:] if one[1] in self._reads]
            heapq.heapify(self.waiting)
        for _, (_, read) in late:
            read.leave()
            read.refuse()


class Age(NamedTuple):
    """One bound of the age of what is here, by a stream that has newer messages first."""

    proofs: tuple[ReadConfirmations, ...]
    asked: ReadConfirmations
    """The one of them that is asked for a younger proof."""
    counts: Callable[[], bool] = lambda: True
    lost: Callable[[], bool] = lambda: False
    """The stream was created anew, so earlier proofs say nothing of it."""

    @property
    def proven_at(self) -> float | None:
        """The time up to which all is here; None: unknown."""
        if self.lost():
            return None
        return max([at for one in self.proofs if (at := one.proven_at) is not None], default=None)

    def is_within(self, nanoseconds: int, began: float) -> bool:
        """See `Demands.is_within`."""
        proven = self.proven_at
        return proven is not None and (proven >= began or self.asked.since(proven) * 1e9 <= nanoseconds)


async def _outcome(hold: Callable[[Call, Call], bool]) -> bool:
    """Hold a wait, and return True when it was met, False when not."""
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def settle(found: bool) -> None:
        if not answer.done():
            answer.set_result(found)

    return hold(functools.partial(settle, True), functools.partial(settle, False)) and await answer


def _hold_strictly(leader: ReadConfirmations, found: Call, missed: Call) -> bool:
    return leader.hold(found, missed, missed, strict=True)


class Demands:
    """The demands at one membership, whose waits they share."""

    def __init__(
        self,
        replica: ReplicaState,
        around: ReadAround,
        asked: AskedStream,
        answers: Answers,
        waits: ReadWaits,
        confirmations: ReadConfirmations,
        bounds: ReadConfirmations,
    ) -> None:
        """`confirmations`: of what linearizable asks for; `bounds`: of what suffices for an age."""
        self._replica, self._asked, self._answers = replica, asked, answers
        self._waits, self._confirmations = waits, confirmations
        self._uptime = replica.runtime.clock.uptime
        self.ages = [Age((confirmations, bounds), bounds)]
        """All must be young enough: a mirror's own stream is as old as its upstream's data here, too."""
        self.sequences = SequenceWaits(around)
        self._due = around.due
        self._session_room = ReadRoom(around.memory)
        self._sessions: set[Read] = set()
        """Reads whose requesters' nodes are asked what they told."""
        self._coming: dict[Origin, list[Read]] = {}
        """Those of this turn, which are asked for together; they are in `_sessions`, too."""
        self._questions: OrderedSet[asyncio.Task[None]] = OrderedSet()
        answers.demanded = self.of_body

    def of_body(self, answering: Answering, request: Outgoing, origin: Origin) -> None:
        """Take a request whose body has wishes, after the wait that its stream asks for."""
        _, reply, headers, payload = request
        try:
            wanted = self._answers.wishes(headers, payload)
        except FreshnessError as error:
            self._answers.reject(reply, error)
            return
        self.take(wanted, answering, request, origin)

    def take(self, wanted: Freshness, answering: Answering, request: Outgoing, origin: Origin) -> None:
        """Answer once all wishes are met; without `consistency` the caller has waited as the stream asks for."""
        if not request[1]:
            return
        after = functools.partial(self._as_consistent, wanted, answering, request, origin)
        if self._replica.store.last_seq >= wanted.min_last_seq:
            after()
        else:
            self._await_sequence(wanted.min_last_seq, after, request)

    def _as_consistent(self, wanted: Freshness, answering: Answering, request: Outgoing, origin: Origin) -> None:
        """Go on once the answer is as consistent as is asked for."""
        bounded = functools.partial(self._bounded, wanted, answering, request, origin)
        if wanted.consistency == freshness.LINEARIZABLE:
            self._prove(request, bounded)
        elif wanted.consistency == freshness.SESSION:
            self._session(request, origin, bounded)
        else:
            bounded()

    async def has_sequence(self, seq: int) -> bool:
        """Return True once this replica has reached a sequence, False when that takes too long."""
        if self._replica.store.last_seq >= seq:
            return True
        return await _outcome(lambda found, missed: self.sequences.hold(seq, found, missed))

    async def has_upstream(self, nanoseconds: int, began: float) -> bool:
        """Return True once a mirror has all that its upstream had `nanoseconds` ago, or at `began` if that is longer
        ago; False when the upstream's leader does not say or its messages do not come. True for other streams."""
        for age in self.ages[1:]:
            old = age.counts() and not age.is_within(nanoseconds, began)
            if old and not await _outcome(functools.partial(_hold_strictly, age.asked)):
                return False
        return self.upstream_is_within(nanoseconds, began)

    def clear(self) -> None:
        """Refuse all that wait here."""
        for question in self._questions:
            question.cancel()
        self._coming.clear()
        sessions, self._sessions = self._sessions, set()
        for read in sessions:
            read.leave()
            read.refuse()
        self.sequences.clear()

    def upstream_is_within(self, nanoseconds: int, began: float) -> bool:
        """See `has_upstream`."""
        return all(age.is_within(nanoseconds, began) for age in self.ages[1:] if age.counts())

    def age(self, led_at: float | None = None) -> float | None:
        """Seconds for which newer data may be missing here, at most; None: unknown. `led_at`: the `uptime` since which
        this replica proved that it leads, for a caller that asked itself."""
        own, *upstream = self.ages
        proven = [own.proven_at if led_at is None else led_at]
        proven += [age.proven_at for age in upstream if age.counts()]
        known = [at for at in proven if at is not None]
        return self._confirmations.since(min(known)) if len(known) == len(proven) else None

    def is_within(self, nanoseconds: int, began: float) -> bool:
        """True when all is here that was stored `nanoseconds` ago, or at `began` (`Clock.uptime`) if that is longer
        ago."""
        return all(age.is_within(nanoseconds, began) for age in self.ages if age.counts())

    def _refuse(self, reply: bytes, status: bytes) -> None:
        self._answers.refuse_with(reply, status, self.age(), self._asked.role)

    def _prove(self, request: Outgoing, go_on: Call) -> None:
        """Go on once a leader has confirmed that this replica has all that was committed by now."""
        if self._asked.provable:
            self._ask(self._confirmations, request, go_on)
        else:
            self._refuse(request[1], _NO_LEADER)

    def _ask(self, leader: ReadConfirmations, request: Outgoing, go_on: Call, late: Call | None = None) -> None:
        """Go on once the leader has confirmed. `late`: called when this replica does not get there in time; None: the
        request is refused then."""
        refuse = functools.partial(self._refuse, request[1])
        unled = functools.partial(refuse, _NO_LEADER)
        if not leader.hold(go_on, late or functools.partial(refuse, _LATE), unled, strict=True, size=size_of(request)):
            refuse(TOO_MANY)

    def _await_sequence(self, seq: int, go_on: Call, request: Outgoing) -> None:
        behind = functools.partial(self._refuse, request[1], _BEHIND)
        if not self.sequences.hold(seq, go_on, behind, size_of(request)):
            self._refuse(request[1], TOO_MANY)

    def _session(self, request: Outgoing, origin: Origin, go_on: Call) -> None:
        """Go on once this replica has all that the requester's node told it of."""
        group = self._replica.group
        late = functools.partial(self._refuse, request[1], _LATE)
        if self._asked.knows_all_told(origin):
            if group.told_index <= group.applied_index:
                go_on()
            elif not self._waits.hold(group.told_index, go_on, late, size=size_of(request)):
                self._refuse(request[1], TOO_MANY)
            return
        read = Read(origin, request[1], lambda: None, late, late, size=size_of(request))
        if not self._session_room.enter(read):
            self._refuse(request[1], TOO_MANY)
            return
        read.answer = functools.partial(self._as_told, read, request, go_on)
        self._sessions.add(read)
        if (coming := self._coming.get(origin)) is not None:
            coming.append(read)
            return
        self._coming[origin] = [read]
        question = asyncio.get_running_loop().create_task(self._ask_told(origin))
        self._questions.add(question)
        question.add_done_callback(self._questions.discard)

    async def _ask_told(self, origin: Origin) -> None:
        """Ask once for all requests of one origin that came in this turn."""
        reads = self._coming.pop(origin)
        try:
            await self._asked.tell(reads)
        except Exception as error:  # noqa: BLE001 - a defect
            report("a requester's node could not be asked", error)
        known = [read for read in reads if read in self._sessions]
        self._sessions.difference_update(known)
        self._due.add(known)
        self._due.answer()

    def _as_told(self, read: Read, request: Outgoing, go_on: Call) -> None:
        """Go on once this replica has what the requester was told of."""
        told = read.told
        if told is None or told == TOLD_ANYTHING:  # a leader knows at least as much
            self._prove(request, go_on)
            return
        if self._replica.store.last_seq >= told:
            go_on()
            return
        wait = functools.partial(self._await_sequence, told, go_on, request)
        if self._asked.provable:
            # What is missing may be of an earlier stream of this name, deleted shortly before (`Told.of`): it never
            # comes, and a leader knows that.
            self._ask(self._confirmations, request, go_on, wait)
        else:
            wait()

    def _bounded(self, wanted: Freshness, answering: Answering, request: Outgoing, origin: Origin) -> None:
        """Answer once the newest proofs are young enough, and tell the age that was found so."""
        age = self.age()
        if wanted.max_staleness < 0 or (age is not None and age * 1e9 <= wanted.max_staleness):
            self._answer(wanted, answering, request, origin, age)
            return
        self._renew(wanted, answering, request, origin, self._uptime(), 2)

    def _renew(
        self, wanted: Freshness, answering: Answering, request: Outgoing, origin: Origin, began: float, times: int
    ) -> None:
        """Answer once all proofs are young enough, or newer than `began`. Those that are not are asked for, `times`
        times at most: one gets older while another is waited for."""
        age = self.age()  # before the look: what is told must not be older than what was found young enough
        if self.is_within(wanted.max_staleness, began):
            self._answer(wanted, answering, request, origin, age)
        elif times:
            go_on: Call = functools.partial(self._renew, wanted, answering, request, origin, began, times - 1)
            for one in self.ages:
                go_on = functools.partial(self._within, wanted.max_staleness, began, one, request, go_on)
            go_on()
        else:
            self._refuse(request[1], _LATE)

    def _within(self, nanoseconds: int, began: float, age: Age, request: Outgoing, go_on: Call) -> None:
        """Go on once the newest proof of one age is young enough."""
        if not age.counts() or age.is_within(nanoseconds, began):
            go_on()
        else:
            self._ask(age.asked, request, go_on)

    def _answer(
        self, wanted: Freshness, answering: Answering, request: Outgoing, origin: Origin, age: float | None
    ) -> None:
        info = self._answers.info_of(self._asked.role, age) if wanted.info else b""
        answering(*request, origin, info)
