"""`NodeWatch` sees once, for all replicas, what happens to the node as a whole and may concern any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jetcluster.replica.members import SILENT

if TYPE_CHECKING:
    from jetcluster.replica.context import NodeContext

CLOCK_LEAPS: Final = 50_000_000
"""Nanoseconds by which the wall clock may drift between two looks; TTLs and expiry are by that clock."""


class NodeWatch:
    """One per node; also beats its pulse."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._heard: frozenset[str] = frozenset()
        self._stops = 0
        self._offset = 0
        self._writing = 0

    def changed(self) -> bool:
        """A node came or fell silent, this process stood still, the wall clock was set, or the disk holds things up."""
        context = self._context
        now = context.clock.monotonic()
        context.pulse.beat(now)
        stops, self._stops = self._stops, context.pulse.stops(now)
        heard, self._heard = self._heard, self._hears(now)
        offset, self._offset = self._offset, context.clock.time_ns() - int(now * 1e9)
        writing, self._writing = self._writing, context.raft.journal.in_flight
        leapt = abs(self._offset - offset) > CLOCK_LEAPS
        slow = context.raft.journal.full or (writing != 0 and writing == self._writing)
        return stops != self._stops or heard != self._heard or leapt or slow

    def _hears(self, now: float) -> frozenset[str]:
        """As `ConsumerBalancer` judges it."""
        context = self._context
        return frozenset(peer for peer in context.mesh.peers if now - context.raft.peers.last_seen(peer) < SILENT)
