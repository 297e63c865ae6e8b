"""Reads all that this node's replicas have on disk, again and again, slowly: damage is found before the data is needed.

A pass goes through the replicas one by one, at most `RATE` bytes per second in small slices between other work, and
begins again after `PASS_SECONDS`. What it finds goes the way of damage that a request finds (`replica.repair`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from jetcluster.clock import Clock, Timers
from jetcluster.logs import Log
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvError
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.transfer import Scrub

if TYPE_CHECKING:
    from jetcluster.replica.stream_replica import StreamReplica

RATE: Final = 8 * 1024 * 1024
SLICE: Final = 128 * 1024
"""Bytes between which clients are served."""
PASS_SECONDS: Final = 30.0
"""At least so long from the beginning of one pass to that of the next."""


class Scrubber:
    """One per node."""

    def __init__(
        self, kv: RocksKv, clock: Clock, timers: Timers, log: Log, replicas: Mapping[int, StreamReplica]
    ) -> None:
        self._kv = kv
        self._clock = clock
        self._timers = timers
        self._log = log
        self._replicas = replicas
        self._left: list[int] = []
        self._current: tuple[StreamReplica, Scrub] | None = None
        self._next_pass = 0.0
        self._timer: Any = None
        self.passes = 0
        """Over all replicas (monitoring)."""
        self.bytes = 0
        """Verified since the start (monitoring)."""

    def start(self) -> None:
        self._timer = self._timers.call_later(PASS_SECONDS / 3, self._step)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _step(self) -> None:
        now = self._clock.monotonic()
        pause = SLICE / RATE
        if self._current is not None or self._choose():
            assert self._current is not None
            pause = max(self._verify(*self._current), SLICE) / RATE
        elif now >= self._next_pass:
            self.passes += bool(self._next_pass)
            self._next_pass = now + PASS_SECONDS
            self._left = list(self._replicas)
        else:
            pause = self._next_pass - now
        self._timer = self._timers.call_later(pause, self._step)

    def _choose(self) -> bool:
        """The next replica that is whole, as far as is known."""
        while self._left:
            replica = self._replicas.get(self._left.pop())
            if replica is not None and replica.sound:
                self._current = replica, Scrub(self._kv, replica.assignment.gid)
                return True
        return False

    def _verify(self, replica: StreamReplica, scrub: Scrub) -> int:
        if not replica.sound or self._replicas.get(replica.assignment.gid) is not replica:
            self._current = None
            return 0
        try:
            taken = scrub.step(SLICE)
        except DamagedError as error:
            self._current = None
            replica.report_damage(error)
            return 0
        except KvError as error:
            self._current = None
            name = replica.assignment.name
            self._log.error("a stream cannot be verified", stream=name, error=str(error))
            return 0
        if scrub.done:
            self._current = None
        self.bytes += taken
        return taken
