"""Slow, repeated verification of all data on disk of this node's replicas, which finds damage before data is needed.

A pass visits the replicas one by one, at `BYTES_PER_SECOND` in small slices between other work, and begins again after
`PASS_SECONDS`. Damage is handled like damage that a request finds (`replica.repair`).
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

BYTES_PER_SECOND: Final = 8 * 1024 * 1024
SLICE_BYTES: Final = 128 * 1024
"""Bytes verified before other work gets its turn."""
STREAM_BYTES: Final = 512 * 1024
"""Bytes that take as long to verify as the beginning of a stream: some seeks."""
PASS_SECONDS: Final = 30.0
"""Shortest time from the beginning of one pass to that of the next."""


class Scrubber:
    """The passes over this node's replicas. One per node."""

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
        """Complete passes (monitoring)."""
        self.bytes = 0
        """Bytes verified since the start (monitoring)."""

    def start(self) -> None:
        self._timer = self._timers.call_later(PASS_SECONDS / 3, self._step)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _step(self) -> None:
        now = self._clock.monotonic()
        pause = SLICE_BYTES / BYTES_PER_SECOND
        if self._current is not None or self._choose():
            assert self._current is not None
            pause = max(self._verify(*self._current), SLICE_BYTES) / BYTES_PER_SECOND
        elif now >= self._next_pass:
            self.passes += bool(self._next_pass)
            self._next_pass = now + PASS_SECONDS
            self._left = sorted(self._replicas, key=self._is_unproven)
        else:
            pause = self._next_pass - now
        self._timer = self._timers.call_later(pause, self._step)

    def _is_unproven(self, gid: int) -> bool:
        """True for those that come first, from the end: their postings were not compared when the node started."""
        replica = self._replicas[gid]
        return replica.sound and not replica.store.compared

    def _choose(self) -> bool:
        """Selects the next replica that is sound, as far as is known."""
        while self._left:
            replica = self._replicas.get(self._left.pop())
            if replica is not None and replica.sound:
                self._current = replica, Scrub(self._kv, replica.assignment.gid, replica.store.begin_check)
                return True
        return False

    def _verify(self, replica: StreamReplica, scrub: Scrub) -> int:
        if not replica.sound or self._replicas.get(replica.assignment.gid) is not replica:
            self._current = None
            return 0
        try:
            taken = scrub.step(SLICE_BYTES)
        except DamagedError as error:
            self._current = None
            replica.report_damage(error)
            return 0
        except KvError as error:
            self._current = None
            name = replica.assignment.name
            self._log.error("a stream cannot be verified", stream=name, error=str(error))
            return 0
        self.bytes += taken
        if scrub.done:
            self._current = None
            return taken + STREAM_BYTES
        return taken
