"""`Applying`: committed commands of one stream on this node: into the state machine, then to all who wait for them.

What a command does to the state is the `Applier`'s; it is the same on all replicas. What follows from it on this node
(acks, links, consumers, reads) is not: trouble there is logged, and neither a refusal nor the end of the replica.

Publishers are answered first. Reads and consumers, which wait for no command in particular, hear of all that was
stored once per turn of the loop, when the answers are on their way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jetcluster.replica.checkpoints import CHECKPOINT_EVERY
from jetcluster.store.api import DamagedError
from jetcluster.stream import commands
from jetcluster.stream.applier import FAULTS, Applier, LogEntry
from jetcluster.stream.machine import REFUSED
from jetcluster.stream.results import BatchResult, JobStep, PublishResult, Result

if TYPE_CHECKING:
    from jetcluster.replica.context import NodeContext
    from jetcluster.replica.stream_replica import StreamReplica

MOST_UNTOLD: Final = 4096
"""Messages of a turn after which consumers hear of them before its end: they may look at each."""
_TURN: Final = bytes((commands.CONSUMER_TURN,))
"""Nobody waits for one; `ConsumerHost` was told by the table."""
LOGGED: Final = 10
"""Lines per replica; after that every thousandth."""


class Applying:
    """`stream.applier.ApplierHost` of one replica."""

    def __init__(self, context: NodeContext, replica: StreamReplica) -> None:
        self.refusals = 0
        """Commands that no replica could carry out, since the start of this process."""
        self.failures = 0
        """Commands that were carried out, and what follows from them on this node failed."""
        self._context = context
        self._call_soon = context.timers.call_soon
        self._replica = replica
        self._applier = Applier(replica.machine, self)
        self._store = replica.store
        self._told_seq = 0
        """Up to there consumers have heard of what is stored."""
        self._untold = False
        """The end of this turn has something to tell."""

    def apply(self, index: int, term: int, command: bytes) -> None:
        """Raises `applier.FAULTS`. A record that cannot be read is none of them where another replica has it."""
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
            return
        except Exception:
            # The group stops. What was taken back may be gone from memory, and what is gone is no "not found".
            replica.reads.abort()
            raise
        replica.checkpoints.newest = index, replica.machine.hash
        if not index & (CHECKPOINT_EVERY - 1):
            replica.checkpoints.note(index, replica.machine.hash)
        try:
            if isinstance(result, PublishResult | BatchResult):
                if replica.duties.republish is not None:
                    replica.duties.applied(command[0])
                if replica.ingest.proposed or isinstance(result, BatchResult):
                    replica.ingest.on_applied(index, result)
                if self._store.last_seq - self._told_seq > MOST_UNTOLD:
                    self._tell_consumers()
            elif command[:1] != _TURN or result is REFUSED:
                self._tell(index, command, result)
        except FAULTS:
            raise
        except Exception as error:  # noqa: BLE001 - the state is right, and the stream must go on
            self.failed("what follows from a command failed", error, index, command[0])
        if not self._untold:
            self._untold = True
            self._call_soon(self._tell_all)

    def _set_aside(self, error: DamagedError) -> bool:
        """The replica applies no more until it has the state of another one. False: nobody else has it, or new records
        would not last either."""
        replica = self._replica
        replica.report_damage(error)
        if replica.repair.in_store or len(replica.group.peers) < 2:
            return False
        replica.machine.reload()  # the store is back at its last commit
        replica.group.suspend()
        return True

    def failed(self, event: str, error: Exception, index: int = 0, kind: int = 0) -> None:
        """A part of the replica failed that the others do without."""
        self.failures += 1
        self._log(event, error, self.failures, index, kind)

    def _tell_all(self) -> None:
        """The end of a turn in which commands were applied."""
        self._untold = False
        replica = self._replica
        self._context.turn_commit.end_of_turn()
        try:
            replica.reads.applied(replica.machine.applied_index)
            if replica.consumers.running and self._store.last_seq > self._told_seq:
                self._tell_consumers()
        except FAULTS as error:
            replica.group.fail(error)
        except Exception as error:  # noqa: BLE001 - as in `apply`
            self.failed("what follows from a command failed", error, replica.machine.applied_index)

    def _tell_consumers(self) -> None:
        first, last = self._told_seq + 1, self._store.last_seq
        self._told_seq = last
        self._replica.consumers.appended(first, last)

    def _tell(self, index: int, command: bytes, result: Result) -> None:
        """Tells of a command that is no publish: those who proposed it, and those whom it concerns."""
        replica = self._replica
        kind = command[0] if command else 0
        if self._store.last_seq > self._told_seq:
            self._tell_consumers()
        replica.duties.applied(kind)
        if isinstance(result, JobStep):
            if result.done:
                replica.proposals.applied(result.job, result.removed)
            return
        if result is REFUSED:
            replica.ingest.on_refused(index, REFUSED)
            replica.duties.refused(kind)
        elif kind == commands.UPDATE_CONFIG:
            replica.config_changed()
        elif commands.erases(command):
            self._context.erased = True
        if kind == commands.SOURCED:
            replica.mirrors.applied(index, result)
        replica.proposals.applied(index, result)
        if replica.objects is not None:
            replica.objects.applied(index, result)

    # ---- stream.applier.Host

    def entry(self, index: int) -> LogEntry | None:
        """Raises JournalDamageError."""
        return self._replica.group.command_at(index)

    def abandon(self) -> None:
        self._replica.store.abandon()

    def taking_back(self) -> None:
        self._replica.consumers.table.observer = None
        self._replica.machine.observe(None)

    def taken_back(self) -> None:
        replica = self._replica
        replica.consumers.table.observer = replica.consumers
        replica.duties.config_changed()
        replica.keep_members()
        replica.consumers.reloaded()

    def refused(self, index: int, command: bytes, error: Exception | None) -> None:
        self.refusals += 1
        self._log("a command is refused by all replicas", error, self.refusals, index, command[0] if command else 0)

    def recovered(self, index: int, command: bytes, error: Exception) -> None:
        self.failed("a command failed here alone and was carried out at the second try", error, index, command[0])

    def commit(self) -> None:
        self._context.turn_commit.now()

    def _log(self, event: str, error: Exception | None, so_far: int, index: int, kind: int) -> None:
        if so_far <= LOGGED or so_far % 1000 == 0:
            place = {"index": index, "kind": kind} if index else {}
            self._context.log.error(
                event, stream=self._replica.assignment.name, **place, error=_told(error), so_far=so_far
            )


def _told(error: Exception | None) -> str:
    """The error, and where it came from."""
    if error is None:
        return ""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}" if trace is not None else ""
    return repr(error)[:500] + where
