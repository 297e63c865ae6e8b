"""`BlockStore`: the messages of one stream as blocks in a `RocksKv`, and small records that commit with them.

Writes go into the node's open write batch, which reads see at once, so after a crash the messages, the machine's state
and the side tables are those of one applied index. Everything is deterministic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from jetcluster.store import keys, transfer
from jetcluster.store.api import DamagedError, StoreState
from jetcluster.store.batch import Batch
from jetcluster.store.block_reader import BlockReader
from jetcluster.store.block_writer import BlockWriter
from jetcluster.store.blocks import (
    BlockCache,
    BlockTable,
    Counters,
    cache_of,
    decode_state,
    encode_block,
    encode_info,
    encode_state,
)
from jetcluster.store.keys import MAX_SEQ
from jetcluster.store.kv import KvError
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.search.matches import Matches, kept_of
from jetcluster.store.search.posting_check import PostingCheck
from jetcluster.store.search.queries import Queries
from jetcluster.store.search.saved_table import BLOCK_WORK, GAP_WORK, GROWTH_PER_REMOVAL, MIN_MESSAGES, SUBJECT_WORK
from jetcluster.store.search.subject_index import SubjectIndex
from jetcluster.store.slices import Slices
from jetcluster.store.view import LastSearch, View, Views

BULKY = (keys.BLOCK, keys.INFO, keys.POSTING, keys.SIDE)
ALL_KINDS = (keys.BLOCK, keys.INFO, keys.POSTING, keys.STATE, keys.SIDE, keys.INSTALLING, keys.TABLE)


class BlockStore:
    """The messages of stream `stream` in `kv`. Raises DamagedError when its records disagree.

    `memory` chooses only how bytes are counted (StoreState.bytes), not where they are. All stores of a kv share one
    cache unless `cache` is given.
    """

    def __init__(self, kv: RocksKv, stream: int, *, memory: bool, cache: BlockCache | None = None) -> None:
        self._kv = kv
        self._stream = stream
        self._memory = memory
        self._cache = cache if cache is not None else cache_of(kv)
        self.blocks = BlockTable()
        self._index = SubjectIndex(kv, stream, self.blocks)
        self.reader = BlockReader(kv, stream, self.blocks, self._cache)
        self._matches = Matches(kept_of(kv))
        self.queries = Queries(self.reader, self.blocks, self._index, self._matches)
        self.get = self.reader.get
        self.last_seq_of, self.count_of = self._index.last_of, self._index.count_of
        """Return the last sequence, 0 for none, and the number of messages of a literal subject: look-ups in memory."""
        self.width = self._index.kept.width
        """Return the number of subjects that a search for a filter may have to read."""
        self.next_seqs = self.queries.next_seqs
        self.read_columns = self.reader.read_columns
        """Read messages as columns, at several times less cost for adjacent ones, as it only makes slices."""
        self._views = Views(kv, stream, self.blocks, self.reader, self.queries)
        self._writer = BlockWriter(
            kv, stream, self.blocks, self._index, self.reader, self._cache, self._matches, memory
        )
        self.slices = Slices(self.blocks, self._index, self.reader, self._delete, self.compact)
        self.last_seq = 0
        self.last_ts = 0
        self._added = 0
        self._saved = (0, 0)
        """`_added` and `removals` as of the saved subject table."""
        self._seen = (0, 0)
        """The same as of the last call of `save_table`."""
        self.dirty = False
        """True when the next commit will write the state record."""
        self._machine_state: bytes | Callable[[], bytes] | None = None
        self._import: transfer.Taker | None = None
        self.incomplete = kv.get(keys.stream_prefix(keys.INSTALLING, stream)) is not None
        """True while an import, maybe of a previous process, has not ended. Its records stay on disk for the next one;
        until then reads find nothing, in side tables too (rows may be of two histories), and writes are forbidden."""
        self.removed = False
        self.unwritable = ""
        """Why the state could not be written at a commit: the stream's writes since the previous one were taken back.
        Memory stays ahead of the disk, so the owner must stop."""
        if not self.incomplete:
            self._load()

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def messages(self) -> int:
        return self.blocks.messages

    @property
    def byte_count(self) -> int:
        return self.blocks.bytes

    @property
    def first_seq(self) -> int:
        return self.blocks.first_seq

    @property
    def first_ts(self) -> int:
        """Time of the first message, 0 without one."""
        blocks = self.blocks
        if not blocks.messages:
            return 0
        at = blocks.find(blocks.first_seq)
        return blocks.times[at] + blocks.first_seq - blocks.firsts[at]

    @property
    def num_subjects(self) -> int:
        return len(self._index.table)

    @property
    def num_deleted(self) -> int:
        return self.last_seq + 1 - self.blocks.first_seq - self.blocks.messages

    @property
    def removals(self) -> int:
        """A number that grows with every removal and reload, from an arbitrary start: older counts may be outdated."""
        return self._added - self.blocks.messages

    @property
    def state(self) -> StoreState:
        return StoreState(
            self.blocks.messages,
            self.blocks.bytes,
            self.blocks.first_seq,
            self.first_ts,
            self.last_seq,
            self.last_ts,
            len(self._index.table),
            self.num_deleted,
        )

    # -- writing --------------------------------------------------------------------------------------------------

    def append(self, batch: Batch, first_seq: int, ts: int) -> None:
        """Store all messages of `batch` as sequences `first_seq`, `first_seq + 1`, ... with times `ts`, `ts + 1`, ...
        `first_seq` must be above the last sequence, and times must not go back: `seq_at_time` bisects."""
        assert first_seq > self.last_seq, (first_seq, self.last_seq)
        assert first_seq + batch.count <= MAX_SEQ
        self.reader.version += 1
        if not self.dirty:
            self.touch()
        blocks, stream, count = self.blocks, self._stream, batch.count
        size = batch.record_bytes(memory=self._memory)
        block, info = keys.block(stream, first_seq), keys.info(stream, first_seq)
        row = encode_block(block, ts, batch.buffer, batch.start)
        writes = {block: row, info: encode_info(info, ts, count, size, 0)}
        if not blocks.messages:
            blocks.first_seq = first_seq
        blocks.add(first_seq, count, ts, size)
        self._index.add_block(batch, first_seq, writes)
        self._kv.put_new(writes)
        self._cache.put(stream, first_seq, batch)
        self._added += count
        self.last_seq = first_seq + count - 1
        self.last_ts = ts + count - 1

    def delete(self, seq: int) -> bool:
        """Remove one message and overwrite its bytes in its block (see also `RocksKv.outdated`); False without one."""
        if self.blocks.find(seq) < 0:
            return False
        self._removing(seq, seq)
        self._writer.delete([seq], self.last_seq, erase=True)
        self._index.erase_saved()
        self._saved = (0, 0)
        return True

    def delete_all(self, seqs: Sequence[int]) -> int:
        """Remove the messages at the ascending `seqs` that exist; returns their number."""
        live = [seq for seq in seqs if self.blocks.find(seq) >= 0]
        if live:
            self._delete(live)
        return len(live)

    def purge(self, filter: bytes = b">", keep: int = 0) -> int:
        """Remove all matching messages except the newest `keep`; returns their number."""
        if self._index.covers_all(filter):
            if keep:
                return self._keep_newest(keep)
            return self.compact(self.last_seq + 1)
        doomed = self.queries.seqs(filter, MAX_SEQ)
        if keep:
            doomed = doomed[:-keep]
        if doomed:
            self._delete(doomed)
        return len(doomed)

    def compact(self, first_seq: int) -> int:
        """Remove everything below `first_seq` and make it the first sequence (also beyond the last one: then the next
        message gets `first_seq`); returns the number of removed messages."""
        before = self.blocks.messages
        if first_seq <= self.blocks.first_seq:
            return 0
        target = self.blocks.next_live(first_seq)
        self._removing(self.blocks.first_seq, first_seq - 1)
        if target is None:
            self.last_seq = max(first_seq - 1, self.last_seq)
            self._writer.clear(self.last_seq + 1)
        else:
            self._writer.cut(target)
        return before - self.blocks.messages

    def enforce(
        self,
        max_msgs: int = -1,
        max_bytes: int = -1,
        max_per_subject: int = -1,
        touched_subjects: Sequence[bytes] = (),
        *,
        below: int = MAX_SEQ,
    ) -> int:
        """Remove the oldest messages until all limits hold (<= 0: no limit); returns their number.

        Limits per subject come first, then those of the stream, as in nats-server's store. `touched_subjects`: the
        subjects appended to since the last call; all others are within their limit. Messages from `below` on stay.
        """
        before = self.blocks.messages
        if below <= self.blocks.first_seq:
            return 0
        if max_per_subject > 0 and below > self.last_seq:
            self._enforce_per_subject(max_per_subject, touched_subjects)
        elif max_per_subject > 0:
            self._enforce_below(max_per_subject, touched_subjects, below)
        if 0 < max_msgs < self.blocks.messages:
            self._keep_newest(max_msgs, below)
        if 0 < max_bytes < self.blocks.bytes:
            self.compact(min(self.seq_within(max_bytes), below))
        return before - self.blocks.messages

    def cut_excess(self, max_msgs: int, max_bytes: int, below: int = MAX_SEQ) -> tuple[int, bool]:
        """Enforce the stream's limits by at most one `slices.Step`, but for messages from `below` on; returns the
        number removed, and if that was all."""
        if below <= self.blocks.first_seq:
            return 0, True
        target = self.slices.excess(max_msgs, max_bytes, self._writer.first_within)
        return self.slices.cut(min(target, self.last_seq + 1, below)) if target else (0, True)

    def watch_deleted(self, on_deleted: Callable[[Sequence[int]], None]) -> None:
        """Have `on_deleted` told the sequences of messages that are removed one by one (`BlockWriter.on_deleted`)."""
        self._writer.on_deleted = on_deleted

    def remove(self) -> None:
        """Delete all records of the stream. The store must not be used afterwards."""
        self._wipe()
        self.removed = True

    def abandon(self) -> None:
        """Take this stream back to the last commit, on disk and in memory, after a command failed in its middle.

        Otherwise the node's next commit would make half of the command durable, and a restart would apply it on top of
        that. Raises DamagedError, as opening does.
        """
        self._kv.discard(self._stream)
        if not self.incomplete:
            self._load()

    # -- reading --------------------------------------------------------------------------------------------------

    def contains(self, seq: int) -> bool:
        """Return True if a message exists at `seq`: a look-up in memory."""
        return self.blocks.find(seq) >= 0

    def lasts(self, filters: Sequence[bytes], up_to: int | None, limit: int) -> Generator[None, None, list[int] | None]:
        """Return the steps of a `LastSearch`."""
        return LastSearch(self.queries, self._index, self._views, self.blocks).steps(filters, up_to, limit)

    def find_lasts(self, filters: Iterable[bytes]) -> None:
        """Prepare `last_seq_matching` of each of these wildcards, as `LastOfEach.find` does."""
        self._index.lasts.find(filters)

    def last_seq_matching(self, filter: bytes) -> int:
        """Return the last sequence of the subjects that match a wildcard, 0 for none; searches in memory."""
        return self._index.lasts.last(filter)

    def view(self, filter: bytes, seq: int) -> View:
        """Return the messages from `seq` to the current last one that match `filter`, as of now."""
        return View(self._views, filter, max(seq, self.blocks.first_seq), self.last_seq)

    def view_of(self, seqs: Sequence[int]) -> View:
        """Return the messages at the ascending `seqs`, which must all exist, as of now."""
        return View(self._views, b"", 0, self.last_seq, seqs)

    def last_seqs(self, filter: bytes, up_to: int | None = None, limit: int | None = None) -> list[int]:
        """Return the last sequence (at or below `up_to`) of every matching subject, ascending (multi_last). The search
        ends as soon as it has found more than `limit`."""
        return self.queries.last_seqs(filter, MAX_SEQ if up_to is None else up_to, MAX_SEQ if limit is None else limit)

    def last_seqs_any(self, filters: Sequence[bytes], up_to: int | None = None) -> list[int]:
        """Return `last_seqs` of the subjects that match one of the filters."""
        return self.queries.last_seqs_any(filters, MAX_SEQ if up_to is None else up_to)

    def seq_at_time(self, ts: int) -> int:
        """Return the first sequence with time >= `ts`; last_seq + 1 for none."""
        found = self.blocks.seq_at_time(ts)
        return self.last_seq + 1 if found is None else found

    def seq_within(self, size: int) -> int:
        """Return the lowest sequence from which on the stream takes at most `size` bytes."""
        return self._writer.first_within(size) or self.last_seq + 1

    def bytes_from(self, seq: int) -> int:
        """Return the bytes of the messages from `seq` on. Raises DamagedError."""
        return self._writer.bytes_from(seq)

    def deleted(self, limit: int) -> list[int]:
        """Return interior deleted sequences, ascending, at most `limit`."""
        blocks = self.blocks
        found: list[int] = []
        expected = blocks.first_seq
        at = blocks.live_from(0)
        while at < len(blocks.firsts) and len(found) < limit:
            first = blocks.firsts[at]
            found += range(expected, min(first, expected + limit - len(found)))
            expected = first + blocks.counts[at]
            if blocks.lives[at] < blocks.counts[at]:
                bits = blocks.bits.get(first, 0)
                found += [s for s in range(max(first, blocks.first_seq), expected) if bits >> (s - first) & 1]
            at = blocks.live_from(at + 1)
        found += range(expected, min(self.last_seq + 1, expected + max(limit - len(found), 0)))
        return found[:limit]

    # -- the state machine's own records --------------------------------------------------------------------------

    def load_machine_state(self) -> bytes | None:
        """Return the state saved with the newest commit, None for none."""
        return self._machine_state() if callable(self._machine_state) else self._machine_state

    def save_machine_state(self, state: bytes | Callable[[], bytes]) -> None:
        """Write `state` in the next commit. A callable is called then, and at each later commit of changes here."""
        self._machine_state = state
        if not self.dirty:
            self.touch()

    def touch(self) -> None:
        """Have the next commit write the state record."""
        if not self.dirty:
            self.dirty = True
            self._kv.at_commit(self._write_state)

    def save_table(self, room: int, *, last: bool = False) -> int:
        """Save the subject table for the next start, in the next commit, if much was added and little removed lately;
        before the `last` commit of this process any change is enough. Returns what it takes of `room`: the bytes put,
        and unless it is the last, other work as bytes too (`saved_table.SUBJECT_WORK`)."""
        now = (self._added, self.removals)
        changes = now[0] - self._saved[0] + now[1] - self._saved[1]
        added, removed = now[0] - self._seen[0], now[1] - self._seen[1]
        self._seen = now
        if not changes or self.blocks.messages < MIN_MESSAGES or self.incomplete or self.removed:
            return 0
        work = 0
        if not last:
            if changes < max(MIN_MESSAGES, 2 * self.num_subjects) or removed * GROWTH_PER_REMOVAL > added:
                return 0
            blocks = self.blocks
            work = SUBJECT_WORK * self.num_subjects + BLOCK_WORK * len(blocks.firsts) + GAP_WORK * blocks.gaps
        size = self._index.save(self.last_seq, room, work)
        if not size:
            return 0
        self._saved = now
        return size + work

    def side_put(self, table: int, key: bytes, value: bytes) -> None:
        """Put a pair into one of the owner's tables (0..255), in the same commits as the messages."""
        self._kv.put(keys.side(self._stream, table, key), value)

    def side_get(self, table: int, key: bytes) -> bytes | None:
        return None if self.incomplete else self._kv.get(keys.side(self._stream, table, key))

    def side_delete(self, table: int, key: bytes) -> None:
        self._kv.delete(keys.side(self._stream, table, key))

    def side_scan(self, table: int, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the pairs of a table from key `start` on, in key order. Must not be continued after a write to it."""
        if self.incomplete:
            return
        first = keys.side(self._stream, table, start)
        for key, value in self._kv.scan(first, keys.side_end(self._stream, table)):
            yield key[keys.SIDE_PREFIX :], value

    @property
    def compared(self) -> bool:
        """True when the postings were as many as the subject table has, at the start or since."""
        return self._index.compared

    def begin_check(self) -> PostingCheck:
        """Return the comparison of the postings with the subject table, for a pass that begins now."""
        return PostingCheck(self.blocks, self._index, self.last_seq, lambda: self.removals)

    # -- catch-up -------------------------------------------------------------------------------------------------

    def export(self) -> transfer.Giver:
        """Return the whole stream as of now. Commits, so it may only be called between commands."""
        self.touch()
        return transfer.Giver(self._kv.snapshot(), self._stream)

    def import_begin(self) -> transfer.Taker:
        """Return a taker that makes this store's records equal to a giver's. Until `import_end`, also over a restart,
        the store is empty and no other method may be called; it forgets a callable given to `save_machine_state`.
        Commits now; the caller must commit what the taker does."""
        self.incomplete = True
        self._kv.put(keys.stream_prefix(keys.INSTALLING, self._stream), b"")
        with contextlib.suppress(KvError):  # it may be damaged
            self._index.erase_saved()
        self._kv.delete(keys.stream_prefix(keys.TABLE, self._stream))
        self._kv.commit()
        self._reset()
        self._import = transfer.Taker(self._kv, self._stream)
        return self._import

    def import_wipe(self) -> None:
        """Delete all records of an import. Commits; `reclaim` frees the space."""
        self._kv.outdated(keys.stream_prefix(keys.BLOCK, self._stream), keys.stream_end(keys.BLOCK, self._stream))
        self._wipe()
        self._kv.put(keys.stream_prefix(keys.INSTALLING, self._stream), b"")
        self._kv.commit()
        self._import = None

    async def reclaim(self) -> None:
        """Flush, and free the disk space of this stream's deleted records. Raises KvError."""
        await self._kv.reclaim([(keys.stream_prefix(k, self._stream), keys.stream_end(k, self._stream)) for k in BULKY])

    def import_end(self) -> Iterator[None]:
        """Load the imported records, in steps of some milliseconds; must be exhausted. Commits. Raises DamagedError
        when something is missing; the store then stays incomplete."""
        assert self._import is not None
        self._import.finish()
        try:
            yield from self._loading()
            self._import = None
            self.incomplete = False
        finally:
            if self.incomplete:
                self._reset()
        self._kv.delete(keys.stream_prefix(keys.INSTALLING, self._stream))
        self._kv.commit()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _mutating(self) -> None:
        self.reader.version += 1
        self.touch()

    def _removing(self, low: int, high: int) -> None:
        """Prepare the removal of messages within low..high."""
        self._mutating()
        if self._views.held:
            self._views.removing(low, high)

    def _delete(self, seqs: Sequence[int]) -> None:
        self._removing(seqs[0], seqs[-1])
        self._writer.delete(seqs, self.last_seq)

    def _write_state(self) -> None:
        self.dirty = False
        if self.removed or self.incomplete:
            return
        key = keys.stream_prefix(keys.STATE, self._stream)
        blocks = self.blocks
        counters = Counters(blocks.messages, blocks.bytes, blocks.first_seq, self.last_seq, self.last_ts)
        try:
            self._kv.put(key, encode_state(counters, self.load_machine_state()))
        except Exception as error:  # noqa: BLE001 - a defect in one stream must not keep the others from being written
            self._kv.discard(self._stream)
            self.unwritable = repr(error)

    def _load(self) -> None:
        for _ in self._loading():
            pass

    def _loading(self) -> Iterator[None]:
        """Rebuild memory from the records, piece by piece; reads no blocks but those after the saved subject table."""
        removals = self.removals
        key = keys.stream_prefix(keys.STATE, self._stream)
        value = self._kv.get(key)
        self._reset()
        counters = Counters(0, 0, 1, 0, 0)
        if value is not None:
            counters, self._machine_state = decode_state(value)
        self.last_seq, self.last_ts = counters.last_seq, counters.last_ts
        blocks = self.blocks
        blocks.first_seq = counters.first_seq
        start = keys.stream_prefix(keys.INFO, self._stream)
        for records in self._kv.chunks(start, keys.stream_end(keys.INFO, self._stream)):
            blocks.add_records(records)
            yield
        blocks.settle(counters.bytes)
        indexed, saved_seq = yield from self._index.loading(self.reader.batch)
        if not blocks.messages == indexed == counters.messages:
            raise DamagedError(counters.first_seq, counters.last_seq)
        self._added = removals + 1 + blocks.messages
        self._saved = (self._added - blocks.live_at_or_above(saved_seq + 1), self.removals)
        self._seen = (self._added, self.removals)

    def _reset(self) -> None:
        self._views.removing(0, MAX_SEQ)
        self.reader.version += 1
        self.blocks.clear()
        self.blocks.first_seq = 1
        self._index.clear()
        self._matches.clear()
        self._cache.drop_stream(self._stream)
        self.last_seq = self.last_ts = 0
        self._machine_state = None

    def _wipe(self) -> None:
        for kind in ALL_KINDS:
            self._delete_kind(kind)
        self._reset()

    def _delete_kind(self, kind: int) -> None:
        self._kv.delete_range(keys.stream_prefix(kind, self._stream), keys.stream_end(kind, self._stream))

    def _keep_newest(self, keep: int, below: int = MAX_SEQ) -> int:
        if keep >= self.blocks.messages:
            return 0
        excess = self.blocks.messages - keep
        if excess < keep:
            return self.compact(min(self.blocks.nth_oldest(excess), below))
        return self.compact(min(self.blocks.nth_newest(keep - 1), below))

    def _enforce_below(self, limit: int, subjects: Sequence[bytes], below: int) -> None:
        """As `_enforce_per_subject`, without messages from `below` on, of which a subject may have any number."""
        index = self._index
        doomed: list[int] = []
        for subject in dict.fromkeys(subjects):
            excess = index.count_of(subject) - limit
            if excess > 0 and (index.first_of(subject) or below) < below:
                doomed += [seq for seq in index.oldest(subject, excess) if seq < below]
        if doomed:
            doomed.sort()
            self._delete(doomed)

    def _enforce_per_subject(self, limit: int, subjects: Sequence[bytes]) -> None:
        if not subjects:
            return
        index = self._index
        if len(index.table) == 1:
            self._keep_newest(limit)
            return
        candidates = list(dict.fromkeys(subjects))
        blocks = self.blocks
        if limit == 1 and blocks.messages and blocks.lives[-1] == blocks.counts[-1]:
            replaced = index.replaced(candidates, self.reader.batch(len(blocks.firsts) - 1), blocks.firsts[-1])
            candidates = replaced.others
            if replaced.before:
                self._removing(min(replaced.before), max(replaced.before))
                candidates += self._writer.delete_replaced(replaced.before, self.last_seq)
            if replaced.inside:
                self._delete(replaced.inside)
        doomed: list[int] = []
        for subject in candidates:
            excess = index.count_of(subject) - limit
            if excess > 0:
                doomed += index.oldest(subject, excess)
        if doomed:
            doomed.sort()
            self._delete(doomed)
