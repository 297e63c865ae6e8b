"""The order of what comes to the disk, at the moment at which it matters: a data store that is flushed has nothing that
the journal may lose, and a log goes once the disk knows of the end of its stream. What is the other way round does harm
only when the power goes right then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from jetcluster.cluster import orphans
from jetcluster.raft.api import META_GROUP
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.node import RaftNode
from jetcluster.store import keys
from jetcluster.store.rocks_kv import RocksKv
from testkit.sim.deployment import Deployment
from testkit.sim.rafts import raft_of
from testkit.twins.storage.rocks_store import RocksStore
from tests.sim.cluster.flushes import applied, on_disk, settled
from tests.sim.cluster.invariants import Replica, jetstream_of, replicas

if TYPE_CHECKING:
    from jetcluster.raft.journal.log import GroupLog


class DiskOrder:
    """It tells `deployment.failed` of what comes too early."""

    def __init__(self, deployment: Deployment) -> None:
        self.flushed = self.ended = 0
        """Counts the states and the ends of streams that were looked at."""
        self._deployment = deployment
        self._unsynced: WeakKeyDictionary[Journal, list[tuple[int, dict[GroupLog, int]]]] = WeakKeyDictionary()
        """Batches that are written and not on the disk, with how far each log in it was written before."""

    def written(self, journal: Journal, batch: Any) -> None:
        """The batch, which was not synced, is going to count as written."""
        waiting = [one for one in self._unsynced.get(journal, []) if one[0] > journal.synced]
        waiting.append((batch.seq, {log: log.written_index for log, _ in batch.marks}))
        self._unsynced[journal] = waiting

    def flushes(self, store: RocksStore) -> None:
        """All that is in the store is going to the disk."""
        for replica in self._replicas_of(store):
            jetstream, log = jetstream_of(replica.machine), replica.group.log
            journal = jetstream.network.raft.journal
            refused = journal.failed is not None or journal.stuck or attrgetter("_syncs.refused")(journal)
            by_itself = not attrgetter("_owner_flushes")(replica.stream.commits.kv)  # on a small disk, at any time
            if refused or by_itself or not log.durable or not settled(replica, jetstream):
                continue
            self.flushed += 1
            state, synced = applied(replica.stream.commits.kv, store.values, replica.gid), self._synced(journal, log)
            if state > max(synced, log.base_index):
                what = f"the data store is flushed with {state}, and the disk of the journal has {synced}"
                self._broken(replica.where, what)

    def removes(self, raft: RaftNode, gid: int) -> None:
        """The log of a group goes."""
        machine = next((one for one in self._deployment.running if raft_of(one) is raft), None)
        if machine is None or gid == META_GROUP or jetstream_of(machine) is None:
            return
        kv = jetstream_of(machine).services.commits.kv
        self.ended += 1
        stone = attrgetter("_TOMBSTONE")(orphans).pack(attrgetter("_PREFIX")(orphans), gid)
        if on_disk(kv, keys.stream_prefix(keys.STATE, gid)) is not None:
            self._broken(machine.name, f"the log of group {gid} goes, and the disk still has the state of its stream")
        if on_disk(kv, stone) is None:
            self._broken(
                machine.name, f"the log of group {gid} goes, and the disk does not know that its stream is gone"
            )

    def _synced(self, journal: Journal, log: GroupLog) -> int:
        """Index up to which the log would survive a loss of power."""
        waiting = self._unsynced.get(journal, [])
        known = [at[log] for seq, at in waiting if seq > journal.synced and log in at]
        return min([log.written_index, *known])

    def _replicas_of(self, store: RocksStore) -> Iterator[Replica]:
        for replica in replicas(self._deployment):
            kv = None if replica.stream is None else replica.stream.commits.kv
            if isinstance(kv, RocksKv) and attrgetter("_db.store")(kv) is store:
                yield replica

    def _broken(self, where: str, what: str) -> None:
        self._deployment.failed(f"at {self._deployment.scheduler.now:.3f}: {where}: {what}")


@contextmanager
def watched(deployment: Deployment) -> Iterator[DiskOrder]:
    """All flushes and all logs that go are looked at meanwhile."""
    order = DiskOrder(deployment)
    switches: Callable[..., None] = attrgetter("_switch")(RocksStore)
    writes: Callable[..., None] = attrgetter("_written")(Journal)
    removes: Callable[..., None] = RaftNode.remove_group

    def switch(self: RocksStore) -> None:
        if self.active:
            order.flushes(self)
        switches(self)

    def written(self: Journal, batch: Any, error: BaseException | None) -> None:
        if error is None and not batch.sync:
            order.written(self, batch)
        writes(self, batch, error)

    def remove(self: RaftNode, gid: int) -> None:
        order.removes(self, gid)
        removes(self, gid)

    with ExitStack() as stack:
        stack.enter_context(patch.object(RocksStore, "_switch", switch))
        stack.enter_context(patch.object(RaftNode, "remove_group", remove))
        if deployment.relaxed:  # all others sync each batch with entries of a data store
            stack.enter_context(patch.object(Journal, "_written", written))
        yield order
