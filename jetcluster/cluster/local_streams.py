"""`LocalStreams`: the replicas that the meta group places on this node, and the effects of its decisions on them.

A replica starts when a stream is assigned here, and takes over changed configurations. Its data is deleted only when
the meta log records that the stream was deleted or has moved, never by inference (docs/architecture.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from jetcluster.budget import BusyError, Steps
from jetcluster.cluster.consumer_requests import Ask, ConsumerExpiry
from jetcluster.cluster.flusher import Flusher
from jetcluster.cluster.lone_replicas import LoneReplicas
from jetcluster.cluster.meta_replica import MetaReplica
from jetcluster.cluster.meta_service import MetaService
from jetcluster.cluster.orphans import Orphans
from jetcluster.cluster.requests import Body
from jetcluster.cluster.stream_rescue import StreamRescues
from jetcluster.errors import ApiError
from jetcluster.meta.state import Assignment, Effect, StreamAssigned, StreamRemoved, StreamUpdated
from jetcluster.model.advisory import consumer_action
from jetcluster.replica.consumer_exchange import ConsumerExchange
from jetcluster.replica.consumer_host import ConsumerHost
from jetcluster.replica.drift import DriftCheck, HashVotes
from jetcluster.replica.members import may_retire
from jetcluster.replica.reads.membership import LAST
from jetcluster.replica.rounds import Background
from jetcluster.replica.services import Services
from jetcluster.replica.stream_replica import StreamReplica

EVENTS_PER_STEP: Final = 64
"""Advisories about a deleted stream's consumers, of which there may be very many, until others have a turn."""


class LocalStreams:
    """Starts, updates and removes the replicas of this node. `unreadable` takes the error of a failed start."""

    def __init__(
        self, services: Services, replicas: dict[int, StreamReplica], broken: dict[int, tuple[Assignment, str]],
        meta: MetaReplica, service: MetaService, background: Background, orphans: Orphans, flusher: Flusher, *,
        ask_meta: Callable[[str, Body], Awaitable[Body]], ask_stream: Ask, unreadable: Callable[[Exception, int], None],
    ) -> None:  # fmt: skip
        runtime, network, commits, known = services.runtime, services.network, services.commits, services.known
        self.replicas = replicas
        self.broken = broken
        self.owners = network.catchup.owners
        self.orphans = orphans
        self.expiry = ConsumerExpiry(self.replicas, ask_stream, background)
        self.exchange = ConsumerExchange(runtime, network, commits, self._consumer_host, self.expiry.look)
        votes = HashVotes(runtime, network, self.replicas, background)
        self.drift = DriftCheck(runtime, network, self.replicas, votes)
        self.rescues = StreamRescues(runtime, network, known, meta, service, ask_meta, background, self.broken)
        self.lone = LoneReplicas(runtime, network, known, meta, self.replicas, background)
        self._services = services
        self._runtime, self._network = runtime, network
        self._commits = commits
        self._quota = services.settings.account_quota
        self._meta = meta
        self._background = background
        self._ask_stream = ask_stream
        self._flusher = flusher
        self._unreadable = unreadable
        self._retiring: set[int] = set()
        self._blocked: set[int] = set()
        """Streams assigned here whose earlier replica is not removed yet (`cluster.orphans`)."""

    def start(self) -> None:
        """Starts the replicas that the stored state of the meta group places here."""
        for assignment in self._meta.machine.all_assignments():
            self._assigned(assignment)

    def tick(self) -> None:
        """Starts streams that waited for the removal of an earlier replica."""
        if self._blocked:
            self._flusher.soon = True  # each flush advances a tombstone by one step
        for gid in list(self._blocked):
            if not self.orphans.is_deleted(gid):
                self._blocked.discard(gid)
                assignment = self._meta.machine.by_gid(gid)
                if assignment is not None:
                    self._assigned(assignment)

    def look_after(self, gid: int, replica: StreamReplica) -> None:
        """Ticks one replica, which then rests for as long as it asks to."""
        rest = replica.tick()
        if replica.retiring and gid not in self._retiring:
            self._retiring.add(gid)
            self._background.spawn(self._retire(replica))
        self.expiry.look(gid)
        self._runtime.rounds.rest(gid, self._runtime.clock.monotonic(), rest)

    def take(self, effect: Effect) -> None:
        """Carries out a decision of the meta group about a stream; ignores other effects."""
        if isinstance(effect, StreamAssigned):
            self._assigned(effect.assignment)
        elif isinstance(effect, StreamUpdated):
            if effect.assignment.rescue > effect.previous.rescue:
                self._rescued(effect.assignment)
            self._updated(effect.assignment)
        elif isinstance(effect, StreamRemoved):
            self._removed(effect.assignment, deleted=True)
        if isinstance(effect, StreamAssigned | StreamRemoved) and effect.assignment.name == LAST:
            for replica in self.replicas.values():
                replica.reads.take_alias()

    def _assigned(self, assignment: Assignment) -> None:
        """Starts the replica of a stream assigned here. Never raises: one stream must not stop the meta group."""
        gid = assignment.gid
        if gid in self.replicas:
            return
        if self.orphans.is_deleted(gid):
            self._blocked.add(gid)
            return
        if self._network.me not in assignment.peers and not self._network.raft.knows(gid):
            return
        if self.rescues.holds(assignment) or gid in self.broken:
            return
        try:
            replica = StreamReplica(self._services, assignment, self.exchange)
        except Exception as error:  # noqa: BLE001 - damage, disk errors, a defect: the other streams continue
            self.broken[gid] = (assignment, str(error) or repr(error))
            self._network.raft.stop_group(gid)
            self._unreadable(error, gid)
            text = "stream cannot be started"
            self._runtime.log.error(text, stream=assignment.name, error=self.broken[gid][1])  # noqa: TRY400
            return
        self.replicas[gid] = replica
        self.owners[gid] = replica
        self._runtime.rounds.add(gid, replica.set_resting)
        self.lone.watch(gid)

    def _consumer_host(self, gid: int) -> ConsumerHost | None:
        replica = self.replicas.get(gid)
        return replica.consumers if replica is not None else None

    def _updated(self, assignment: Assignment) -> None:
        replica = self.replicas.get(assignment.gid)
        if replica is not None:
            replica.update(assignment)
        else:
            self._assigned(assignment)  # assigned here in the place of another node

    def _rescued(self, assignment: Assignment) -> None:
        """Gives up this node's replica when the meta log keeps another one that a rescue chose."""
        if self.rescues.outdated(assignment):
            self._runtime.log.warning(
                "the stream was rescued elsewhere: this server's replica is of before, and is given up",
                stream=assignment.name, number=assignment.rescue,
            )  # fmt: skip
            self._removed(assignment, deleted=False, revision=assignment.revision - 1)

    def _removed(self, assignment: Assignment, *, deleted: bool, revision: int | None = None) -> None:
        """Removes a replica; `orphans` has the order of the steps, and what a crash leaves. `revision`: only
        assignments up to it mean the replica to remove."""
        gid = assignment.gid
        replica = self.replicas.pop(gid, None)
        self.owners.pop(gid, None)
        self.broken.pop(gid, None)
        self._network.catchup.forget(gid)
        self.drift.forget(gid)
        self._network.leaders.forget(gid)
        self.rescues.forget(gid)
        if replica is not None:
            self._runtime.rounds.remove(gid)
            self._quota.forget(gid)
            if deleted and replica.leading:
                self._tell_of_consumers(replica)
            replica.stop(deleted=deleted)
            self._network.raft.stop_group(gid)
            replica.store.remove()
        if replica is not None or self._network.me in assignment.peers or revision is not None:
            self.orphans.delete(gid, self._meta.machine.applied_index if revision is None else revision)
            self._commits.mark()
            self._flusher.soon = True

    def _tell_of_consumers(self, replica: StreamReplica) -> None:
        """Tells that the consumers of a deleted stream are deleted with it, in turns with other work."""

        def steps() -> Steps[None]:
            account, stream = replica.assignment.account, replica.assignment.name
            for number, state in enumerate(states, 1):
                if not state.rules.direct:
                    replica.events.tell(account, consumer_action(stream, state.name, "delete"))
                if number % EVENTS_PER_STEP == 0:
                    yield

        def failed(error: Exception) -> None:
            self._runtime.log.error("consumers of a deleted stream are not told of", error=repr(error))

        states = list(replica.consumers.table.by_name.values())
        with contextlib.suppress(BusyError):  # nobody waits for these
            self._runtime.budget.start(replica.assignment.account, steps(), lambda _: None, failed, at_once=False)

    def _is_in_vain(self, replica: StreamReplica) -> bool:
        """True for a replica that has nothing of the stream, which is assigned only to servers that were removed."""
        blank = not (replica.group.last_index or replica.machine.applied_index or replica.installing)
        gone = self._meta.machine.nodes.keys().isdisjoint(replica.assignment.peers)
        return blank and gone and self._network.me not in replica.group.peers

    async def _retire(self, replica: StreamReplica) -> None:
        """Removes a replica that moved away, once its group is complete and no longer counts on it."""
        gid, last = replica.assignment.gid, replica.group.last_index
        try:
            answer = await self._ask_stream(replica.assignment, "members", {})
        except ApiError:  # no leader: the next tick asks again
            if self.replicas.get(gid) is replica and replica.retiring and self._is_in_vain(replica):
                self._removed(replica.assignment, deleted=False)
            return
        finally:
            self._retiring.discard(gid)
        # A node that was added again meanwhile has learned it through the log.
        unchanged = self.replicas.get(gid) is replica and replica.retiring and replica.group.last_index == last
        if unchanged and may_retire(self._network.me, answer, replica.assignment.peers, last):
            self._runtime.log.info("stream has moved away", stream=replica.assignment.name)
            hint = self._network.leaders.hint(gid)
            self._removed(replica.assignment, deleted=False)
            if hint is not None:
                self._network.leaders.follow(gid, *hint)
