"""Messages of a stream as of one moment, read piece by piece while the stream changes.

Sequences are never reused, so up to the view's last sequence the live store equals the view until a message ahead is
removed. A reader that pauses calls `View.hold`, which costs a snapshot of the data store; the first removal ahead of a
held view makes it *frozen*: it goes on from that snapshot and a copy of its part of the block table.

`LastSearch` finds the last message of every subject that matches one of many filters, as of one moment, in steps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Sequence
from typing import Final, cast
from weakref import WeakSet

from jetcluster.store.api import Columns, DamagedError, LostViewError, Msg
from jetcluster.store.block_reader import BlockReader
from jetcluster.store.blocks import ROW_BYTES, BlockCache, BlockTable
from jetcluster.store.keys import MAX_SEQ
from jetcluster.store.kv import KvError
from jetcluster.store.rocks import Snapshot
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.search import filters
from jetcluster.store.search.filters import MAX_SEPARATE_FILTERS, FilterSet, Wanted
from jetcluster.store.search.queries import FIRST_WINDOW_MESSAGES, MAX_WINDOW_MESSAGES, Queries, is_literal
from jetcluster.store.search.subject_index import SubjectIndex

MAX_FROZEN_BYTES = 64 << 20
"""Memory of all frozen views of one stream; a view that exceeds it is lost instead."""
MAX_PINNED_BYTES = 256 << 20
"""No view is frozen while RocksDB holds more than this in memtables, including those that only snapshots need."""
FROZEN_CACHE_BYTES = 1 << 20
BLOCKS_PER_STEP = 256
"""Blocks that a frozen view searches for a wildcard before a pause."""


class Views:
    """The held and the frozen views of one stream."""

    def __init__(self, kv: RocksKv, stream: int, blocks: BlockTable, reader: BlockReader, queries: Queries) -> None:
        self.kv = kv
        self.stream = stream
        self.blocks = blocks
        self.reader = reader
        self.queries = queries
        self.held: WeakSet[View] = WeakSet()
        self._frozen: WeakSet[View] = WeakSet()

    def removing(self, low: int, high: int) -> None:
        """Freeze the views that need messages of low..high. Called before any of them is removed."""
        for view in list(self.held):
            if view.reaches(low, high):
                self.held.discard(view)
                self._freeze(view)

    def close(self, view: View) -> None:
        self.held.discard(view)
        self._frozen.discard(view)

    def _freeze(self, view: View) -> None:
        room = MAX_FROZEN_BYTES - sum(other.frozen_bytes for other in self._frozen)
        if self.kv.pinned_bytes() > MAX_PINNED_BYTES:
            room = 0
        view.freeze(room)
        self._frozen.add(view)


class View:
    """The messages in start..ceiling that match `subject_filter`, or those at the ascending live `seqs`."""

    def __init__(
        self, views: Views, subject_filter: bytes, start: int, ceiling: int, seqs: Sequence[int] | None = None
    ) -> None:
        self._views = views
        self._filter = subject_filter
        self._ceiling = ceiling
        self._ahead: Sequence[int] = seqs or ()
        self._at = 0
        """Position of the first sequence in `_ahead` not taken yet."""
        self._next = start if seqs is None else ceiling + 1
        """Sequence from which to search for more."""
        self._snapshot: Snapshot | None = None
        self._frozen: _FrozenBlocks | None = None
        self._lost = False

    @property
    def frozen(self) -> bool:
        """True when the view holds old data in memory and on disk, and should end soon."""
        return self._frozen is not None

    @property
    def lost(self) -> bool:
        """True when some of its messages were removed and not kept, and after `close`."""
        return self._lost

    @property
    def frozen_bytes(self) -> int:
        return self._frozen.size if self._frozen is not None else 0

    @property
    def ended(self) -> bool:
        """True when all messages were taken."""
        return self._at >= len(self._ahead) and self._next > self._ceiling

    def first(self) -> Msg | None:
        """Return the next message, None for none. Only right after the view was made."""
        if self._at >= len(self._ahead):
            self._find(FIRST_WINDOW_MESSAGES)
        if self._at >= len(self._ahead):
            return None
        seq = self._ahead[self._at]
        found = self._views.reader.get(seq)
        if found is None:
            raise DamagedError(seq, seq)
        return found

    def take(self, want: int, size: int) -> Columns:
        """Return the next messages: at most `want`, about `size` bytes with OVERHEAD_BYTES for each. An empty answer
        before `ended` is a pause, to `hold` and let other work run.

        Raises DamagedError, KvError, or LostViewError when removed messages could not be kept."""
        if self._lost:
            raise LostViewError
        self._views.held.discard(self)
        if self._at >= len(self._ahead):
            self._find(want)
        reader = self._views.reader if self._frozen is None else self._frozen.reader
        columns = reader.take(self._ahead[self._at : self._at + want], size)
        self._at += len(columns.seqs)
        return columns

    def hold(self) -> None:
        """Hold the view before other work, which may change the stream, runs. Commits, so only between commands. A long
        pause needs further calls: each takes a new snapshot, so that old data can go while none of it is needed."""
        if self._frozen is not None or self._lost or self.ended:
            return
        try:
            self._snapshot = self._views.kv.snapshot()
        except KvError:  # a full disk: reads go on, but messages removed now cannot be kept
            self._snapshot = None
        self._views.held.add(self)

    def close(self) -> None:
        self._views.close(self)
        self._snapshot = self._frozen = None
        self._lost = True

    def reaches(self, low: int, high: int) -> bool:
        """Return True when messages still to come may lie in low..high."""
        at = bisect_left(self._ahead, low, self._at)
        if at < len(self._ahead) and self._ahead[at] <= high:
            return True
        return max(low, self._next) <= min(high, self._ceiling)

    def freeze(self, room: int) -> None:
        """Freeze the view, before the removal; it is lost if that takes more than `room` bytes of memory."""
        blocks = self._views.blocks
        start = self._ahead[self._at] if self._at < len(self._ahead) else self._next
        low, high = blocks.from_seq(start), bisect_right(blocks.firsts, self._ceiling)
        if self._snapshot is None or (high - low) * ROW_BYTES + FROZEN_CACHE_BYTES > room:
            self._lost = True
            return
        self._frozen = _FrozenBlocks(self._snapshot, self._views.stream, blocks.part(low, high))
        self._snapshot = None

    def _find(self, want: int) -> None:
        """Fill `_ahead`; it stays empty at the end, and when a frozen view has searched one step in vain."""
        if self._next > self._ceiling:
            return
        found: Sequence[int]
        if self._frozen is None:
            found = self._views.queries.window(self._filter, self._next, min(want, MAX_WINDOW_MESSAGES))
            self._next = found[-1] + 1 if found else self._ceiling + 1
        else:
            found, self._next = self._frozen.window(self._filter, self._next, self._ceiling)
        if found and found[-1] > self._ceiling:
            found = found[: bisect_left(found, self._ceiling + 1)]
        self._ahead, self._at = found, 0


class _FrozenBlocks:
    """Blocks and postings of a snapshot, with a copy of that moment's block table."""

    def __init__(self, snapshot: Snapshot, stream: int, blocks: BlockTable) -> None:
        kv = cast(RocksKv, _SnapshotKv(snapshot))
        self._blocks = blocks
        self._index = SubjectIndex(kv, stream, blocks)
        self.reader = BlockReader(kv, stream, blocks, BlockCache(FROZEN_CACHE_BYTES))
        self.size = len(blocks.firsts) * ROW_BYTES + FROZEN_CACHE_BYTES

    def window(self, subject_filter: bytes, seq: int, ceiling: int) -> tuple[list[int] | range, int]:
        """Return the next matching sequences >= `seq`, ascending, maybe none, and the sequence to continue from."""
        if filters.is_literal(subject_filter):
            return self._literal(subject_filter, seq, ceiling)
        blocks = self._blocks
        matches = filters.matcher(subject_filter)
        start = blocks.from_seq(seq)
        behind = min(start + BLOCKS_PER_STEP, len(blocks.firsts))
        for at in range(start, behind):
            live = blocks.live_seqs(at, seq) if blocks.lives[at] else range(0)
            if live and subject_filter != b">":
                live = self._matching(matches, at, live)
            if live:
                return live, blocks.firsts[at] + blocks.counts[at]
        return range(0), blocks.firsts[behind] if behind < len(blocks.firsts) else ceiling + 1

    def _matching(self, matches: filters.Matcher, at: int, live: list[int] | range) -> list[int] | range:
        batch = self.reader.batch(at)
        wanted = {number for number, subject in enumerate(batch.subjects) if matches(subject)}
        if len(wanted) == batch.subject_count:
            return live
        first, number = self._blocks.firsts[at], batch.subject_number
        return [seq for seq in live if number(seq - first) in wanted] if wanted else []

    def _literal(self, subject: bytes, seq: int, ceiling: int) -> tuple[list[int], int]:
        found: list[int] = []
        for part in self._index.walk(subject, seq, ceiling + 1):
            found += part
            if len(found) >= MAX_WINDOW_MESSAGES:
                return found, found[-1] + 1
        return found, ceiling + 1


class _SnapshotKv:
    """A snapshot in the place of a `RocksKv`, for `BlockReader` and the walk over postings."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.scan = snapshot.scan

    def get(self, key: bytes) -> bytes | None:
        for _, value in self.scan(key, key + b"\0"):
            return value
        return None


SEEKS_PER_STEP: Final = 64
"""Subjects whose postings one step may read."""
LOOKUPS_PER_STEP: Final = 1024
"""Literal subjects that one step looks up."""
MAX_ATTEMPTS: Final = 3


class LastSearch:
    """One search for the last messages of many subjects."""

    def __init__(self, queries: Queries, index: SubjectIndex, views: Views, blocks: BlockTable) -> None:
        self._queries = queries
        self._index = index
        self._views = views
        self._blocks = blocks

    def steps(
        self, subject_filters: Iterable[bytes], up_to: int | None, limit: int
    ) -> Generator[None, None, list[int] | None]:
        """Return, ascending, the last sequence at or below `up_to` (None: of all) of each subject; None when there are
        more than `limit`. The result is of the moment when the search ends; with an `up_to` no later message changes
        it, and a removal that does begins the search anew."""
        parts = yield from self._arranged(list(dict.fromkeys(subject_filters)))
        if up_to is None:
            for wanted in parts:
                if not is_literal(wanted) and not (yield from self._index.kept.finding(wanted, limit)):
                    return None
            return self._found(parts, MAX_SEQ, limit)
        for _ in range(MAX_ATTEMPTS):
            watch = View(self._views, b">", self._blocks.first_seq, up_to)
            self._views.held.add(watch)
            try:
                found = yield from self._below(parts, up_to, limit, watch)
                if not watch.lost:
                    return found
            finally:
                watch.close()
        return self._found(parts, up_to, limit)

    def _arranged(self, subject_filters: list[bytes]) -> Generator[None, None, list[Wanted]]:
        parts: list[Wanted] = []
        wild: list[bytes] = []
        for start in range(0, len(subject_filters), LOOKUPS_PER_STEP):
            for one in subject_filters[start : start + LOOKUPS_PER_STEP]:
                (parts if filters.is_literal(one) else wild).append(one)
            if start:
                yield
        if len(wild) <= MAX_SEPARATE_FILTERS:
            return [*parts, *wild]
        for start in range(0, len(wild), LOOKUPS_PER_STEP):
            parts.append(FilterSet(wild[start : start + LOOKUPS_PER_STEP]))
            yield
        return parts

    def _found(self, parts: Sequence[Wanted], up_to: int, limit: int) -> list[int] | None:
        """Search without a pause."""
        if len(parts) == 1:
            lasts = self._queries.last_seqs(parts[0], up_to, limit)
            return lasts if len(lasts) <= limit else None
        found: set[int] = set()
        for wanted in parts:
            found.update(self._queries.last_seqs(wanted, up_to, limit))
            if len(found) > limit:
                return None
        return sorted(found)

    def _below(
        self, parts: Sequence[Wanted], up_to: int, limit: int, watch: View
    ) -> Generator[None, None, list[int] | None]:
        """Search subject by subject; the result is void when `watch` is lost."""
        found: set[int] = set()
        last = self._index.last_at_or_before
        for number, subject in enumerate(self._subjects(parts), 1):
            seq = last(subject, up_to) if subject else None
            if seq is not None:
                found.add(seq)
                if len(found) > limit:
                    return None
            if not subject or not number % SEEKS_PER_STEP:
                yield
                if watch.lost:
                    return None
        return sorted(found)

    def _subjects(self, parts: Iterable[Wanted]) -> Generator[bytes, None, None]:
        """Yield existing matching subjects, and b"" at each pause."""
        there = self._index.table.__contains__
        looked = 0
        for wanted in parts:
            if is_literal(wanted):
                looked += 1
                if there(wanted):
                    yield wanted
                if not looked % LOOKUPS_PER_STEP:
                    yield b""
                continue
            for subjects in self._index.kept.walk(wanted):
                yield from filter(there, subjects)
                yield b""
