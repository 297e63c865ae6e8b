"""`ConsumerHost`: the consumer owners that live on this node's replica of one stream.

The replicated table says which consumers this node owns; the host makes, runs and stops their owners. It runs them only
while it is known to be current: the node has caught up with the meta group, the replica is trusted, and a session of
turns is open, whose first turn proves that every earlier decision has been applied here. A node that stood still, or
lost its leader for a while, begins a new session first, since it may have lost its consumers meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Concatenate, ParamSpec

from jetcluster.clock import OnwardClock
from jetcluster.consumer.owner.context import OwnerDependencies
from jetcluster.consumer.owner.delivery import DELETED, MOVED, SHUTDOWN
from jetcluster.consumer.owner.operation_log import ConsumerOperationLog, OwnerTurns
from jetcluster.consumer.owner.owner import ConsumerOwner
from jetcluster.consumer.owner.scheduler import ConsumerFilters, ConsumerScheduler, OwnerWakes
from jetcluster.consumer.owners import ConsumerOwners
from jetcluster.consumer.state.rules import ConsumerRules
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.consumer.state.turn import Turn, TurnResult
from jetcluster.protocol.bus import Origin
from jetcluster.raft.api import Role
from jetcluster.replica.members import ConsumerBalancer
from jetcluster.replica.replica_info import ReplicaInfos
from jetcluster.replica.replica_state import ReplicaState
from jetcluster.replica.rounds import TICK
from jetcluster.replica.services import Settings
from jetcluster.store.api import DamagedError
from jetcluster.stream.log.levels import DEAD_LETTER_LEVEL, ORDER_PER_KEY_LEVEL

OUT_OF_TOUCH_SECONDS = 2.0
"""Time without a live leader after which owners stop."""
LEAVE_SECONDS = 2.0
"""Time between two notices that this node can own nothing."""
MAX_UNUSED_CONSUMERS = 1024
MAX_WOKEN_OWNERS = 8
"""Up to this many owners are all woken by new messages; of more, only those that match a message."""
START_SECONDS = 0.005
"""Owners are started in slices of this length: a node may take over thousands at once."""
LOGGED_ERRORS = 10
UNANSWERED_NS = 250_000_000
"""Nanoseconds that a new push consumer waits for the notice that its creator was answered. The notice comes within
milliseconds, unless the node died."""


SendTurn = Callable[["ConsumerHost", int, bytes], bool]
"""(host, session, body): sends a turn towards the log; returns False when that is impossible now."""
TellLeaving = Callable[["ConsumerHost", bool], None]
"""(host, leaving): notifies all nodes that this one can, or cannot, own consumers of the stream."""


_P = ParamSpec("_P")


def _shielded(told: Callable[Concatenate[ConsumerHost, _P], None]) -> Callable[Concatenate[ConsumerHost, _P], None]:
    """Log the errors of a callback: inside apply, an error of this node alone would pass for one of the command."""

    def tell(host: ConsumerHost, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            told(host, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - as in `_guard`
            host._owner_failed(error)

    return tell


class _Hosted:
    __slots__ = ("owner", "since", "turns", "wakes")

    def __init__(self, owner: ConsumerOwner, turns: OwnerTurns, wakes: OwnerWakes, since: int) -> None:
        self.owner = owner
        self.since = since
        """Unix nanoseconds when the owner began here."""
        self.turns = turns
        self.wakes = wakes


class ConsumerHost:
    """The consumer owners of one replica, and its `consumer.state.turn.TableObserver`. `when_known`: an owner's."""

    def __init__(
        self,
        replica: ReplicaState,
        settings: Settings,
        infos: ReplicaInfos,
        send_turn: SendTurn,
        tell_leaving: TellLeaving,
        tell_unused: Callable[[int], None],
        when_known: Callable[[Origin, Callable[[], None]], None] | None = None,
    ) -> None:
        runtime, network, table = replica.runtime, replica.network, replica.table
        self._infos = infos
        self._settings, self._runtime, self._network, self._known = settings, runtime, network, replica.known
        self.replica = replica
        self.table = table
        self.policy = ConsumerOwners(network.me, runtime.clock)
        self.moves = ConsumerBalancer(replica, self.policy)
        self.unused: dict[int, ConsumerState] = {}
        """Consumers whose owners found them inactive; `ConsumerExpiry` deletes them."""
        self._tell_unused = tell_unused
        self._me = network.me
        self._peer = network.me.encode()
        self._send_turn = send_turn
        self._tell_leaving = tell_leaving
        self._report_damage = replica.report_damage
        self._when_known = when_known
        self._going = self._leaving = False
        self._tell_at = 0.0
        self._replicated = True
        self.running: dict[int, _Hosted] = {}
        self._filters: ConsumerFilters[_Hosted] = ConsumerFilters()
        self._to_start: dict[int, ConsumerState] = {}
        self._unanswered: set[int] = set()
        """Consumers that were just created and whose creators may not have been answered."""
        self._start_scheduled = False
        self._stopped = False
        self._contact = runtime.clock.monotonic()
        self._in_touch = True
        self._stops = runtime.pulse.stops(self._contact)
        self._errors = 0
        self.turns = ConsumerOperationLog(
            self._peer,
            send=self._send,
            session_of=self._session,
            owners=lambda: [hosted.owner for hosted in self.running.values()],
            on_room=self._on_room,
            on_error=self._owner_failed,
            clock=runtime.clock,
            timers=runtime.timers,
        )
        self._clock = OnwardClock(runtime.clock)
        self._wakes = ConsumerScheduler(self._clock, runtime.timers, self._may_run, self._guard)
        self._deleted: list[int] = []
        replica.store.watch_deleted(self._on_deleted)
        table.observe(self)
        self.policy.reloaded(table.by_cid.values())

    # -- what others read

    def owner(self, cid: int) -> ConsumerOwner | None:
        hosted = self.running.get(cid)
        return hosted.owner if hosted is not None else None

    @property
    def hosted(self) -> int:
        return len(self.running)

    @property
    def active(self) -> bool:
        """True while owners may run here."""
        return self._known.current and self.replica.trusted and self.replica.may_answer and not self._stopped

    @property
    def _restoring(self) -> bool:
        """True during a restore: an ack could remove a message that a consumer not yet restored still needs."""
        return self.replica.machine.rules.restoring

    # -- consumer.state.turn.TableObserver (inside apply)

    @_shielded
    def created(self, state: ConsumerState) -> None:
        self.policy.came(state.owner)
        if state.owner == self._me:
            self._take(state)
            if state.rules.push and state.cid in self._to_start:
                self._unanswered.add(state.cid)

    @_shielded
    def updated(self, state: ConsumerState, old_rules: ConsumerRules) -> None:
        self._configured(state)
        hosted = self.running.get(state.cid)
        if hosted is not None and state.rules.deliver_subject != old_rules.deliver_subject:
            hosted.owner.hold(self._clock.time_ns() + UNANSWERED_NS)

    @_shielded
    def paused(self, state: ConsumerState) -> None:
        self._configured(state)

    @_shielded
    def restored(self) -> None:
        self._runtime.timers.call_soon(self.refresh)

    @_shielded
    def deleted(self, state: ConsumerState) -> None:
        self.policy.went(state.owner)
        self._drop(state.cid, DELETED)

    @_shielded
    def owner_changed(self, state: ConsumerState, old_owner: str) -> None:
        self.policy.went(old_owner)
        self.policy.came(state.owner)
        self.moves.moved(state.cid)
        self._drop(state.cid, MOVED)
        if state.owner == self._me:
            self._take(state)

    @_shielded
    def reset(self, state: ConsumerState) -> None:
        hosted = self.running.get(state.cid)
        if hosted is not None:
            self.turns.forget(hosted.owner)
            self._guard(hosted.owner.reset)

    @_shielded
    def freed(self, state: ConsumerState, seqs: Sequence[int]) -> None:
        hosted = self.running.get(state.cid)
        if hosted is not None:
            hosted.owner.freed(seqs)
            if hosted.owner.wants_messages:
                hosted.wakes.soon()

    @_shielded
    def turn_applied(self, turn: Turn, result: TurnResult) -> None:
        if turn.owner == self._peer:
            if self._runtime.pulse.stops(self._runtime.clock.monotonic()) != self._stops:
                self._check_awake()
            self.turns.applied(turn, result)

    @_shielded
    def reloaded(self) -> None:
        """Stop the owners: a snapshot was installed, and they refer to the previous state."""
        self.policy.reloaded(self.table.by_cid.values())
        self._drop_all(MOVED)
        self.turns.lose()
        self.refresh()

    def _on_deleted(self, seqs: Sequence[int]) -> None:
        """Messages were removed in the middle of the stream, inside apply; the owners hear of it behind that."""
        if not self.running:
            return
        if not self._deleted:
            self._runtime.timers.call_soon(self._tell_deleted)
        self._deleted += seqs

    def _tell_deleted(self) -> None:
        seqs, self._deleted = self._deleted, []
        for hosted in self.running.values():
            if hosted.owner.state.unacked.entries or hosted.owner.selection.ops_in_flight:
                self._guard(partial(hosted.owner.vanished, seqs))

    def answered(self, cid: int) -> None:
        """Let deliveries of consumer `cid` begin: its creator has been answered."""
        self._unanswered.discard(cid)
        hosted = self.running.get(cid)
        if hosted is not None:
            self._guard(hosted.owner.release)

    # -- notifications of the replica

    def refresh(self) -> None:
        """Start or stop owners: the conditions for running them may have changed."""
        if not self.active:
            owned = bool(self.running)
            self._drop_all(MOVED)
            if owned:  # in the same session they would restart from a state without the operations in flight
                self.turns.lose()
        elif self.owns > len(self.running) + len(self._to_start) and not self._restoring:
            for state in self.table.by_cid.values():
                if state.owner == self._me and state.cid not in self.running:
                    self._take(state)

    def appended(self, first_seq: int, last_seq: int) -> None:
        """Wake the owners that wait for new messages `first_seq` to `last_seq`."""
        hosted: Iterable[_Hosted] = self.running.values()
        if len(self.running) > MAX_WOKEN_OWNERS:
            try:
                stored = self.replica.store.read_columns(range(first_seq, last_seq + 1))
            except DamagedError as error:
                self._report_damage(error)
                return
            hosted = self._filters.takers(set(stored.subjects))
        for one in hosted:
            if one.owner.wants_messages:
                one.wakes.soon()

    def tick(self) -> None:
        """A few times per second."""
        if self._stopped:
            return
        if not self.table.count and not self.turns.wanted:
            return  # most streams have no consumers: they cost nothing here
        self._check_awake()
        self._check_touch()
        self._check_replicas()
        self.refresh()
        self.turns.tick()
        self.tell_leaving()
        self.moves.move()

    @property
    def unsettled(self) -> bool:
        """True while ticks have work, or must watch for it."""
        if self._stopped or not (self.table.count or self.turns.wanted):
            return False
        if self._going or self._leaving or self.unused or self.turns.unsettled or self.moves.wanted:
            return True
        return bool(self._to_start) or self.owns > len(self.running)

    def tell_leaving(self) -> None:
        """Ask the leader to move this replica's consumers, which it cannot serve."""
        now = self._runtime.clock.monotonic()
        if (self._going or not self.active) and self._known.current and self.owns:
            if not self._leaving or now >= self._tell_at:
                self._leaving, self._tell_at = True, now + LEAVE_SECONDS
                self._tell_leaving(self, True)
        elif self._leaving and self.active and not self._going:
            self._leaving = False
            self._tell_leaving(self, False)

    def hand_over(self) -> None:
        """Let other replicas own this node's consumers: it is about to stop."""
        self._going = True
        self.replica.wake()
        self.tell_leaving()

    @property
    def owns(self) -> int:
        """Number of consumers that this node owns, by the log."""
        return self.policy.owned(self._me)

    def stop(self, *, deleted: bool = False) -> None:
        """End all owners here: the stream is deleted (`deleted`), or the node stops."""
        self._stopped = True
        self._drop_all(DELETED if deleted else SHUTDOWN)
        self.turns.stop()
        self._wakes.stop()

    # -- internals

    def _session(self) -> int:
        known = self.table.session_of(self._peer)
        return known[0] if known is not None else 0

    def _send(self, session: int, body: bytes) -> bool:
        if self.replica.resting:
            self.replica.wake()  # ticks must watch: the turn may get lost
        return self._send_turn(self, session, body)

    def _check_awake(self) -> None:
        """Begin a new session when this process stood still: other nodes may own the consumers now."""
        stops = self._runtime.pulse.stops(self._runtime.clock.monotonic())
        if stops != self._stops:
            self._stops = stops
            self.turns.lose()

    def _check_replicas(self) -> None:
        """Follow a change from or to one replica. With one, no other node takes over: waiting pulls are not in the log,
        and are answered when this node stops."""
        replicated = len(self.replica.group.peers) > 1
        if replicated != self._replicated:
            self._replicated = replicated
            for hosted in self.running.values():
                hosted.owner.replicated = replicated
            self.turns.lose()  # the reset puts the waiting pulls into the log

    def _check_touch(self) -> None:
        group, now = self.replica.group, self._runtime.clock.monotonic()
        leader = group.leader
        if group.role is Role.LEADER or (leader is not None and self._network.raft.peers.is_alive(leader)):
            self._contact, self._in_touch = now, True
            return
        if self._in_touch:  # the replica may have rested, so the leader was not watched for a while
            self._in_touch = False
            self._contact = max(self._contact, group.leaderless_since or now - TICK)
        if now - self._contact > OUT_OF_TOUCH_SECONDS and self.turns.is_open:
            self.turns.lose()

    def _may_run(self) -> bool:
        if self._runtime.pulse.stops(self._runtime.clock.monotonic()) != self._stops:
            self._check_awake()
        return self.turns.may_run

    def _take(self, state: ConsumerState) -> None:
        """Start the owner of `state`, which this node owns, as soon as a session is open."""
        if not self.active or self._restoring:
            return
        if not self.running:
            self._replicated = len(self.replica.group.peers) > 1
        self._to_start[state.cid] = state
        if self.turns.is_open:
            self._schedule_start()
        else:
            self.turns.want()

    def _on_room(self) -> None:
        if self._to_start:
            self._schedule_start()
        self._wakes.resume()

    def _schedule_start(self) -> None:
        if not self._start_scheduled:
            self._start_scheduled = True
            self._runtime.timers.call_soon(self._start_some)

    def _start_some(self) -> None:
        self._start_scheduled = False
        end = self._runtime.clock.monotonic() + START_SECONDS
        while self._to_start and self.turns.is_open and self.active:
            _, state = self._to_start.popitem()
            self._start(state)
            if self._runtime.clock.monotonic() >= end and self._to_start:
                self._schedule_start()
                return

    def _start(self, state: ConsumerState) -> None:
        turns, wakes = OwnerTurns(self.turns), OwnerWakes(self._wakes)
        try:
            owner = self._consumer_owner(state, turns, wakes)
        except DamagedError as error:
            self._report_damage(error)
            return
        turns.owner = owner
        wakes.bind(owner.run, owner.tick)
        hosted = self.running[state.cid] = _Hosted(owner, turns, wakes, self._runtime.clock.time_ns())
        self._filters.set(state.cid, state.rules.filters, hosted)
        self._guard(owner.start)
        if state.cid in self._unanswered:
            self._unanswered.discard(state.cid)
            owner.hold(self._clock.time_ns() + UNANSWERED_NS)
        wakes.soon()
        self._infos.tell_elected(state)

    def _consumer_owner(self, state: ConsumerState, turns: OwnerTurns, wakes: OwnerWakes) -> ConsumerOwner:
        replica = self.replica
        around = OwnerDependencies(
            bus=replica.bus,
            messages=replica.store,
            turns=turns,
            wakes=wakes,
            clock=self._clock,
            rng=self._runtime.rng,
            render=replica.events.render,
            unused=lambda: self._unused(state),
            unserved=lambda unserved: self._note_unserved(state.cid, unserved=unserved),
            stream=replica.assignment.name,
            domain=self._settings.domain,
            ack_v2=self._settings.ack_v2,
            replicated=self._replicated,
            waiting=self._settings.waiting,
            understood=lambda: replica.level >= ORDER_PER_KEY_LEVEL,
            buries=lambda: replica.level >= DEAD_LETTER_LEVEL,
            when_known=self._when_known,
        )
        return ConsumerOwner(state, around)

    def _note_unserved(self, cid: int, *, unserved: bool) -> None:
        where = self.replica.assignment.gid, cid
        if unserved:
            self._settings.unserved[where] = self._runtime.clock.monotonic()
        else:
            self._settings.unserved.pop(where, None)

    def _unused(self, state: ConsumerState) -> None:
        guard = self.replica.machine.rules.guard
        if guard is not None and guard.consumer == state.name:
            return  # its deletion would be refused
        if len(self.unused) < MAX_UNUSED_CONSUMERS:  # the owner of a consumer without room asks again
            self.unused[state.cid] = state
            self._tell_unused(self.replica.assignment.gid)

    def _configured(self, state: ConsumerState) -> None:
        hosted = self.running.get(state.cid)
        if hosted is not None:
            self._filters.set(state.cid, state.rules.filters, hosted)
            self._guard(hosted.owner.configured)

    def _drop(self, cid: int, reason: str) -> None:
        self._to_start.pop(cid, None)
        self._unanswered.discard(cid)
        hosted = self.running.pop(cid, None)
        if hosted is None:
            return
        self._filters.remove(cid)
        self._note_unserved(cid, unserved=False)
        self.turns.forget(hosted.owner)
        self._guard(lambda: self._part(hosted.owner.stop(reason), reason))
        hosted.turns.owner = None
        hosted.wakes.close()

    def _part(self, telling: Iterator[None], reason: str) -> None:
        """Answer the clients that wait for an owner that has ended. There may be a hundred thousand, so this takes
        steps, except on a server that stops."""
        while next(telling, self) is not self:
            if reason != SHUTDOWN:
                self._runtime.timers.call_soon(lambda: self._guard(lambda: self._part(telling, reason)))
                return

    def _drop_all(self, reason: str) -> None:
        self._to_start.clear()
        self._unanswered.clear()
        for cid in list(self.running):
            self._drop(cid, reason)

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - one consumer's error must not end the stream
            self._owner_failed(error)

    def _owner_failed(self, error: Exception) -> None:
        if isinstance(error, DamagedError):
            self._report_damage(error)
            return
        self._errors += 1
        if self._errors <= LOGGED_ERRORS or self._errors % 1000 == 0:
            self._runtime.log.error(
                "a consumer's owner failed", stream=self.replica.assignment.name, error=repr(error), so_far=self._errors
            )
