"""`Applying`: committed commands of one stream on this node: into the state machine, then to all who wait for them.

What a command does to the state is the `Applier`'s; it is the same on all replicas. What follows from it on this node
(acks, links, consumers, reads) is not: trouble there is logged, and neither a refusal nor the end of the replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jetcluster.stream import commands
from jetcluster.stream.applier import FAULTS, Applier, LogEntry
from jetcluster.stream.machine import REFUSED
from jetcluster.stream.results import BatchResult, JobStep, PublishResult, Result

if TYPE_CHECKING:
    from jetcluster.replica.context import NodeContext
    from jetcluster.replica.stream_replica import StreamReplica

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
        self._replica = replica
        self._applier = Applier(replica.machine, self)

    def apply(self, index: int, term: int, command: bytes) -> None:
        """Raises `applier.FAULTS`."""
        replica = self._replica
        last_seq = replica.store.last_seq
        result = self._applier.apply(index, term, command)
        replica.checkpoints.note(index, replica.machine.hash)
        self._context.turn_commit.mark()
        try:
            self._tell(index, command, result, last_seq)
        except FAULTS:
            raise
        except Exception as error:  # noqa: BLE001 - the state is right, and the stream must go on
            self.failed("what follows from a command failed", error, index, command[0])

    def failed(self, event: str, error: Exception, index: int = 0, kind: int = 0) -> None:
        """A part of the replica failed that the others do without."""
        self.failures += 1
        self._log(event, error, self.failures, index, kind)

    def _tell(self, index: int, command: bytes, result: Result, last_seq: int) -> None:
        replica = self._replica
        kind = command[0] if command else 0
        replica.reads.applied(index)
        replica.duties.applied(kind)
        if replica.store.last_seq > last_seq:
            replica.consumers.appended(last_seq + 1, replica.store.last_seq)
        if isinstance(result, PublishResult | BatchResult):
            replica.ingest.on_applied(index, result)
            return
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
