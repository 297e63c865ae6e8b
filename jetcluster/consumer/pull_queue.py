"""`PullQueue`: the pull requests that wait, in the order in which they are served.

First come, first served, one message per turn; a request that wants more goes to the end. With priority policy
`prioritized` the lowest number comes first, and the order holds among equals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from jetcluster.consumer.pull_request import PullRequest
from jetcluster.ordered import OrderedSet

READY: Final = 0
HELD: Final = 1
GONE: Final = 2

STALE: Final = 64
"""Alarms of requests that are gone, beyond those of the ones that wait, before they are swept out."""

Handed = dict[PullRequest, list[int]]
"""Request -> indices of the messages it gets."""


class PullQueue:
    __slots__ = ("_alarms", "_levels", "_ties", "no_waits", "replies", "size", "special", "touched", "wanted")

    def __init__(self) -> None:
        self._levels: list[deque[PullRequest]] = [deque() for _ in range(10)]
        self.size = 0
        """Requests that wait."""
        self._alarms: list[tuple[int, int, PullRequest]] = []
        """A heap by time. One counts if its request waits and has this `alarm_at`."""
        self._ties = count()
        self.wanted = 0
        """Messages that all of them together still want."""
        self.no_waits = 0
        self.special = 0
        """Requests with a max_bytes: what they get depends on each message."""
        self.replies: dict[bytes, int] = {}
        """Reply subject -> requests that wait with it."""
        self.touched: OrderedSet[bytes] = OrderedSet()
        """Reply subjects that came or went since somebody last looked."""

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[PullRequest]:
        for level in self._levels:
            yield from level

    def add(self, request: PullRequest, *, front: bool = False) -> None:
        level = self._levels[request.priority]
        if front:
            level.appendleft(request)
        else:
            level.append(request)
        request.open = True
        self.size += 1
        self.wanted += request.left
        self.no_waits += request.no_wait
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
            if len(self._alarms) > 2 * self.size + STALE:
                self._alarms = [alarm for alarm in self._alarms if _counts(alarm)]
                heapify(self._alarms)

    @property
    def alarm(self) -> int:
        """No request expires or wants a heartbeat before; 0: never."""
        return self._alarms[0][0] if self._alarms else 0

    def due(self, now: int) -> list[PullRequest]:
        """Those whose time has come, in its order. Each one is given once: `remind` those that go on waiting."""
        found: list[PullRequest] = []
        while self._alarms and self._alarms[0][0] <= now:
            alarm = heappop(self._alarms)
            if _counts(alarm):
                alarm[2].alarm_at = 0
                found.append(alarm[2])
        return found

    def each_head(self) -> Iterator[PullRequest]:
        """The request that is next, level by level, as often as a level has requests: the caller lets it pass, ends
        it or takes it before the next step."""
        for level in self._levels:
            for _ in range(len(level)):
                if level:
                    yield level[0]

    def pass_over(self, request: PullRequest) -> None:
        """The head goes to the end of its like."""
        level = self._levels[request.priority]
        assert level[0] is request
        level.rotate(-1)

    def take(self, request: PullRequest, count: int) -> None:
        """The head gets `count` messages; then the others come first."""
        request.left -= count
        request.delivered += count
        request.flight += count
        self.wanted -= count
        if request.left > 0:
            self.pass_over(request)
        else:
            self.remove(request)

    def shorten(self, request: PullRequest, left: int) -> None:
        """The head wants only `left` more."""
        self.wanted -= request.left - left
        request.left = left

    def remove(self, request: PullRequest) -> None:
        level = self._levels[request.priority]
        if level[0] is request:
            level.popleft()
        else:
            level.remove(request)
        request.open = False
        self.size -= 1
        self.wanted -= request.left
        self.no_waits -= request.no_wait
        self.special -= request.max_bytes > 0
        reply = request.reply
        count = self.replies[reply] - 1
        if count:
            self.replies[reply] = count
        else:
            del self.replies[reply]
        self.touched.add(reply)

    def deal(self, count: int, ready: Callable[[PullRequest], int]) -> tuple[int, Handed]:
        """Deals `count` messages round robin, to requests that take any message. `ready` gives READY, HELD (not now)
        or GONE (to be dropped). Returns how many messages found a taker."""
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

    def _takers(self, level: deque[PullRequest], count: int, ready: Callable[[PullRequest], int]) -> list[PullRequest]:
        """The first `count` that are ready; they stand first in the level then."""
        takers: list[PullRequest] = []
        for request in list(level):
            verdict = ready(request)
            if verdict == READY:
                takers.append(request)
                if len(takers) == count:
                    break
            elif verdict == GONE:
                self.remove(request)
            else:
                level.remove(request)
                level.append(request)
        return takers


def _counts(alarm: tuple[int, int, PullRequest]) -> bool:
    at, _, request = alarm
    return request.open and request.alarm_at == at
