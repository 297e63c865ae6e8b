"""`PullQueue`: the waiting pull requests, in the order in which they are served.

Requests are served in turn, one message each; one that wants more goes to the end. With priority policy `prioritized`
the lowest number comes first, and requests with the same number take turns.

A request that may not get a message now (`overflow`, `pinned_client`) sleeps until a gauge reaches its threshold, so
that the next message finds the oldest eligible request among a hundred thousand. A request whose client does not read
is put aside, and returns to the end of the line.
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

from jetcluster.consumer.owner.pull_request import MIN_HEARTBEAT_NS, Gauge, PullRequest
from jetcluster.ordered import OrderedSet

MAX_WAITING_ON_NODE: Final = 131_072
"""Requests waiting on a node; with more, a consumer that has its share gets refusals as beyond `max_waiting`."""
MIN_REQUESTS_PER_CONSUMER: Final = 512
"""Requests of one consumer that may always wait: the default of `max_waiting`."""
RECOUNT_NS: Final = 1_000_000_000
"""Minimum time between two counts of all queues."""

BLOCK_VALUES: Final = 256
"""Minimum number of values of two neighbouring blocks; one block has at most twice as many."""

_last: Final = itemgetter(-1)

READY: Final = 0
HELD: Final = 1
GONE: Final = 2
ENOUGH: Final = 3

MAX_STALE_ALARMS: Final = 64
"""Outdated alarms, beyond the number of waiting requests, before they are removed."""

REMINDERS_PER_STEP: Final = 1000
"""Maximum number of due requests handled in one step."""
BEAT_SPACING_NS: Final = 20_000
"""Minimum average time between the heartbeats of two requests of one consumer."""

Reading = Callable[[Gauge], int]
"""Returns the present value of a gauge."""
Line = OrderedDict[PullRequest, None]
Handed = dict[PullRequest, list[int]]
"""Request -> indices of the messages it gets."""


class WaitingRoom:
    """Bounds the waiting pull requests of all consumers on a node; each queue adds and subtracts its own.

    A client chooses `max_waiting`, which may be millions, but each waiting request takes memory and time of the node.
    When the room is full, consumers above their share get refusals; the others still have their share."""

    def __init__(self, most: int = MAX_WAITING_ON_NODE, share: int = MIN_REQUESTS_PER_CONSUMER) -> None:
        self.most = most
        self.share = share
        self._queues: WeakSet[Sized] = WeakSet()
        self._counted: int | None = None
        self.count = 0
        """Upper bound of the waiting requests: those of closed owners are subtracted when the room is full."""

    def enter(self, queue: Sized) -> None:
        self._queues.add(queue)

    def is_full_for(self, queue: Sized, now: int) -> bool:
        """Return True when this queue may not have one more. `now`: ns."""
        if self.count < self.most or len(queue) < self.share:
            return False
        if self._counted is None or not 0 <= now - self._counted < RECOUNT_NS:
            self._counted = now
            self.count = sum(len(queue) for queue in self._queues)
        return self.count >= self.most


class Thresholds:
    """Requests that sleep until one gauge reaches their value; finds the oldest whose value is reached.

    Values are sorted in blocks of some hundreds, each with its lowest turn: a search takes some hundreds of comparisons
    with a hundred thousand values."""

    __slots__ = ("_firsts", "_lines", "_turns", "_values")

    def __init__(self) -> None:
        self._lines: dict[int, OrderedDict[PullRequest, None]] = {}
        """Value -> its requests, by turn."""
        self._values: list[list[int]] = []
        """The values, ascending, in blocks that are never empty."""
        self._turns: list[list[int]] = []
        """Parallel to the values: the turn of the first request of each."""
        self._firsts: list[int] = []
        """The lowest turn of each block."""

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, value: int, request: PullRequest) -> None:
        """Add a request, whose turn must be later than those of all others."""
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
        """Join this block and the next if both are small; else many blocks with one value could remain."""
        if (
            0 <= block < len(self._values) - 1
            and len(self._values[block]) + len(self._values[block + 1]) <= BLOCK_VALUES
        ):
            self._values[block] += self._values.pop(block + 1)
            self._turns[block] += self._turns.pop(block + 1)
            self._firsts[block] = min(self._firsts[block], self._firsts.pop(block + 1))

    def first(self, reading: int) -> PullRequest | None:
        """Return the oldest request that waits for `reading` or less."""
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
    """The waiting pull requests of one consumer."""

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
        """Sleeping requests, by turn."""
        self._aside: Line = OrderedDict()
        """Requests put aside, in that order; they wait for no gauge."""
        self._gauges: dict[Gauge, Thresholds] = {}
        """The sleeping requests by gauge; none is empty."""
        self._turns = count(1)
        self.size = 0
        """Number of waiting requests."""
        self._alarms: list[tuple[int, int, PullRequest]] = []
        """Heap by time. An alarm is valid if its request waits and has this `alarm_at`."""
        self._ties = count()
        self.wanted = 0
        """Number of messages that all requests together still want."""
        self.spent: OrderedSet[PullRequest] = OrderedSet()
        """Requests with no_wait that have got messages or have no timeout."""
        self.special = 0
        """Number of requests with max_bytes, which depend on each message's size."""
        self.replies: dict[bytes, int] = {}
        """Reply subject -> number of its waiting requests."""
        self.touched: OrderedSet[bytes] = OrderedSet()
        """Reply subjects that came or went since they were last announced."""

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[PullRequest]:
        for level in (*self._levels, self._asleep, self._aside):
            yield from level

    @property
    def awake(self) -> int:
        """Number of requests in the line, each a candidate for the next message."""
        return self.size - len(self._asleep) - len(self._aside)

    @property
    def aside(self) -> int:
        """Number of requests put aside."""
        return len(self._aside)

    @property
    def line(self) -> Line:
        """The requests that take any message, in the order of their turns, of a consumer without priority groups."""
        return self._levels[0]

    @property
    def gauges(self) -> int:
        """Number of gauges for which requests sleep; a search for the next request reads each."""
        return len(self._gauges)

    def add(self, request: PullRequest, *, front: bool = False) -> int:
        """Return `alarm`."""
        level = self._levels[request.priority]
        level[request] = None
        if front:
            level.move_to_end(request, last=False)
            request.turn = 0
        else:
            request.turn = next(self._turns)
        if request.member is not None:
            request.member.open += 1
            request.member.joins(request, front=front)
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
        return self._alarms[0][0] if self._alarms else 0

    def enlist(self, request: PullRequest) -> None:
        """Let a request that waits be one of its member, which it has only now."""
        if request.member is not None:
            request.member.open += 1
            if request.waits_for is None:
                request.member.joins(request, front=False)

    def remind(self, request: PullRequest) -> None:
        """Set the time at which `due` returns the request: the earlier of its expiry and its next heartbeat."""
        at = min(request.expires_at or request.beat_at, request.beat_at or request.expires_at)
        if at:
            request.alarm_at = at
            heappush(self._alarms, (at, next(self._ties), request))
            if len(self._alarms) > 2 * self.size + MAX_STALE_ALARMS:
                self._alarms = [alarm for alarm in self._alarms if _counts(alarm)]
                heapify(self._alarms)

    @property
    def alarm(self) -> int:
        """Time before which no request expires or needs a heartbeat; 0: never."""
        return self._alarms[0][0] if self._alarms else 0

    def next_beat(self, request: PullRequest, now: int) -> int:
        """Return the time of a request's next heartbeat: as requested, or later with very many requests."""
        return now + max(request.heartbeat, MIN_HEARTBEAT_NS, self.size * BEAT_SPACING_NS)

    def due(self, now: int) -> list[PullRequest]:
        """Return the requests due by `now`, by time, at most REMINDERS_PER_STEP: `alarm` shows when there are more.
        Each is returned once: `remind` must be called for each that still waits."""
        found: list[PullRequest] = []
        while self._alarms and self._alarms[0][0] <= now and len(found) < REMINDERS_PER_STEP:
            alarm = heappop(self._alarms)
            if _counts(alarm):
                alarm[2].alarm_at = 0
                found.append(alarm[2])
        return found

    def each_head(self, reading: Reading | None = None) -> Iterator[PullRequest]:
        """Yield the next request, level by level, as often as a level has requests, which the caller must take, pass
        over, end or let sleep. Sleeping requests have their turns once a gauge's `reading` reaches their value."""
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
        """Return the request with the first turn: the head of a level, or the oldest sleeper that may wake."""
        if reading is not None:
            for gauge, thresholds in self._gauges.items():
                sleeper = thresholds.first(reading(gauge))
                if sleeper is not None and (head is None or sleeper.turn < head.turn):
                    head = sleeper
        return head

    def pass_over(self, request: PullRequest) -> None:
        """Move a request to the end of its level."""
        self._leave(request)
        request.turn = next(self._turns)
        self._levels[request.priority][request] = None
        if request.member is not None:
            request.member.joins(request, front=False)

    def sleep(self, request: PullRequest, waits_for: tuple[tuple[Gauge, int], ...]) -> None:
        """Let a request sleep, with a new turn, until one of these gauges reaches its value."""
        self._leave(request)
        request.turn = next(self._turns)
        request.waits_for = waits_for
        self._asleep[request] = None
        for gauge, value in waits_for:
            self._gauges.setdefault(gauge, Thresholds()).add(value, request)

    def put_aside(self, request: PullRequest) -> None:
        """Exclude a request until `bring_back`."""
        self._leave(request)
        if request.member is not None:
            request.member.leaves(request)
        request.waits_for = ()
        self._aside[request] = None

    def bring_back(self, most: int) -> None:
        """Move the first `most` requests put aside to the end of their levels."""
        for request in list(islice(self._aside, most)):
            self.pass_over(request)

    def rouse(self) -> None:
        """Put all sleeping requests back into the line by turn: their conditions may have changed."""
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
        """Remove a request from its line."""
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
        """Give `count` messages to a request, which then goes to the end or is complete."""
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
        """Reduce a request to `left` more messages."""
        self.wanted -= request.left - left
        request.left = left

    def remove(self, request: PullRequest) -> None:
        if request.waits_for is None:  # saves a call per message
            del self._levels[request.priority][request]
        else:
            self._leave(request)
        if request.member is not None:
            request.member.open -= 1
            request.member.leaves(request)
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
        """Deal `count` messages round robin to requests that take any message; return the number dealt, and those of
        each request. `ready` returns READY, HELD (not now), GONE (drop the request) or ENOUGH (end the search)."""
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
        """Return the first `count` ready requests; they are the first of the level then."""
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
