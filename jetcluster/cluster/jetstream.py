"""JetStream on one node: the meta group, the replicas assigned to this node, and the requests between nodes.

What is assigned follows the meta group's effects: a replica starts when a stream is assigned here, takes over a changed
configuration, and its data goes only when the meta log says that the stream was deleted, never because something seems
to be missing (docs/architecture.md).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from typing import Any

from jetcluster.cluster.bootstrap import Announcement, Bootstrap, Verdict
from jetcluster.cluster.catchup import SnapshotOwner
from jetcluster.cluster.cluster_id import ClusterId, Save, founded
from jetcluster.cluster.context import NodeContext
from jetcluster.cluster.drift import DriftCheck
from jetcluster.cluster.leftovers import Leftovers
from jetcluster.cluster.members import MetaMembers
from jetcluster.cluster.mesh_api import MeshError, NodeInfo
from jetcluster.cluster.meta_replica import MetaReplica
from jetcluster.cluster.meta_service import MetaService
from jetcluster.cluster.meta_state import (
    Assignment,
    ClusterNamed,
    Effect,
    Node,
    StreamAssigned,
    StreamRemoved,
    StreamUpdated,
)
from jetcluster.cluster.proposals import OutcomeUnknownError
from jetcluster.cluster.read_group import COMMIT_METHOD
from jetcluster.cluster.requests import Body, LeaderRequests
from jetcluster.cluster.stream_replica import StreamReplica
from jetcluster.cluster.stream_requests import StreamRequests
from jetcluster.errors import ApiError
from jetcluster.model.limits import AccountLimits
from jetcluster.raft.api import META_GROUP, NotLeaderError, RaftError, RaftGroup
from jetcluster.store.kv import KvError

TICK = 0.25
FLUSH_SECONDS = 30.0
"""Longest time between flushes of dirty data; what is older is not replayed after a crash."""
FLUSH_PAUSE = 1.0
"""At least so long between two flushes that the journal's size asks for."""
BOOT_NOTICE = "boot"
JOIN_METHOD = "meta.join"
SETTLE_METHOD = "meta.settle"
SETTLE_SECONDS = 2.0
USED_METHOD = "store.used"
JOIN_RETRY = 0.5
META_RETRY = 0.1
REGISTER_RETRY = 0.5

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_USED = struct.Struct("<QQ")


class JetStream:
    """`api.cluster.Cluster` for the API handlers; owns every replica of this node."""

    def __init__(
        self,
        context: NodeContext,
        owners: dict[int, SnapshotOwner],
        *,
        limits: Callable[[str], AccountLimits],
        clustered: bool,
        expected_nodes: Callable[[], int],
        settled: Callable[[], bool],
        save_cluster: Save = lambda cluster_id, member: None,
    ) -> None:
        """`owners` is the table that `context.catchup` serves from. `settled` tells whether every configured route led
        somewhere (see `bootstrap`). `save_cluster` keeps the cluster's id; the one that was kept is in the mesh's own
        INFO."""
        self.context = context
        self.replicas: dict[int, StreamReplica] = {}
        self.broken: dict[int, tuple[Assignment, str]] = {}
        """Streams whose replica could not be started here, and why; their data is left alone (monitoring)."""
        self.unassigned: tuple[int, ...] = ()
        """Ids of streams that have data here, and that the meta group does not place here (monitoring)."""
        self._leftovers = Leftovers(context.kv, context.raft)
        self._owners = owners
        self._limits = limits
        self.clustered = clustered
        self._expected_nodes = expected_nodes
        self._settled = settled
        self.meta = MetaReplica(context, self._on_effects, self._on_meta_leading)
        self.service = MetaService(
            self.meta.machine,
            clock=context.clock,
            propose=self.meta.propose,
            barrier=self.meta.barrier,
            online=lambda: {context.me, *context.mesh.peers},
            cluster_name=context.cluster_name,
            clustered=clustered,
            leader=context.leaders.get,
        )
        self.members = MetaMembers(context, self.meta, self.service)
        self._cluster_id = ClusterId(context.mesh, save_cluster, context.log)
        self._meta_requests = LeaderRequests(
            "meta", context.mesh, context.leaders, context.clock, self._meta_handler, context.log
        )
        self._streams = StreamRequests(context, self.replicas)
        self._stream_requests = LeaderRequests(
            "stream", context.mesh, context.leaders, context.clock, self._streams.handle, context.log
        )
        self._owners[META_GROUP] = self.meta
        self.drift = DriftCheck(context, self.replicas)
        self._boot: Bootstrap | None = None
        self._joining: asyncio.Task[None] | None = None
        self._retiring: set[int] = set()
        self._blocked: set[int] = set()
        """Streams assigned here whose earlier replica is not yet gone for good (`leftovers`)."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticker: Any = None
        self._last_flush = context.clock.monotonic()
        self._registering = asyncio.Lock()
        self._flush_soon = False
        self._flush_failing = False
        self._unassigned_told = False
        self._flushing: asyncio.Task[None] | None = None
        self._stopped = False
        context.mesh.serve(COMMIT_METHOD, self._serve_commit)
        context.mesh.serve(JOIN_METHOD, self._serve_join)
        context.mesh.serve(SETTLE_METHOD, self._serve_settle)
        context.mesh.serve(USED_METHOD, self._serve_used)
        context.mesh.on_notice(BOOT_NOTICE, self._on_announcement)
        context.mesh.on_peers(self._peer_up, self._peer_down)

    # ---- lifecycle

    def start(self) -> None:
        """Continues where the store stands; a new node begins to look for its cluster."""
        if self.context.raft.knows(META_GROUP):
            # A single server knows its members even where the journal has lost them; a member of a cluster asks.
            self.meta.start(() if self.clustered else (self.context.me,))
            assert self.meta.group is not None
            if self.clustered and self.context.me not in self.meta.group.peers:
                self._start_to_join()  # the last life ended before it was counted in
        elif not self.clustered:
            self.meta.start((self.context.me,))
        else:
            self._boot = Bootstrap(self.context.me, self._expected_nodes(), self.context.clock.monotonic())
            self._boot.member_of = self._cluster_id.value
        if self.meta.machine.cluster_id:
            self._cluster_id.confirm(self.meta.machine.cluster_id)
        for assignment in self.meta.machine.all_assignments():
            self._assigned(assignment)
        self._spawn(self._catch_up_with_meta())
        self._tick()

    async def stop(self) -> None:
        """Hands leaderships over where it can, makes everything durable and closes the replicas."""
        self._stopped = True
        if self._ticker is not None:
            self._ticker.cancel()
        await self.context.catchup.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for replica in self.replicas.values():
            replica.stop()
        self.meta.stop()
        if self._flushing is not None:
            await asyncio.gather(self._flushing, return_exceptions=True)
        await self._flush()
        self.context.turn_commit.stop()

    async def transfer_leaderships(self, seconds: float = 2.0) -> None:
        """Lame duck: lets other nodes lead what this one leads, as far as they can within `seconds`."""
        end = self.context.clock.monotonic() + seconds
        while self.context.clock.monotonic() < end:
            groups = [r.group for r in self.replicas.values() if r.leading and len(r.group.peers) > 1]
            if self.meta.group is not None and self.meta.leading and len(self.meta.group.peers) > 1:
                groups.append(self.meta.group)
            if not groups:
                return
            for group in groups:
                group.transfer()
            await asyncio.sleep(0.05)

    # ---- api.cluster.Cluster

    @property
    def server_name(self) -> str:
        return self.context.name

    @property
    def domain(self) -> str:
        return self.context.domain

    def limits(self, account: str) -> AccountLimits:
        return self._limits(account)

    def assignment(self, account: str, name: str) -> Assignment | None:
        return self.meta.machine.assignment(account, name)

    def assignments(self, account: str) -> list[Assignment]:
        return self.meta.machine.assignments(account)

    async def meta_request(self, kind: str, body: Body) -> Body:
        """Runs `MetaService.handle` on the meta leader. Raises ApiError."""
        return await self._meta_requests.ask(META_GROUP, kind, body)

    async def stream_request(self, assignment: Assignment, kind: str, body: Body) -> Body:
        """Runs `StreamRequests.handle` on the stream's leader. Raises ApiError."""
        return await self._stream_requests.ask(assignment.gid, kind, body)

    async def settle(self, revision: int) -> None:
        """Returns when every connected node has applied `revision` of the meta log, or after about 2 s."""
        peers = (self.context.me, *self.context.mesh.peers)
        payload = _U64.pack(revision)
        calls = (self.context.mesh.call(peer, SETTLE_METHOD, payload, SETTLE_SECONDS) for peer in peers)
        await asyncio.gather(*calls, return_exceptions=True)

    async def used(self, account: str) -> tuple[int, int]:
        """Bytes of the account's memory and file streams on all reachable nodes."""
        peers = (self.context.me, *self.context.mesh.peers)
        calls = (self.context.mesh.call(peer, USED_METHOD, account.encode(), 2.0) for peer in peers)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        found = [_USED.unpack(answer) for answer in answers if isinstance(answer, bytes)]
        return sum(memory for memory, _ in found), sum(file for _, file in found)

    async def _serve_settle(self, peer: str, payload: bytes) -> bytes:
        (revision,) = _U64.unpack(payload)
        end = self.context.clock.monotonic() + SETTLE_SECONDS
        while True:
            if self.meta.machine.applied_index >= revision or self.context.clock.monotonic() >= end:
                return b""
            await asyncio.sleep(0.005)

    async def _serve_used(self, peer: str, payload: bytes) -> bytes:
        used = {True: 0, False: 0}
        for replica in self.replicas.values():
            if replica.assignment.account == payload.decode():
                used[replica.assignment.memory] += replica.store.state.bytes
        return _USED.pack(used[True], used[False])

    # ---- meta group

    async def _meta_handler(self, gid: int, kind: str, body: Body) -> Body:
        if not self.meta.leading:
            raise NotLeaderError(self.meta.group.leader if self.meta.group is not None else None)
        if kind == "stream_create":
            await self._register_missing()  # a node that joined a moment ago counts for the placement
        return await self.service.handle(kind, body)

    def _on_effects(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StreamAssigned):
                self._assigned(effect.assignment)
            elif isinstance(effect, StreamUpdated):
                self._updated(effect.assignment)
            elif isinstance(effect, StreamRemoved):
                self._removed(effect.assignment)
            elif isinstance(effect, ClusterNamed):
                self._cluster_id.confirm(effect.cluster_id)
                self._announce()

    def _assigned(self, assignment: Assignment) -> None:
        """Never raises: one stream's trouble must not stop the meta group of the node."""
        gid = assignment.gid
        if gid in self.replicas or gid in self.broken:
            return
        if self._leftovers.is_deleted(gid):
            self._blocked.add(gid)
            return
        if self.context.me not in assignment.peers and not self.context.raft.knows(gid):
            return
        try:
            replica = StreamReplica(self.context, assignment)
        except Exception as error:  # noqa: BLE001 - damage, disk trouble, a defect: the other streams go on
            self.broken[gid] = (assignment, str(error) or repr(error))
            self.context.raft.stop_group(gid)
            text = self.broken[gid][1]
            self.context.log.error("stream cannot be started", stream=assignment.name, error=text)  # noqa: TRY400
            return
        self.replicas[gid] = replica
        self._owners[gid] = replica

    def _updated(self, assignment: Assignment) -> None:
        replica = self.replicas.get(assignment.gid)
        if replica is not None:
            replica.update(assignment)
        else:
            self._assigned(assignment)  # in the place of a node that is gone

    def _removed(self, assignment: Assignment) -> None:
        """Order of what follows, and what a crash leaves: see `leftovers`."""
        gid = assignment.gid
        replica = self.replicas.pop(gid, None)
        self._owners.pop(gid, None)
        self.broken.pop(gid, None)
        self.context.catchup.forget(gid)
        self.drift.forget(gid)
        self.context.leaders.forget(gid)
        if replica is not None:
            replica.stop()
            self.context.raft.stop_group(gid)
            replica.store.remove()
        if replica is not None or self.context.me in assignment.peers:
            self._leftovers.delete(gid, self.meta.machine.applied_index)
            self.context.turn_commit.mark()
            self._flush_soon = True

    async def _retire(self, replica: StreamReplica) -> None:
        """Lets a replica go whose place is elsewhere now, once its group counts on it no more, and is whole."""
        gid, last = replica.assignment.gid, replica.group.last_index
        try:
            answer = await self.stream_request(replica.assignment, "members", {})
        except ApiError:
            return  # without a leader nobody can say: the next tick asks again
        finally:
            self._retiring.discard(gid)
        # Whoever was taken in again meanwhile has heard of it through the log.
        unchanged = self.replicas.get(gid) is replica and replica.retiring and replica.group.last_index == last
        whole = set(replica.assignment.peers) <= set(answer["voters"])
        if unchanged and whole and self.context.me not in (*answer["voters"], *answer["learners"]):
            self.context.log.info("stream has moved away", stream=replica.assignment.name)
            hint = self.context.leaders.hint(gid)
            self._removed(replica.assignment)
            if hint is not None:
                self.context.leaders.follow(gid, *hint)

    def _tend_assignments(self) -> None:
        for gid, replica in self.replicas.items():
            if replica.retiring and gid not in self._retiring:
                self._retiring.add(gid)
                self._spawn(self._retire(replica))
        self._flush_soon |= bool(self._blocked)  # each flush takes a tombstone one step further
        for gid in list(self._blocked):
            if not self._leftovers.is_deleted(gid):
                self._blocked.discard(gid)
                assignment = self.meta.machine.by_gid(gid)
                if assignment is not None:
                    self._assigned(assignment)

    def _is_of_before(self, gid: int) -> bool:
        """Does the meta state still assign what a tombstone says is gone?"""
        assignment = self.meta.machine.by_gid(gid)
        if assignment is None or self.context.me not in assignment.peers:
            return False
        return assignment.revision <= self._leftovers.revision(gid)

    def _on_meta_leading(self, leading: bool) -> None:
        if leading:
            self._meta_is_current()
        self._announce()
        if leading and self.meta.group is not None:
            self._spawn(self._register_nodes(self.meta.group.term))

    async def _register_nodes(self, term: int) -> None:
        """The meta leader keeps the list of nodes: placement works from it. Ends with the leader's term."""
        while self.meta.group is not None and self.meta.leading and self.meta.group.term == term:
            try:
                await self._register_missing()
                await self.members.replace_lost()
            except (ApiError, RaftError, OutcomeUnknownError) as error:
                self.context.log.debug("a node is not registered yet", error=str(error))
            await asyncio.sleep(REGISTER_RETRY)

    async def _register_missing(self) -> None:
        """Puts connected members of the meta group that are new, or say something new of themselves, into the list."""
        async with self._registering:
            if not self.meta.machine.cluster_id:
                await self._name_cluster()
            for info in (self.context.mesh.me, *self.context.mesh.peers.values()):
                now = Node(info.peer_id, info.name, tuple(info.tags), info.jetstream)
                if self.meta.machine.nodes.get(info.peer_id) == now:
                    continue
                if self.meta.group is not None and info.peer_id in self.meta.group.peers:
                    await self.service.handle("node", {"request": self.context.rng.token(8).hex(), **now.to_dict()})

    async def _name_cluster(self) -> None:
        assert self.meta.group is not None
        cluster_id = self._cluster_id.value or founded(self.context.cluster_name, self.meta.group.peers)
        await self.service.handle("cluster", {"request": self.context.rng.token(8).hex(), "id": cluster_id})

    # ---- bootstrap

    def _announcement(self) -> Announcement:
        known = tuple(sorted({self.context.me, *self.context.mesh.peers}))
        meta = self.meta.group.peers if self.meta.group is not None else ()
        return Announcement(known, self._settled(), meta, self._cluster_id.value)

    def _announce(self, peer: str | None = None) -> None:
        if self.clustered:
            self.context.mesh.notify(peer, BOOT_NOTICE, self._announcement().encode())

    def _on_announcement(self, peer: str, payload: bytes) -> None:
        try:
            announced = Announcement.decode(payload)
        except ValueError as error:
            self.context.log.warning("malformed announcement", peer=peer, error=str(error))
            return
        if self._boot is not None:
            self._boot.announcements[peer] = announced
        elif announced.meta_peers and self.context.me not in announced.meta_peers:
            self._left_out()

    def _left_out(self) -> None:
        """The cluster goes on without this node, whose own log may not know it: it was replaced while it was away."""
        if self.clustered and self._joining is None and self.meta.group is not None and self.meta.group.leader is None:
            self._start_to_join()

    def _start_to_join(self) -> None:
        self._joining = self._spawn(self._join())
        self._joining.add_done_callback(lambda _: setattr(self, "_joining", None))

    def _peer_up(self, info: NodeInfo) -> None:
        self.members.seen(info)
        self.context.raft.peer_up(info.peer_id)
        self._announce()

    def _peer_down(self, info: NodeInfo) -> None:
        self.context.raft.peer_down(info.peer_id)
        if self._boot is not None:
            self._boot.announcements.pop(info.peer_id, None)
        self._announce()

    def _look_for_cluster(self) -> None:
        assert self._boot is not None
        self._announce()
        self._boot.expected = self._expected_nodes()
        now, mine = self.context.clock.monotonic(), self._announcement()
        verdict, peers, cluster_id = self._boot.decide(mine, now)
        if verdict is Verdict.WAIT:
            if complaint := self._boot.complaint(mine, now):
                self.context.log.warning(complaint)
            return
        self._boot = None
        # Before the first frame of the group: what comes from another cluster must not reach it.
        if verdict is Verdict.CREATE:
            self._cluster_id.found(founded(self.context.cluster_name, peers))
        else:
            self._cluster_id.join(cluster_id)
        self.meta.start(peers)
        if verdict is Verdict.JOIN:
            self.context.log.info("JetStream joins the cluster", peers=len(peers))
            self._start_to_join()
        else:
            self.context.log.info("JetStream cluster starts", peers=len(peers))

    async def _join(self) -> None:
        """Asks the running cluster to count this node in; it follows as a learner until it is promoted."""
        while not self._stopped:
            group = self.meta.group
            assert group is not None
            if self.context.me in group.peers and group.leader is not None:
                return
            for peer in self.context.mesh.peers:
                try:
                    await self.context.mesh.call(peer, JOIN_METHOD, self.context.me.encode(), 2.0)
                except MeshError:
                    continue
            await asyncio.sleep(JOIN_RETRY)

    async def _serve_join(self, peer: str, payload: bytes) -> bytes:
        """Only the meta leader acts; anybody else answers without doing anything."""
        try:
            self.members.admit(peer)
        except RaftError as error:
            raise MeshError(str(error)) from error
        return b""

    def _meta_is_current(self) -> None:
        if not self.context.meta_current:
            self.context.meta_current = True
            for replica in list(self.replicas.values()):
                replica.open()

    async def _catch_up_with_meta(self) -> None:
        """Until this node has applied what the meta leader had committed when asked. Streams that were deleted while
        this node's last meta state was not flushed yet would else take publishes once more, and lose them."""
        commit: int | None = None
        while not self.context.meta_current:
            if commit is None:
                commit = await self._commit_of_meta()
            elif self._applied_meta() >= commit:
                self._meta_is_current()
            else:
                await asyncio.sleep(0.005)

    async def _commit_of_meta(self) -> int | None:
        """The meta group's commit index, from its leader; None, after a moment, when that cannot be had now."""
        leader = self.context.leaders.get(META_GROUP)
        if leader is None or leader == self.context.me:
            await self.context.leaders.wait(META_GROUP, META_RETRY)
            return None
        try:
            reply = await self.context.mesh.call(leader, COMMIT_METHOD, _U32.pack(META_GROUP), 2.0)
            (commit,) = _U64.unpack(reply)
        except (MeshError, struct.error):
            await asyncio.sleep(META_RETRY)
            return None
        return int(commit)

    def _applied_meta(self) -> int:
        return self.meta.group.applied_index if self.meta.group is not None else 0

    async def _serve_commit(self, peer: str, payload: bytes) -> bytes:
        """The commit index of a group that this node leads, proven to be current."""
        (gid,) = _U32.unpack(payload)
        if gid == META_GROUP:
            try:
                await self.meta.barrier()
            except (RaftError, OutcomeUnknownError) as error:
                raise MeshError(str(error)) from error
            assert self.meta.group is not None
            return _U64.pack(self.meta.group.commit_index)
        replica = self.replicas.get(gid)
        if replica is None or not await replica.confirm_leadership():
            raise MeshError(f"not the leader of group {gid}")
        return _U64.pack(replica.group.commit_index)

    # ---- time

    def _tick(self) -> None:
        if self._stopped:
            return
        if self._boot is not None:
            self._look_for_cluster()
        for replica in self.replicas.values():
            self._guarded(replica.tick, replica.assignment.name)
        self._guarded(self._tend_assignments, "assignments")
        self._guarded(self.drift.tick, "drift check")
        self.context.catchup.tick()
        self._report_unassigned()
        self._flush_when_due()
        delay = 0.05 if self._boot is not None else TICK
        self._ticker = self.context.timers.call_later(delay, self._tick)

    def _guarded(self, tick: Callable[[], None], what: str) -> None:
        """The clock of the node goes on whatever happens in one stream."""
        try:
            tick()
        except Exception as error:  # noqa: BLE001
            self.context.log.error("tick failed", of=what, error=repr(error))  # noqa: TRY400

    def group_reported(self, gid: int) -> None:
        """Raft has something to say about a group: it may have stopped."""
        self.context.timers.call_soon(self._look_at, gid)

    def _look_at(self, gid: int) -> None:
        replica = self.replicas.get(gid)
        if replica is not None and not self._stopped:
            self._guarded(replica.tick, replica.assignment.name)

    def _report_unassigned(self) -> None:
        """Once, when this node has applied what the meta group had decided so far."""
        group = self.meta.group
        if self._unassigned_told or group is None or group.leader is None or group.applied_index < group.commit_index:
            return
        self._unassigned_told = True
        self.unassigned = tuple(self._leftovers.unassigned({*self.replicas, *self.broken}))
        for gid in self.unassigned:
            self.context.log.warning("data of a stream that is not placed here is kept, but not used", gid=gid)

    def _flush_when_due(self) -> None:
        waited = self.context.clock.monotonic() - self._last_flush
        asked = self.context.raft.wants_compaction or self.context.kv.wants_flush
        wanted = self._flush_soon or (asked and waited >= FLUSH_PAUSE)
        if wanted or waited >= FLUSH_SECONDS:
            self.request_flush()

    def request_flush(self) -> None:
        if self._flushing is None or self._flushing.done():
            self._last_flush = self.context.clock.monotonic()
            self._flush_soon = False
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        """Never raises. The journal forgets nothing that is not durable in the store."""
        self.meta.save()
        forget_deleted = self._leftovers.settle(self._is_of_before)
        marks = self._marks()
        try:
            await self.context.kv.flush()
        except KvError as error:
            if not self._flush_failing:
                text = "the data store cannot be flushed; the journal keeps all"
                self.context.log.error(text, error=str(error))  # noqa: TRY400
            self._flush_failing = True
            return
        self._flush_failing = False
        forget_deleted()
        for group, index in marks:
            replica = self.replicas.get(group.gid)
            if replica is None or not replica.installing:
                group.compact(index)

    def _marks(self) -> list[tuple[RaftGroup, int]]:
        """What the journal may forget once everything of this moment is durable."""
        marks = [(replica.group, replica.machine.applied_index) for replica in self.replicas.values() if replica.sound]
        if self.meta.group is not None:
            marks.append((self.meta.group, self.meta.machine.applied_index))
        return marks

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.context.log.error("a background task failed", error=repr(error))
