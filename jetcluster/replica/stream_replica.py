"""One replica of one stream on this node: it connects Raft group, state machine, ingest and reads.

The pure parts are elsewhere (`stream`). Here are the reactions to events: a role changes, a snapshot is needed, the
stream is removed. All of it runs on the event loop and never blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Any

from jetcluster.mesh.api import MeshError
from jetcluster.mesh.interest import AnnouncedValve
from jetcluster.meta.state import Assignment
from jetcluster.model import retention_guard
from jetcluster.model.advisory import batch_abandoned
from jetcluster.objects.layout import STREAM_PREFIX
from jetcluster.protocol.bus import Callback, Origin
from jetcluster.raft.api import RaftError, RaftGroup, Role, StorageFullError
from jetcluster.raft.membership import Config, Members
from jetcluster.replica.account_quota import Holding, QuotaShare
from jetcluster.replica.applying import Applying
from jetcluster.replica.catchup import Room
from jetcluster.replica.consumer_exchange import ConsumerExchange
from jetcluster.replica.consumer_host import ConsumerHost
from jetcluster.replica.exports import Cut
from jetcluster.replica.leadership import Leadership, Listening
from jetcluster.replica.members import follow_assignment, level_of
from jetcluster.replica.mirror_host import MirroredStream, MirrorHost
from jetcluster.replica.object_service import ObjectService
from jetcluster.replica.proposals import Proposals, resolver
from jetcluster.replica.reads.reads import Reads
from jetcluster.replica.repair import Failures, Repair
from jetcluster.replica.replica_info import ReplicaInfos
from jetcluster.replica.replica_state import Checkpoints, ReplicaState, tell_both
from jetcluster.replica.services import Services
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvError
from jetcluster.store.transfer import Taker
from jetcluster.stream.apply.counters import MAX_COMMAND_MESSAGES
from jetcluster.stream.lead.atomic_stage import AtomicStage
from jetcluster.stream.lead.duties import LeaderDuties
from jetcluster.stream.lead.ingest import BATCH_MESSAGES, Ingest
from jetcluster.stream.log import commands
from jetcluster.stream.log.levels import RETENTION_GUARD_LEVEL
from jetcluster.stream.rules import StreamRules

CONFIRM_SECONDS = 2.0
"""Longest wait for a majority to confirm that this replica leads."""


class StreamReplica(ReplicaState):
    """The `raft.api.StateMachine` and `SnapshotOwner` of one stream."""

    def __init__(self, services: Services, assignment: Assignment, exchange: ConsumerExchange) -> None:
        rules = StreamRules.from_config(assignment.config)
        runtime, network, settings = services.runtime, services.network, services.settings
        super().__init__(services, assignment, rules)
        self._quota = settings.account_quota
        self.divergences = 0
        """Number of times that this replica's state was rejected by a majority."""
        self._room: Room | None = None
        """Room for the running import."""
        self._config_proposed = 0
        """Revision of the configuration that this leader proposed last."""
        self._halted = False
        self._share: QuotaShare | None = None
        """The last grant of the account's quota."""
        self.failures = Failures(runtime.log, assignment.name)
        self.repair = Repair(self)
        self.proposals = Proposals()
        self.objects: ObjectService | None = None
        if assignment.name.startswith(STREAM_PREFIX):
            self.objects = ObjectService(self, self.failures, self._publish, settings)
        stage = AtomicStage(
            self.machine.rules, settings.batch_quota, runtime.clock, self._tell_abandoned, self._batches_changed
        )
        self.ingest = Ingest(
            assignment.name,
            self.propose_data,
            self.bus if self.objects is None else self.objects.replies,
            runtime.clock,
            runtime.timers.call_soon,
            stage,
            domain=settings.domain or None,
            no_ack=rules.no_ack,
            max_pending_messages=settings.max_buffered[0],
            max_pending_bytes=settings.max_buffered[1],
            width=self.store.width,
            rolls_up=self._rolls_up,
            valve_changed=lambda closed: self._tell_valve(),
        )
        self._bound_batches()
        self._told_valve = AnnouncedValve(network.mesh, assignment.account, runtime.timers)
        self.mirrors = MirrorHost(self, settings.domain, services.link_paces, self.failures)
        upstream = None
        if assignment.config.get("mirror"):
            upstream = MirroredStream(self, settings.domain, services.link_paces.looks)
        self.reads = Reads(self, settings, self.mirrors.links, self.ingest, upstream)
        self.infos = ReplicaInfos(self, settings.system_account)
        self.leadership = Leadership(self, self.infos)
        self.listening = Listening(
            self.bus, runtime.budget, lambda error: self.failures.failed("a subject cannot be listened to", error)
        )
        soon, later = runtime.timers.call_soon, runtime.timers.call_later
        self.duties = LeaderDuties(
            self.machine, self.bus, runtime.clock, self.try_propose, soon, later, self.failures.failed
        )
        calls = exchange.send_turn, exchange.tell_leaving, exchange.unused
        self.consumers = ConsumerHost(self, settings, self.infos, *calls, self.reads.own.when_known)
        self.applying = Applying(
            self,
            self.failures,
            ingest=self.ingest,
            proposals=self.proposals,
            duties=self.duties,
            reads=self.reads,
            consumers=self.consumers,
            mirrors=self.mirrors,
            objects=self.objects,
            repair=self.repair,
            config_changed=self.config_changed,
        )
        self.apply = self.applying.apply
        """The method of `raft.api.StateMachine`."""
        network.raft.create_group(
            assignment.gid,
            assignment.first_peers(network.me),
            self,
            applied_index=self.machine.applied_index,
            applied_term=self.machine.applied_term,
            durable=not rules.memory,
            campaign=assignment.leader_hint == network.me and self.machine.applied_index == 0,
            attach=self._attach,
            members=self.members(),
            sole=not network.cluster_name and assignment.peers == (network.me,),
            promotes=False,
            founder=network.me in assignment.founders,
        )

    def _attach(self, group: RaftGroup) -> None:
        """Take the group before it starts, so that its first calls find this object complete."""
        self.group = group
        if self.installing:
            group.suspend()  # the previous process ended during an import: there is no state to apply commands to
        group.fence(self.assignment.fenced)

    @property
    def answers_reads(self) -> bool:
        return self.reads.own.joined

    @property
    def last_stored(self) -> int:
        return self.store.last_seq if self.trusted else 0

    def propose_data(self, command: bytes) -> int:
        if failing := self.commits.failing:
            error = StorageFullError if self.commits.full else RaftError
            raise error(f"the data store cannot be written: {failing}")
        if self.group.role is Role.LEADER:
            share, size = self._share, len(command)
            if share is not None and share.left >= size and share.assignment is self.assignment:
                share.left -= size
            else:
                self._share = self._quota.take(self.assignment, size, self.holding)
        if command[1]:  # only a command with a flag may mean something else to an older version
            understood = self.understood(command)
            if understood is None:
                raise RaftError("not now: a node of an older version would apply this command differently")
            command = understood
        return self.group.propose(command)

    # ---- raft.api.StateMachine

    def on_role(self, role: Role, term: int, leader: str | None) -> None:
        gid = self.assignment.gid
        self.wake()
        if role is not Role.LEADER:
            self._unlisten()
            self.mirrors.links.end()
            self.duties.end()
            self._end_objects()
            self.ingest.clear()
            self.network.leaders.follow(gid, term, leader)
            self.reads.role_changed(False)
        elif self.known.current:
            self._take_over(term)
        self.consumers.turns.leader_changed()

    def open(self) -> None:
        """Begin to serve: the node knows now that the stream exists (`Knowledge.current`)."""
        self.wake()
        if self.leading:
            self._take_over(self.group.term)
        else:
            self.reads.role_changed(False)
        self.consumers.refresh()

    def _take_over(self, term: int) -> None:
        self.leader_since_ns = self.runtime.clock.time_ns()
        self.disputed = ""
        self._config_proposed = 0
        self.duties.begin()
        if self.objects is not None:
            self.objects.begin()
        self._listen()
        self.ingest.resume(self.machine.fast.by_id)
        self.network.leaders.lead(self.assignment.gid, term)
        self._propose_config()
        self.mirrors.begin()
        self.leadership.elected()
        self.reads.role_changed(True)
        self.consumers.moves.move()

    def on_dropped(self, first_index: int) -> None:
        self.ingest.on_dropped(first_index)
        self.proposals.dropped(first_index)
        if self.objects is not None:
            self.objects.dropped(first_index)

    def on_members(self, members: Members) -> None:
        self.wake()
        known = self.members()
        if known is None or known.config != members.config:
            self.keep_members(members)
            self.commits.mark()

    def on_contradicted(self) -> None:
        self.reads.abort()
        self.reads.leave()

    def on_snapshot_needed(self, leader: str, index: int, term: int) -> None:
        self.reads.leave()
        if leader == self.network.me:
            # Only this replica could give the state that it lacks. A transfer from itself would wipe the rest, so the
            # data stays as it is until an operator decides.
            if not self.rejected:
                self.runtime.log.error(
                    "no other replica has the state that this one lacks", stream=self.assignment.name
                )
                self.rejected = "lacks log entries that no other replica has"
            return
        self.network.catchup.pull(self.assignment.gid, leader, index)

    # ---- SnapshotOwner

    def snapshot_export(self) -> Cut:
        if not self.trusted:
            raise MeshError(f"this replica of {self.assignment.name} is not sound")
        machine = self.machine
        giver = self.store.export()
        config = self.group.members_at(machine.applied_index)
        size, messages = self.store.byte_count, self.store.messages
        return Cut(machine.applied_index, machine.applied_term, config, giver, size, messages)

    def snapshot_fetched(self, peer: str, index: int) -> None:
        self.group.fetches(peer, index)

    def export_failed(self, error: DamagedError) -> None:
        self.report_damage(error)

    def snapshot_begin(self) -> Taker:
        self.installing = True
        self.wake()
        self.reads.abort()
        # A new leader may still have the log that the old one discarded: it must not be applied to a partial state.
        self.group.suspend()
        self.consumers.refresh()
        taker = self.store.import_begin()
        self._room = Room(self.commits.kv, self.store, taker, self.assignment.name)
        return taker

    async def snapshot_room(self, size: int) -> None:
        assert self._room is not None
        await self._room.make(size)

    async def snapshot_abandon(self) -> None:
        self._room = None
        self.store.import_wipe()
        await self.store.reclaim()

    async def snapshot_end(self, index: int, term: int, config: Config) -> None:
        self._room = None
        # Of what the log had the state may have erased some. Noted here for a crash, and below for this process: the
        # journal cannot forget it before.
        erases = self.group.last_index > 0
        if erases:
            self.commits.erase()
        for _ in self.store.import_end():
            await asyncio.sleep(0)
        self.machine.reload()  # in place: the leader's duties and other parts keep the same object
        if self.machine.applied_index != index:
            raise MeshError(f"the snapshot of {index} holds the state of {self.machine.applied_index}")
        self.checkpoints = Checkpoints(index, self.machine.hash)
        self.keep_members(Members(index, config))
        await self.commits.kv.flush()
        self.installing = False
        self.rejected = self.disputed = ""
        self.repair.rebuilt()
        self.group.install(index, term, config)
        if erases:
            self.commits.erase()
        self.config_changed()
        self.consumers.refresh()
        self.wake()

    # ---- lifecycle

    def holding(self) -> Holding:
        """This replica in the account's quota."""
        return Holding(self.assignment, self.store.byte_count + self.ingest.pending_bytes, self.leading)

    def health_changed(self) -> None:
        """Follow a change of the node's health (`health.node_health`)."""
        self.wake()
        if not self.group.stopped:
            self.reads.tick()
            self.consumers.refresh()

    def update(self, assignment: Assignment) -> None:
        """Take a changed assignment of the meta group. The leader proposes its configuration to the stream's own log,
        so that every replica applies it at the same place among the messages."""
        if assignment.peers != self.assignment.peers and set(self.group.peers) == set(self.assignment.peers):
            self.placed_ns = self.runtime.clock.time_ns()
            scales = assignment.scaled if assignment.replicas != self.assignment.replicas else None
            self.scaled_ns = scales.since_ns if scales is not None else 0
        self.assignment = assignment
        self.wake()
        self.group.fence(assignment.fenced)
        if self.retiring and not self.leading:
            self.reads.leave()
        if self.leading:
            self._propose_config()

    def tick(self) -> float:
        """Do periodic work and return the seconds to rest. Called a few times per second, and at once after `wake`."""
        if self.store.unwritable and not self.group.stopped:
            self.group.fail(f"its state cannot be written: {self.store.unwritable}")
        if self.group.stopped:
            self._halt()
            self.consumers.tell_leaving()
            return 0.0
        if self.leading:
            level = level_of(self.table, self.machine.rules)
            follow_assignment(self.network, self.group, self.assignment.peers, level)
            self._propose_config()
            self._do_duties()
            self.ingest.tick()
            self.mirrors.tick()
            if self.objects is not None:
                self.objects.tick()
        self.repair.tick()
        self.reads.tick()
        self.leadership.tick()
        self.consumers.tick()
        return self._rest()

    def _rest(self) -> float:
        """Seconds for which ticks have no work and nothing to watch; `Rounds` bounds them."""
        group = self.group
        if not self.leading and (group.role is not Role.FOLLOWER or group.leader is None):
            return 0.0
        if group.told_index > group.applied_index or group.lacks_state or self.retiring or not self.trusted:
            return 0.0
        if not (self.known.current and self.network.raft.health.may_answer):
            return 0.0
        if self.reads.unsettled or self.consumers.unsettled:
            return 0.0
        return self._leaders_rest() if self.leading else inf

    def _leaders_rest(self) -> float:
        if set(self.group.peers) != set(self.assignment.peers) or not self._config_is_told():
            return 0.0
        uploads = self.objects is not None and self.objects.bucket.uploads is not None
        if uploads or self.mirrors.links.by_key or self.ingest.open_batches:
            return 0.0
        return self.duties.rest()

    def stop(self, *, deleted: bool = False) -> None:
        """End all subscriptions; the data stays. `deleted`: the stream is gone everywhere."""
        self.consumers.stop(deleted=deleted)
        self._unlisten()
        self.mirrors.links.end(deleted=deleted)
        self._end_objects()
        self.reads.stop()
        self.proposals.dropped(0)
        self.ingest.on_dropped(0)
        self.ingest.clear()
        self.network.leaders.forget(self.assignment.gid)

    def _halt(self) -> None:
        """Stop, as Raft has: a 503 of this replica would overtake the ack of the new leader."""
        if not self._halted:
            self._halted = True
            self.runtime.log.error("replica stopped", stream=self.assignment.name, reason=self.failed)
            self.stop()

    def report_damage(self, error: DamagedError) -> None:
        self.wake()
        self.repair.report(error)
        self.reads.abort()
        self.runtime.timers.call_soon(self.consumers.refresh)  # an owner may have found it amid its work

    def diverged(self, index: int) -> None:
        """Reject this replica's state: a majority had another one at `index`. The Raft group asks for the state of
        another replica until it has it, under the next leader as well; a leader lets another replica lead first."""
        if not self.sound:
            return
        self.runtime.log.error(
            "replica differs from the others; it is rebuilt", stream=self.assignment.name, index=index
        )
        self.wake()
        self.divergences += 1
        self.rejected = f"differs from the others at {index}"
        self.reads.abort()
        self.group.suspend()
        self.consumers.refresh()

    def set_disputed(self, reason: str) -> None:
        """Stops reads here while this replica and its leader differ and no majority has decided; "" ends it."""
        self.wake()
        known, self.disputed = self.disputed, reason
        if bool(known) == bool(reason):
            return
        if reason:
            self.runtime.log.warning("replica differs from its leader", stream=self.assignment.name, disputed=reason)
            self.reads.abort()
        self.consumers.refresh()

    # ---- parts

    def _publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        self.ingest.on_message(subject, reply, headers, payload, origin)

    def _listen(self) -> None:
        def taker(subject: bytes) -> Callback:
            return self.ingest.on_message if self.objects is None else self.objects.taker(subject)

        bulk = self.ingest.on_messages if self.objects is None else None
        self.listening.listen(set(self.machine.rules.subjects), taker, self._tell_valve, bulk)

    def _tell_valve(self) -> None:
        """Report the valve to other nodes; it opens for an unsubscribed subject, whose publishers must not wait."""
        self._told_valve.closed_for(self.listening.subjects if self.ingest.valve.closed else ())

    def _end_objects(self) -> None:
        if self.objects is not None:
            self.objects.end()

    def _unlisten(self) -> None:
        self.listening.end()
        self._tell_valve()

    def config_changed(self) -> None:
        self.ingest.configure(self.machine.rules)
        self._bound_batches()
        if self.leading:
            if self.objects is not None:
                self.objects.configure()
            self._listen()
            self.mirrors.configure()
        self.reads.config_changed()
        self.duties.config_changed()

    def _bound_batches(self) -> None:
        counted = self.machine.tracks_sources
        self.ingest.batch_messages = MAX_COMMAND_MESSAGES if counted else BATCH_MESSAGES

    def _rolls_up(self, subjects: Sequence[bytes], headers: Sequence[bytes]) -> bool:
        if not self.machine.rules.allow_rollup_hdrs:
            return False
        from jetcluster.stream.apply.rollups import may_be_long  # few streams see a rollup

        return may_be_long(self.store, self.machine.rules, subjects, headers)

    def _batches_changed(self) -> None:
        """Wake the replica: an atomic batch began or ended."""
        if self.resting:
            self.wake()

    def _tell_abandoned(self, batch_id: bytes, reason: str) -> None:
        tell_both(self, *batch_abandoned(self.assignment.name, batch_id, reason))

    def _config_is_told(self) -> bool:
        revision = self.assignment.revision
        return self._config_proposed == revision or self.machine.config_revision >= revision or self.config_is_current()

    def _propose_config(self) -> None:
        if self._config_is_told():
            return
        if self.assignment.config.get(retention_guard.FIELD) is not None and self.level < RETENTION_GUARD_LEVEL:
            return  # the next tick looks again
        revision = self.assignment.revision
        now = self.runtime.clock.time_ns()
        if self.try_propose(commands.encode_update_config(now, self.assignment.config, revision)):
            self._config_proposed = revision

    def _do_duties(self) -> None:
        try:
            self.duties.tick()
        except DamagedError as error:
            self.report_damage(error)
        except KvError as error:
            self.failures.failed("schedules cannot be read", error)

    def try_propose(self, command: bytes) -> bool:
        fitting = self.understood(command)
        if fitting is None:
            return False
        try:
            self.group.propose(fitting, reserve=True)
        except RaftError as error:
            # The next tick, or the next leader, compares and proposes again.
            self.runtime.log.debug("proposal refused", stream=self.assignment.name, error=str(error))
            return False
        return True

    async def propose(self, command: bytes, seconds: float) -> Any:
        """Propose a control-plane command and return its result. Raises RaftError (also for a command that nodes of an
        older version cannot apply) and OutcomeUnknownError."""
        fitting = self.understood(command)
        if fitting is None:
            raise RaftError("not now: a node of an older version would apply this command differently")
        return await self.proposals.propose(self.group, fitting, seconds)

    async def may_read(self) -> bool:
        """True once a read here is linearizable: at once under a lease, otherwise after `confirm_leadership`."""
        if self.group.reads_now():
            return self.whole
        return await self.confirm_leadership()

    async def confirm_leadership(self) -> bool:
        """True once a majority has proven that this replica leads, and it has applied all that was committed before the
        call. For what changes something: a lease may outlive the majority that has to carry it out."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.group.read_index(resolver(future))
        try:
            async with asyncio.timeout(CONFIRM_SECONDS):
                proven = await future
        except TimeoutError:  # no majority of the group answers
            return False
        return proven and self.whole

    @property
    def whole(self) -> bool:
        """True when a leader that has proven to be one may be read from. It may have stopped since the proof, in the
        same turn: rows that it took back then cannot be read any more."""
        return not self.failed and not (self.group.lacks_state and len(self.group.peers) > 1)
