"""Troubles of a node as a whole: its report about itself, and about its peers.

`HealthReport` says a node's verdict on itself: one line in the log and one advisory when a trouble begins and when it
is over, and has the node's replicas look at once whether they may still answer reads and own consumers. Raft hands
leaderships over by itself (`raft.node`); /healthz and /metrics ask `NodeHealth`.

`NodeWatch` sees once, for all replicas, what happens to the node and may concern any of them.

`Durability` says where servers of the cluster do not wait for the same before they acknowledge. An acknowledged message
is on the disks of as many servers as wait for them. Where one of three has no `sync_interval` and the others have one,
an operator may believe that all have it, or none: while it is changed server by server that is as it should be, for
good it is a mistake. Raft goes by the laxest of a group's voters (`raft.core.group_state.Credit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from jetcluster.health.node_health import Aspect, Trouble
from jetcluster.logs import Log
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.core import MeshCore
from jetcluster.model.advisory import server_health
from jetcluster.replica.context import NodeContext, Pulse, tell
from jetcluster.replica.members import SILENT_SECONDS

if TYPE_CHECKING:
    from jetcluster.clock import Clock
    from jetcluster.raft.node import RaftNode
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

    def __init__(self, mesh: MeshCore, raft: RaftNode, clock: Clock, pulse: Pulse) -> None:
        self._mesh = mesh
        self._raft = raft
        self._clock = clock
        self._pulse = pulse
        self._heard: frozenset[str] = frozenset()
        self._stops = 0
        self._offset = 0
        self._writing = 0

    def changed(self) -> bool:
        """A node came or fell silent, this process stood still, the wall clock was set, or the disk holds things up."""
        now, journal = self._clock.monotonic(), self._raft.journal
        self._pulse.beat(now)
        stops, self._stops = self._stops, self._pulse.stops(now)
        heard, self._heard = self._heard, self._hears(now)
        offset, self._offset = self._offset, self._clock.time_ns() - int(now * 1e9)
        writing, self._writing = self._writing, journal.in_flight
        leapt = abs(self._offset - offset) > CLOCK_LEAPS
        slow = journal.full or (writing != 0 and writing == self._writing)
        return stops != self._stops or heard != self._heard or leapt or slow

    def _hears(self, now: float) -> frozenset[str]:
        """As `ConsumerBalancer` judges it."""
        last_seen = self._raft.peers.last_seen
        return frozenset(peer for peer in self._mesh.peers if now - last_seen(peer) < SILENT_SECONDS)


MAX_TOLD: Final = 1024
"""Peers of which it is remembered that they were told of."""


class Durability:
    """One per server with JetStream."""

    def __init__(self, mesh: MeshCore, log: Log) -> None:
        self._mesh = mesh
        self._log = log
        self._told: dict[str, float] = {}
        mesh.on_peers(self._peer_up, lambda info: None)

    def _peer_up(self, info: NodeInfo) -> None:
        """Says once of each interval of a server that is not this server's."""
        own, other = self._mesh.me.sync_interval, info.sync_interval
        if other is None or other == own:
            self._told.pop(info.peer_id, None)
        elif other != self._told.get(info.peer_id):
            if len(self._told) >= MAX_TOLD:
                self._told.clear()
            self._told[info.peer_id] = other
            what = "servers differ in sync_interval: what is acknowledged is only as safe as at the laxest of them"
            self._log.warning(what, here=said(own), server=info.name, there=said(other))

    @property
    def differing(self) -> list[str]:
        """The names of linked servers whose interval is not this server's, sorted."""
        own, peers = self._mesh.me.sync_interval, self._mesh.peers.values()
        return sorted(peer.name for peer in peers if peer.sync_interval is not None and peer.sync_interval != own)


def said(interval: float | None) -> str:
    """As the configuration says it."""
    return f"{interval:g}s" if interval else "always"
