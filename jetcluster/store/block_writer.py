"""`BlockWriter`: every change to a stream's blocks, with postings, table and counters kept in step."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import overload

from jetcluster.store import keys
from jetcluster.store.batch import Batch
from jetcluster.store.block_cache import BlockCache
from jetcluster.store.block_reader import BlockReader
from jetcluster.store.blocks import BlockTable, encode_block, encode_info
from jetcluster.store.kv import Kv
from jetcluster.store.subject_index import SubjectIndex

REWRITE_BYTES = 4096
"""Blocks smaller than this are not rewritten to give the room of deleted messages back."""

BLOCK_COST = 16.0
POSTING_COST = 1.2
SCAN_COST = 0.8
"""Microseconds: dropping a block by itself, each of its postings, and passing one posting in a scan of them all."""

MANY_BLOCKS = 64
"""A cut of fewer blocks is not worth the estimate."""


class BlockWriter:
    def __init__(
        self,
        kv: Kv,
        stream: int,
        blocks: BlockTable,
        index: SubjectIndex,
        reader: BlockReader,
        cache: BlockCache,
        memory: bool,
    ) -> None:
        self._kv = kv
        self._stream = stream
        self._blocks = blocks
        self._index = index
        self._reader = reader
        self._cache = cache
        self._memory = memory

    def append(self, batch: Batch, first_seq: int, ts: int) -> None:
        blocks = self._blocks
        size = batch.record_bytes(memory=self._memory)
        key = keys.block(self._stream, first_seq)
        self._kv.put(key, encode_block(key, ts, batch.raw))
        self._put_info(first_seq, ts, batch.count, size, 0)
        if not blocks.messages:
            blocks.first_seq = first_seq
        blocks.add(first_seq, batch.count, ts, size)
        self._index.add_block(batch, first_seq)
        self._cache.put(self._stream, first_seq, batch)

    def clear(self, first_seq: int) -> None:
        """Removes all messages; the next one gets at least `first_seq`."""
        if self._blocks.messages:
            for kind in (keys.BLOCK, keys.INFO, keys.POSTING):
                start = keys.stream_prefix(kind, self._stream)
                self._kv.delete_range(start, keys.stream_end(kind, self._stream))
        self._blocks.clear()
        self._index.clear()
        self._cache.drop_stream(self._stream)
        self._blocks.first_seq = first_seq

    def cut(self, target: int) -> None:
        """Removes all messages below live sequence `target`."""
        blocks = self._blocks
        head_first = blocks.firsts[blocks.find(target)]
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
        """Removes messages at the ascending live `seqs`, from wherever they are. With `erase` their blocks are written
        anew without their bytes, or else once they are mostly dead."""
        blocks = self._blocks
        start = 0
        while start < len(seqs):
            at = blocks.find(seqs[start])
            end = start + 1
            behind = blocks.firsts[at] + blocks.counts[at]
            while end < len(seqs) and seqs[end] < behind:
                end += 1
            self._delete_in_block(at, seqs[start:end], erase)
            start = end
        target = blocks.next_live(blocks.first_seq)
        if target is None:
            blocks.first_seq = last_seq + 1
        elif target != blocks.first_seq:
            blocks.cut(target, 0)

    def first_within(self, max_bytes: int) -> int | None:
        """The lowest sequence from which on the stream takes at most `max_bytes`; None when there is none."""
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

    def _put_info(self, first: int, ts: int, count: int, size: int, bits: int) -> None:
        key = keys.info(self._stream, first)
        self._kv.put(key, encode_info(key, ts, count, size, bits))

    def _drop_block(self, at: int, batch: Batch) -> None:
        first = self._blocks.firsts[at]
        self._index.delete_postings(batch, first, self._blocks.bits.get(first, 0))
        self._kv.delete(keys.block(self._stream, first))
        self._kv.delete(keys.info(self._stream, first))
        self._cache.drop(self._stream, first)
        self._blocks.drop(at)

    def _uncount(self, batch: Batch, first: int, gone: Sequence[int]) -> None:
        """Takes the ascending sequences `gone` of one block out of the subject table; postings are up to date."""
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
        if batch.encoded_bytes > REWRITE_BYTES and _halved(batch.count, lives, blocks.lives[at]):
            self._rewrite(at, batch)
        elif erase:
            self._erase(at, batch, gone)

    def _erase(self, at: int, batch: Batch, gone: Sequence[int]) -> None:
        """Zeros for what the messages at `gone` were, also for a subject that no live message of the block has."""
        first = self._blocks.firsts[at]
        number_of = batch.subject_number
        alive = {number_of(seq - first) for seq in self._blocks.live_seqs(at)}
        positions = [seq - first for seq in gone]
        erased = batch.erased(positions, {number_of(position) for position in positions} - alive)
        key = keys.block(self._stream, first)
        self._kv.put(key, encode_block(key, self._blocks.times[at], erased.raw))
        self._cache.put(self._stream, first, erased)

    def _rewrite(self, at: int, batch: Batch) -> None:
        """Writes the block without the bodies of its dead messages; their places stay."""
        blocks = self._blocks
        first, ts, size = blocks.firsts[at], blocks.times[at], blocks.sizes[at]
        self._index.delete_postings(batch, first, blocks.bits.get(first, 0))
        dead = blocks.dead_bits(at)
        messages = list(batch.messages())
        some_subject = batch.subject_of(blocks.live_seqs(at)[0] - first)
        for position in range(batch.count):
            if dead >> position & 1:
                messages[position] = some_subject, b"", b""
        smaller = Batch.of(*(list(column) for column in zip(*messages, strict=True)))
        key = keys.block(self._stream, first)
        self._kv.put(key, encode_block(key, ts, smaller.raw))
        self._put_info(first, ts, batch.count, size, dead)
        blocks.set_bits(at, dead, size)
        self._index.put_postings(smaller, first, dead)
        self._cache.drop(self._stream, first)

    def _one_scan_is_cheaper(self, head_first: int) -> bool:
        """For a cut that drops a large part of many blocks, as when an old stream expires after a pause."""
        blocks = self._blocks
        live = len(blocks.firsts) - blocks.live_from(0)
        dropped = blocks.find_block(head_first) - blocks.live_from(0)
        per_block = blocks.messages / live if len(self._index.table) > 1 else 1.0
        return (
            dropped > MANY_BLOCKS and dropped * (BLOCK_COST + POSTING_COST * per_block) > live * per_block * SCAN_COST
        )

    def _cut_in_one_scan(self, target: int, head_first: int) -> None:
        """As `cut`, but without reading the dropped blocks: their postings say what they held."""
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
        return sum(batch.record_size(seq - first, memory=self._memory) for seq in seqs)

    def _running_sums(self, batch: Batch, first: int, live: list[int] | range) -> Sequence[int]:
        """For every live message of a block: the record bytes up to and with it."""
        if batch.uniform and isinstance(live, range):
            start = live.start - first
            return _Sums(lambda i: batch.range_bytes(start, start + i + 1, memory=self._memory), len(live))
        return list(accumulate(batch.record_size(seq - first, memory=self._memory) for seq in live))


class _Sums(Sequence[int]):
    """Running sums that are worked out when asked for, as bisection asks for few."""

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


def _halved(count: int, before: int, after: int) -> bool:
    """True when the live share of a block fell below 1/2, 1/4, 1/8, ... by this: rewriting stays linear in all."""
    return (count // before).bit_length() != (count // after).bit_length()
