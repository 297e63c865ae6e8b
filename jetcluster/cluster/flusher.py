"""Makes the data store durable now and then, and lets the journal forget what is.

Only what is flushed lets the journal forget entries (docs/mechanisms.md, "Storage").
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from jetcluster.cluster.meta_replica import MetaReplica
from jetcluster.cluster.orphans import Orphans
from jetcluster.raft.api import RaftGroup
from jetcluster.replica.context import NodeContext
from jetcluster.replica.stream_replica import StreamReplica
from jetcluster.store.kv import KvError

FLUSH_SECONDS = 30.0
"""Longest time between flushes of dirty data; what is older is not replayed after a crash."""
FLUSH_PAUSE = 1.0
"""At least so long between two flushes that the journal's size asks for, and after one that failed."""


class Flusher:
    def __init__(
        self,
        context: NodeContext,
        meta: MetaReplica,
        replicas: Mapping[int, StreamReplica],
        orphans: Orphans,
    ) -> None:
        self.soon = False
        """The next tick flushes."""
        self.running: asyncio.Task[None] | None = None
        self._context = context
        self._meta = meta
        self._replicas = replicas
        self._orphans = orphans
        self._last = context.clock.monotonic()
        self._forgot_at = self._last - FLUSH_SECONDS
        self._failing = False
        context.kv.before_flush = self._journal_synced

    def tick(self) -> None:
        waited = self._context.clock.monotonic() - self._last
        kv = self._context.kv
        asked = self._context.raft.wants_compaction or kv.wants_flush or kv.due or self._failing
        wanted = self.soon or (asked and waited >= FLUSH_PAUSE) or (kv.due and not self._failing)
        if (wanted or waited >= FLUSH_SECONDS) and (self.running is None or self.running.done()):
            self._last = self._context.clock.monotonic()
            self.soon = False
            self.running = asyncio.get_running_loop().create_task(self.flush())

    async def stop(self) -> None:
        """After a last flush."""
        if self.running is not None:
            await asyncio.gather(self.running, return_exceptions=True)
        await self.flush()

    async def flush(self) -> None:
        """Never raises. The journal forgets nothing that is not durable in the store; after a MSG.DELETE that erases
        it forgets all that is, so that the message is not left there."""
        context = self._context
        self._meta.save()
        forget_deleted = self._orphans.settle(self._is_of_before)
        marks = self._marks()
        erased, context.erased = context.erased, False
        try:
            await context.kv.flush()
        except KvError as error:
            if not self._failing:
                text = "the data store cannot be flushed; the journal keeps all"
                context.log.error(text, error=str(error))  # noqa: TRY400
            self._failing = True
            context.erased |= erased
            return
        self._failing = False
        forget_deleted()
        for group, index in marks:
            replica = self._replicas.get(group.gid)
            if replica is None or not replica.installing:
                group.compact(index)
        now = context.clock.monotonic()
        if erased and now - self._forgot_at >= FLUSH_SECONDS:
            self._forgot_at = now
            context.raft.journal.forget_old()
        else:
            context.erased |= erased

    def _is_of_before(self, gid: int) -> bool:
        """Does the meta state still assign what a tombstone says is gone?"""
        assignment = self._meta.machine.by_gid(gid)
        if assignment is None or self._context.me not in assignment.peers:
            return False
        return assignment.revision <= self._orphans.revision(gid)

    async def _journal_synced(self) -> None:
        """Syncs the journal first: what is flushed must not be ahead of the journal that it came from."""
        synced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._context.raft.journal.barrier(lambda: None if synced.done() else synced.set_result(None))
        await synced

    def _marks(self) -> list[tuple[RaftGroup, int]]:
        """Log positions that the journal may forget once everything of this moment is durable."""
        marks = [(replica.group, replica.machine.applied_index) for replica in self._replicas.values() if replica.sound]
        if self._meta.group is not None:
            marks.append((self._meta.group, self._meta.machine.applied_index))
        return marks
