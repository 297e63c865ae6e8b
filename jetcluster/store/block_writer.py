"""`BlockWriter`: removals from a stream's blocks, and from their postings, table and counters."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import overload

from jetcluster.store import keys
from jetcluster.store.batch import Batch
from jetcluster.store.block_reader import BlockReader
from jetcluster.store.blocks import BlockCache, BlockTable, encode_block, encode_info
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.search.matches import Matches
from jetcluster.store.search.subject_index import SubjectIndex

REWRITE_BYTES = 4096
"""Smaller blocks are not rewritten to free the space of deleted messages."""

BLOCK_COST = 16.0
POSTING_COST = 1.2
SCAN_COST = 0.8
"""Microseconds: dropping a block by itself, each of its postings, and passing one posting in a scan of all."""

MAX_REST_MESSAGES = 1_024
REINDEX_RATIO = 8
"""The most messages that a cut indexes anew, and how many times more must go."""

MIN_SCAN_BLOCKS = 64
"""For a cut of fewer blocks the estimate costs too much."""


class BlockWriter:
    """The removals from one stream's blocks; `BlockStore.append` adds to them."""

    def __init__(
        self,
        kv: RocksKv,
        stream: int,
        blocks: BlockTable,
        index: SubjectIndex,
        reader: BlockReader,
        cache: BlockCache,
        matches: Matches,
        memory: bool,
    ) -> None:
        self._kv = kv
        self._stream = stream
        self._blocks = blocks
        self._index = index
        self._reader = reader
        self._cache = cache
        self._matches = matches
        self._memory = memory
        self.on_deleted: Callable[[Sequence[int]], None] | None = None
        """Called with the sequences of messages that were removed one by one, but not with those of a cut."""

    def _deleted(self, seqs: Sequence[int]) -> None:
        self._matches.removed(seqs)
        if self.on_deleted is not None:
            self.on_deleted(seqs)

    def clear(self, first_seq: int) -> None:
        """Remove all messages; the next one gets at least `first_seq`."""
        if self._blocks.messages:
            for kind in (keys.BLOCK, keys.INFO, keys.POSTING):
                start = keys.stream_prefix(kind, self._stream)
                self._kv.delete_range(start, keys.stream_end(kind, self._stream))
        self._blocks.clear()
        self._index.clear()
        self._matches.clear()
        self._cache.drop_stream(self._stream)
        self._blocks.first_seq = first_seq

    def cut(self, target: int) -> None:
        """Remove all messages below live sequence `target`."""
        blocks = self._blocks
        head_first = blocks.firsts[blocks.find(target)]
        if little_stays(blocks, target, MAX_REST_MESSAGES):
            self._cut_to_rest(target, blocks.find(target))
            return
        if self._one_scan_is_cheaper(head_first):
            self._cut_in_one_scan(target, head_first)
            return
        while True:
            at = blocks.live_from(0)
            first = blocks.firsts[at]
            if first >= target:
                blocks.cut(target, 0)
                return
            batch = self._reader.batch(at)
            gone = blocks.live_seqs(at, 0, target - 1)
            if first == head_first:
                gone_bytes = self._record_bytes(batch, first, gone)
                blocks.cut(target, gone_bytes)
                self._uncount(batch, first, gone)
                return
            self._drop_block(at, batch)
            self._uncount(batch, first, gone)

    def delete(self, seqs: Sequence[int], last_seq: int, *, erase: bool = False) -> None:
        """Remove the messages at the ascending live `seqs`. With `erase` their bytes are overwritten now, otherwise
        when their block is rewritten, which is each time that its live messages have halved."""
        blocks = self._blocks
        self._deleted(seqs)
        start = 0
        while start < len(seqs):
            at = blocks.find(seqs[start])
            end = bisect_left(seqs, blocks.firsts[at] + blocks.counts[at], start)
            self._delete_in_block(at, seqs[start:end], erase)
            start = end
        self._settle_first(last_seq)

    def delete_replaced(self, replaced: dict[int, bytes], last_seq: int) -> list[bytes]:
        """Delete what `SubjectIndex.replaced` found; returns subjects left to do: not live, or in a shared posting."""
        blocks = self._blocks
        seqs = sorted(replaced)
        left: list[bytes] = []
        start = 0
        while start < len(seqs):
            at = blocks.containing(seqs[start])
            if at < 0:
                left.append(replaced[seqs[start]])
                start += 1
                continue
            end = bisect_left(seqs, blocks.firsts[at] + blocks.counts[at], start)
            gone = seqs[start:end]
            subjects = [replaced[seq] for seq in gone]
            if self._delete_singles(at, gone, subjects):
                self._deleted(gone)
            else:
                left += subjects
            start = end
        self._settle_first(last_seq)
        return left

    def _delete_singles(self, at: int, gone: list[int], subjects: list[bytes]) -> bool:
        """Delete them and return True; False when some are gone already, or cut off but still in postings."""
        blocks = self._blocks
        first, lives, count = blocks.firsts[at], blocks.lives[at], blocks.counts[at]
        old = blocks.bits.get(first, 0)
        bits = _bits_of(gone, first)
        if bits & old or blocks.dead_bits(at) != old:
            return False
        if len(gone) == 1 and count > 1 and self._reader.batch(at).subject_count == 1:
            return False
        if len(gone) == lives:
            self._index.remove_replaced(gone, subjects)
            self._drop_records(at)
            return True
        batch = self._reader.batch(at)
        self._index.remove_replaced(gone, subjects)
        gone_bytes = batch.bytes_of([seq - first for seq in gone], subjects, memory=self._memory)
        bits |= old
        size = blocks.sizes[at] - gone_bytes
        self._put_info(first, blocks.times[at], count, size, bits)
        blocks.set_bits(at, bits, size)
        self._rewrite_if_halved(at, batch, lives)
        return True

    def _settle_first(self, last_seq: int) -> None:
        """Move the first sequence up to the first live message."""
        blocks = self._blocks
        target = blocks.next_live(blocks.first_seq)
        if target is None:
            blocks.first_seq = last_seq + 1
        elif target != blocks.first_seq:
            blocks.cut(target, 0)

    def first_within(self, max_bytes: int) -> int | None:
        """Return the lowest sequence from which on the stream takes at most `max_bytes`; None without one."""
        blocks = self._blocks
        excess = blocks.bytes - max_bytes
        at = blocks.live_from(0)
        while at < len(blocks.firsts) and blocks.sizes[at] <= excess:
            excess -= blocks.sizes[at]
            at = blocks.live_from(at + 1)
        if at == len(blocks.firsts):
            return None
        live = blocks.live_seqs(at)
        if excess <= 0:
            return live[0]
        sums = self._running_sums(self._reader.batch(at), blocks.firsts[at], live)
        return blocks.next_live(live[bisect_left(sums, excess)] + 1)

    def bytes_from(self, seq: int) -> int:
        """Return the record bytes of the messages from `seq` on."""
        blocks = self._blocks
        at = blocks.from_seq(seq)
        if at == len(blocks.firsts):
            return 0
        live, size = blocks.live_seqs(at), blocks.sizes[at]
        if live[0] < seq:
            size -= self._running_sums(self._reader.batch(at), blocks.firsts[at], live)[bisect_left(live, seq) - 1]
        return size + blocks.bytes_after(at)

    def _put_info(self, first: int, ts: int, count: int, size: int, bits: int) -> None:
        key = keys.info(self._stream, first)
        self._kv.put(key, encode_info(key, ts, count, size, bits))

    def _drop_block(self, at: int, batch: Batch) -> None:
        first = self._blocks.firsts[at]
        self._index.delete_postings(batch, first, self._blocks.bits.get(first, 0))
        self._drop_records(at)

    def _drop_records(self, at: int) -> None:
        """Drop all records of the block except its postings."""
        first = self._blocks.firsts[at]
        self._kv.delete_each((keys.block(self._stream, first), keys.info(self._stream, first)))
        self._cache.drop(self._stream, first)
        self._blocks.drop(at)

    def _uncount(self, batch: Batch, first: int, gone: Sequence[int]) -> None:
        """Take the ascending sequences `gone` of one block out of the subject table; postings are up to date."""
        if not gone:
            return
        if len(batch.subjects) == 1:
            self._index.remove(batch.subjects[0], len(gone), gone[-1])
            return
        numbers = [batch.subject_number(seq - first) for seq in gone]
        last = dict(zip(numbers, gone, strict=True))
        for number, count in Counter(numbers).items():
            self._index.remove(batch.subjects[number], count, last[number])

    def _delete_in_block(self, at: int, gone: Sequence[int], erase: bool) -> None:
        blocks = self._blocks
        first = blocks.firsts[at]
        batch = self._reader.batch(at)
        lives = blocks.lives[at]
        if erase:
            self._kv.outdated(keys.block(self._stream, first))
        if len(gone) == lives:
            self._drop_block(at, batch)
            self._uncount(batch, first, gone)
            return
        old = blocks.bits.get(first, 0)
        bits = old
        for seq in gone:
            bits |= 1 << (seq - first)
        size = blocks.sizes[at] - self._record_bytes(batch, first, gone)
        self._index.update_postings(batch, first, old, gone)
        self._put_info(first, blocks.times[at], batch.count, size, bits)
        blocks.set_bits(at, bits, size)
        self._uncount(batch, first, gone)
        if not self._rewrite_if_halved(at, batch, lives) and erase:
            self._erase(at, batch, gone)

    def _rewrite_if_halved(self, at: int, batch: Batch, before: int) -> bool:
        """Rewrite the block if its live messages, `before` in number until now, have halved."""
        if batch.encoded_bytes <= REWRITE_BYTES or not _halved(batch.count, before, self._blocks.lives[at]):
            return False
        self._rewrite(at, batch)
        return True

    def _erase(self, at: int, batch: Batch, gone: Sequence[int]) -> None:
        """Overwrite the messages at `gone` with zeros, and each subject that no live message of the block has."""
        first = self._blocks.firsts[at]
        number_of = batch.subject_number
        alive = {number_of(seq - first) for seq in self._blocks.live_seqs(at)}
        positions = [seq - first for seq in gone]
        erased = batch.erased(positions, {number_of(position) for position in positions} - alive)
        key = keys.block(self._stream, first)
        self._kv.put(key, encode_block(key, self._blocks.times[at], erased.raw))
        self._cache.put(self._stream, first, erased)

    def _rewrite(self, at: int, batch: Batch) -> None:
        """Write the block without the bodies of its dead messages; their positions stay."""
        blocks = self._blocks
        first, ts, size = blocks.firsts[at], blocks.times[at], blocks.sizes[at]
        old, dead = blocks.bits.get(first, 0), blocks.dead_bits(at)
        alive = [seq - first for seq in blocks.live_seqs(at)]
        message = batch.unpack().message
        # Dead messages cost nothing here, or the last rewrites of a block would cost as much as the first.
        subjects = [batch.subject_of(alive[0])] * batch.count
        headers, payloads = [b""] * batch.count, [b""] * batch.count
        for position in alive:
            subjects[position], headers[position], payloads[position] = message(position)
        smaller = Batch.of(subjects, headers if batch.has_headers else (), payloads)
        if old != dead or smaller.subject_count == 1:  # else the postings stay the same
            self._index.delete_postings(batch, first, old)
            self._index.put_postings(smaller, first, dead)
        key = keys.block(self._stream, first)
        self._kv.put(key, encode_block(key, ts, smaller.raw))
        self._put_info(first, ts, batch.count, size, dead)
        blocks.set_bits(at, dead, size)
        self._cache.drop(self._stream, first)

    def _cut_to_rest(self, target: int, at: int) -> None:
        """Do `cut` by reading only what stays, from block `at` on."""
        blocks, stream = self._blocks, self._stream
        head_first = blocks.firsts[at]
        gone = blocks.live_seqs(at, 0, target - 1)
        gone_bytes = self._record_bytes(self._reader.batch(at), head_first, gone) if gone else 0
        rest = [(first, self._reader.batch(i)) for i, first in enumerate(blocks.firsts) if i >= at and blocks.lives[i]]
        self._kv.delete_range(keys.stream_prefix(keys.POSTING, stream), keys.stream_end(keys.POSTING, stream))
        for kind_key in (keys.block, keys.info):
            self._kv.delete_range(kind_key(stream, 0), kind_key(stream, head_first))
        self._cache.drop_stream(stream)
        self._index.clear()
        blocks.drop_below(at)
        blocks.cut(target, gone_bytes)
        for first, batch in rest:
            self._index.add_rest(batch, first, blocks.bits.get(first, 0), blocks.dead_bits(blocks.find_block(first)))

    def _one_scan_is_cheaper(self, head_first: int) -> bool:
        """Return True for a cut of a large part of many blocks, as when an old stream expires after a pause."""
        blocks = self._blocks
        live = len(blocks.firsts) - blocks.live_from(0)
        dropped = blocks.find_block(head_first) - blocks.live_from(0)
        per_block = blocks.messages / live if len(self._index.table) > 1 else 1.0
        return (
            dropped > MIN_SCAN_BLOCKS
            and dropped * (BLOCK_COST + POSTING_COST * per_block) > live * per_block * SCAN_COST
        )

    def _cut_in_one_scan(self, target: int, head_first: int) -> None:
        """Do `cut` without reading the dropped blocks: their postings name the messages."""
        blocks = self._blocks
        at = blocks.find_block(head_first)
        gone_bytes = 0
        if head_first < target:
            gone = blocks.live_seqs(at, 0, target - 1)
            gone_bytes = self._record_bytes(self._reader.batch(at), head_first, gone)
        self._index.cut(target, head_first)
        for kind_key in (keys.block, keys.info):
            self._kv.delete_range(kind_key(self._stream, 0), kind_key(self._stream, head_first))
        self._cache.drop_stream(self._stream)
        blocks.drop_below(at)
        blocks.cut(target, gone_bytes)

    def _record_bytes(self, batch: Batch, first: int, seqs: Sequence[int]) -> int:
        if isinstance(seqs, range):
            return batch.range_bytes(seqs.start - first, seqs.stop - first, memory=self._memory)
        places = [seq - first for seq in seqs]
        return batch.bytes_of(places, map(batch.subject_of, places), memory=self._memory)

    def _running_sums(self, batch: Batch, first: int, live: list[int] | range) -> Sequence[int]:
        """Return, for every live message of a block, the record bytes up to its end."""
        if batch.uniform and isinstance(live, range):
            start = live.start - first
            return _Sums(lambda i: batch.range_bytes(start, start + i + 1, memory=self._memory), len(live))
        return list(accumulate(batch.record_size(seq - first, memory=self._memory) for seq in live))


class _Sums(Sequence[int]):
    """Running sums that are computed on access, as bisection needs few."""

    def __init__(self, at: Callable[[int], int], size: int) -> None:
        self._at = at
        self._size = size

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, i: int) -> int: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[int]: ...
    def __getitem__(self, i: int | slice) -> int | Sequence[int]:
        assert isinstance(i, int)
        return self._at(i)


def little_stays(blocks: BlockTable, target: int, rest: int) -> bool:
    """Return True if at most `rest` messages stay, from `target` on, and indexing them anew is cheaper than a cut."""
    stays = blocks.live_at_or_above(target)
    return stays <= rest and blocks.messages - stays > REINDEX_RATIO * stays + MIN_SCAN_BLOCKS


def _bits_of(seqs: list[int], first: int) -> int:
    """Return ascending sequences as bits from `first`."""
    count = len(seqs)
    if seqs[-1] - seqs[0] == count - 1:
        return ((1 << count) - 1) << (seqs[0] - first)
    bits = 0
    for seq in seqs:
        bits |= 1 << (seq - first)
    return bits


def _halved(count: int, before: int, after: int) -> bool:
    """Return True when the live share of a block fell below 1/2, 1/4, 1/8, ...: rewriting is linear in total."""
    return (count // before).bit_length() != (count // after).bit_length()
