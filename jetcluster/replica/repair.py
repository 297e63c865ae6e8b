"""The repair of a replica that holds unreadable records: it leaves the read group, reports the damage, and is rebuilt
from its leader.

The replica keeps its own state until the leader has announced all of its state once: two replicas with damage in
different places must not each give up what the other lacks. Then only the ranges that differ are fetched; unreadable
ranges always differ. A damaged leader hands over to any voter: the most advanced may be damaged, too. Without another
replica, or while no replica is whole, the data stays as it is.

`Failures` counts and logs errors in those parts of a replica that the stream can do without. Such an error neither
refuses a command nor ends the replica.
"""

from __future__ import annotations

from typing import Final

from jetcluster.logs import Log
from jetcluster.model.advisory import replica_damaged
from jetcluster.replica.replica_state import ReplicaState, tell_both
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvDamagedError

LOGGED_FAILURES: Final = 10
"""Lines per replica and kind; after those every thousandth failure is logged."""


class Failures:
    """One per replica of a stream."""

    def __init__(self, log: Log, stream: str) -> None:
        self.count = 0
        """Since the start of this process."""
        self._log = log
        self._stream = stream

    def failed(self, event: str, error: Exception, index: int = 0, kind: int = 0) -> None:
        """`index`, `kind`: the command that caused the failure, 0 for none."""
        self.count += 1
        self.tell(event, error, self.count, index, kind)

    def tell(self, event: str, error: Exception | None, so_far: int, index: int, kind: int) -> None:
        """Log the failure, unless many of its kind were logged."""
        if so_far <= LOGGED_FAILURES or so_far % 1000 == 0:
            place = {"index": index, "kind": kind} if index else {}
            self._log.error(event, stream=self._stream, **place, error=_told(error), so_far=so_far)


def _told(error: Exception | None) -> str:
    """The error and its place in the code."""
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
        self._runtime, self._network = replica.runtime, replica.network
        self._replica = replica
        self._at = 0.0
        self.in_store = False
        """The store below reported the damage: its files are bad, so new records beside them would not last."""
        self.found = 0
        """Number of times that damage was found here (monitoring)."""
        self.repaired = 0
        """Number of rebuilds that followed (monitoring)."""

    def report(self, error: DamagedError) -> None:
        """Note a stored record that fails its checksum."""
        known, self._replica.damaged = self._replica.damaged, str(error)
        self.in_store |= isinstance(error.__cause__, KvDamagedError)
        if known:
            return
        self.found += 1
        name = self._replica.assignment.name
        cause = str(error.__cause__ or "")
        self._runtime.log.error("damaged record", stream=name, error=str(error), cause=cause)
        self._at = self._runtime.clock.monotonic()
        self._tell(cause)

    def tick(self) -> None:
        replica = self._replica
        group = replica.group
        now = self._runtime.clock.monotonic()
        if not replica.damaged or self.in_store or replica.installing or now < self._at or len(group.peers) < 2:
            return
        self._at = now + RETRY_SECONDS
        leader = group.leader
        if leader == self._network.me:
            heirs = [None, *(peer for peer in sorted(group.peers) if peer != leader)]
            group.transfer(heirs[self._runtime.rng.randrange(len(heirs))])
        elif leader is not None:
            self._network.catchup.pull(replica.assignment.gid, leader, replica.state_index)

    def rebuilt(self) -> None:
        """Note that the state was replaced by another replica's."""
        if self._replica.damaged:
            self.repaired += 1
            self._runtime.log.warning("damaged replica was rebuilt", stream=self._replica.assignment.name)
        self._replica.damaged = ""
        self.in_store = False

    def _tell(self, cause: str) -> None:
        replica = self._replica
        node, name = self._network, replica.assignment.name
        tell_both(replica, replica_damaged(name, node.name, node.me, replica.damaged, cause))
