"""`Applying` passes the committed commands of one stream to its state machine, and then to all parts that wait for
them.

The effect of a command on the state is the `Applier`'s, and the same on all replicas. Its consequences on this node
(acks, links, consumers, reads) are not part of the state: an error there is logged, and neither refuses the command nor
ends the replica.

Publishers are answered first. Reads and consumers, which wait for no particular command, are notified once per turn of
the loop, after the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jetcluster.replica.consumer_host import ConsumerHost
from jetcluster.replica.guard_watch import GuardWatch
from jetcluster.replica.mirror_host import MirrorHost
from jetcluster.replica.object_service import ObjectService
from jetcluster.replica.proposals import Proposals
from jetcluster.replica.reads.reads import Reads
from jetcluster.replica.repair import Failures, Repair
from jetcluster.replica.replica_state import CHECKPOINT_EVERY, ReplicaState
from jetcluster.store.api import DamagedError
from jetcluster.stream.apply.applier import FAULTS, Applier, LogEntry
from jetcluster.stream.apply.machine import REFUSED
from jetcluster.stream.lead.duties import LeaderDuties
from jetcluster.stream.lead.ingest import Ingest
from jetcluster.stream.log import commands
from jetcluster.stream.ports import BatchResult, JobStep, PublishResult, Result

MOST_UNTOLD: Final = 4096
"""Messages of one turn after which consumers are notified before it ends: they may look at each."""
_TURN: Final = bytes((commands.CONSUMER_TURN,))
"""No caller waits for such a command; the table has notified `ConsumerHost`."""


class Applying:
    """The `stream.apply.applier.ApplierHost` of one replica."""

    def __init__(
        self,
        replica: ReplicaState,
        failures: Failures,
        *,
        ingest: Ingest,
        proposals: Proposals,
        duties: LeaderDuties,
        reads: Reads,
        consumers: ConsumerHost,
        mirrors: MirrorHost,
        objects: ObjectService | None,
        repair: Repair,
        config_changed: Callable[[], None],
    ) -> None:
        self.refusals = 0
        """Commands that no replica could carry out, since the start of this process."""
        self._commits = replica.commits
        self._call_soon = replica.runtime.timers.call_soon
        self._replica = replica
        self._failures = failures
        self._ingest = ingest
        self._proposals = proposals
        self._duties = duties
        self._reads = reads
        self._consumers = consumers
        self._mirrors = mirrors
        self._objects = objects
        self._repair = repair
        self._config_changed = config_changed
        self._applier = Applier(replica.machine, self)
        self._guard = GuardWatch(replica)
        self._store = replica.store
        self._told_seq = 0
        """Last stored sequence of which consumers were notified."""
        self._untold = False
        """Notifications are due at the end of this turn."""

    def apply(self, index: int, term: int, command: bytes) -> None:
        """Raises `applier.FAULTS`. An unreadable record that another replica has is not one of them."""
        replica = self._replica
        if replica.resting:
            replica.wake()
        if not self._untold:
            self._told_seq = self._store.last_seq
        try:
            result = self._applier.apply(index, term, command)
        except DamagedError as error:
            if not self._set_aside(error):
                raise
            # Nobody is told what became of it, and the log counts it as applied.
            self._ingest.on_dropped(index)
            self._proposals.dropped(index)
            if self._objects is not None:
                self._objects.dropped(index)
            return
        except Exception:
            # The group stops. Rows that were taken back may be missing in memory; that must not read as "not found".
            self._reads.abort()
            raise
        replica.checkpoints.newest = index, replica.machine.hash
        if not index & (CHECKPOINT_EVERY - 1):
            replica.checkpoints.note(index, replica.machine.hash)
        try:
            if isinstance(result, PublishResult | BatchResult):
                if self._duties.heeds_publishes:
                    self._duties.applied(command[0])
                if self._ingest.proposed or isinstance(result, BatchResult):
                    self._ingest.on_applied(index, result)
                if self._store.last_seq - self._told_seq > MOST_UNTOLD:
                    self._tell_consumers()
            elif command[:1] != _TURN or result is REFUSED:
                self._tell(index, command, result)
        except FAULTS:
            raise
        except Exception as error:  # noqa: BLE001 - the state is right, and the stream must go on
            self._failures.failed("what follows from a command failed", error, index, command[0])
        if not self._untold:
            self._untold = True
            self._call_soon(self._tell_all)

    def _set_aside(self, error: DamagedError) -> bool:
        """Stop applying until the replica has another one's state. Returns False where no other replica can give it, or
        where new records would not last."""
        replica = self._replica
        self._replica.report_damage(error)
        if self._repair.in_store or len(replica.group.peers) < 2:
            return False
        replica.machine.reload()  # the store is back at its last commit
        replica.group.suspend()
        return True

    def _tell_all(self) -> None:
        """Notify reads and consumers at the end of a turn that applied commands."""
        self._untold = False
        replica, commits = self._replica, self._commits
        if not commits.waiting or commits.writes.pressing:
            commits.end_of_turn()
        try:
            if any(self._reads.queues):
                self._reads.applied(replica.machine.applied_index)
            if self._consumers.running and self._store.last_seq > self._told_seq:
                self._tell_consumers()
            if replica.machine.rules.guard is not None:
                self._guard.look()
        except FAULTS as error:
            replica.group.fail(error)
        except Exception as error:  # noqa: BLE001 - as in `apply`
            self._failures.failed("what follows from a command failed", error, replica.machine.applied_index)

    def _tell_consumers(self) -> None:
        first, last = self._told_seq + 1, self._store.last_seq
        self._told_seq = last
        self._consumers.appended(first, last)

    def _tell(self, index: int, command: bytes, result: Result) -> None:
        """Notify the proposer of a command that is no publish, and the parts that it concerns."""
        kind = command[0] if command else 0
        if self._store.last_seq > self._told_seq:
            self._tell_consumers()
        self._duties.applied(kind)
        if isinstance(result, JobStep):
            if result.done:
                self._proposals.applied(result.job, result.removed)
                if not self._replica.machine.has_job(result.job):
                    self._ingest.on_job_done(result.job)
            return
        if result is REFUSED:
            self._ingest.on_refused(index, REFUSED)
            self._duties.refused(kind)
        elif kind == commands.UPDATE_CONFIG:
            self._config_changed()
        elif commands.erases(command):
            self._commits.erase()
        if kind == commands.SOURCED:
            self._mirrors.applied(index, result)
        self._proposals.applied(index, result)
        if self._objects is not None:
            self._objects.applied(index, result)

    # ---- stream.applier.Host

    def entry(self, index: int) -> LogEntry | None:
        """Raises JournalDamageError."""
        return self._replica.group.command_at(index)

    def abandon(self) -> None:
        self._replica.store.abandon()

    def taking_back(self) -> None:
        self._replica.table.observe(None)
        self._replica.machine.observe(None)

    def taken_back(self) -> None:
        replica = self._replica
        replica.table.observe(self._consumers)
        self._duties.config_changed()
        replica.keep_members()
        self._consumers.reloaded()

    def refused(self, index: int, command: bytes, error: Exception | None) -> None:
        self.refusals += 1
        kind = command[0] if command else 0
        self._failures.tell("a command is refused by all replicas", error, self.refusals, index, kind)

    def recovered(self, index: int, command: bytes, error: Exception) -> None:
        self._failures.failed(
            "a command failed here alone and was carried out at the second try", error, index, command[0]
        )

    def commit(self) -> None:
        self._commits.now()
