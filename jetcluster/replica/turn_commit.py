"""Commits of the data store, at most one per turn of the event loop, for all replicas of the node.

The Raft journal makes acks safe; a commit only moves applied rows from the open batch into RocksDB, so it may follow
the acks by some turns. A key-value bucket under load then replaces most rows before they are ever written. When a
commit fails (disk full), the open batch stays readable and the commit is retried. A commit that would wait for the disk
is postponed; if too much accumulates, the replicas stop applying until there is room again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from jetcluster.clock import Timers
from jetcluster.logs import Log
from jetcluster.raft.node_state import Turns
from jetcluster.store.kv import KvError, KvFullError
from jetcluster.store.rocks_kv import RocksKv

ERASED_KEY = b"\x00erased"
"""A record of the node itself, while the journal may have what was erased."""
RETRY_SECONDS = 0.5
LOOK_SECONDS = 0.05
"""Delay before a postponed commit is tried again."""
HOLD_SECONDS = 0.3
"""Longest time between commits while commands are applied. A flush or a snapshot commits first by itself."""


class TurnCommit:
    """The schedule of commits. One per node."""

    def __init__(
        self, kv: RocksKv, timers: Timers, log: Log, turns: Turns,
        before_flush: Callable[[], Awaitable[None]], on_due: Callable[[], None],
    ) -> None:  # fmt: skip
        """`turns` apply the commands. `on_due` is called when the store should be flushed at once."""
        kv.serve(before_flush, self._ask_first)
        self.kv = kv
        self.writes = kv.writes
        self._timers = timers
        self._log = log
        self._scheduled = False
        self._held = False
        """A commit happened within the last HOLD_SECONDS."""
        self.waiting = False
        """A command was applied since that commit: another comes by itself, or at once if `writes` are pressing."""
        self._stopped = False
        self.failing = ""
        """Why the last commit failed, "" if it succeeded. New writes should be refused while commits fail."""
        self.full = False
        """The last commit failed because the disk is full; stored data remains readable."""
        self.erased = self._has_erased()
        """A message was securely erased, maybe by a previous process, so its bytes must leave the journal too
        (`flusher`)."""
        self._turns, self._on_due = turns, on_due

    def _has_erased(self) -> bool:
        try:
            return self.kv.get(ERASED_KEY) is not None
        except KvError:  # to look once too often costs little
            return True

    def erase(self) -> None:
        """Note that a message was erased, in the commit of that."""
        if not self.erased:
            self.erased = True
            self.kv.put(ERASED_KEY, b"")

    def forgotten(self) -> None:
        """Note that the journal has forgotten what was erased, unless more was erased since. A crash before the next
        flush has it forget again."""
        if not self.erased:
            self.kv.delete(ERASED_KEY)

    def mark(self) -> None:
        """Request a commit at the end of this turn."""
        if not self._scheduled:
            self._scheduled = True
            self._timers.call_soon(self._turn_ends)

    def end_of_turn(self) -> None:
        """Note that the ending turn applied a command."""
        if self._scheduled:
            return
        if self._held and not self.writes.pressing:
            self.waiting = True
        else:
            if not self._held:
                self._hold()
            self._commit()

    def may_apply(self) -> bool:
        """See `Turns.ask_first`. After False `apply_again` follows, also when imports alone fill the store."""
        if not self.kv.overloaded:
            return True
        self.mark()
        return False

    def now(self) -> None:
        """Commit as soon as possible."""
        self._commit()

    def stop(self) -> None:
        """End all commits: the store is about to be closed."""
        self._stopped = True

    def _ask_first(self) -> None:
        self._turns.ask_first(self.may_apply)

    def _turn_ends(self) -> None:
        self._scheduled = False
        self.end_of_turn()

    def _hold(self) -> None:
        self._held = True
        self._timers.call_later(HOLD_SECONDS, self._end_of_hold)

    def _end_of_hold(self) -> None:
        self._held = False
        if self.waiting and not self._scheduled:
            self._hold()  # else the next turn would commit again at once, for itself alone
            self._commit()

    def _commit(self) -> None:
        self._scheduled = self.waiting = False
        if self._stopped:
            return
        try:
            self.kv.commit()
        except KvError as error:
            if not self.failing:
                self._log.error("the data store cannot be written; it is tried again", error=str(error))
            self.failing = str(error) or repr(error)
            self.full = isinstance(error, KvFullError)
            self._scheduled = True
            self._timers.call_later(RETRY_SECONDS, self._commit)
        else:
            if self.failing:
                self._log.warning("the data store can be written again")
            self.failing, self.full = "", False
            if not self.kv.overloaded:
                self._turns.apply_again()
            if self.kv.open_bytes:
                self._scheduled = True
                self._timers.call_later(LOOK_SECONDS, self._commit)
                self._ask_first()
            if self.kv.due:
                self._on_due()
