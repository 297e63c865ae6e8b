"""The node's journal: one write-ahead log for all Raft groups, one write and one fsync for all of them at a time.

Records collect in the open batch. It is sealed when the writer is free, and the writer thread writes it with one system
call. Only then do the groups learn what is durable (`on_durable`): followers' acks, votes and the leader's own vote
wait for that. While one batch is being written the next one fills: this is group commit.

A full disk is a state, not an error: the sealed batch is written again at the same place until it succeeds (a part of
it on disk does not validate, so it does not count). New work is refused long before: at `full` publishes, at `scarce`
also the entries of a leader, at `stuck` everything. Meanwhile nothing is retained for slow followers, so that entries
which the state machines hold durably free their segments at once. Any other write error is fatal: after a failed fsync
the kernel may have dropped the pages, so a retry that succeeds proves nothing (fsyncgate, PostgreSQL 2018); `on_fatal`
ends the process, and nothing becomes durable any more. Only a shortage of file descriptors is waited out as well,
because it occurs before anything is written.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import time
from collections.abc import Callable

from jetcluster.clock import Rng, Timers
from jetcluster.health.descriptors import SHORTAGE
from jetcluster.latency import Latency
from jetcluster.raft.api import META_GROUP
from jetcluster.raft.codec import CONFIG
from jetcluster.raft.config import JournalOptions
from jetcluster.raft.journal import records
from jetcluster.raft.journal.disk import Disk, DiskSpace, Mark, MissingError, NoMark
from jetcluster.raft.journal.journal_state import JournalState, OpenBatch, RemovedGroups, SealedBatch
from jetcluster.raft.journal.log import ALL_ON_CREDIT, GroupLog
from jetcluster.raft.journal.recovery import Damage, Recovered, RecoveredGroup, Stretch, scan
from jetcluster.raft.journal.retention import Restatement, Retention
from jetcluster.raft.journal.seals import Seals
from jetcluster.raft.journal.writer import RETRY_SECONDS, Syncs, Writer
from jetcluster.raft.membership import Config
from jetcluster.sealing.api import SegmentKeys

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_SPACE_CHECK_BYTES = 1 << 20
"""Bytes written between two checks of the free space: the data store grows as fast."""


class Journal(JournalState):
    """The journal of a node. `open` must be called first. All methods are called on the event loop."""

    def __init__(
        self,
        disk: Disk,
        writer: Writer,
        timers: Timers,
        rng: Rng,
        options: JournalOptions | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
        mark: Mark | None = None,
        stopwatch: Callable[[], float] = time.perf_counter,
        also_reserved: Callable[[], int] = lambda: 0,
        keys: SegmentKeys | None = None,
    ) -> None:
        """`stopwatch` returns seconds, in the writer's thread. `also_reserved`: see `JournalState`."""
        super().__init__(options or JournalOptions(), also_reserved)
        self.sync_latency = Latency()
        """Seconds per durable write."""
        self.damage: list[Damage] = []
        """Damage found by `open`."""
        self.cut_bytes = 0
        """Bytes of the torn tail found by `open`."""
        self.in_flight = 0
        """Number of the batch at the writer, 0 for none; `RaftNode` sees by it that a write hangs."""
        self._disk = disk
        self._writer = writer
        self._timers = timers
        self._rng = rng
        self._stopwatch = stopwatch
        self._on_fatal = on_fatal or _raise
        self._mark = mark if mark is not None else NoMark()
        self.marked = 0
        """The newest batch in the durable mark that was asked for last."""
        self._reached = (0, 0)
        """The newest batch written by this process, and its segment. The writer's thread sets it, or the loop after a
        plain write; never both, as one batch at a time is written."""
        self._active: dict[GroupLog, None] = {}
        """Logs with new records, or with more in memory than an idle one may have."""
        self.restatement = Restatement(self)
        self._syncs = Syncs(disk, writer, timers, self._fail, lambda: self.retention.delete_doomed())  # noqa: PLW0108 (made next)
        self.retention = Retention(self, self._syncs, self.restatement, self.carry, self.delete)
        self._roll = False
        """True when the open batch must be the last one of its segment."""
        self._start = 0
        self._end = 0
        self._seed = 0
        self._seeds: dict[int, int] = {}
        self._seals = Seals(keys) if keys is not None else None
        self._flying: SealedBatch | None = None
        """The batch at the writer, or one that waits until it can be written again."""
        self._kick_scheduled = False
        self._unchecked = 0
        self._low = (False, False)
        """`full` and `scarce` by the last look at the disk."""
        self._looking = False
        self._top_gid = self._lives = 0
        self._old_top: int | None = 0
        """Highest group id that may have existed before this start; None: any may, until `learn_top`."""
        self._removed = RemovedGroups()
        self._told_removed = 0
        """Number of records about removed groups so far."""
        self._cut_later: tuple[int, int] | None = None
        """Torn tail (segment, offset) to wipe once the damage before it is recorded."""
        self._closed = False

    def other_voters(self, me: str) -> set[str] | None:
        """Return the other voters of the meta group, or of all groups if it is unknown; None if no voter is known."""
        meta = self.groups.get(META_GROUP)
        logs = [meta] if meta is not None and meta.config.voters else self.groups.values()
        voters = {peer for log in logs for peer in log.config.electorate}
        return voters - {me} if voters else None

    # -- start

    def open(self) -> Recovered:
        """Read the journal, cut a torn tail, and begin a new segment. Damage does not raise: it is in `damage`, and in
        the `damaged` mark of each group's log. Raises OSError."""
        found = scan(self._disk, self._mark.read(), self._seals)
        self.damage = found.damage
        self.cut_bytes = found.cut_bytes
        for number in found.unborn:
            self._disk.delete(number)
        if found.torn is not None:
            if found.damage:
                # The torn batch's header may be the only proof of the damage before it, so it stays until the marks of
                # the damaged groups are durable.
                self._cut_later = found.torn
            else:
                self._disk.wipe(*found.torn)
        numbers = self._disk.segments()
        if numbers:
            self._disk.sync(numbers[-1])  # the bytes read may be in the page cache only
        self._write_again(found.unproven)
        self.retention.oldest = numbers[0] if numbers else found.last_segment + 1
        self.seq = found.next_seq
        self._syncs.begin(found.next_seq - 1)
        self._old_top = found.top_gid
        self._top_gid = records.UNKNOWN_GID if found.top_gid is None else max(found.top_gid, *found.groups, 0)
        self._removed, self._told_removed = found.removed, found.told_removed
        if found.damage and found.top_gid is not None:
            self._removed.raise_floor(found.top_gid)  # the next start may not see the damage any more
        for group in found.groups.values():
            self.groups[group.gid] = self._restore(group)
        self._begin_segment(found.last_segment + 1)
        self.restatement.step(len(self.groups))
        with contextlib.suppress(OSError):
            self._found(self._disk.look(0))
        return found

    def _write_again(self, stretches: list[Stretch]) -> None:
        """Write again what an earlier process may have failed to sync: the system may keep such pages as if written,
        and then another sync writes nothing. A lack of space is ignored, because a node must start on a full disk."""
        for segment, start, end in stretches:
            try:
                self._disk.rewrite(segment, start, end - start)
            except OSError as error:
                if error.errno not in _NO_SPACE:
                    raise

    def _restore(self, found: RecoveredGroup) -> GroupLog:
        config = found.base_config or Config(())
        log = GroupLog(found.gid, config, found.durable, self.options, self.append, self.read_record)
        log.base_index, log.base_term = found.base_index, found.base_term
        log.compactable = found.base_index
        log.last_index, log.last_term = found.base_index, found.base_term
        log.configs = [(found.base_index, config)]
        log.restore([found.entries[index] for index in range(found.base_index + 1, found.last_index + 1)])
        log.term, log.voted_for = found.term, found.voted_for
        log.commit_hint, log.damaged, log.fetching = found.commit, found.damaged, found.fetching
        log.joining, log.relaxed, log.kept = found.joining, found.relaxed, found.kept
        log.credit = ALL_ON_CREDIT if found.credit or (found.relaxed and found.durable) else 0
        log.gseq = log.durable_gseq = found.gseq
        for index, place in sorted(found.tail.items()):
            record = self.read_record(place.segment, place.offset, place.length)
            if record is not None:
                log.tail.append((index, place.term, place.kind, record.body))
        log.check()
        return log

    def _begin_segment(self, number: int, *, anew: bool = False) -> None:
        """Begin segment `number` with the next batch. `anew`: see `Restatement.begin`."""
        nonce = int.from_bytes(self._rng.token(8), "little")
        self.segment = number
        self.fresh_segment = True
        self._seed = self._seeds[number] = records.salt(number, nonce)
        self._start = 0
        self._end = records.SEGMENT_HEAD_BYTES + records.BATCH_HEAD_BYTES
        seal = self._seals.begin(number) if self._seals is not None else b""
        self.batch.chunks = [records.segment_head(number, nonce, self.options.segment_bytes, seal), b""]
        self.restatement.begin(anew=anew)
        if self._removed:
            self._tell_removed()

    # -- groups

    def never_had(self, gid: int) -> bool:
        """True when the group certainly has no record here and never had one, so that nothing was ever promised in it.
        A group without a record may have been removed, or have lost all records to damage."""
        if gid in self.groups or self._removed.may_have_been(gid) or self._old_top is None:
            return False
        return not (self.damage and gid <= self._old_top)

    def learn_top(self, gid: int) -> None:
        """Note that the cluster has created groups up to `gid` so far: later ones have higher ids and never were here.
        For a journal that has lost its own knowledge of the highest group id to damage."""
        if self._old_top is None:
            self._old_top = self._top_gid = max(gid, *self.groups, 0)
            self._removed.raise_floor(gid)
            self._tell_removed()

    def has_left(self, gid: int) -> bool:
        """True when the group was here and was removed."""
        return gid in self._removed

    def create(self, gid: int, config: Config, durable: bool) -> GroupLog:
        """Create a group with an empty log."""
        assert gid not in self.groups, f"group {gid} exists"
        log = GroupLog(gid, config, durable, self.options, self.append, self.read_record)
        # A replica that may have existed before may have voted. Other voters can heal it (`snapshots.Rejoin`), or
        # report that there are none (`rescue.is_lone`).
        log.damaged = not self.never_had(gid)
        self._top_gid = max(self._top_gid, gid)
        self._removed.discard(gid)
        self._lives = log.life = self._lives + 1
        self.groups[gid] = log
        log.restate(records.RESET_FLAG)
        log.settle_relaxed()
        log.entry_gseq = log.term_gseq = log.election_gseq = log.gseq
        return log

    def remove(self, gid: int) -> None:
        log = self.groups.pop(gid, None)
        if log is not None:
            self.append(log, records.REMOVE, 0, 0, 0, b"")
            self.batch.logs.pop(log, None)
            self._active.pop(log, None)
            self._removed.add(gid)

    # -- appending (called by GroupLog)

    def append(self, log: GroupLog, kind: int, entry_type: int, index: int, term: int, body: bytes) -> tuple[int, int]:
        """Add a record to the open batch. Returns the place of its body: (segment, offset)."""
        if log.stated != self.segment:
            log.stated = self.segment
            if kind != records.STATE and kind != records.REMOVE:
                log.restate()
        log.gseq += 1
        opened = self.batch
        offset = self._end + records.RECORD_HEAD_BYTES
        if self._seals is not None:
            body = self._seals.seal(offset, kind, entry_type, log.gid, log.gseq, index, term, body)
        opened.chunks.append(records.record_head(kind, entry_type, log.gid, log.gseq, index, term, body, self._seed))
        if body:
            opened.chunks.append(body)
        self._end = offset + len(body)
        self.queued_bytes = self._end - self._start
        opened.count += 1
        opened.logs[log] = None
        if kind == records.TERM or kind == records.STATE or (entry_type == CONFIG and kind == records.ENTRY):
            opened.sync = True  # votes and configurations are never on credit, even with a sync interval
        elif self.options.sync_interval is None and (log.durable or kind != records.ENTRY):
            opened.sync = True  # only entries of memory streams are just written: they outlive the process
        if not self._kick_scheduled:
            self._kick_scheduled = True
            self._timers.call_soon(self._kick)
        return self.segment, offset

    def _tell_removed(self) -> None:
        """Record the removed groups again, at the start of a segment: older segments may go."""
        opened, body = self.batch, self._removed.encode()
        self._told_removed += 1
        gid, number = records.NODE_GID, self._told_removed
        if self._seals is not None:
            body = self._seals.seal(self._end + records.RECORD_HEAD_BYTES, records.REMOVE, 0, gid, number, 0, 0, body)
        opened.chunks += [records.record_head(records.REMOVE, 0, gid, number, 0, 0, body, self._seed), body]
        self._end += records.RECORD_HEAD_BYTES + len(body)
        self.queued_bytes = self._end - self._start
        opened.count += 1
        opened.sync = True
        if not self._kick_scheduled:
            self._kick_scheduled = True
            self._timers.call_soon(self._kick)

    def _say_space(self, *, stuck: bool) -> None:
        self.stuck = stuck
        self.full, self.scarce = stuck or self._low[0], stuck or self._low[1]

    def read_record(self, segment: int, offset: int, length: int) -> records.Record | None:
        """Read a record back by the place of its body; return None when it does not validate."""
        seed = self._segment_seed(segment)
        if self._seals is not None and length:
            length += self._seals.more(segment)
        try:
            data = self._disk.read(segment, offset - records.RECORD_HEAD_BYTES, records.RECORD_HEAD_BYTES + length)
        except OSError:
            data = b""
        record = records.read_record(data, 0, len(data), seed) if seed is not None else None
        if self._seals is not None:
            record = self._seals.readable(segment, record, offset)
        if record is None:
            self.counters.read_failures += 1
        return record

    def _segment_seed(self, segment: int) -> int | None:
        seed = self._seeds.get(segment)
        if seed is None:
            try:
                head = records.read_segment_head(self._disk.read(segment, 0, records.SEGMENT_HEAD_BYTES), segment)
            except OSError:
                return None
            if head is None:
                return None
            seed = self._seeds[segment] = records.salt(segment, head.nonce)
        return seed

    # -- writing

    def _kick(self) -> None:
        self._kick_scheduled = False
        if self._flying is not None or self.failed is not None or self._closed or not self.batch.count:
            return
        batch = self._flying = self._seal()
        self.in_flight = batch.seq
        if batch.sync and not batch.new_segment:
            batch.plain = self._disk.plain_write(batch.segment, batch.offset, batch.chunks)
        self._writer.submit(
            batch.plain or functools.partial(self._write, batch), functools.partial(self._written, batch)
        )

    def _seal(self) -> SealedBatch:
        opened = self.batch
        fresh = self.fresh_segment
        head_at = 1 if fresh else 0
        head_end = self._start + records.BATCH_HEAD_BYTES + (records.SEGMENT_HEAD_BYTES if fresh else 0)
        # The first batch of a segment is written after a sync of the previous segment, with a sync interval too.
        synced = self.seq - 1 if fresh else self._syncs.synced
        sync = fresh or opened.sync
        opened.chunks[head_at] = records.batch_head(
            self.seq, synced, self._end - head_end, opened.count, self._seed, self._top_gid
        )
        sealed = SealedBatch(
            self.seq,
            self.segment,
            self._start,
            opened.chunks,
            [(log, log.mark()) for log in opened.logs],
            opened.moves,
            fresh,
            sync,
            self._end - self._start,
        )
        self._active.update(opened.logs)
        self.seq += 1
        self.fresh_segment = False
        self.queued_bytes = 0
        self.batch = OpenBatch()
        if self._end >= self.options.segment_bytes or self._roll:
            forced, self._roll = self._roll, False
            self._begin_segment(self.segment + 1, anew=forced)
        else:
            self._start = self._end
            self._end += records.BATCH_HEAD_BYTES
            self.batch.chunks = [b""]
        if self.restatement.left:
            self.restatement.step()
        return sealed

    def _write(self, batch: SealedBatch) -> None:
        """Write a batch, in the writer thread."""
        if batch.new_segment:
            if batch.segment - 1 in self._seeds and batch.seq - 1 > self.synced:
                self._disk.sync(batch.segment - 1)
            self._create(batch)
        start = self._stopwatch()
        self._disk.write(batch.segment, batch.offset, batch.chunks, batch.sync)
        if batch.sync:
            self.sync_latency.fresh.append(self._stopwatch() - start)
        self._reached = batch.seq, batch.segment

    def _finish(self, flying: SealedBatch | None, last: SealedBatch | None) -> None:
        """Write the last batch and the durable mark, in the writer thread. `flying`: the one before it."""
        if flying is not None and flying.plain is not None and flying.plain.ended and not flying.plain.error:
            self._reached = flying.seq, flying.segment
        if last is not None and (flying is None or self._reached[0] == flying.seq):  # never over a gap
            self._write(last)
        seq, segment = self._reached
        if seq:
            self._disk.sync(segment)
            self._mark.write(seq)

    def _create(self, batch: SealedBatch) -> None:
        try:
            self._disk.create(batch.segment, self.options.segment_bytes)
        except OSError as error:
            if error.errno not in _NO_SPACE or batch.size >= self.options.segment_bytes:
                raise
            # The space left may suffice for this batch, which may hold the purge that frees space; the file then grows.
            self._disk.create(batch.segment, batch.size)
            head = records.read_segment_head(batch.chunks[0], batch.segment)
            assert head is not None
            batch.chunks[0] = records.segment_head(batch.segment, head.nonce, batch.size, head.seal)

    def _written(self, batch: SealedBatch, error: BaseException | None) -> None:
        if self._closed or self.failed is not None:  # what was at the writer when another job failed proves nothing
            return
        if error is not None:
            self._write_error(batch, error)
            return
        self._flying = None
        self.in_flight = 0
        if batch.plain is not None:
            self._reached = batch.seq, batch.segment
            self.sync_latency.fresh.append(batch.plain.seconds)
        if self.stuck:
            self._say_space(stuck=False)
        self.counters.batches += 1
        self.counters.bytes += batch.size
        syncs = self._syncs
        syncs.written, syncs.segment = batch.seq, batch.segment
        if batch.sync:
            syncs.synced = batch.seq
        if syncs.waiting or syncs.refused:
            syncs.write_ended()
        if self.retention.doomed:
            self.retention.delete_doomed()
        if not batch.sync and self.options.sync_interval is not None:
            self._syncs.sync_within(self.options.sync_interval)
        logs: list[GroupLog] = []
        for log, mark in batch.marks:
            log.settle(mark)
            logs.append(log)
        for log, index, term, segment, offset in batch.moves:
            log.moved(index, term, segment, offset)
        self._unchecked += batch.size
        if batch.new_segment or self._unchecked >= _SPACE_CHECK_BYTES:
            self._look_at_disk()
        if batch.new_segment and self._cut_later is not None:
            self._writer.submit(functools.partial(self._disk.wipe, *self._cut_later), _ignore)
            self._cut_later = None
        if self.batch.count:
            self._kick()  # the disk works while the groups do
        self.on_durable(logs)

    def _write_error(self, batch: SealedBatch, error: BaseException) -> None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            if not self.stuck:
                self.counters.full_episodes += 1
            self._say_space(stuck=True)
            self.in_flight = 0
            self._syncs.write_refused()
            self._timers.call_later(self.options.retry_delay, self._retry, batch)
            return
        if isinstance(error, OSError) and error.errno in SHORTAGE:
            self.counters.shortages += 1
            self.in_flight = 0
            self._syncs.write_refused()
            self._timers.call_later(RETRY_SECONDS, self._retry, batch)
            return
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.failed = error
        self._syncs.failed = True
        self._on_fatal(error)

    def _retry(self, batch: SealedBatch) -> None:
        if not self._closed and self.failed is None:
            batch.plain = None
            self.in_flight = batch.seq
            self._writer.submit(functools.partial(self._write, batch), functools.partial(self._written, batch))

    def barrier(self, done: Callable[[], None]) -> None:
        """Call `done` in a later turn, once all records appended so far are on the disk, with any sync interval and
        kind of group: data that depends on them may then become durable. It is called early when nothing can be written
        (`Syncs.barrier`)."""
        coming = self.batch.count > 0
        if coming:
            self.batch.sync = True
        self._syncs.barrier(self.open_seq, done, coming=coming)

    # -- space

    def _look_at_disk(self) -> None:
        """Ask the disk for its space, and whether the journal is still there. In the writer's thread, and at most one
        question at a time: a disk that hangs holds no loop."""
        self._unchecked = 0
        self._disk.fill_spares()
        if not self._looking:
            self._looking = True
            found: list[DiskSpace] = []
            segment = self._syncs.segment
            self._writer.submit(lambda: found.append(self._disk.look(segment)), functools.partial(self._looked, found))

    def _looked(self, found: list[DiskSpace], error: BaseException | None) -> None:
        self._looking = False
        if isinstance(error, MissingError) and self.failed is None and not self._closed:
            self._lose(error)
        elif found and not self.missing and not self._closed:  # when it is closed the stores are, whose reserves count
            self._found(found[0])

    def _lose(self, error: MissingError) -> None:
        """Vouch for nothing any more: writes to deleted files succeed. Who waits for a sync, to stop, goes on."""
        self.failed, self.missing = error, f"{error.filename}: {error.strerror}"
        self._syncs.failed = True
        self.in_flight = 0
        self._say_space(stuck=True)
        self._syncs.write_refused()

    def _found(self, room: DiskSpace) -> None:
        free = self.free = room.free
        self.disk_size = room.size
        options = self.options
        # Space that the full journal frees itself must not end `full`: the next second would bring it back.
        slack = options.node_retain_bytes if self._low[0] else 0
        also = self.also_reserved()
        low = free < options.reserve_bytes + options.segment_bytes + slack + also
        self._low = low, free < options.reserve_bytes + also // 2
        self._say_space(stuck=self.stuck)

    def housekeep(self) -> None:
        """Look at the disk, shrink idle caches, delete segments, write the durable mark; called once a second."""
        self.sync_latency.sort()
        if self.failed is not None:
            return
        self._look_at_disk()
        if self.synced > self.marked:
            self.marked = self.synced
            self._writer.submit(functools.partial(self._mark.write, self.synced), _ignore)
        for log in list(self._active):
            if log.is_idle() and log.shrink(self.options.idle_cache_bytes):
                del self._active[log]
        if self.full:
            for log in self.groups.values():
                self.retention.trim(log)
        if self.retention.collect():
            self.forget_old()

    @property
    def partly_plain(self) -> bool:
        """True while an encrypted journal has plain segments of before, which `forget_old` removes."""
        return self._seals is not None and bool(self._seals.plain)

    def forget_old(self) -> None:
        """Remove all bytes written so far from the disk: begin a new segment, carry live entries there, and delete the
        older ones. For compactable entries whose bytes must not stay anywhere."""
        self.retention.forget_to(self.segment)
        self._roll = True
        if log := next(iter(self.groups.values()), None):
            log.restate()  # a record that makes the next batch come

    @property
    def synced(self) -> int:
        """Return the newest batch known to be durable."""
        return self._syncs.synced

    def carry(self, log: GroupLog, kind: int, index: int, term: int, command: bytes) -> None:
        """Write an entry of an older segment again; `GroupLog.moved` is called once the copy is durable."""
        place = self.append(log, records.CARRY, kind, index, term, command)
        self.batch.moves.append((log, index, term, *place))
        self.counters.carried_entries += 1

    def delete(self, segment: int) -> None:
        self._seeds.pop(segment, None)
        if self._seals is not None:
            self._seals.forget(segment)
        self.counters.deleted_segments += 1
        self._writer.submit(functools.partial(self._disk.delete, segment), self._deleted)

    def _deleted(self, error: BaseException | None) -> None:
        """Check the space again after a deletion. A segment that could not be deleted goes at a later start."""
        if self.full and not self._closed:
            self._look_at_disk()

    def close(self) -> None:
        """Write what is queued and the durable mark, and close the files. `on_durable` is not called any more."""
        if self._closed:
            return
        if self.failed is None and not self.stuck:
            last = self._seal() if self.batch.count else None
            self._writer.submit(functools.partial(self._finish, self._flying, last), _ignore)
        self._closed = True
        self._syncs.close()
        self._writer.close()
        self._mark.close()
        self._disk.close()


def _ignore(error: BaseException | None) -> None:
    """Ignore the error of a job that only tidies up."""


def _raise(error: BaseException) -> None:
    raise error
