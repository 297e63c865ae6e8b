"""What happens to a node as a whole, and what it says of itself and of its peers.

`HealthReport` says a node's verdict on itself: one line in the log and one advisory when a trouble begins and when it is
over, and has the node's replicas look at once whether they may still answer reads and own consumers. Raft hands
leaderships over by itself (`raft.node`); /healthz and /metrics ask `NodeHealth`.

`NodeWatch` sees once, for all replicas, what happens to the node and may concern any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from jetcluster.health.node_health import Aspect, Trouble
from jetcluster.model.advisory import server_health
from jetcluster.replica.context import NodeContext, tell
from jetcluster.replica.members import SILENT

if TYPE_CHECKING:
    from jetcluster.replica.context import NodeContext
    from jetcluster.replica.stream_replica import StreamReplica


class HealthReport:
    """One per node."""

    def __init__(self, context: NodeContext, replicas: Mapping[int, StreamReplica]) -> None:
        self._context = context
        self._replicas = replicas
        health = context.raft.health
        commits = context.turn_commit
        health.watch(Aspect.SPACE, lambda: commits.failing if commits.full else "")
        health.watch(Aspect.SPACE, context.account_quota.trouble)
        health.watch(Aspect.STORE, lambda: "" if commits.full else commits.failing)
        health.watch(Aspect.STORE, context.kv.trouble)
        health.on_change(self._changed)

    def _changed(self, trouble: Trouble, began: bool) -> None:
        context = self._context
        seconds = round(context.clock.monotonic() - trouble.since, 1)
        aspect, reason = trouble.aspect.value, trouble.reason
        if began:
            context.log.error("this node is not well", aspect=aspect, reason=reason)
        else:
            context.log.warning("this node is well again", aspect=aspect, reason=reason, seconds=seconds)
        event = server_health(context.name, context.me, aspect, reason, None if began else seconds)
        tell(context, context.system_account, event)
        context.timers.call_soon(self._look)

    def _look(self) -> None:
        for replica in list(self._replicas.values()):
            replica.health_changed()


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
