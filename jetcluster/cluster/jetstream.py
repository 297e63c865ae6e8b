"""JetStream on one node: the meta group, the replicas assigned to this node, and the requests between nodes.

`wiring` makes and connects the parts; this module runs the tick. `LocalStreams` manages the replicas of this node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jetcluster.cluster.joining import Roster
from jetcluster.cluster.leader_reads import MetaCatchUp
from jetcluster.cluster.once import NUMBERED
from jetcluster.cluster.requests import DEADLINE_SECONDS, ONCE, Body, UnderWay, check_wanted
from jetcluster.cluster.wiring import Hub, NodeSide, Parts
from jetcluster.mesh.api import NodeInfo
from jetcluster.meta.state import (
    Assignment,
    ClusterNamed,
    ClusterRescued,
    Effect,
    NodeChanged,
    StreamUpdated,
)
from jetcluster.model.advisory import domain_leader_elected
from jetcluster.model.cluster_info import ReplicaInfo, replica_wire
from jetcluster.raft.api import META_GROUP, NotLeaderError
from jetcluster.replica.consumer_exchange import until
from jetcluster.replica.rounds import SLICE_PAUSE, TICK
from jetcluster.replica.services import Services
from jetcluster.replica.stream_replica import StreamReplica
from jetcluster.stream.apply.applier import FAULTS

if TYPE_CHECKING:
    from jetcluster.cluster.refusals import Refusals


class JetStream:
    """The meta group, the streams and the requests of one node, for the API handlers; owns every replica of this node.

    Called from the event loop. The two requests retry while leaders change, for 3.5 s (a request under way for as long
    as it progresses), and then raise ApiError 503/10008; they raise nothing but ApiError.
    """

    def __init__(self, services: Services, replicas: dict[int, StreamReplica], roster: Roster, node: NodeSide) -> None:
        self.services, self.replicas, self.limits = services, replicas, node.account_limits
        self.runtime, self.network, self.known = services.runtime, services.network, services.known
        self.clustered = bool(self.network.cluster_name)
        callbacks = self._on_effects, self._on_meta_leading, self._on_meta_config
        hub = Hub(*callbacks, self.meta_request, self.stream_request, self._handle_meta)
        self.parts = parts = Parts(hub, services, replicas, roster, node)
        self.background, self.meta, self.joining, self.local = parts.background, parts.meta, parts.joining, parts.local
        self.consumers, self.drift = parts.local.exchange, parts.local.drift
        self.broken = parts.broken
        """Streams whose replica could not be started here, with the reason; their data is kept (monitoring)."""
        self.flusher, self.restart_safety, self.scrubber = parts.flusher, parts.restart_safety, parts.scrubber
        self.administration, self.durability = parts.administration, parts.durability
        self.health_report, self.consumer_watch = parts.health_report, parts.consumer_watch
        self.balancer = parts.balancer
        self.meta_rescue, self.rescue_meta = parts.meta_rescue, parts.meta_rescue.rescue
        self.settle, self.heard, self.used = parts.every_node.settle, parts.every_node.heard, parts.every_node.used
        self.used_by_tier = parts.every_node.used_by_tier
        self.network.mesh.on_peers(self._peer_up, self._peer_down)
        self.unassigned: tuple[int, ...] = ()
        """Ids of streams that have data here but are not placed here by the meta group (monitoring)."""
        self._unassigned_told = False
        self._new = False
        """True on the first start with this store, which has no streams."""
        self._ticker: Any = None
        self._visitor: Any = None
        """Timer of the next slice of a round."""
        self._stopped = False

    # ---- lifecycle

    def start(self) -> None:
        """Continues from the store's state; a new node begins to look for its cluster."""
        self._new = not self.network.raft.knows(META_GROUP)
        self.joining.start()
        self.meta_rescue.start()
        self.local.start()
        self.background.spawn(
            MetaCatchUp(self.runtime, self.network, self.known, self.meta, self._meta_is_current).run()
        )
        self.scrubber.start()
        self._tick()

    async def settle_alone(self, seconds: float) -> None:
        """Waits on a standalone server until it leads all streams that can be led, or for `seconds`. Clients that were
        connected before a restart publish as soon as they are let in again."""

        def settled() -> bool:
            return self.known.current and all(r.leading or not r.sound for r in self.replicas.values())

        if not self._new:
            await until(settled, self.runtime.clock, seconds)

    async def stop(self) -> None:
        """Hands over leaderships where possible, makes all state durable and closes the replicas."""
        self._stopped = True
        for timer in (self._ticker, self._visitor):
            if timer is not None:
                timer.cancel()
        self.scrubber.stop()
        await self.network.catchup.stop()
        await self.background.stop()
        for replica in self.replicas.values():
            replica.stop()
        self.meta.stop()
        await self.flusher.stop()
        self.services.commits.stop()

    def end_deliveries(self) -> None:
        """Ends the consumers of streams with one replica, whose waiting clients this server must answer before it
        closes their connections; for the others the consumer's next owner does."""
        for replica in self.replicas.values():
            if len(replica.group.peers) == 1:
                replica.consumers.stop()

    async def transfer_leaderships(self, seconds: float = 2.0) -> None:
        """Lame duck mode: hands over leaderships and consumers to other nodes, as far as `seconds` permit."""
        end = self.runtime.clock.monotonic() + seconds
        for replica in self.replicas.values():
            replica.consumers.hand_over()
        while self.runtime.clock.monotonic() < end:
            groups = [r.group for r in self.replicas.values() if r.leading and len(r.group.peers) > 1]
            if self.meta.group is not None and self.meta.leading and len(self.meta.group.peers) > 1:
                groups.append(self.meta.group)
            owning = any(r.consumers.owns and len(r.group.peers) > 1 for r in self.replicas.values())
            if not groups and not owning:
                return
            for group in groups:
                group.transfer()
            await asyncio.sleep(0.05)

    # ---- for the API handlers

    def assignment(self, account: str, name: str) -> Assignment | None:
        """Returns the assignment by this node's meta replica, which may lag: None does not prove its absence."""
        return self.meta.machine.assignment(account, name)

    def led(self, account: str, name: str) -> StreamReplica | None:
        """Returns this node's replica of a stream, if it leads and requests may be answered."""
        assignment = self.assignment(account, name)
        replica = self.replicas.get(assignment.gid) if assignment is not None else None
        return replica if replica is not None and replica.leading and not self.joining.removed else None

    @property
    def refusals(self) -> Refusals | None:
        """The streams that this node has refused as the meta leader; None before the first."""
        return self.parts.service.refusals

    def mirrors_of(self, account: str, name: str) -> list[str]:
        return self.meta.machine.mirrors_of(account, name)

    async def meta_request(self, kind: str, body: Body) -> Body:
        """Runs `MetaService.handle` on the meta leader; a retry sends the same `body["request"]`. Raises ApiError."""
        self.joining.check_member()
        return await self.parts.meta_requests.ask(META_GROUP, kind, body)

    def offline(self, assignment: Assignment) -> bool:
        """True when no server that is assigned the stream is connected to this one."""
        return {self.network.me, *self.network.mesh.peers}.isdisjoint(assignment.peers)

    async def stream_request(
        self,
        assignment: Assignment,
        kind: str,
        body: Body,
        under_way: UnderWay = None,
        seconds: float = DEADLINE_SECONDS,
    ) -> Body:
        """Runs `StreamRequests.handle` on the stream's leader. The body gets this node as `asker`, and a number for
        requests that are carried out once. Otherwise as `LeaderRequests.ask`. Raises ApiError."""
        self.joining.check_member()
        body = {**body, "asker": self.network.me}
        if kind in NUMBERED and ONCE not in body:
            body[ONCE] = int.from_bytes(self.runtime.rng.token(8), "little") or 1
        return await self.parts.stream_requests.ask(assignment.gid, kind, body, seconds, under_way)

    # ---- meta group

    async def _handle_meta(self, gid: int, kind: str, body: Body) -> Body:
        if not self.meta.leading:
            raise NotLeaderError(self.meta.group.leader if self.meta.group is not None else None)
        if kind == "stream_create":
            await self.parts.registry.register_missing()  # a node that just joined must count for the placement
        administer = self.administration.handlers.get(kind) or self.local.rescues.handlers.get(kind)
        if administer is None:
            return await self.parts.service.handle(kind, body)
        await self.meta.barrier()  # as `MetaService.handle` does
        check_wanted(self.runtime.clock)
        return await administer(body)

    def _on_effects(self, effects: list[Effect]) -> None:
        """Raises `applier.FAULTS` only: one stream's error must not stop the meta group."""
        for effect in effects:
            try:
                self._take_effect(effect)
            except FAULTS:
                raise
            except Exception as error:  # noqa: BLE001 - the meta group's decision stands, also when this node fails at it
                self.runtime.log.error("an assignment failed", effect=repr(effect)[:500], error=repr(error))  # noqa: TRY400

    def _take_effect(self, effect: Effect) -> None:
        if isinstance(effect, ClusterNamed):
            self.parts.cluster_id.confirm(effect.cluster_id)
            self.joining.announce()
        elif isinstance(effect, NodeChanged):
            self.network.mesh.check_keys()
        elif isinstance(effect, ClusterRescued):
            self.meta_rescue.applied(effect.rescue)
        else:
            if isinstance(effect, StreamUpdated) and self.meta.leading and self.parts.replica_moves is not None:
                self.parts.replica_moves.rests.note(effect)
            self.local.take(effect)

    def _on_meta_leading(self, leading: bool) -> None:
        if leading:
            self._meta_is_current()
        self.joining.announce()
        if leading and self.meta.group is not None:
            self._tell_meta_leader()
            self.background.spawn(self.parts.registry.keep(self.meta.group.term))
            if self.balancer is not None:
                self.background.spawn(self.balancer.keep(self.meta.group.term))

    def _tell_meta_leader(self) -> None:
        assert self.meta.group is not None
        me, cluster, status = self.network.me, self.network.cluster_name, self.meta.group.status()
        if not cluster:
            return
        now, found = self.runtime.clock.monotonic(), [ReplicaInfo(self.network.name, me, True, 0)]
        for peer in status.peers:
            node = self.meta.machine.nodes.get(peer.peer)
            lag = max(status.commit_index - peer.match_index, 0)
            seen = int((now - peer.last_seen) * 1e9) if peer.last_seen else 0
            found.append(ReplicaInfo(node.name if node is not None else "", peer.peer, not lag, seen, lag=lag))
        event = domain_leader_elected(
            me, [replica_wire(one) for one in sorted(found)], cluster, self.services.settings.domain
        )
        self.services.events.tell(self.services.events.system_account, event)

    def _on_meta_config(self) -> None:
        """Announces the members anew: peers may lag, and not know a new member yet."""
        self.joining.announce_soon()
        self.runtime.timers.call_soon(self.parts.members.admit_waiting)

    def _peer_up(self, info: NodeInfo) -> None:
        self.network.raft.peer_up(info.peer_id, None if info.sync_interval is None else not info.sync_interval)
        self.joining.peer_up(info)

    def _peer_down(self, info: NodeInfo) -> None:
        self.network.raft.peer_down(info.peer_id)
        self.joining.peer_down(info)
        for replica in self.replicas.values():
            replica.consumers.moves.move()

    def _meta_is_current(self) -> None:
        if not self.known.current:
            self.known.current = True
            self.network.raft.journal.learn_top(self.meta.machine.next_gid - 1)
            for replica in list(self.replicas.values()):
                replica.open()

    # ---- time

    def _tick(self) -> None:
        if self._stopped:
            return
        self.joining.tick()
        self.parts.roster.look()
        self.meta_rescue.tick()
        self.local.rescues.tick()
        self.local.lone.tick()
        if self.parts.watch.changed():
            self.runtime.rounds.wake_all()
        for gid in self.parts.watch.held():
            self.runtime.rounds.wake(gid)
        self._visit()
        self._guarded(self.local.tick, "assignments")
        self._guarded(self.drift.tick, "drift check")
        self._guarded(self.parts.store_care.tick, "data store")
        self._guarded(lambda: self.services.settings.account_quota.tick([]), "account limits")
        self.network.catchup.tick()
        self.consumer_watch.tick()
        self._guarded(self._report_unassigned, "data of streams that are not placed here")
        self.flusher.tick()
        delay = 0.05 if self.joining.looking else TICK
        self._ticker = self.runtime.timers.call_later(delay, self._tick)

    def _visit(self) -> None:
        """Visits the replicas that are due; of very many a slice, and the others after some other work."""
        if self._stopped:
            return
        rounds = self.runtime.rounds
        visited = [self.replicas[gid] for gid in rounds.due(self.runtime.clock.monotonic())]
        for replica in visited:
            self._tick_of(replica.assignment.gid, replica)
        self._guarded(lambda: self.drift.look(visited), "drift check")
        quota = self.services.settings.account_quota
        self._guarded(lambda: quota.recount([replica.holding() for replica in visited]), "account limits")
        if rounds.under_way and self._visitor is None:
            self._visitor = self.runtime.timers.call_later(SLICE_PAUSE, self._visit_on)

    def _visit_on(self) -> None:
        self._visitor = None
        self._visit()

    def _tick_of(self, gid: int, replica: StreamReplica) -> None:
        self._guarded(lambda: self.local.look_after(gid, replica), replica.assignment.name)

    def _guarded(self, tick: Callable[[], None], what: str) -> None:
        """Runs one part of the tick and logs its errors: the tick must continue when one stream fails."""
        try:
            tick()
        except Exception as error:  # noqa: BLE001
            self.runtime.log.error("tick failed", of=what, error=repr(error))  # noqa: TRY400

    def group_reported(self, gid: int) -> None:
        """Checks a group soon after a report of Raft about it: it may have stopped."""
        self.runtime.timers.call_soon(self._look_at, gid)

    def _look_at(self, gid: int) -> None:
        replica = self.replicas.get(gid)
        group = self.meta.group if gid == META_GROUP else None if replica is None else replica.group
        if group is not None:
            self.parts.store_care.note(group.fault)
        if replica is not None and not self._stopped:
            replica.wake()
            self._tick_of(gid, replica)

    def _report_unassigned(self) -> None:
        """Logs data of streams that are not placed here, once, after the meta group's earlier decisions are applied.
        After a start a new leader's commit index may come later than it: those of which a replica begins then are
        placed here after all."""
        if self.unassigned:
            self.unassigned = tuple(gid for gid in self.unassigned if gid not in self.replicas)
        group = self.meta.group
        if self._unassigned_told or group is None or group.leader is None:
            return
        if group.lacks_state or group.applied_index < group.commit_index:
            return
        self._unassigned_told = True
        self.unassigned = tuple(self.local.orphans.unassigned({*self.replicas, *self.broken}))
        for gid in self.unassigned:
            self.runtime.log.warning("data of a stream that is not placed here is kept, but not used", gid=gid)
