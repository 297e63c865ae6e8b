"""Reading a stream's messages, with every checksum on the way verified.

`BlockReader` finds messages by sequence, through the cache. `messages` yields all messages as of one commit, from a
snapshot of the `RocksKv`, while the stream changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from jetcluster import native
from jetcluster.store import keys
from jetcluster.store.api import Columns, DamagedError, Msg
from jetcluster.store.batch import Batch
from jetcluster.store.blocks import BlockCache, BlockTable, decode_block, decode_info, decode_state
from jetcluster.store.kv import KvDamagedError
from jetcluster.store.rocks import Snapshot
from jetcluster.store.rocks_kv import RocksKv

_new_tuple = tuple.__new__
"""A NamedTuple's own constructor costs three times as much."""

OVERHEAD_BYTES = 200
"""Bytes that `BlockReader.take` adds to each message's own: mostly a reply's headers."""

FEW_MESSAGES = 6
"""Messages of one block that are cut out one by one; more as columns, if they are adjacent."""


SPARSE = 4
"""Where of so many messages of a block in a row one is wanted, it is cut out alone: columns are cut out whole."""


class BlockReader:
    """The messages of one stream by sequence."""

    def __init__(self, kv: RocksKv, stream: int, blocks: BlockTable, cache: BlockCache) -> None:
        self._kv = kv
        self._stream = stream
        self._blocks = blocks
        self._cache = cache
        self.version = 0
        """Incremented by the store at every mutation: earlier look-ups are void."""

    def batch(self, at: int) -> Batch:
        """Return the batch of block `at` of the table. Raises DamagedError."""
        first = self._blocks.firsts[at]
        batch = self._cache.get(self._stream, first)
        return batch if batch is not None else self._load(at)

    def get(self, seq: int) -> Msg | None:
        blocks = self._blocks
        at = blocks.find(seq)
        if at < 0:
            return None
        first = blocks.firsts[at]
        batch = self._cache.get(self._stream, first) or self._load(at)
        position = seq - first
        return _new_tuple(Msg, (seq, blocks.times[at] + position, *batch.message(position)))

    def messages(self, seqs: Iterable[int]) -> Iterator[Msg]:
        """Yield the messages at ascending `seqs`, all live at the first step; skips those deleted between steps."""
        blocks = self._blocks
        version = self.version
        first = end = shift = 0
        for seq in seqs:
            if version != self.version and blocks.find(seq) < 0:
                continue
            if seq >= end:
                at = blocks.find(seq)
                if at < 0:
                    raise DamagedError(seq, seq)  # the index is wrong
                first = blocks.firsts[at]
                end = first + blocks.counts[at]
                shift = blocks.times[at] - first
                message = self.batch(at).unpack().message
            yield _new_tuple(Msg, (seq, shift + seq, *message(seq - first)))

    def read(self, seqs: Iterable[int]) -> list[Msg]:
        """Return the messages at the ascending `seqs` that are stored."""
        found = []
        for seqs_here, shift, batch, first in self._by_block(seqs):
            message = batch.unpack().message
            found += [_new_tuple(Msg, (seq, shift + seq, *message(seq - first))) for seq in seqs_here]
        return found

    def read_columns(self, seqs: Iterable[int]) -> Columns:
        columns = Columns([], [], [], [], [])
        for seqs_here, shift, batch, first in self._by_block(seqs):
            columns.seqs.extend(seqs_here)
            columns.times.extend([shift + seq for seq in seqs_here])
            low, high = seqs_here[0] - first, seqs_here[-1] - first + 1
            if high - low > SPARSE * len(seqs_here):
                message = batch.unpack().message
                for seq in seqs_here:
                    subject, block, payload = message(seq - first)
                    columns.subjects.append(subject)
                    columns.headers.append(block)
                    columns.payloads.append(payload)
                continue
            subjects, headers, payloads = batch.columns(low, high)
            if len(seqs_here) < high - low:
                low += first
                wanted = [seq - low for seq in seqs_here]
                subjects = [subjects[i] for i in wanted]
                headers = [headers[i] for i in wanted]
                payloads = [payloads[i] for i in wanted]
            columns.subjects.extend(subjects)
            columns.headers.extend(headers)
            columns.payloads.extend(payloads)
        return columns

    def take(self, seqs: Sequence[int], size: int) -> Columns:
        """Return the first messages at the ascending live `seqs`: about `size` bytes, at least one."""
        columns = Columns([], [], [], [], [])
        begin, total, blocks = 0, len(seqs), self._blocks
        table = blocks.firsts, blocks.counts, blocks.lives, blocks.times, blocks.bits, blocks.first_seq
        take_scattered = native.take_scattered if isinstance(seqs, list) else None
        while begin < total and size > 0:
            if take_scattered is not None:
                begin, size = take_scattered(
                    columns, seqs, begin, size, table, self._cache.batches, self._stream, OVERHEAD_BYTES, FEW_MESSAGES
                )
                if begin == total or size <= 0:
                    break
            begin, size = self._take_block(columns, seqs, begin, size)
        return columns

    def _take_block(self, columns: Columns, seqs: Sequence[int], begin: int, size: int) -> tuple[int, int]:
        """Add the messages of one block. Return the position of the first sequence left, and the bytes left."""
        blocks = self._blocks
        found, times, subjects, headers, payloads = columns
        seq, total = seqs[begin], len(seqs)
        at = blocks.find(seq)
        if at < 0:
            raise DamagedError(seq, seq)  # the index is wrong
        first = blocks.firsts[at]
        shift = blocks.times[at] - first
        batch = self._cache.get(self._stream, first) or self._load(at)
        behind = first + blocks.counts[at]
        if begin + FEW_MESSAGES < total and seqs[begin + FEW_MESSAGES] < behind:
            each = batch.body_bytes // batch.count + OVERHEAD_BYTES
            end = bisect_left(seqs, behind, begin + 1, min(begin + size // each + 1, total))
            if seqs[end - 1] - seq == end - 1 - begin:
                found += seqs[begin:end]
                times += range(shift + seq, shift + seq + end - begin)
                three = batch.unpack().columns(seq - first, seq - first + end - begin)
                for column, more in zip(columns[2:], three, strict=True):
                    column += more
                return end, size - (end - begin - 1) * each - len(payloads[-1]) - OVERHEAD_BYTES
        while begin < total and size > 0 and (seq := seqs[begin]) < behind:
            subject, stored, payload = batch.message(seq - first)
            found.append(seq)
            times.append(shift + seq)
            subjects.append(subject)
            headers.append(stored)
            payloads.append(payload)
            size -= len(payload) + OVERHEAD_BYTES
            begin += 1
        return begin, size

    def _by_block(self, seqs: Iterable[int]) -> list[tuple[list[int], int, Batch, int]]:
        """Return `seqs` (ascending) by block: the stored ones, time minus sequence, batch, and first sequence."""
        blocks = self._blocks
        found: list[tuple[list[int], int, Batch, int]] = []
        ordered = list(seqs)
        begin = 0
        while begin < len(ordered):
            at = blocks.containing(ordered[begin])
            if at < 0:
                begin += 1
                continue
            first = blocks.firsts[at]
            end = bisect_left(ordered, first + blocks.counts[at], begin)
            here = ordered[begin:end]
            begin = end
            dead = blocks.dead_bits(at)
            if dead:
                here = [seq for seq in here if not dead >> (seq - first) & 1]
            if here:
                found.append((here, blocks.times[at] - first, self.batch(at), first))
        return found

    def _load(self, at: int) -> Batch:
        first, count = self._blocks.firsts[at], self._blocks.counts[at]
        key = keys.block(self._stream, first)
        try:
            value = self._kv.get(key)
            ts, batch = decode_block(key, value or b"")
        except (KvDamagedError, DamagedError) as error:
            raise DamagedError(first, first + count - 1) from error
        if ts != self._blocks.times[at] or batch.count != count:
            raise DamagedError(first, first + count - 1)
        self._cache.put(self._stream, first, batch)
        return batch


RECORDS_PER_STEP = 2048
"""Records read between two pauses."""


def messages(snapshot: Snapshot, stream: int) -> Iterator[list[Msg]]:
    """Yield all live messages, ascending, by block; an empty list is a pause. Verifies all; raises DamagedError."""
    try:
        yield from _messages(snapshot, stream)
    except KvDamagedError as error:
        raise DamagedError(0, keys.MAX_SEQ) from error


def _messages(snapshot: Snapshot, stream: int) -> Iterator[list[Msg]]:
    state_key = keys.stream_prefix(keys.STATE, stream)
    records = list(snapshot.scan(state_key, keys.stream_end(keys.STATE, stream)))
    if not records:
        return
    counters, _ = decode_state(records[0][1])
    if not counters.messages:
        return
    dead: dict[int, int] = {}
    infos = snapshot.scan(keys.stream_prefix(keys.INFO, stream), keys.stream_end(keys.INFO, stream))
    for number, (key, value) in enumerate(infos, 1):
        bits = decode_info(key, value)[3]
        if bits:
            dead[keys.seq_of(key)] = bits
        if number % RECORDS_PER_STEP == 0:
            yield []
    found = 0
    for key, value in snapshot.scan(keys.stream_prefix(keys.BLOCK, stream), keys.stream_end(keys.BLOCK, stream)):
        first = keys.seq_of(key)
        ts, batch = decode_block(key, value)
        bits = dead.get(first, 0)
        live = [
            Msg(first + i, ts + i, *batch.message(i))
            for i in range(batch.count)
            if first + i >= counters.first_seq and not bits >> i & 1
        ]
        found += len(live)
        yield live
    if found != counters.messages:
        raise DamagedError(counters.first_seq, counters.last_seq)
