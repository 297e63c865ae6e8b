"""`Applier`: applies commands so that none of them stops a stream.

What a client, a peer or an archive can get into the log is checked before it goes there, and in apply before anything
is changed. Should a command get through all of that and raise in the middle, the state goes back to where it was before
it. The way back is that of a crash: the store forgets what it has not committed, and what the log has after that is
applied again. Then everything in memory is fresh, and the command is applied once more, with nobody looking on: what
raised may have been a cache or an observer of this process alone, of which the other replicas know nothing. If it
raises again, it was the same command on the same state everywhere: it counts as refused, all replicas refuse it alike,
and the stream goes on.

Trouble of this machine is no refusal: a disk that fails, a record that is damaged, memory that has run out, a command
of a newer version (`FAULTS`). The others may well have applied the command; this replica must stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvError
from jetcluster.stream.commands import UnknownCommandError
from jetcluster.stream.machine import REFUSED, StateError

if TYPE_CHECKING:
    from jetcluster.stream.machine import StreamMachine
    from jetcluster.stream.ports import Result

FAULTS: Final = (DamagedError, KvError, OSError, MemoryError, RecursionError, StateError, UnknownCommandError)
"""Raised in apply, they say something about this machine or version, and nothing about the command."""

LogEntry = tuple[int, bytes]
"""Term and command."""


class ApplierHost(Protocol):
    """The owner of the machine, as the applier calls it."""

    def entry(self, index: int) -> LogEntry | None:
        """The command that was applied at `index`, since the store's last commit; None for what is no command. Raises
        what means that the log cannot be read."""
        ...

    def abandon(self) -> None:
        """Takes the store back to its last commit."""
        ...

    def taking_back(self) -> None:
        """Told when what was applied is about to be applied again: nobody is to be told a second time."""
        ...

    def taken_back(self) -> None:
        """It is done: all objects of the state are other ones, with the content of before."""
        ...

    def commit(self) -> None:
        """Commits the store if it can: the next time the way back is short."""
        ...

    def refused(self, index: int, command: bytes, error: Exception | None) -> None:
        """All replicas refuse the command at `index`."""
        ...

    def recovered(self, index: int, command: bytes, error: Exception) -> None:
        """The command at `index` was carried out at the second try: the first one failed for a reason of this process
        alone."""
        ...


class Applier:
    def __init__(self, machine: StreamMachine, host: ApplierHost) -> None:
        self._machine = machine
        self._host = host
        self._refused: set[int] = set()
        """Indexes above the store's last commit that are to be refused again, as they were."""

    def apply(self, index: int, term: int, command: bytes) -> Result:
        """As `StreamMachine.apply`, but for commands that it cannot carry out: `machine.REFUSED` is their result.
        Raises FAULTS, and what `ApplierHost.entry` raises; what was done of the command is taken back then, too."""
        try:
            result = self._machine.apply(index, term, command)
        except FAULTS:
            # What was done of the command must not be committed with the work of others.
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
        """To what was before the command at `index`."""
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
