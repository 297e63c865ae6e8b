"""Flushes of the data store, after which the journal forgets entries (docs/mechanisms/storage.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from jetcluster.cluster.meta_replica import MetaReplica
from jetcluster.cluster.orphans import Orphans
from jetcluster.raft.api import RaftGroup
from jetcluster.replica.services import Network, Runtime
from jetcluster.replica.stream_replica import StreamReplica
from jetcluster.replica.turn_commit import TurnCommit
from jetcluster.store.kv import KvError

FLUSH_SECONDS = 30.0
"""Longest time between flushes of dirty data; older data is not replayed after a crash."""
FLUSH_PAUSE_SECONDS = 1.0
"""Shortest time between two flushes that the journal's size asks for, and after a failed flush."""

SAVED_BYTES, LAST_SAVED_BYTES = 1 << 20, 32 << 20
"""Most bytes of subject tables that a flush saves, with the work for them (the loop waits 5 ms for each MB), and most
bytes that the last one saves."""
COMPACTED_AT_ONCE = 256
"""Groups whose logs forget entries before other work gets its turn: about a millisecond."""

ENCODED_AT_ONCE = 128
"""Streams whose assignments are encoded at a tick for the next flush: 3 ms at most, after a start with very many."""


class Flusher:
    """Flushes periodically, or when the journal or the store asks for it."""

    def __init__(
        self, runtime: Runtime, network: Network, commits: TurnCommit, meta: MetaReplica,
        replicas: Mapping[int, StreamReplica], orphans: Orphans,
    ) -> None:  # fmt: skip
        self.soon = False
        """True when the next tick must flush."""
        self.running: asyncio.Task[None] | None = None
        self._runtime, self._network, self._commits = runtime, network, commits
        self._meta = meta
        self._replicas = replicas
        self._orphans = orphans
        self._last = runtime.clock.monotonic()
        self._forgot_at = self._last - FLUSH_SECONDS
        self._forgets = False
        """True once the journal was told to forget what was erased, until it has."""
        self._failing = False
        self._saved_to = 0
        """Group of the subject table that was saved last."""

    def tick(self) -> None:
        self._meta.machine.prepare_snapshot(ENCODED_AT_ONCE)
        waited = self._runtime.clock.monotonic() - self._last
        kv = self._commits.kv
        asked = self._network.raft.wants_compaction or kv.wants_flush or kv.due or self._failing
        wanted = self.soon or (asked and waited >= FLUSH_PAUSE_SECONDS) or (kv.due and not self._failing)
        if (wanted or waited >= FLUSH_SECONDS) and (self.running is None or self.running.done()):
            self._last = self._runtime.clock.monotonic()
            self.soon = False
            self.running = asyncio.get_running_loop().create_task(self.flush())

    async def stop(self) -> None:
        """Waits for a running flush, then flushes a last time."""
        if self.running is not None and not self.running.done():
            await asyncio.wait((self.running,))
        await self.flush(last=True)

    async def flush(self, *, last: bool = False) -> None:
        """Flushes once; never raises. The journal forgets only entries that are durable in the store. After a
        MSG.DELETE with erasure it forgets all of them, so that the message does not stay in the journal. `last`: the
        process is going to end."""
        self._meta.save()
        self._save_tables(last)
        forget_deleted = self._orphans.settle(self._predates_tombstone)
        marks = self._marks()
        self._note_forgotten()
        erased, self._commits.erased = self._commits.erased, False
        try:
            await self._commits.kv.flush()
        except KvError as error:
            if not self._failing:
                text = "the data store cannot be flushed; the journal keeps all"
                self._runtime.log.error(text, error=str(error))  # noqa: TRY400
            self._failing = True
            self._commits.erased |= erased
            return
        self._failing = False
        forget_deleted()
        await self._compact(marks)
        now = self._runtime.clock.monotonic()
        if erased and now - self._forgot_at >= FLUSH_SECONDS:
            self._forgot_at = now
            self._network.raft.journal.forget_old()
            self._forgets = True
        else:
            self._commits.erased |= erased

    def _note_forgotten(self) -> None:
        """Takes back the record that something was erased, in the commit of this flush. The logs of states that are
        being installed are carried whole."""
        if not self._forgets or self._network.raft.journal.retention.forgets:
            return
        if not any(replica.installing for replica in self._replicas.values()):
            self._forgets = False
            self._commits.forgotten()

    def _save_tables(self, last: bool) -> None:
        """Saves what fits; a later flush begins with the others. On a disk that is nearly full the flush itself comes
        first."""
        room = LAST_SAVED_BYTES if last else SAVED_BYTES
        try:
            if self._failing or self._commits.kv.spare_bytes < 2 * room:
                return
        except KvError:  # the disk does not answer: the flush reports it
            return
        replicas = list(self._replicas.items())
        begin = next((at for at, (gid, _) in enumerate(replicas) if gid > self._saved_to), 0)
        for gid, replica in (*replicas[begin:], *replicas[:begin]):
            try:
                if size := replica.store.save_table(room, last=last):
                    room -= size
                    self._saved_to = gid
            except Exception as error:  # noqa: BLE001 - a defect in one stream must not keep the others from the disk
                stream = replica.assignment.name
                self._runtime.log.error("a subject table cannot be saved", stream=stream, error=repr(error))  # noqa: TRY400

    async def _compact(self, marks: list[tuple[RaftGroup, int]]) -> None:
        groups = self._network.raft.groups
        for number, (group, index) in enumerate(marks, 1):
            replica = self._replicas.get(group.gid)
            if groups.get(group.gid) is group and (replica is None or not replica.installing):
                group.compact(index)
            if number % COMPACTED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _predates_tombstone(self, gid: int) -> bool:
        """True when the meta state still holds the assignment that a tombstone reports gone."""
        assignment = self._meta.machine.by_gid(gid)
        if assignment is None or self._network.me not in assignment.peers:
            return False
        return assignment.revision <= self._orphans.revision(gid)

    def _marks(self) -> list[tuple[RaftGroup, int]]:
        """Returns, per group, the log index up to which the journal may forget once the present state is durable."""
        marks = [(replica.group, replica.machine.applied_index) for replica in self._replicas.values() if replica.sound]
        if self._meta.group is not None:
            marks.append((self._meta.group, self._meta.machine.applied_index))
        return marks
