"""`BlockStore`: the messages of one stream as blocks in a `RocksKv`, with the small things that commit beside them.

Writes go into the node's open write batch (`RocksKv.commit` makes them visible to a crash, all together), so after a
crash the messages, the machine's state and the side tables are those of one applied index. Reads see them at once.
Everything is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from jetcluster.store import keys, transfer
from jetcluster.store.api import DamagedError, Msg, StoreState
from jetcluster.store.batch import Batch
from jetcluster.store.block_reader import BlockReader
from jetcluster.store.block_writer import BlockWriter
from jetcluster.store.blocks import BlockCache, BlockTable, Counters, cache_of, decode_state, encode_state
from jetcluster.store.keys import MAX_SEQ
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.search.matches import Matches, kept_of
from jetcluster.store.search.queries import Queries
from jetcluster.store.search.subject_index import SubjectIndex
from jetcluster.store.slices import Slices
from jetcluster.store.view import LastSearch, View, Views

BULKY = (keys.BLOCK, keys.INFO, keys.POSTING, keys.SIDE)
ALL_KINDS = (keys.BLOCK, keys.INFO, keys.POSTING, keys.STATE, keys.SIDE, keys.INSTALLING)


class BlockStore:
    """Opens stream `stream` in `kv`, empty when it holds nothing yet. Raises DamagedError when its records disagree.

    `memory` only chooses how bytes are counted (StoreState.bytes); where they live is the kv's business. All stores
    of a kv share one cache unless `cache` says otherwise.
    """

    def __init__(self, kv: RocksKv, stream: int, *, memory: bool, cache: BlockCache | None = None) -> None:
        self._kv = kv
        self._stream = stream
        self._memory = memory
        self._cache = cache if cache is not None else cache_of(kv)
        self._blocks = BlockTable()
        self._index = SubjectIndex(kv, stream, self._blocks)
        self.reader = BlockReader(kv, stream, self._blocks, self._cache)
        self._matches = Matches(kept_of(kv))
        self.queries = Queries(self.reader, self._blocks, self._index, self._matches)
        self.next_seqs = self.queries.next_seqs
        self.read_columns = self.reader.read_columns
        """As `read`, in columns: several times cheaper for neighbours, as nothing is made per message but slices."""
        self._views = Views(kv, stream, self._blocks, self.reader, self.queries)
        self._writer = BlockWriter(
            kv, stream, self._blocks, self._index, self.reader, self._cache, self._matches, memory
        )
        self.slices = Slices(self._blocks, self._index, self.reader, self._delete, self.compact)
        self.last_seq = 0
        self.last_ts = 0
        self._added = 0
        self.dirty = False
        """The state record will be written in the next commit."""
        self._machine_state: bytes | Callable[[], bytes] | None = None
        self._import: transfer.Taker | None = None
        self.incomplete = kv.get(keys.stream_prefix(keys.INSTALLING, stream)) is not None
        """An import was begun, maybe by a process before this one, and not ended. What there is of it lies on disk for
        the next import to go on from; the store shows nothing, side tables neither (their rows may be of two
        histories), and must not be written to."""
        self.removed = False
        self.unwritable = ""
        """Why the state could not be written at a commit: what had been written since the one before was taken back, so
        that on disk the stream is as of there. What is in memory stays ahead of it; the owner must stop."""
        if not self.incomplete:
            self._load()

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def messages(self) -> int:
        return self._blocks.messages

    @property
    def byte_count(self) -> int:
        """StoreState.bytes."""
        return self._blocks.bytes

    @property
    def first_seq(self) -> int:
        return self._blocks.first_seq

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Messages, `byte_count`, first and last sequence."""
        blocks = self._blocks
        return blocks.messages, blocks.bytes, blocks.first_seq, self.last_seq

    @property
    def first_ts(self) -> int:
        """Time of the first message, 0 when there is none."""
        blocks = self._blocks
        if not blocks.messages:
            return 0
        at = blocks.find(blocks.first_seq)
        return blocks.times[at] + blocks.first_seq - blocks.firsts[at]

    @property
    def num_subjects(self) -> int:
        return len(self._index.table)

    @property
    def num_deleted(self) -> int:
        return self.last_seq + 1 - self._blocks.first_seq - self._blocks.messages

    @property
    def removals(self) -> int:
        """Counts up with every message removed, for any reason, and when everything was loaded anew; begins
        anywhere. What was counted at another value may have to be counted again."""
        return self._added - self._blocks.messages

    @property
    def state(self) -> StoreState:
        return StoreState(
            self._blocks.messages,
            self._blocks.bytes,
            self._blocks.first_seq,
            self.first_ts,
            self.last_seq,
            self.last_ts,
            len(self._index.table),
            self.num_deleted,
        )

    # -- writing --------------------------------------------------------------------------------------------------

    def append(self, batch: Batch, first_seq: int, ts: int) -> None:
        """Stores all messages of `batch` as sequences `first_seq`, `first_seq + 1`, ... with times `ts`, `ts + 1`, ...
        `first_seq` is above the last sequence. Times must not go back from one append to the next, or seq_at_time
        cannot bisect."""
        assert first_seq > self.last_seq, (first_seq, self.last_seq)
        assert first_seq + batch.count <= MAX_SEQ
        self.reader.version += 1
        if not self.dirty:
            self.touch()
        self._writer.append(batch, first_seq, ts)
        self._added += batch.count
        self.last_seq = first_seq + batch.count - 1
        self.last_ts = ts + batch.count - 1

    def delete(self, seq: int) -> bool:
        """Removes one message; False when it was not there. Its bytes are overwritten in its block; for what the block
        was before see `RocksKv.outdated`."""
        if self._blocks.find(seq) < 0:
            return False
        self._removing(seq, seq)
        self._writer.delete([seq], self.last_seq, erase=True)
        return True

    def delete_all(self, seqs: Sequence[int]) -> int:
        """Removes the messages at the ascending `seqs`, as far as they are there; returns how many."""
        live = [seq for seq in seqs if self._blocks.find(seq) >= 0]
        if live:
            self._delete(live)
        return len(live)

    def purge(self, filter: bytes = b">", keep: int = 0) -> int:
        """Removes matching messages, or all but the newest `keep`; returns how many."""
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
        """Removes everything below `first_seq` and makes it the first sequence (also beyond the last one: then the next
        message gets `first_seq`); returns how many messages went."""
        before = self._blocks.messages
        if first_seq <= self._blocks.first_seq:
            return 0
        target = self._blocks.next_live(first_seq)
        self._removing(self._blocks.first_seq, first_seq - 1)
        if target is None:
            self.last_seq = max(first_seq - 1, self.last_seq)
            self._writer.clear(self.last_seq + 1)
        else:
            self._writer.cut(target)
        return before - self._blocks.messages

    def enforce(
        self,
        max_msgs: int = -1,
        max_bytes: int = -1,
        max_per_subject: int = -1,
        touched_subjects: Sequence[bytes] = (),
    ) -> int:
        """Discards the oldest messages until all limits hold (<= 0: no limit); returns how many.

        Per subject first, then of the whole stream, as nats-server's store does. `touched_subjects`: those appended
        to since the last call, all others are within their limit.
        """
        before = self._blocks.messages
        if max_per_subject > 0:
            self._enforce_per_subject(max_per_subject, touched_subjects)
        if 0 < max_msgs < self._blocks.messages:
            self._keep_newest(max_msgs)
        if 0 < max_bytes < self._blocks.bytes:
            self.compact(self._writer.first_within(max_bytes) or self.last_seq + 1)
        return before - self._blocks.messages

    def cut_excess(self, max_msgs: int, max_bytes: int) -> tuple[int, bool]:
        """As `enforce` for limits of the whole stream, but at most one piece (`slices.Step`): how many messages went,
        and whether that was all."""
        target = self.slices.excess(max_msgs, max_bytes, self._writer.first_within)
        return self.slices.cut(min(target, self.last_seq + 1)) if target else (0, True)

    def remove(self) -> None:
        """Deletes the stream with everything it has, also its state record; the store is of no use afterwards."""
        self._wipe()
        self.removed = True

    def abandon(self) -> None:
        """After a command failed in its middle: takes this stream back to the last commit, on disk and in memory.

        Without it the next commit of the node would make half of the command durable, and a restart would apply it
        to that once more. Raises DamagedError like opening.
        """
        self._kv.discard(self._stream)
        if not self.incomplete:
            self._load()

    # -- reading --------------------------------------------------------------------------------------------------

    def get(self, seq: int) -> Msg | None:
        return self.reader.get(seq)

    def contains(self, seq: int) -> bool:
        """True when there is a message at `seq`: a look-up in memory."""
        return self._blocks.find(seq) >= 0

    def lasts(self, filters: Sequence[bytes], up_to: int | None, limit: int) -> Generator[None, None, list[int] | None]:
        """See `LastSearch`."""
        return LastSearch(self.queries, self._index, self._views, self._blocks).steps(filters, up_to, limit)

    def width(self, filter: bytes) -> int:
        """Number of subjects that may have to be looked at to find those that match."""
        return self._index.kept.width(filter)

    def find_lasts(self, filters: Iterable[bytes]) -> None:
        """See `LastOfEach.find`: `last_seq_matching` of each of these wildcards is quick then."""
        self._index.lasts.find(filters)

    def last_seq_matching(self, filter: bytes) -> int:
        """Last sequence of the subjects that match a wildcard, 0 when there is none: looked for in memory."""
        return self._index.lasts.last(filter)

    def view(self, filter: bytes, seq: int) -> View:
        """The messages from `seq` to the last one of now that match `filter`, as of now."""
        return View(self._views, filter, max(seq, self._blocks.first_seq), self.last_seq)

    def view_of(self, seqs: Sequence[int]) -> View:
        """The messages at the ascending `seqs`, all of which are there, as of now."""
        return View(self._views, b"", 0, self.last_seq, seqs)

    def last_seq_of(self, subject: bytes) -> int:
        """Last sequence of a literal subject, 0 when it holds no message: one look-up in memory."""
        return self._index.last_of(subject)

    def count_of(self, subject: bytes) -> int:
        """Messages of a literal subject: one look-up in memory."""
        return self._index.count_of(subject)

    def last_seqs(self, filter: bytes, up_to: int | None = None, limit: int | None = None) -> list[int]:
        """The last sequence (at or below `up_to`) of every matching subject, ascending: multi_last. With a `limit` the
        search ends as soon as there are more."""
        return self.queries.last_seqs(filter, MAX_SEQ if up_to is None else up_to, MAX_SEQ if limit is None else limit)

    def last_seqs_any(self, filters: Sequence[bytes], up_to: int | None = None) -> list[int]:
        """The same for every subject that matches one of the filters."""
        return self.queries.last_seqs_any(filters, MAX_SEQ if up_to is None else up_to)

    def seq_at_time(self, ts: int) -> int:
        """First sequence with time >= `ts`; last_seq + 1 when there is none."""
        found = self._blocks.seq_at_time(ts)
        return self.last_seq + 1 if found is None else found

    def deleted(self, limit: int) -> list[int]:
        """Interior deleted sequences, ascending, at most `limit`."""
        blocks = self._blocks
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

    # -- what the state machine keeps with the messages -----------------------------------------------------------

    def load_machine_state(self) -> bytes | None:
        """State that was saved with the newest commit, None when nothing ever was."""
        return self._machine_state() if callable(self._machine_state) else self._machine_state

    def save_machine_state(self, state: bytes | Callable[[], bytes]) -> None:
        """Writes `state` in the next commit. A callable is asked at that commit, and again at every later one in
        which this store has changes, so it needs to be given only once."""
        self._machine_state = state
        if not self.dirty:
            self.touch()

    def touch(self) -> None:
        """Has the state record written in the next commit."""
        if not self.dirty:
            self.dirty = True
            self._kv.at_commit(self._write_state)

    def side_put(self, table: int, key: bytes, value: bytes) -> None:
        """A table of the owner's own (0..255) besides the messages, in the same commits."""
        self._kv.put(keys.side(self._stream, table, key), value)

    def side_get(self, table: int, key: bytes) -> bytes | None:
        return None if self.incomplete else self._kv.get(keys.side(self._stream, table, key))

    def side_delete(self, table: int, key: bytes) -> None:
        self._kv.delete(keys.side(self._stream, table, key))

    def side_scan(self, table: int, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """The pairs of a table from key `start` on, in key order. Not to be continued after a write to it."""
        if self.incomplete:
            return
        first = keys.side(self._stream, table, start)
        for key, value in self._kv.scan(first, keys.side_end(self._stream, table)):
            yield key[keys.SIDE_PREFIX :], value

    # -- catch-up -------------------------------------------------------------------------------------------------

    def export(self) -> transfer.Giver:
        """The whole stream as of now; later changes do not show in it. Commits, so it may only be called between
        commands."""
        self.touch()
        return transfer.Giver(self._kv.snapshot(), self._stream)

    def import_begin(self) -> transfer.Taker:
        """Taker that makes this store's records equal to those of a giver. From here on, also over a restart, the store
        shows nothing, until `import_end`; nothing else may be called before, and a callable given to
        `save_machine_state` is forgotten. Commits; what the taker does is to be committed by the caller."""
        self.incomplete = True
        self._kv.put(keys.stream_prefix(keys.INSTALLING, self._stream), b"")
        self._kv.commit()
        self._reset()
        self._import = transfer.Taker(self._kv, self._stream)
        return self._import

    def import_wipe(self) -> None:
        """Deletes what there is of an import. Commits; `reclaim` frees it."""
        self._wipe()
        self._kv.put(keys.stream_prefix(keys.INSTALLING, self._stream), b"")
        self._kv.commit()
        self._import = None

    async def reclaim(self) -> None:
        """Has what this stream has deleted leave the disk, durably. Raises KvError."""
        await self._kv.reclaim([(keys.stream_prefix(k, self._stream), keys.stream_end(k, self._stream)) for k in BULKY])

    def import_end(self) -> Iterator[None]:
        """Takes over what was imported, in steps of some milliseconds; to be exhausted. Commits. Raises DamagedError
        when something is missing; the store stays incomplete then."""
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
        """Before messages within low..high go."""
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
        blocks = self._blocks
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
        """Everything in memory from the records, piece by piece; reads neither blocks nor messages."""
        removals = self.removals
        key = keys.stream_prefix(keys.STATE, self._stream)
        value = self._kv.get(key)
        self._reset()
        counters = Counters(0, 0, 1, 0, 0)
        if value is not None:
            counters, self._machine_state = decode_state(value)
        self.last_seq, self.last_ts = counters.last_seq, counters.last_ts
        blocks = self._blocks
        blocks.first_seq = counters.first_seq
        start = keys.stream_prefix(keys.INFO, self._stream)
        for records in self._kv.chunks(start, keys.stream_end(keys.INFO, self._stream)):
            blocks.add_records(records)
            yield
        blocks.settle(counters.bytes)
        indexed = yield from self._index.loading()
        if not blocks.messages == indexed == counters.messages:
            raise DamagedError(counters.first_seq, counters.last_seq)
        self._added = removals + 1 + blocks.messages

    def _reset(self) -> None:
        self._views.removing(0, MAX_SEQ)
        self.reader.version += 1
        self._blocks.clear()
        self._blocks.first_seq = 1
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

    def _keep_newest(self, keep: int) -> int:
        if keep >= self._blocks.messages:
            return 0
        excess = self._blocks.messages - keep
        if excess < keep:
            return self.compact(self._blocks.nth_oldest(excess))
        return self.compact(self._blocks.nth_newest(keep - 1))

    def _enforce_per_subject(self, limit: int, subjects: Sequence[bytes]) -> None:
        if not subjects:
            return
        index = self._index
        if len(index.table) == 1:
            self._keep_newest(limit)
            return
        candidates = list(dict.fromkeys(subjects))
        blocks = self._blocks
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
