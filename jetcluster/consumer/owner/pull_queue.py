"""`PullQueue`: the pull requests that wait, in the order in which they are served.

First come, first served, one message per turn; a request that wants more goes to the end. With priority policy
`prioritized` the lowest number comes first, and the order holds among equals.

A request that may not have a message now (`overflow`, `pinned_client`) sleeps until a gauge has risen to its threshold,
so that the next message asks the oldest of those that may have it and not each of a hundred thousand. One whose client
does not read what it has is put aside, and comes back to the end of the line.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sized
from heapq import heapify, heappop, heappush
from itertools import count, islice
from operator import itemgetter
from typing import Final, overload
from weakref import WeakSet

from jetcluster.consumer.owner.pull_request import MIN_HEARTBEAT, Gauge, PullRequest
from jetcluster.ordered import OrderedSet

MAX_WAITING_ON_NODE: Final = 131_072
"""Requests that wait on a node; more are refused as beyond `max_waiting`, where a consumer has its share."""
CONSUMER_SHARE: Final = 512
"""Requests of one consumer that may wait at any time; as many as `max_waiting` is unless a client says otherwise."""
RECOUNT_NS: Final = 1_000_000_000
"""Nanoseconds between two counts of all queues, at least."""

BLOCK_VALUES: Final = 256
"""Values of two neighbouring blocks, at least; one has twice as many at most."""

_last: Final = itemgetter(-1)

READY: Final = 0
HELD: Final = 1
GONE: Final = 2
ENOUGH: Final = 3

MAX_STALE_ALARMS: Final = 64
"""Alarms of requests that are gone, beyond those of the ones that wait, before they are swept out."""

REMINDERS_PER_STEP: Final = 1000
"""Requests, at most, that are looked at in one step because their time has come."""
BEAT_SPACING_NS: Final = 20_000
"""Nanoseconds between the heartbeats of two requests of one consumer, on average, at least."""

Reading = Callable[[Gauge], int]
"""The number that a gauge shows now."""
Line = OrderedDict[PullRequest, None]
Handed = dict[PullRequest, list[int]]
"""Request -> indices of the messages it gets."""


class WaitingRoom:
    """Bounds the pull requests that wait on a node, of all its consumers together; each queue counts itself in and out.

    `max_waiting` is chosen by whoever creates a consumer, and may be millions; each request that waits takes memory and
    time of the node all the same. When the room is full, those are refused who fill it: each consumer has its share
    whatever the others hold."""

    def __init__(self, most: int = MAX_WAITING_ON_NODE, share: int = CONSUMER_SHARE) -> None:
        self.most = most
        self.share = share
        self._queues: WeakSet[Sized] = WeakSet()
        self._counted: int | None = None
        self.count = 0
        """At least as many as wait: those of owners that were let go are found out when it is full."""

    def enter(self, queue: Sized) -> None:
        self._queues.add(queue)

    def is_full_for(self, queue: Sized, now: int) -> bool:
        """True when one more of this queue is too many. `now`: ns."""
        if self.count < self.most or len(queue) < self.share:
            return False
        if self._counted is None or not 0 <= now - self._counted < RECOUNT_NS:
            self._counted = now
            self.count = sum(len(queue) for queue in self._queues)
        return self.count >= self.most


class Thresholds:
    """The sleepers that wait for one gauge to rise, each to its own value; finds the oldest whose value it has reached.

    Values are sorted in blocks of some hundreds, each block with its lowest turn: with a hundred thousand different
    values a look takes some hundreds of comparisons, not a question to each sleeper."""

    __slots__ = ("_firsts", "_lines", "_turns", "_values")

    def __init__(self) -> None:
        self._lines: dict[int, OrderedDict[PullRequest, None]] = {}
        """Value -> those that wait for it, in their turns."""
        self._values: list[list[int]] = []
        """Ascending, in blocks; none is empty."""
        self._turns: list[list[int]] = []
        """Beside each value the turn of the first that waits for it."""
        self._firsts: list[int] = []
        """The lowest turn of each block."""

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, value: int, request: PullRequest) -> None:
        """Its turn is later than that of all others."""
        line = self._lines.get(value)
        if line is not None:
            line[request] = None
            return
        self._lines[value] = OrderedDict({request: None})
        if not self._values:
            self._values, self._turns, self._firsts = [[value]], [[request.turn]], [request.turn]
            return
        block = min(bisect_left(self._values, value, key=_last), len(self._values) - 1)
        at = bisect_left(self._values[block], value)
        self._values[block].insert(at, value)
        self._turns[block].insert(at, request.turn)
        if len(self._values[block]) > 2 * BLOCK_VALUES:
            self._values[block : block + 1] = self._values[block][:BLOCK_VALUES], self._values[block][BLOCK_VALUES:]
            self._turns[block : block + 1] = self._turns[block][:BLOCK_VALUES], self._turns[block][BLOCK_VALUES:]
            self._firsts[block : block + 1] = min(self._turns[block]), min(self._turns[block + 1])

    def remove(self, value: int, request: PullRequest) -> None:
        line = self._lines[value]
        was_first = next(iter(line)) is request
        del line[request]
        if not was_first:
            return
        block = bisect_left(self._values, value, key=_last)
        at = bisect_left(self._values[block], value)
        if line:
            self._turns[block][at] = next(iter(line)).turn
        else:
            del self._lines[value], self._values[block][at], self._turns[block][at]
            if not self._values[block]:
                del self._values[block], self._turns[block], self._firsts[block]
                return
        self._firsts[block] = min(self._turns[block])
        self._join(block)
        self._join(block - 1)

    def _join(self, block: int) -> None:
        """Makes one of this block and the next where both are small: else many could be left with one value each."""
        if (
            0 <= block < len(self._values) - 1
            and len(self._values[block]) + len(self._values[block + 1]) <= BLOCK_VALUES
        ):
            self._values[block] += self._values.pop(block + 1)
            self._turns[block] += self._turns.pop(block + 1)
            self._firsts[block] = min(self._firsts[block], self._firsts.pop(block + 1))

    def first(self, reading: int) -> PullRequest | None:
        """The oldest of those that wait for `reading` or less."""
        whole = bisect_right(self._values, reading, key=_last)
        turn = min(self._firsts[:whole], default=0)
        block = self._firsts.index(turn) if whole else -1
        if whole < len(self._values) and (part := bisect_right(self._values[whole], reading)):
            found = min(self._turns[whole][:part])
            if block < 0 or found < turn:
                turn, block = found, whole
        if block < 0:
            return None
        value = self._values[block][self._turns[block].index(turn)]
        return next(iter(self._lines[value]))


class PullQueue:
    __slots__ = (
        "__weakref__",
        "_alarms",
        "_aside",
        "_asleep",
        "_gauges",
        "_levels",
        "_ties",
        "_turns",
        "replies",
        "room",
        "size",
        "special",
        "spent",
        "touched",
        "wanted",
    )

    def __init__(self, room: WaitingRoom | None = None) -> None:
        self.room = room or WaitingRoom()
        self.room.enter(self)
        self._levels: list[Line] = [OrderedDict() for _ in range(10)]
        self._asleep: Line = OrderedDict()
        """Sleepers, in their turns."""
        self._aside: Line = OrderedDict()
        """Requests put aside, the first one first; they wait for no gauge."""
        self._gauges: dict[Gauge, Thresholds] = {}
        """The same, by what they wait for; none is empty."""
        self._turns = count(1)
        self.size = 0
        """Requests that wait."""
        self._alarms: list[tuple[int, int, PullRequest]] = []
        """A heap by time. One counts if its request waits and has this `alarm_at`."""
        self._ties = count()
        self.wanted = 0
        """Messages that all of them together still want."""
        self.spent: OrderedSet[PullRequest] = OrderedSet()
        """Requests that want only what is there now, and have had some of it or asked not to wait."""
        self.special = 0
        """Requests with a max_bytes: what they get depends on each message."""
        self.replies: dict[bytes, int] = {}
        """Reply subject -> requests that wait with it."""
        self.touched: OrderedSet[bytes] = OrderedSet()
        """Reply subjects that came or went since somebody last looked."""

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[PullRequest]:
        for level in (*self._levels, self._asleep, self._aside):
            yield from level

    @property
    def awake(self) -> int:
        """Requests in the line; each may be looked at for the next message."""
        return self.size - len(self._asleep) - len(self._aside)

    @property
    def aside(self) -> int:
        """Requests put aside."""
        return len(self._aside)

    @property
    def gauges(self) -> int:
        """Gauges that sleepers wait for; each is read when the next one is looked for."""
        return len(self._gauges)

    def add(self, request: PullRequest, *, front: bool = False) -> None:
        level = self._levels[request.priority]
        level[request] = None
        if front:
            level.move_to_end(request, last=False)
            request.turn = 0
        else:
            request.turn = next(self._turns)
        request.waits_for = None
        request.open = True
        self.size += 1
        self.room.count += 1
        self.wanted += request.left
        if request.no_wait and (request.timeout <= 0 or request.delivered):
            self.spent.add(request)
        self.special += request.max_bytes > 0
        self.remind(request)
        self.replies[request.reply] = self.replies.get(request.reply, 0) + 1
        self.touched.add(request.reply)

    def remind(self, request: PullRequest) -> None:
        """Sets the time at which `due` gives the request: when it expires or wants its next heartbeat, whichever comes
        first."""
        at = min(request.expires_at or request.beat_at, request.beat_at or request.expires_at)
        if at:
            request.alarm_at = at
            heappush(self._alarms, (at, next(self._ties), request))
            if len(self._alarms) > 2 * self.size + MAX_STALE_ALARMS:
                self._alarms = [alarm for alarm in self._alarms if _counts(alarm)]
                heapify(self._alarms)

    @property
    def alarm(self) -> int:
        """No request expires or wants a heartbeat before; 0: never."""
        return self._alarms[0][0] if self._alarms else 0

    def next_beat(self, request: PullRequest, now: int) -> int:
        """When a request gets its next heartbeat: as it asked for, or later where very many want one."""
        return now + max(request.heartbeat, MIN_HEARTBEAT, self.size * BEAT_SPACING_NS)

    def due(self, now: int) -> list[PullRequest]:
        """Requests whose time has come, in its order, `REMINDERS_PER_STEP` at most: `alarm` says that there are more.
        Each one is given once: `remind` must be called for each that goes on waiting."""
        found: list[PullRequest] = []
        while self._alarms and self._alarms[0][0] <= now and len(found) < REMINDERS_PER_STEP:
            alarm = heappop(self._alarms)
            if _counts(alarm):
                alarm[2].alarm_at = 0
                found.append(alarm[2])
        return found

    def each_head(self, reading: Reading | None = None) -> Iterator[PullRequest]:
        """The request that is next, level by level, as often as a level has requests: the caller lets it pass, ends it,
        sends it to sleep or takes it before the next step. Sleepers come in their turns once `reading` is what one of
        them waits for."""
        for level in self._levels:
            for _ in range(len(level)):
                if level:
                    yield self._first(next(iter(level)), reading)
        for _ in range(len(self._asleep) if reading is not None else 0):
            sleeper = self._first(None, reading)
            if sleeper is None:
                return
            yield sleeper

    @overload
    def _first(self, head: PullRequest, reading: Reading | None) -> PullRequest: ...
    @overload
    def _first(self, head: None, reading: Reading | None) -> PullRequest | None: ...
    def _first(self, head: PullRequest | None, reading: Reading | None) -> PullRequest | None:
        """The one whose turn is first: the head of a level, or the oldest sleeper that may wake."""
        if reading is not None:
            for gauge, thresholds in self._gauges.items():
                sleeper = thresholds.first(reading(gauge))
                if sleeper is not None and (head is None or sleeper.turn < head.turn):
                    head = sleeper
        return head

    def pass_over(self, request: PullRequest) -> None:
        """The next one goes to the end of its like."""
        self._leave(request)
        request.turn = next(self._turns)
        self._levels[request.priority][request] = None

    def sleep(self, request: PullRequest, waits_for: tuple[tuple[Gauge, int], ...]) -> None:
        """The next one, which goes to the end of its like, gets nothing until one of these gauges reads so much."""
        self._leave(request)
        request.turn = next(self._turns)
        request.waits_for = waits_for
        self._asleep[request] = None
        for gauge, value in waits_for:
            self._gauges.setdefault(gauge, Thresholds()).add(value, request)

    def put_aside(self, request: PullRequest) -> None:
        """It is not looked at until it is brought back."""
        self._leave(request)
        request.waits_for = ()
        self._aside[request] = None

    def bring_back(self, most: int) -> None:
        """The first `most` of those put aside go to the end of their likes."""
        for request in list(islice(self._aside, most)):
            self.pass_over(request)

    def rouse(self) -> None:
        """Puts all sleepers back into the line, each in its turn: they may wait for something else now."""
        asleep, self._asleep = self._asleep, OrderedDict()
        self._gauges.clear()
        roused: dict[int, list[PullRequest]] = {}
        for request in asleep:
            request.waits_for = None
            roused.setdefault(request.priority, []).append(request)
        for priority, requests in roused.items():
            merged = sorted((*self._levels[priority], *requests), key=_turn)
            self._levels[priority] = OrderedDict.fromkeys(merged)

    def _leave(self, request: PullRequest) -> None:
        """Takes it out of its line."""
        if request.waits_for is None:
            del self._levels[request.priority][request]
            return
        if not request.waits_for:
            request.waits_for = None
            del self._aside[request]
            return
        del self._asleep[request]
        for gauge, value in request.waits_for:
            thresholds = self._gauges[gauge]
            thresholds.remove(value, request)
            if not thresholds:
                del self._gauges[gauge]
        request.waits_for = None

    def take(self, request: PullRequest, count: int) -> None:
        """The next one gets `count` messages; then the others come first."""
        request.left -= count
        request.delivered += count
        request.flight += count
        self.wanted -= count
        if request.left > 0:
            self.pass_over(request)
            if request.no_wait:
                self.spent.add(request)
        else:
            self.remove(request)

    def shorten(self, request: PullRequest, left: int) -> None:
        """The head wants only `left` more."""
        self.wanted -= request.left - left
        request.left = left

    def remove(self, request: PullRequest) -> None:
        if request.waits_for is None:  # spares a call on the way of a message
            del self._levels[request.priority][request]
        else:
            self._leave(request)
        request.open = False
        self.size -= 1
        self.room.count -= 1
        self.wanted -= request.left
        if request.no_wait:
            self.spent.discard(request)
        self.special -= request.max_bytes > 0
        reply = request.reply
        count = self.replies[reply] - 1
        if count:
            self.replies[reply] = count
        else:
            del self.replies[reply]
        self.touched.add(reply)

    def deal(self, count: int, ready: Callable[[PullRequest], int]) -> tuple[int, Handed]:
        """Deals `count` messages round robin, to requests that take any message. `ready` gives READY, HELD (not now),
        GONE (to be dropped) or ENOUGH (looked for now). Returns how many messages found a taker."""
        handed: Handed = {}
        dealt = 0
        for level in self._levels:
            while level and dealt < count:
                takers = self._takers(level, count - dealt, ready)
                if not takers:
                    break
                rounds = min((count - dealt) // len(takers), *(request.left for request in takers))
                end = dealt + rounds * len(takers)
                for at, request in enumerate(takers, dealt):
                    handed.setdefault(request, []).extend(range(at, end, len(takers)))
                    self.take(request, rounds)
                dealt = end
        return dealt, handed

    def _takers(self, level: Line, count: int, ready: Callable[[PullRequest], int]) -> list[PullRequest]:
        """The first `count` that are ready; they stand first in the level then."""
        takers: list[PullRequest] = []
        others: list[tuple[PullRequest, int]] = []
        for request in level:
            verdict = ready(request)
            if verdict == ENOUGH:
                break
            if verdict != READY:
                others.append((request, verdict))
                continue
            takers.append(request)
            if len(takers) == count:
                break
        for request, verdict in others:
            if verdict == GONE:
                self.remove(request)
            else:
                self.put_aside(request)
        return takers


def _counts(alarm: tuple[int, int, PullRequest]) -> bool:
    at, _, request = alarm
    return request.open and request.alarm_at == at


def _turn(request: PullRequest) -> int:
    return request.turn
