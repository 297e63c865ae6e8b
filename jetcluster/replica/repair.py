"""The repair of a replica with records that it cannot read: it leaves the reads, says so, and is rebuilt from its
leader.

The own state is kept until the leader has shown that it can give all of its: it announces everything once before, so
that two replicas with damage in different places do not give up what the other one lacks. Then only what differs is
fetched, and what cannot be read does differ. A leader that is damaged lets another one lead. Without another replica,
or while none of them is whole, the data stays as it is.

`Failures` counts and logs what fails on this node in the parts of a replica that the stream does without. Such a
failure is neither a refusal of a command nor the end of the replica.
"""

from __future__ import annotations

from typing import Final

from jetcluster.logs import Log
from jetcluster.model.advisory import replica_damaged
from jetcluster.replica.replica_state import ReplicaState, tell_both
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvDamagedError

LOGGED_FAILURES: Final = 10
"""Lines per replica and kind; after that every thousandth."""


class Failures:
    """One per replica of a stream."""

    def __init__(self, log: Log, stream: str) -> None:
        self.count = 0
        """Since the start of this process."""
        self._log = log
        self._stream = stream

    def failed(self, event: str, error: Exception, index: int = 0, kind: int = 0) -> None:
        """`index`, `kind`: of the command that it follows from; 0: of none."""
        self.count += 1
        self.tell(event, error, self.count, index, kind)

    def tell(self, event: str, error: Exception | None, so_far: int, index: int, kind: int) -> None:
        """A line in the log, unless there were many of its kind."""
        if so_far <= LOGGED_FAILURES or so_far % 1000 == 0:
            place = {"index": index, "kind": kind} if index else {}
            self._log.error(event, stream=self._stream, **place, error=_told(error), so_far=so_far)


def _told(error: Exception | None) -> str:
    """The error, and where it came from."""
    if error is None:
        return ""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}" if trace is not None else ""
    return repr(error)[:500] + where


RETRY_SECONDS: Final = 5.0


class Repair:
    """The repair of one replica. `tick` it a few times per second."""

    def __init__(self, replica: ReplicaState) -> None:
        self._context = replica.context
        self._replica = replica
        self._at = 0.0
        self.in_store = False
        """The store below found it: its files are damaged, and new records beside them would not last."""
        self.found = 0
        """Times that damage was found here (monitoring)."""
        self.repaired = 0
        """Times that this replica was rebuilt after that (monitoring)."""

    def report(self, error: DamagedError) -> None:
        """A stored record fails its checksum."""
        known, self._replica.damaged = self._replica.damaged, str(error)
        self.in_store |= isinstance(error.__cause__, KvDamagedError)
        if known:
            return
        self.found += 1
        name = self._replica.assignment.name
        cause = str(error.__cause__ or "")
        self._context.log.error("damaged record", stream=name, error=str(error), cause=cause)
        self._at = self._context.clock.monotonic()
        self._tell(cause)

    def tick(self) -> None:
        context, replica = self._context, self._replica
        group = replica.group
        now = context.clock.monotonic()
        if not replica.damaged or self.in_store or replica.installing or now < self._at or len(group.peers) < 2:
            return
        self._at = now + RETRY_SECONDS
        leader = group.leader
        if leader == context.me:
            group.transfer()
        elif leader is not None:
            context.catchup.pull(replica.assignment.gid, leader, replica.state_index)

    def rebuilt(self) -> None:
        """The state is another replica's now."""
        if self._replica.damaged:
            self.repaired += 1
            self._context.log.warning("damaged replica was rebuilt", stream=self._replica.assignment.name)
        self._replica.damaged = ""
        self.in_store = False

    def _tell(self, cause: str) -> None:
        context, replica = self._context, self._replica
        tell_both(replica, replica_damaged(replica.assignment.name, context.name, context.me, replica.damaged, cause))
