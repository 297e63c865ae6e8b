"""One replica of one stream on this node: Raft group, state machine, ingest and read group, tied together.

The pure parts live elsewhere (`stream`); here is what happens when: a role changes, a command is applied, a snapshot is
needed, the stream goes away. Everything runs on the event loop, nothing here blocks.
"""

from __future__ import annotations

import asyncio
from typing import Any

from jetcluster.consumer.table import ConsumerTable
from jetcluster.mesh.api import MeshError
from jetcluster.mesh.valves import ToldValve
from jetcluster.meta.state import Assignment
from jetcluster.model.advisory import Advisories, batch_abandoned_events
from jetcluster.objects.layout import STREAM_PREFIX
from jetcluster.protocol.bus import Callback
from jetcluster.raft.api import RaftError, RaftGroup, Role, StorageFullError
from jetcluster.raft.membership import Config, Members, MembersError, decode_members, encode_members
from jetcluster.replica.account_quota import Holding
from jetcluster.replica.applying import Applying
from jetcluster.replica.checkpoints import Checkpoints
from jetcluster.replica.consumer_exchange import ConsumerExchange
from jetcluster.replica.consumer_host import ConsumerHost
from jetcluster.replica.context import NodeContext
from jetcluster.replica.leadership import Leadership
from jetcluster.replica.listening import Listening
from jetcluster.replica.members import follow_assignment
from jetcluster.replica.mirror_host import MirrorHost, MirrorReads
from jetcluster.replica.object_service import ObjectService
from jetcluster.replica.proposals import Proposals, resolver
from jetcluster.replica.read_group import ReadGroup
from jetcluster.replica.repair import Repair
from jetcluster.replica.rounds import LONGEST_REST
from jetcluster.replica.snapshot_owner import Cut
from jetcluster.store.api import DamagedError
from jetcluster.store.block_store import BlockStore
from jetcluster.store.room import Room
from jetcluster.store.transfer import Taker
from jetcluster.stream import commands
from jetcluster.stream.atomic_stage import AtomicStage
from jetcluster.stream.counter_sources import COMMAND_MESSAGES
from jetcluster.stream.duties import LeaderDuties
from jetcluster.stream.ingest import BATCH_MESSAGES, Ingest
from jetcluster.stream.levels import FAST, LEVEL, lowered
from jetcluster.stream.machine import StreamMachine
from jetcluster.stream.ports import SIDE_MEMBERS
from jetcluster.stream.rules import StreamRules

CONFIRM_SECONDS = 2.0
"""Seconds that a request waits for a majority to confirm that this replica leads."""


class StreamReplica:
    """`raft.api.StateMachine` and `SnapshotOwner` of one stream."""

    def __init__(self, context: NodeContext, assignment: Assignment, exchange: ConsumerExchange) -> None:
        self.context = context
        self.assignment = assignment
        self.bus = context.bus(assignment.account)
        self.repair = Repair(context, self)
        self.suspect: str = ""
        """Why the own state is not to be trusted; it is being replaced by the leader's then."""
        self.doubt: str = ""
        """Why it may be wrong: it differs from the leader's, and who is right is not known yet."""
        self.resting = False
        """It is left out of the ticks (`replica.rounds`)."""
        self.divergences = 0
        """Number of times that this replica was found to differ from its leader."""
        self.leader_since_ns = 0
        self._room: Room | None = None
        """For the running import."""
        rules = StreamRules.from_config(assignment.config)
        # Memory streams live in the same store: their Raft log is written but not waited for (`durable`), so they
        # lose nothing to a killed process, and what a power failure takes is what "memory" means.
        self.store = BlockStore(context.kv, assignment.gid, memory=rules.memory)
        self.installing = self.store.incomplete
        table = ConsumerTable(self.store)
        self.machine = StreamMachine(assignment.name, rules, self.store, table)
        self.proposals = Proposals()
        self.objects = ObjectService(context, self) if assignment.name.startswith(STREAM_PREFIX) else None
        self.ingest = Ingest(
            assignment.name,
            self.propose_data,
            self.bus if self.objects is None else self.objects.replies,
            context.clock,
            context.timers.call_soon,
            AtomicStage(self.machine.rules, context.batch_quota, context.clock, self._tell_abandoned, self.wake),
            domain=context.domain or None,
            no_ack=rules.no_ack,
            max_pending_messages=context.max_buffered[0],
            max_pending_bytes=context.max_buffered[1],
        )
        self.ingest.wildcards.width = self.store.width
        self._bound_batches()
        self._told_valve = ToldValve(context.mesh, assignment.account, context.timers)
        self.ingest.valve.changed = lambda closed: self._tell_valve()
        self.reads = ReadGroup(context, self)
        if assignment.config.get("mirror"):
            self.reads.upstream = MirrorReads(context, self)
        self.mirrors = MirrorHost(context, self)
        self.leadership = Leadership(context, self)
        self.applying = Applying(context, self)
        self.apply = self.applying.apply
        """The method of `raft.api.StateMachine`."""
        self.listening = Listening(
            self.bus, context.budget, lambda error: self.applying.failed("a subject cannot be listened to", error)
        )
        self.duties = LeaderDuties(
            self.machine,
            self.bus,
            context.clock,
            self.try_propose,
            context.timers.call_soon,
            context.timers.call_later,
            self.applying.failed,
        )
        self._config_proposed = 0
        """Revision of the configuration that this leader has put into the log."""
        self.checkpoints = Checkpoints(self.machine.applied_index, self.machine.hash)
        self._halted = False
        self.consumers = ConsumerHost(context, self, table, exchange)
        self.group: RaftGroup
        context.raft.create_group(
            assignment.gid,
            assignment.first_peers(context.me),
            self,
            applied_index=self.machine.applied_index,
            applied_term=self.machine.applied_term,
            durable=not rules.memory,
            campaign=assignment.leader_hint == context.me and self.machine.applied_index == 0,
            attach=self._attach,
            members=self._members(),
        )

    def _attach(self, group: RaftGroup) -> None:
        """The group exists but has not begun: its first calls find this object complete."""
        self.group = group
        if self.installing:
            group.suspend()  # before the process ended; there is no state to apply it to
        group.fence(self.assignment.fenced)

    def propose_data(self, command: bytes) -> int:
        """A command that brings messages; its index. Raises RaftError."""
        if failing := self.context.turn_commit.failing:
            error = StorageFullError if self.context.turn_commit.full else RaftError
            raise error(f"the data store cannot be written: {failing}")
        if self.group.role is Role.LEADER:
            self.context.account_quota.take(self.assignment, len(command), self.holding)
        if command[0] == commands.FAST_PUBLISH:
            understood = self.understood(command)
            if understood is None:
                raise RaftError("an older node knows nothing of the end of batches")
            command = understood
        return self.group.propose(command)

    # ---- raft.api.StateMachine

    def on_role(self, role: Role, term: int, leader: str | None) -> None:
        gid = self.assignment.gid
        self.wake()
        if role is not Role.LEADER:
            self._unlisten()
            self.mirrors.end()
            self.duties.end()
            self._end_objects()
            self.ingest.clear()
            self.context.leaders.follow(gid, term, leader)
            self.reads.role_changed(False)
        elif self.context.meta_current:
            self._take_over(term)
        self.consumers.leader_changed()

    def open(self) -> None:
        """The node knows now that the stream exists (`NodeContext.meta_current`)."""
        self.wake()
        if self.leading:
            self._take_over(self.group.term)
        else:
            self.reads.role_changed(False)
        self.consumers.refresh()

    def _take_over(self, term: int) -> None:
        self.leader_since_ns = self.context.clock.time_ns()
        self.doubt = ""
        self._config_proposed = 0
        self.duties.begin()
        if self.objects is not None:
            self.objects.begin()
        self._listen()
        # Below that level messages of batches went into the log without a word of their batch: the rows are behind.
        self.ingest.resume(self.machine.fast.by_id if self.level >= FAST else {})
        self.context.leaders.lead(self.assignment.gid, term)
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
        known = self._members()
        if known is None or known.config != members.config:
            self._keep_members(members)
            self.context.turn_commit.mark()

    def keep_members(self) -> None:
        """Puts the configuration in force beside the state once more."""
        index = self.machine.applied_index
        self._keep_members(Members(index, self.group.members_at(index)))

    def _keep_members(self, members: Members) -> None:
        self.store.side_put(SIDE_MEMBERS, b"", encode_members(members))

    def _members(self) -> Members | None:
        """Raises DamagedError."""
        stored = self.store.side_get(SIDE_MEMBERS, b"")
        try:
            return decode_members(stored) if stored is not None else None
        except MembersError as error:
            raise DamagedError(self.store.first_seq, self.store.last_seq) from error

    def on_snapshot_needed(self, leader: str, index: int, term: int) -> None:
        if self.group.contradicted:
            self.reads.abort()
        self.reads.leave()
        if leader == self.context.me:
            # Only this replica could give the state that it lacks itself. Taking it from itself would wipe what is
            # left; somebody has to decide (the data stays as it is).
            if not self.suspect:
                self.context.log.error(
                    "no other replica has the state that this one lacks", stream=self.assignment.name
                )
                self.suspect = "lacks log entries that no other replica has"
            return
        self.context.catchup.pull(self.assignment.gid, leader, index)

    # ---- SnapshotOwner

    @property
    def state_index(self) -> int:
        return 0 if self.group.contradicted else self.machine.applied_index

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
        # A new leader might hold the log that the old one had forgotten: it must not be applied to half a state.
        self.group.suspend()
        self.consumers.refresh()
        taker = self.store.import_begin()
        self._room = Room(self.context.kv, self.store, taker, self.assignment.name)
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
        for _ in self.store.import_end():
            await asyncio.sleep(0)
        self.machine.reload()  # in place: the duties of a leader and others go on with the same object
        if self.machine.applied_index != index:
            raise MeshError(f"the snapshot of {index} holds the state of {self.machine.applied_index}")
        self.checkpoints = Checkpoints(index, self.machine.hash)
        self._keep_members(Members(index, config))
        await self.context.kv.flush()
        self.installing = False
        self.suspect = self.doubt = ""
        self.repair.rebuilt()
        self.group.install(index, term, config)
        self.config_changed()
        self.consumers.refresh()
        self.wake()

    # ---- lifecycle

    @property
    def leading(self) -> bool:
        """It leads, and the node knows that the stream exists."""
        return self.group.role is Role.LEADER and self.group.ready and self.context.meta_current

    def holding(self) -> Holding:
        """This replica in the account's quota."""
        return Holding(self.assignment, self.store.byte_count + self.ingest.pending_bytes, self.leading)

    @property
    def failed(self) -> str:
        """Why this replica stopped and does not go on (its state machine raised); empty while it works."""
        return self.group.stopped

    @property
    def damaged(self) -> str:
        """Damage that was found in the store; empty while nothing was."""
        return self.repair.damage

    @property
    def keeps_state(self) -> bool:
        """See `SnapshotOwner`."""
        return bool(self.damaged or self.suspect)

    @property
    def wants_state(self) -> bool:
        """See `SnapshotOwner`."""
        return self.keeps_state or self.group.lacks_state

    @property
    def sound(self) -> bool:
        """True when what is stored here is the stream as of `machine.applied_index`, all of it."""
        return not (self.installing or self.damaged or self.suspect or self.failed)

    @property
    def trusted(self) -> bool:
        """It is sound, and nothing speaks against its being what the others have."""
        return self.sound and not self.doubt and not self.group.contradicted

    @property
    def vouches(self) -> bool:
        """The node may answer for this replica, as far as its own health goes. Where no other replica's node is better
        it answers all the same: what it has is all there is."""
        raft = self.context.raft
        return raft.health.vouches or raft.may_lead(self.group.peers)

    def health_changed(self) -> None:
        """The node's health is another one (`health.node_health`)."""
        self.wake()
        if not self.group.stopped:
            self.reads.tick()
            self.consumers.refresh()

    def update(self, assignment: Assignment) -> None:
        """The meta group changed the stream's configuration; the leader puts it into the stream's own log, where every
        replica takes it at the same place among the messages."""
        self.assignment = assignment
        self.wake()
        self.group.fence(assignment.fenced)
        if self.retiring and not self.leading:
            self.reads.leave()
        if self.leading:
            self._propose_config()

    @property
    def retiring(self) -> bool:
        """The stream has no place here any more. This replica still votes until its group has done without it."""
        return self.context.me not in self.assignment.peers

    def wake(self) -> None:
        """Something happened that the next tick may have to look at."""
        if self.resting:
            self.context.rounds.wake(self.assignment.gid)

    def tick(self) -> float:
        """Called a few times per second, but for the time that it answered last, as long as nothing calls `wake`."""
        if self.store.unwritable and not self.group.stopped:
            self.group.fail(f"its state cannot be written: {self.store.unwritable}")
        if self.group.stopped:
            self._halt()
            self.consumers.tell_leaving()
            return 0.0
        if self.leading:
            follow_assignment(self.context, self.group, self.assignment.peers)
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
        """Seconds for which no tick has anything to do, or to see before anybody tells."""
        group = self.group
        if not self.leading and (group.role is not Role.FOLLOWER or group.leader is None):
            return 0.0
        if group.told_index > group.applied_index or group.lacks_state or self.retiring or not self.trusted:
            return 0.0
        if not (self.context.meta_current and self.context.raft.health.vouches):
            return 0.0
        if self.reads.unsettled or self.consumers.unsettled:
            return 0.0
        return self._leaders_rest() if self.leading else LONGEST_REST

    def _leaders_rest(self) -> float:
        if set(self.group.peers) != set(self.assignment.peers) or not self._config_is_told():
            return 0.0
        uploads = self.objects is not None and self.objects.bucket.uploads is not None
        if uploads or self.mirrors.links.by_key or self.ingest.open_batches:
            return 0.0
        return min(self.duties.rest(), LONGEST_REST)

    def stop(self, *, deleted: bool = False) -> None:
        """Leaves the router; data stays. `deleted`: the stream is gone everywhere."""
        self.consumers.stop(deleted=deleted)
        self._unlisten()
        self.mirrors.end(deleted=deleted)
        self._end_objects()
        self.reads.stop()
        self.proposals.dropped(0)
        self.ingest.on_dropped(0)
        self.ingest.clear()
        self.context.leaders.forget(self.assignment.gid)

    def _halt(self) -> None:
        """Raft gave this replica up. Publishers must not find it any more: its 503 would overtake the ack of the
        replica that leads now."""
        if not self._halted:
            self._halted = True
            self.context.log.error("replica stopped", stream=self.assignment.name, reason=self.failed)
            self.stop()

    def report_damage(self, error: DamagedError) -> None:
        """A stored record fails its checksum here: this replica stops answering reads; the others hold the data."""
        self.wake()
        self.repair.report(error)
        self.reads.abort()
        self.context.timers.call_soon(self.consumers.refresh)  # an owner may have found it, in the middle of its work

    def diverged(self, index: int) -> None:
        """A majority had another state at `index`: this replica is not to be trusted, and rebuilt. The Raft group asks
        for that until it is done, under the next leader as well; one that leads itself lets another one do it first."""
        if not self.sound:
            return
        self.context.log.error(
            "replica differs from the others; it is rebuilt", stream=self.assignment.name, index=index
        )
        self.wake()
        self.divergences += 1
        self.suspect = f"differs from the others at {index}"
        self.reads.abort()
        self.group.suspend()
        self.consumers.refresh()

    def set_doubt(self, doubt: str) -> None:
        """It is read no more while somebody may be wrong, and nobody knows who; "": it was somebody else."""
        self.wake()
        known, self.doubt = self.doubt, doubt
        if bool(known) == bool(doubt):
            return
        if doubt:
            self.context.log.warning("replica differs from its leader", stream=self.assignment.name, doubt=doubt)
            self.reads.abort()
        self.consumers.refresh()

    def config_is_current(self) -> bool:
        """The configuration that the meta group decided has been applied in the stream's own log."""
        return dict(self.assignment.config) == self.machine.config

    # ---- parts

    def _listen(self) -> None:
        def taker(subject: bytes) -> Callback:
            return self.ingest.on_message if self.objects is None else self.objects.taker(subject)

        self.listening.listen(set(self.machine.rules.subjects), taker, self._tell_valve)

    def _tell_valve(self) -> None:
        """Also opens it elsewhere for a subject that is let go: its publishers must not wait for this stream."""
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
        self.ingest.batch_messages = COMMAND_MESSAGES if counted else BATCH_MESSAGES

    def _tell_abandoned(self, batch_id: bytes, reason: str) -> None:
        """On the real subject and the specification's, to the stream's account and, with the name of
        that account, to the system account."""
        context = self.context
        account = self.assignment.account
        advisories = Advisories(context.clock, context.rng, context.name, context.domain)
        for bus, named in ((self.bus, ""), (context.bus(context.system_account), account)):
            for subject, kind in batch_abandoned_events(self.assignment.name):
                if bus.has_interest(subject):
                    bus.publish(
                        subject, advisories.batch_abandoned(kind, self.assignment.name, batch_id, reason, named)
                    )

    def _config_is_told(self) -> bool:
        revision = self.assignment.revision
        return self._config_proposed == revision or self.machine.config_revision >= revision or self.config_is_current()

    def _propose_config(self) -> None:
        if self._config_is_told():
            return
        revision = self.assignment.revision
        now = self.context.clock.time_ns()
        if self.try_propose(commands.encode_update_config(now, self.assignment.config, revision)):
            self._config_proposed = revision

    def _do_duties(self) -> None:
        try:
            self.duties.tick()
        except DamagedError as error:
            self.report_damage(error)

    def understood(self, command: bytes) -> bytes | None:
        """`command` as all nodes of the group apply it (`stream.levels`); None: not now."""
        level = self.level
        return command if level >= LEVEL else lowered(command, self.machine.clock, level)

    @property
    def level(self) -> int:
        """The lowest level among the nodes of the group (`stream.levels`)."""
        return self.context.raft.levels.of(self.group.members_at(self.group.last_index))

    def try_propose(self, command: bytes) -> bool:
        """Puts a command into the log, whose outcome nobody waits for; False: not now."""
        fitting = self.understood(command)
        if fitting is None:
            return False
        try:
            self.group.propose(fitting, reserve=True)
        except RaftError as error:
            # Not lost: the next tick, or the next leader, compares again and proposes again.
            self.context.log.debug("proposal refused", stream=self.assignment.name, error=str(error))
            return False
        return True

    async def propose(self, command: bytes, seconds: float) -> Any:
        """A control-plane command through the log. Raises RaftError (also for a command that nodes of another version
        cannot apply yet), OutcomeUnknownError."""
        fitting = self.understood(command)
        if fitting is None:
            raise RaftError("not now: a node of an older version would apply this command differently")
        return await self.proposals.propose(self.group, fitting, seconds)

    async def confirm_leadership(self) -> bool:
        """True once this replica is proven to lead and has applied all that was committed before the call."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.group.read_index(resolver(future))
        try:
            async with asyncio.timeout(CONFIRM_SECONDS):
                proven = await future and not (self.group.lacks_state and len(self.group.peers) > 1)
        except TimeoutError:  # a majority of the group's replicas is silent
            return False
        # It may have stopped since it was proven, in the same turn: what was taken back then is nowhere to be read.
        return proven and not self.failed
