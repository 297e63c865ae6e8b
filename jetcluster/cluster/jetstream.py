"""JetStream on one node: the meta group, the replicas assigned to this node, and the requests between nodes.

This module makes and connects the parts, and runs the tick. `LocalStreams` manages the replicas assigned to this node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from jetcluster.cluster.administration import Administration
from jetcluster.cluster.cluster_id import ClusterId, Save
from jetcluster.cluster.consumer_requests import ConsumerRequests
from jetcluster.cluster.every_node import EveryNode
from jetcluster.cluster.flusher import Flusher
from jetcluster.cluster.health_report import Durability, HealthReport, NodeWatch
from jetcluster.cluster.joining import Joining, Roster
from jetcluster.cluster.leader_reads import LeaderReads, MetaCatchUp
from jetcluster.cluster.local_streams import LocalStreams
from jetcluster.cluster.meta_members import MetaMembers, NodeRegistry
from jetcluster.cluster.meta_replica import MetaReplica
from jetcluster.cluster.meta_rescue import MetaRescue
from jetcluster.cluster.meta_service import MetaService
from jetcluster.cluster.once import NUMBERED
from jetcluster.cluster.orphans import Orphans
from jetcluster.cluster.requests import DEADLINE_SECONDS, ONCE, Body, LeaderRequests, UnderWay, check_wanted
from jetcluster.cluster.restart_safety import RestartSafety
from jetcluster.cluster.scrubber import Scrubber
from jetcluster.cluster.store_care import StoreCare
from jetcluster.cluster.stream_requests import StreamRequests
from jetcluster.health.node_health import Aspect
from jetcluster.mesh.api import NodeInfo
from jetcluster.meta.placement import PlacementRules
from jetcluster.meta.state import (
    Assignment,
    ClusterNamed,
    ClusterRescued,
    Effect,
    NodeChanged,
)
from jetcluster.model.limits import AccountLimits
from jetcluster.raft.api import META_GROUP, NotLeaderError
from jetcluster.replica.consumer_exchange import until
from jetcluster.replica.rounds import TICK, Background
from jetcluster.replica.services import Services
from jetcluster.replica.stream_archives import StreamArchives
from jetcluster.replica.stream_replica import StreamReplica
from jetcluster.stream.apply.applier import FAULTS


class JetStream:
    """The meta group, the streams and the requests of one node, for the API handlers; owns every replica of this node.

    Called from the event loop. The two requests retry while leaders change, for 3.5 s (a request under way for as long
    as it progresses), and then raise ApiError 503/10008; they raise nothing but ApiError.
    """

    def __init__(
        self,
        services: Services,
        replicas: dict[int, StreamReplica],
        *,
        account_limits: Callable[[str], AccountLimits],
        placement_rules: Callable[[], PlacementRules] = PlacementRules,
        expected_nodes: Callable[[], int],
        settled: Callable[[], bool],
        save_cluster: Save = lambda cluster_id, member: None,
        renew_data: Callable[[str], None] = lambda reason: None,
        start_again: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`settled` returns whether each configured route led somewhere (see `bootstrap`). `save_cluster` keeps the
        cluster's id; the kept id is in the mesh's own INFO."""
        runtime, network, known = services.runtime, services.network, services.known
        self.services = services
        self.runtime, self.network, self.known = runtime, network, known
        events, commits = services.events, services.commits
        self.limits = account_limits
        self.clustered = bool(network.cluster_name)
        self.background = Background(runtime.log)
        callbacks = self._on_effects, self._on_meta_leading, self._on_meta_config
        self.meta = MetaReplica(network, commits, known.machine, runtime.log, *callbacks)
        network.catchup.owners[META_GROUP] = self.meta
        self.service = MetaService(
            self.meta.machine,
            clock=runtime.clock,
            propose=self.meta.propose,
            barrier=self.meta.barrier,
            online=lambda: {network.me, *network.mesh.peers},
            well=network.raft.peers.is_well,
            cluster_name=network.cluster_name,
            clustered=self.clustered,
            leader=network.leaders.get,
            rules=placement_rules,
        )
        self.members = MetaMembers(runtime, network, self.meta, self.service)
        self.roster = Roster(network.mesh, network.raft, self.meta, network.leaders.ask)
        self._cluster_id = ClusterId(network.mesh, save_cluster, runtime.log)
        self.replicas = replicas
        self.broken: dict[int, tuple[Assignment, str]] = {}
        """Streams whose replica could not be started here, with the reason; their data is kept (monitoring)."""
        orphans = Orphans(commits.kv, network.raft, runtime.log)
        self.flusher = Flusher(runtime, network, commits, self.meta, replicas, orphans)
        self.restart_safety = RestartSafety(runtime, network, self.meta, replicas)
        held = replicas, self.broken, self.restart_safety, self.background
        self._store_care = StoreCare(runtime, network, commits, *held, renew_data, start_again)
        self.local = LocalStreams(
            services,
            replicas,
            self.broken,
            self.meta,
            self.service,
            self.background,
            orphans,
            self.flusher,
            ask_meta=self.meta_request,
            ask_stream=self.stream_request,
            unreadable=self._store_care.note,
        )
        self.consumers = self.local.exchange
        self.drift = self.local.drift
        commits.on_due = self.flusher.tick
        consumers = ConsumerRequests(runtime, self.consumers)
        archives = StreamArchives(commits.kv, runtime.clock, runtime.rng, runtime.budget)
        self._streams = StreamRequests(runtime, network, self.replicas, archives, consumers)
        asked = (network.mesh, network.leaders, runtime.clock)
        self._meta_requests = LeaderRequests("meta", *asked, self._meta_handler, runtime.log)
        self._stream_requests = LeaderRequests("stream", *asked, self._streams.handle, runtime.log, runtime.budget)
        self.administration = Administration(
            runtime, network, events, self.meta, self.service, self.replicas, self.stream_request
        )
        self.registry = NodeRegistry(
            runtime, network, events, self.meta, self.service, self.members, self._cluster_id, self.administration
        )
        self.meta_rescue = MetaRescue(runtime, network, events, self.meta, self.flusher)
        self.rescue_meta = self.meta_rescue.rescue
        self.scrubber = Scrubber(commits.kv, runtime.clock, runtime.timers, runtime.log, self.replicas)
        self.health_report = HealthReport(runtime, network, events, self.replicas)
        self.durability = Durability(network.mesh, runtime.log)
        self.joining = Joining(
            runtime,
            network,
            self.meta,
            self.members,
            self._cluster_id,
            self.background,
            expected_nodes=expected_nodes,
            settled=settled,
            roster=self.roster,
        )
        health = network.raft.health
        health.watch(Aspect.SPACE, lambda: commits.failing if commits.full else "")
        health.watch(Aspect.SPACE, services.settings.account_quota.trouble)
        health.watch(Aspect.STORE, lambda: "" if commits.full else commits.failing)
        health.watch(Aspect.STORE, commits.kv.trouble)
        self._watch = NodeWatch(network.mesh, network.raft, runtime.clock, runtime.pulse)
        LeaderReads(network.mesh, self.meta, self.replicas)
        every_node = EveryNode(network.mesh, runtime.clock, runtime.log, self.meta, self.replicas)
        self.settle, self.used, self.used_by_tier = every_node.settle, every_node.used, every_node.used_by_tier
        network.mesh.on_peers(self._peer_up, self._peer_down)
        self.unassigned: tuple[int, ...] = ()
        """Ids of streams that have data here but are not placed here by the meta group (monitoring)."""
        self._unassigned_told = False
        self._new = False
        """True on the first start with this store, which has no streams."""
        self._ticker: Any = None
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
        if self._ticker is not None:
            self._ticker.cancel()
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

    def assignments(self, account: str) -> list[Assignment]:
        return self.meta.machine.assignments(account)

    def mirrors_of(self, account: str, name: str) -> list[str]:
        """Returns the sorted names of the account's streams that mirror its stream `name`."""
        links = ((a.name, a.config.get("mirror")) for a in self.assignments(account))
        return [stream for stream, mirror in links if mirror and mirror["name"] == name and not mirror.get("external")]

    async def meta_request(self, kind: str, body: Body) -> Body:
        """Runs `MetaService.handle` on the meta leader; a retry sends the same `body["request"]`. Raises ApiError."""
        self.joining.check_member()
        return await self._meta_requests.ask(META_GROUP, kind, body)

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
        return await self._stream_requests.ask(assignment.gid, kind, body, seconds, under_way)

    # ---- meta group

    async def _meta_handler(self, gid: int, kind: str, body: Body) -> Body:
        if not self.meta.leading:
            raise NotLeaderError(self.meta.group.leader if self.meta.group is not None else None)
        if kind == "stream_create":
            await self.registry.register_missing()  # a node that just joined must count for the placement
        administer = self.administration.handlers.get(kind) or self.local.rescues.handlers.get(kind)
        if administer is None:
            return await self.service.handle(kind, body)
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
            self._cluster_id.confirm(effect.cluster_id)
            self.joining.announce()
        elif isinstance(effect, NodeChanged):
            self.network.mesh.check_keys()
        elif isinstance(effect, ClusterRescued):
            self.meta_rescue.applied(effect.rescue)
        else:
            self.local.take(effect)

    def _on_meta_leading(self, leading: bool) -> None:
        if leading:
            self._meta_is_current()
        self.joining.announce()
        if leading and self.meta.group is not None:
            self.background.spawn(self.registry.keep(self.meta.group.term))

    def _on_meta_config(self) -> None:
        """Announces the members anew: peers may lag, and not know a new member yet."""
        self.runtime.timers.call_soon(self.joining.announce)

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
        self.roster.look()
        self.meta_rescue.tick()
        self.local.rescues.tick()
        self.local.lone.tick()
        if self._watch.changed():
            self.runtime.rounds.wake_all()
        stirred = [self.replicas[gid] for gid in self.runtime.rounds.due(self.runtime.clock.monotonic())]
        for replica in stirred:
            self._tick_of(replica.assignment.gid, replica)
        self._guarded(self.local.tick, "assignments")
        self._guarded(self.drift.tick, "drift check")
        self._guarded(self._store_care.tick, "data store")
        self._guarded(
            lambda: self.services.settings.account_quota.tick([replica.holding() for replica in stirred]),
            "account limits",
        )
        self.network.catchup.tick()
        self._guarded(self._report_unassigned, "data of streams that are not placed here")
        self.flusher.tick()
        delay = 0.05 if self.joining.looking else TICK
        self._ticker = self.runtime.timers.call_later(delay, self._tick)

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
            self._store_care.note(group.fault)
        if replica is not None and not self._stopped:
            replica.wake()
            self._tick_of(gid, replica)

    def _report_unassigned(self) -> None:
        """Logs data of streams that are not placed here, once, after the meta group's earlier decisions are applied."""
        group = self.meta.group
        if self._unassigned_told or group is None or group.leader is None:
            return
        if group.lacks_state or group.applied_index < group.commit_index:
            return
        self._unassigned_told = True
        self.unassigned = tuple(self.local.orphans.unassigned({*self.replicas, *self.broken}))
        for gid in self.unassigned:
            self.runtime.log.warning("data of a stream that is not placed here is kept, but not used", gid=gid)
