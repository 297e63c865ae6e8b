"""`Applier`: applies commands so that none of them stops a stream.

Input of clients, peers and archives is checked before it enters the log, and in apply before anything changes. If a
command still raises half-way, the state returns to the one before it, as after a crash: the store drops its uncommitted
writes, the state in memory is loaded anew, and the log's later entries are applied again. Then the command is applied
once more, without observers: the cause may have been a cache or an observer of this process, which the other replicas
do not share. If it raises again, it raises on every replica, as command and state are the same: all refuse it, and the
stream goes on.

Faults of this machine (`FAULTS`) are no refusal: a failing disk, a damaged record, exhausted memory, a command of a
newer version. The other replicas may have applied the command; this one must stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvError
from jetcluster.stream.apply.machine import REFUSED, StateError
from jetcluster.stream.log.commands import UnknownCommandError

if TYPE_CHECKING:
    from jetcluster.stream.apply.machine import StreamMachine
    from jetcluster.stream.ports import Result

FAULTS: Final = (DamagedError, KvError, OSError, MemoryError, RecursionError, StateError, UnknownCommandError)
"""Errors of apply that concern this machine or version, not the command."""

LogEntry = tuple[int, bytes]
"""Term and command."""


class ApplierHost(Protocol):
    """The owner of the machine, as the applier calls it."""

    def entry(self, index: int) -> LogEntry | None:
        """Returns the command applied at `index`, after the store's last commit; None for an entry without one."""

    def abandon(self) -> None:
        """Takes the store back to its last commit."""

    def taking_back(self) -> None:
        """Called before commands are applied again: observers must not see them a second time."""

    def taken_back(self) -> None:
        """Called when that is done: all objects of the state are new, with the same content."""

    def commit(self) -> None:
        """Commits the store if it can, which shortens the next way back."""

    def refused(self, index: int, command: bytes, error: Exception | None) -> None:
        """Called when all replicas refuse the command at `index`."""

    def recovered(self, index: int, command: bytes, error: Exception) -> None:
        """Called when the command at `index` succeeded at the second try: the first one failed in this process only."""


class Applier:
    """Applies the commands of one stream. See above."""

    def __init__(self, machine: StreamMachine, host: ApplierHost) -> None:
        self._machine = machine
        self._host = host
        self._refused: set[int] = set()
        """Indexes above the store's last commit that must be refused again."""

    def apply(self, index: int, term: int, command: bytes) -> Result:
        """Applies as `StreamMachine.apply` does, but returns `machine.REFUSED` for a command that cannot be carried
        out. Raises FAULTS, and what `ApplierHost.entry` raises, after taking the command back."""
        try:
            result = self._machine.apply(index, term, command)
        except FAULTS:
            # A half-done command must not be committed with others.
            self._host.abandon()
            raise
        except Exception as error:  # noqa: BLE001 - all that a command may raise
            return self._again(index, term, command, error)
        if result is REFUSED:
            self._host.refused(index, command, self._machine.malformed)
        return result

    def _again(self, index: int, term: int, command: bytes, error: Exception) -> Result:
        machine, host = self._machine, self._host
        host.taking_back()
        refused: Exception | None = None
        try:
            self._go_back(index)
            try:
                result = machine.apply(index, term, command)
            except FAULTS:
                raise
            except Exception as second:  # noqa: BLE001 - all that a command may raise
                refused = second
                self._go_back(index)
                result = machine.refuse(index, term, command)
        except Exception:
            host.abandon()
            raise
        if refused is not None:
            self._refused.add(index)
        host.taken_back()
        if result is REFUSED:
            host.refused(index, command, refused)
        else:
            host.recovered(index, command, error)
        host.commit()
        return result

    def _go_back(self, index: int) -> None:
        """Restores the state before the command at `index`."""
        machine, host = self._machine, self._host
        host.abandon()
        machine.reload()
        self._refused = {at for at in self._refused if at > machine.applied_index}
        for at in range(machine.applied_index + 1, index):
            entry = host.entry(at)
            if entry is None:
                continue
            if at in self._refused:
                machine.refuse(at, *entry)
            else:
                machine.apply(at, *entry)
