"""Troubles of a node as a whole: the report about itself, and about its peers.

`HealthReport` reports a node's verdict on itself: one log line and one advisory when a trouble begins and when it ends.
It also makes the node's replicas check at once whether they may still answer reads and own consumers. Raft hands over
leaderships by itself (`raft.node`); /healthz and /metrics ask `NodeHealth`.

`NodeWatch` detects, once for all replicas, events of the node that may concern any of them.

`Durability` reports servers whose `sync_interval` differs from this one's. An acknowledged message is on the disks of
as many servers as wait for them: where one of three waits and the others do not, an operator may believe that all wait,
or none. The difference is expected while the option is changed server by server, and a mistake when it lasts. Raft goes
by the laxest of a group's voters (`raft.core.group_state.Credit`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from jetcluster.health.node_health import Trouble
from jetcluster.logs import Log
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.core import MeshCore
from jetcluster.model.advisory import server_health
from jetcluster.replica.members import SILENT_SECONDS
from jetcluster.replica.rounds import SLICE_PAUSE, VISITS_AT_ONCE, Pulse
from jetcluster.replica.services import Events, Network, Runtime

if TYPE_CHECKING:
    from jetcluster.clock import Clock
    from jetcluster.raft.node import RaftNode
    from jetcluster.replica.stream_replica import StreamReplica


class HealthReport:
    """Log line and advisory of each trouble of this node. One per node."""

    def __init__(
        self, runtime: Runtime, network: Network, events: Events, replicas: Mapping[int, StreamReplica]
    ) -> None:
        self._runtime, self._network, self._events = runtime, network, events
        self._replicas = replicas
        self._left: dict[int, None] = {}
        """Groups whose replicas have yet to follow the last change, those first that have not followed an earlier."""
        self._looking = False
        network.raft.health.on_change(self._changed)

    def _changed(self, trouble: Trouble, began: bool) -> None:
        seconds = round(self._runtime.clock.monotonic() - trouble.since, 1)
        aspect, reason = trouble.aspect.value, trouble.reason
        if began:
            self._runtime.log.error("this node is not well", aspect=aspect, reason=reason)
        else:
            self._runtime.log.warning("this node is well again", aspect=aspect, reason=reason, seconds=seconds)
        event = server_health(self._network.name, self._network.me, aspect, reason, None if began else seconds)
        self._events.tell(self._events.system_account, event)
        self._left = dict.fromkeys([*self._left, *self._replicas])
        if not self._looking:
            self._looking = True
            self._runtime.timers.call_soon(self._look)

    def _look(self) -> None:
        """Has the replicas follow the change, some at a time: many at once would hold the loop, which is a trouble."""
        for gid in list(itertools.islice(self._left, VISITS_AT_ONCE)):
            del self._left[gid]
            replica = self._replicas.get(gid)
            if replica is not None:
                replica.health_changed()
        self._looking = bool(self._left)
        if self._looking:
            self._runtime.timers.call_later(SLICE_PAUSE, self._look)


CLOCK_LEAP_NS: Final = 50_000_000
"""Most that the wall clock may drift between two ticks; TTLs and expiry go by that clock."""


class NodeWatch:
    """Watch on the node's surroundings, which also beats its pulse. One per node."""

    def __init__(self, mesh: MeshCore, raft: RaftNode, clock: Clock, pulse: Pulse) -> None:
        self._mesh = mesh
        self._raft = raft
        self._clock = clock
        self._pulse = pulse
        self._heard: frozenset[str] = frozenset()
        self._stops = 0
        self._offset = 0
        self._writing = 0
        self._slow = False

    def changed(self) -> bool:
        """True when a node came or went silent, this process stood still, the wall clock leapt, or the disk became slow
        or quick again."""
        now, journal = self._clock.monotonic(), self._raft.journal
        self._pulse.beat(now)
        stops, self._stops = self._stops, self._pulse.stops(now)
        heard, self._heard = self._heard, self._hears(now)
        offset, self._offset = self._offset, self._clock.time_ns() - int(now * 1e9)
        writing, self._writing = self._writing, journal.in_flight
        leapt = abs(self._offset - offset) > CLOCK_LEAP_NS
        slow, self._slow = self._slow, journal.full or (writing != 0 and writing == self._writing)
        return stops != self._stops or heard != self._heard or leapt or slow != self._slow

    def held(self) -> list[int]:
        """Groups that may lag too far to answer reads, and apply nothing that would wake them: those whose commands
        wait for room, and while the disk is slow those behind their leader."""
        groups = self._raft.groups.items() if self._slow else ()
        behind = [gid for gid, group in groups if group.told_index > group.applied_index]
        return [*self._raft.turns.held, *behind]

    def _hears(self, now: float) -> frozenset[str]:
        """Returns the peers heard lately, as `ConsumerBalancer` judges it."""
        last_seen = self._raft.peers.last_seen
        return frozenset(peer for peer in self._mesh.peers if now - last_seen(peer) < SILENT_SECONDS)


MAX_REMEMBERED_PEERS: Final = 1024
"""Most peers whose logged interval is remembered."""


class Durability:
    """Warnings about peers with another `sync_interval`. One per server with JetStream."""

    def __init__(self, mesh: MeshCore, log: Log) -> None:
        self._mesh = mesh
        self._log = log
        self._told: dict[str, float] = {}
        mesh.on_peers(self._peer_up, lambda info: None)

    def _peer_up(self, info: NodeInfo) -> None:
        """Logs each differing interval of a server once."""
        own, other = self._mesh.me.sync_interval, info.sync_interval
        if other is None or other == own:
            self._told.pop(info.peer_id, None)
        elif other != self._told.get(info.peer_id):
            if len(self._told) >= MAX_REMEMBERED_PEERS:
                self._told.clear()
            self._told[info.peer_id] = other
            what = "servers differ in sync_interval: what is acknowledged is only as safe as at the laxest of them"
            self._log.warning(what, here=said(own), server=info.name, there=said(other))

    @property
    def differing(self) -> list[str]:
        """Sorted names of linked servers whose interval differs from this server's."""
        own, peers = self._mesh.me.sync_interval, self._mesh.peers.values()
        return sorted(peer.name for peer in peers if peer.sync_interval is not None and peer.sync_interval != own)


def said(interval: float | None) -> str:
    """Returns an interval in seconds as the configuration writes it."""
    return f"{interval:g}s" if interval else "always"
