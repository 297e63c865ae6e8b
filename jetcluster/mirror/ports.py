"""`LinkDependencies` and `LinkTarget`: the services of a node that a link uses, and the stream that it feeds."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Final, Protocol

from jetcluster.clock import Clock, Rng, Timers
from jetcluster.logs import Log
from jetcluster.protocol.bus import Bus
from jetcluster.records import NamedTuple
from jetcluster.store.api import DamagedError
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.sourced import Cursor
from jetcluster.stream.rules import StreamRules

LOG_SECONDS: Final = 10.0
"""Period that one summarizing line covers."""
LINES_AT_ONCE: Final = 4
"""Single lines before that."""

PACE_SECONDS: Final = 0.1
"""A window of `Pace`."""


class LastSequence(NamedTuple):
    """The origin's, after the question for it began."""

    seq: int
    """Its last sequence that has a message, as far as it tells: those of removed ones never come."""
    proven: bool
    """Its leader proved that it leads."""


Told = Callable[[LastSequence | None], None]
"""Called with None when the origin does not say."""


class LinkLog:
    """Writes the log lines of a stream's links: a few single ones, then one with their number per period."""

    def __init__(self, log: Log, timers: Timers, stream: str) -> None:
        self._log = log
        self._timers = timers
        self._stream = stream
        self._lines = 0
        self._more = 0
        """Failures since the last line."""
        self._last = ("", "")
        self._open = False

    def again(self, upstream: str, why: str) -> None:
        """Logs the end of an attempt for a reason that is no error."""
        if self._may_log(upstream, why):
            self._log.info("link begins again", stream=self._stream, upstream=upstream, reason=why)

    def failed(self, upstream: str, error: str) -> None:
        if self._may_log(upstream, error):
            self._log.warning("link failed", stream=self._stream, upstream=upstream, error=error)

    def _may_log(self, upstream: str, why: str) -> bool:
        if not self._open:
            self._open = True
            self._timers.call_later(LOG_SECONDS, self._over)
        self._lines += 1
        if self._lines <= LINES_AT_ONCE:
            return True
        self._more += 1
        self._last = upstream, why
        return False

    def _over(self) -> None:
        more, self._more = self._more, 0
        self._open = bool(more)
        if not more:
            self._lines = 0
            return
        self._timers.call_later(LOG_SECONDS, self._over)
        upstream, why = self._last
        self._log.warning("links failed or began again", stream=self._stream, times=more, last=upstream, error=why)


class Pace:
    """Bounds the attempts of links per window, of one stream and of the node. A link gets its turn at once while the
    window has some left, else in a later one: streams alternate, the links of a stream keep their order.

    An attempt costs about a millisecond here and at the upstream. Each link backs off, but thousands that all fail
    would keep a node busy."""

    def __init__(self, per_stream: int, per_node: int) -> None:
        """Sets the numbers of turns per window."""
        self._per_stream = per_stream
        self._per_node = per_node
        self._waiting: OrderedDict[object, deque[Callable[[], None]]] = OrderedDict()
        self._given: Counter[object] = Counter()
        """Turns given in this window, by stream."""
        self._open = False

    def turn(self, timers: Timers, stream: object, begin: Callable[[], None]) -> None:
        """Calls `begin` when `stream` has a turn, before returning if that is now."""
        if not self._open:
            self._open = True
            timers.call_later(PACE_SECONDS, self._over, timers)
        if stream not in self._waiting and self._has_turn(stream):
            self._given[stream] += 1
            begin()
        else:
            self._waiting.setdefault(stream, deque()).append(begin)

    def forget(self, stream: object) -> None:
        """Drops the waiting links of a stream, which have ended."""
        self._waiting.pop(stream, None)

    def _has_turn(self, stream: object) -> bool:
        return self._given[stream] < self._per_stream and self._given.total() < self._per_node

    def _over(self, timers: Timers) -> None:
        self._given.clear()
        self._open = bool(self._waiting)
        if not self._open:
            return
        timers.call_later(PACE_SECONDS, self._over, timers)
        for _ in range(self._per_node):
            stream = next((stream for stream in self._waiting if self._has_turn(stream)), None)
            if stream is None:
                return
            begins = self._waiting.pop(stream)
            begin = begins.popleft()
            if begins:
                self._waiting[stream] = begins  # after the other streams
            self._given[stream] += 1
            begin()


class Paces(NamedTuple):
    """The paces of a node."""

    retries: Pace
    """Attempts after a failed one: 50 per second of a stream, 100 of the node."""
    returns: Pace
    """Attempts after a link that lived: 500 and 1,000."""
    looks: Pace
    """Questions by which replicas of mirrors learn how far their origin is: 10 and 100."""


def paces() -> Paces:
    return Paces(Pace(5, 10), Pace(50, 100), Pace(1, 10))


class LinkTarget(Protocol):
    """The stream that a link feeds, on its leader."""

    @property
    def rules(self) -> StreamRules: ...

    @property
    def store(self) -> BlockStore: ...

    def cursor(self, key: bytes) -> Cursor | None: ...

    def propose(self, command: bytes) -> int | None:
        """Puts a SOURCED command into the log; returns its index, or None when the log takes nothing now."""

    def report_damage(self, error: DamagedError) -> None:
        """Reports that a stored record cannot be read here."""

    @property
    def origin(self) -> bytes:
        """A name of this stream, unique among all streams anywhere that may read the same upstream."""

    def knows(self, name: str) -> bool:
        """True when the account has a stream of this name."""


class LinkDependencies(NamedTuple):
    """The services of the node and the stream that one link uses."""

    bus: Bus
    clock: Clock
    timers: Timers
    rng: Rng
    log: Log
    target: LinkTarget
    paces: Paces
