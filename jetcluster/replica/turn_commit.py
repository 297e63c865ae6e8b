"""Commits of the data store, at most one per turn of the event loop, for all replicas of the node.

The Raft journal is the log that makes acks safe; this commit only moves what was applied from the open batch into
RocksDB, so it may come after the acks, and some turns later: of a key-value bucket under load most of what was applied
is replaced by then, and never written. When it fails (disk full) the open batch is kept, reads go on seeing it, and the
commit is repeated. A commit that would have to wait for the disk is put off and repeated as well; nothing fails then,
but when too much piles up the replicas apply no more until there is room again.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.clock import Timers
from jetcluster.logs import Log
from jetcluster.store.kv import KvError, KvFullError
from jetcluster.store.rocks_kv import RocksKv

RETRY_SECONDS = 0.5
LOOK_SECONDS = 0.05
"""Until a commit that had to be put off is tried again."""
HOLD_SECONDS = 0.3
"""The longest time from one commit to the next, when something was applied. Nothing waits for it: what makes the store
durable, or reads a snapshot of it, commits by itself."""


class TurnCommit:
    def __init__(self, kv: RocksKv, timers: Timers, log: Log) -> None:
        self._kv = kv
        self._writes = kv.writes
        self._timers = timers
        self._log = log
        self._scheduled = False
        self._held = False
        """There was a commit within the last HOLD_SECONDS."""
        self._waiting = False
        """Something was applied since."""
        self._stopped = False
        self.failing = ""
        """Why the last commit failed; new writes should be refused while it does. "" when it did not."""
        self.full = False
        """It failed because the disk is full: what is there can be read."""
        self.on_room: Callable[[], None] = lambda: None
        """The store takes more: what was not applied for its sake can be."""
        self.on_held: Callable[[], None] = lambda: None
        """The store could not commit: `may_apply` is to be asked from now on, until `on_room`."""
        self.on_due: Callable[[], None] = lambda: None
        """The store should be flushed at once."""
        kv.on_held = self._kept_open

    def mark(self) -> None:
        """Something is to be committed at the end of this turn."""
        if not self._scheduled:
            self._scheduled = True
            self._timers.call_soon(self._turn_ends)

    def end_of_turn(self) -> None:
        """Something was applied in the turn that ends."""
        if self._scheduled:
            return
        if self._held and not self._writes.pressing:
            self._waiting = True
        else:
            if not self._held:
                self._hold()
            self._commit()

    def _kept_open(self) -> None:
        """A commit, of this or of another owner of the store, has to wait."""
        self.on_held()

    def may_apply(self) -> bool:
        """See `Turns.may_apply`. A caller that is told to wait is told when it is over, also where nothing was
        applied that is to be committed: what fills the store may be imports alone."""
        if not self._kv.overloaded:
            return True
        self.mark()
        return False

    def now(self) -> None:
        """Something was applied, and waits no longer than it must."""
        self._commit()

    def stop(self) -> None:
        """Nothing is committed from here on: the store is about to be closed."""
        self._stopped = True

    def _turn_ends(self) -> None:
        self._scheduled = False
        self.end_of_turn()

    def _hold(self) -> None:
        self._held = True
        self._timers.call_later(HOLD_SECONDS, self._end_of_hold)

    def _end_of_hold(self) -> None:
        self._held = False
        if self._waiting and not self._scheduled:
            self._hold()  # or the next turn would commit again, at once and for itself alone
            self._commit()

    def _commit(self) -> None:
        self._scheduled = self._waiting = False
        if self._stopped:
            return
        try:
            self._kv.commit()
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
            if not self._kv.overloaded:
                self.on_room()
            if self._kv.open_bytes:
                self._scheduled = True
                self._timers.call_later(LOOK_SECONDS, self._commit)
                self.on_held()
            if self._kv.due:
                self.on_due()
