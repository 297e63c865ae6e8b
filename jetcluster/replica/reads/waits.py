"""Reads that wait: `Read`, the room that they have, those that wait for an index, and those that are due."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from jetcluster.clock import Clock, TimerHandle, Timers
from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.records import NamedTuple
from jetcluster.replica.read_memory import ReadMemory
from jetcluster.stream.apply.applier import FAULTS

MAX_WAITING: Final = 8192
"""Reads of one kind at one membership."""
MAX_WAIT_SECONDS: Final = 0.25
"""After this time another replica is asked: this one's disk does not keep up."""
MAX_SECONDS: Final = 2.5
"""Longest wait of a request for a leader's answer: longer than most elections."""
MIN_DUE_TURN: Final = 16
"""Reads that had waited and are answered in one turn of the loop, however long that takes."""
MAX_DUE_TURN: Final = 512
"""The most of them: one turn of a link may bring hundreds of reads, and as many must leave."""
DUE_TURN_SECONDS: Final = 0.002
"""A turn with more than MIN_DUE_TURN ends after this time: some answers are large."""
MAX_DUE_LOOKS: Final = 128
"""Reads of slow requesters that are looked at in one turn."""
MAX_REPLY_BACKLOG: Final = 256 * 1024
"""Bytes that may wait for a requester when another of its reads is answered."""
PAUSE_SECONDS: Final = 0.001

Call = Callable[[], object]


def size_of(request: Outgoing) -> int:
    """Bytes of a request that waits."""
    subject, reply, headers, payload = request
    return len(subject) + len(reply) + len(headers) + len(payload)


class ReadRoom:
    """The room of one kind of reads: their number, and their requests' bytes, which all kinds of a membership share."""

    __slots__ = ("count", "memory")

    def __init__(self, memory: ReadMemory) -> None:
        self.count = 0
        self.memory = memory

    def has_place(self, count: int) -> bool:
        return self.count + count <= MAX_WAITING

    def enter(self, read: Read) -> bool:
        """False where it has no room."""
        if not self.has_place(read.count) or not self.memory.take(read.size):
            return False
        self.count += read.count
        read.room = self
        return True

    def enter_again(self, read: Read) -> None:
        """Count what is left of a read that has just left."""
        self.count += read.count
        self.memory.change(read.size)
        read.room = self

    def take_over(self, read: Read) -> bool:
        """Count a read here instead of in its room; False where there is no place."""
        if read.room is None:
            return True
        if not self.has_place(read.count) or not self.memory.take(read.size):
            return False
        read.leave()
        self.count += read.count
        read.room = self
        return True


class Read:
    """A read that waits for a leader or an index: `answer` it, or let another replica answer (`give_up`), or `refuse`
    it. It may stand for `count` reads, which `parts` returns; `size`: bytes of their requests."""

    __slots__ = (
        "answer", "count", "deadline", "give_up", "origin", "parts",
        "refuse", "reply", "room", "size", "stays", "strict", "told",
    )  # fmt: skip

    def __init__(
        self,
        origin: Origin | None,
        reply: bytes,
        answer: Call,
        give_up: Call,
        refuse: Call,
        *,
        strict: bool = False,
        parts: Callable[[], list[Read]] | None = None,
        count: int = 1,
        size: int = 0,
    ) -> None:
        self.parts, self.count, self.size = parts, count, size
        self.origin, self.reply = origin, reply
        self.answer, self.give_up, self.refuse = answer, give_up, refuse
        self.deadline = 0.0
        self.strict = strict
        """It is not answered without a leader."""
        self.stays = False
        """While nobody else takes it it waits until its deadline, and is not given up."""
        self.told: int | None = None
        """The last sequence that its requester was told of; None: not known yet."""
        self.room: ReadRoom | None = None
        """Where it is counted."""

    def leave(self) -> None:
        """It waits no more."""
        if self.room is not None:
            self.room.count -= self.count
            self.room.memory.change(-self.size)


def report(message: str, error: Exception) -> None:
    """Let the loop log an error that nobody foresaw."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


class DueReads:
    """Reads to be answered now, some in each turn of the loop: they may be many, or large. Those of a slow requester
    wait until their deadline, so that its connection is not closed for what this sends at once. They have a room of
    their own meanwhile, and keep nobody out of the room in which they waited."""

    def __init__(
        self,
        clock: Clock,
        timers: Timers,
        stop: Callable[[BaseException], object],
        slow_memory: ReadMemory,
        backlog: Callable[[bytes], int] = lambda reply: 0,
    ) -> None:
        """`stop` is called with what says something about this machine (`applier.FAULTS`). `slow_memory`: of the reads
        of slow requesters. `backlog`: see `Bus`."""
        self._clock, self._timers = clock, timers
        self._stop, self._backlog = stop, backlog
        self._reads: deque[Read] = deque()
        self._slow: deque[Read] = deque()
        """Those of slow requesters."""
        self._slow_room = ReadRoom(slow_memory)
        self._answering = False
        self._planned: TimerHandle | None = None
        """The next turn."""

    def __len__(self) -> int:
        return len(self._reads) + len(self._slow)

    def add(self, reads: Iterable[Read]) -> None:
        """`answer` must follow."""
        self._reads.extend(reads)

    def answer(self) -> None:
        """Answer some, unless that is planned."""
        if self._answering or self._planned is not None or not len(self):
            return
        self._answering, done = True, 0  # not again from within
        try:
            done = self._answer_some()
        finally:
            self._answering = False
            if self._reads or (self._slow and done):
                self._planned = self._timers.call_soon(self._go_on)
            elif self._slow:
                self._planned = self._timers.call_later(PAUSE_SECONDS, self._go_on)

    def clear(self) -> None:
        """Give up on all."""
        reads = [*self._slow, *self._reads]
        self._slow.clear()
        self._reads.clear()
        if self._planned is not None:
            self._planned.cancel()
            self._planned = None
        for read in reads:
            read.leave()
            self._end(read.give_up)

    def _answer_some(self) -> int:
        """Answer those of one turn. Returns how many reads left their queue."""
        began, done = self._clock.monotonic(), 0
        for _ in range(min(len(self._slow), MAX_DUE_LOOKS)):
            if not self._slow or self._is_over(began, done):
                return done
            read = self._slow.popleft()
            if self._is_slow(read, began):
                self._slow.append(read)
                continue
            done += 1
            self._answer_one(read)
        for _ in range(len(self._reads)):
            if not self._reads or self._is_over(began, done):
                break
            read = self._reads.popleft()
            done += 1
            if not self._is_slow(read, began):
                self._answer_one(read)
            elif self._slow_room.take_over(read):
                self._slow.append(read)
            else:
                read.leave()
                self._end(read.refuse)
        return done

    def _is_over(self, began: float, done: int) -> bool:
        """True when others must get in between."""
        if done < MIN_DUE_TURN:
            return done >= MAX_DUE_TURN
        return done >= MAX_DUE_TURN or self._clock.monotonic() - began > DUE_TURN_SECONDS

    def _is_slow(self, read: Read, now: float) -> bool:
        """True while the requester of a read has much to take, and the read may wait."""
        if not read.reply or now >= read.deadline:
            return False
        try:
            return self._backlog(read.reply) > MAX_REPLY_BACKLOG
        except Exception as error:  # noqa: BLE001 - a defect
            report("what waits for a requester is not known", error)
            return False

    def _answer_one(self, read: Read) -> None:
        """Answer a read, or refuse it alone when that fails: others wait with it."""
        read.leave()
        try:
            read.answer()
        except FAULTS as error:
            self._end(read.refuse)
            self._stop(error)
        except Exception as error:  # noqa: BLE001 - a defect
            report("a read failed", error)
            self._end(read.refuse)

    def _end(self, call: Call) -> None:
        """Refuse or give up on a read. Where that fails too, others are still answered."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - a defect
            report("a read could not be refused", error)

    def _go_on(self) -> None:
        self._planned = None
        self.answer()


class ReadAround(NamedTuple):
    """Shared by the waiting reads of one membership."""

    clock: Clock
    timers: Timers
    due: DueReads
    memory: ReadMemory


class ReadWaits:
    """Reads that wait for an index."""

    def __init__(
        self, around: ReadAround, room: ReadRoom | None = None, others: Callable[[], bool] = lambda: True
    ) -> None:
        """`room`: where its reads are counted with others. `others`: another replica takes what is given up."""
        self._clock, self._timers, self._due = around.clock, around.timers, around.due
        self._others = others
        self._room = room or ReadRoom(around.memory)
        self.waiting: deque[tuple[int, float, Read]] = deque()
        self._timer: TimerHandle | None = None

    def hold(
        self, index: int, answer: Call, give_up: Call, reply: bytes = b"", size: int = 0, refuse: Call | None = None
    ) -> bool:
        """Call `answer` once `applied` has reached `index`, `give_up` if that takes too long, or `refuse` when the
        answer fails (None: `give_up` then). False, and nothing is called, where there is no room. Indexes must not go
        down between calls. `reply`: the subject of the answer. `size`: bytes of the request."""
        return self.take(index, Read(None, reply, answer, give_up, refuse or give_up, size=size))

    def take(self, index: int, read: Read) -> bool:
        """Do `hold`."""
        if not self._room.enter(read):
            return False
        read.deadline = self._clock.monotonic() + MAX_SECONDS
        self.add(index, read)
        return True

    def add(self, index: int, read: Read) -> None:
        """Do `hold` for a read that is counted."""
        self.waiting.append((index, self._clock.monotonic() + MAX_WAIT_SECONDS, read))
        if self._timer is None:
            self._timer = self._timers.call_later(MAX_WAIT_SECONDS, self._expire)

    def resume(self, read: Read) -> None:
        """Answer the rest of a read, of `count` reads, in its turn."""
        self._room.enter_again(read)
        self._due.add((read,))
        self._due.answer()

    def applied(self, index: int) -> None:
        waiting, due = self.waiting, []
        while waiting and waiting[0][0] <= index:
            due.append(waiting.popleft()[2])
        self._due.add(due)
        self._due.answer()

    def clear(self) -> None:
        """Give up on all reads now."""
        waiting = list(self.waiting)
        self.waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for _, _, read in waiting:
            read.leave()
            read.give_up()

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        overdue: list[tuple[int, Read]] = []
        while self.waiting and self.waiting[0][1] <= now:
            index, _, read = self.waiting.popleft()
            overdue.append((index, read))
        if any(read.stays and now < read.deadline for _, read in overdue) and not self._others():
            until = min(now + MAX_WAIT_SECONDS, self.waiting[0][1]) if self.waiting else now + MAX_WAIT_SECONDS
            kept = [one for one in overdue if one[1].stays and now < one[1].deadline]
            overdue = [one for one in overdue if not (one[1].stays and now < one[1].deadline)]
            self.waiting.extendleft((index, min(until, read.deadline), read) for index, read in reversed(kept))
        if self.waiting:
            self._timer = self._timers.call_later(max(self.waiting[0][1] - now, 0.0), self._expire)
        for _, read in overdue:
            read.leave()
            read.give_up()
