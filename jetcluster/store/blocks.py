"""The sequences that a stream holds: the table of its blocks in memory, and the records it is rebuilt from.

A block is one `Batch` as it was appended. It keeps its place and its count for life; messages deleted from its middle
are bits, those cut off in front are only known from the stream's first sequence.

`BlockCache` has decoded batches of all streams of a node; the least recently used ones are dropped first. The state
record has a stream's counters and its state machine's own bytes; it is written at most once per commit.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_right
from collections import OrderedDict
from typing import NamedTuple
from weakref import WeakKeyDictionary
from zlib import crc32

from jetcluster.store import keys
from jetcluster.store.api import DamagedError
from jetcluster.store.batch import Batch, BatchError
from jetcluster.store.kv import KeyValue

_VALUE_HEAD = struct.Struct("<Iq")
_INFO = struct.Struct("<qHI")
_INFO_FIXED = 4 + _INFO.size
_CRC = struct.Struct("<I")

VALUE_HEAD = _VALUE_HEAD.size
"""Bytes in front of the batch in a stored block."""

_BATCH_START = 12
"""The batch's fixed part holds its checksum, so a check over it vouches for all of the batch."""


def encode_block(key: bytes, ts: int, batch: bytes) -> bytes:
    """The stored value: check over key, time and the batch's own checksum, so that it also tells a swapped value.
    Checks leave the stream's id out: an export may be imported under another one."""
    return _VALUE_HEAD.pack(crc32(b"%b%d %b" % (key[keys.STREAM_PREFIX :], ts, batch[:_BATCH_START])), ts) + batch


def decode_block(key: bytes, value: bytes) -> tuple[int, Batch]:
    """Time of the first message, and the verified batch. Raises DamagedError."""
    try:
        check, ts = _VALUE_HEAD.unpack_from(value)
        batch = Batch.decode(value, VALUE_HEAD)
    except (struct.error, BatchError) as error:
        seq = keys.seq_of(key)
        raise DamagedError(seq, seq) from error
    start = value[VALUE_HEAD : VALUE_HEAD + _BATCH_START]
    if check != crc32(b"%b%d %b" % (key[keys.STREAM_PREFIX :], ts, start)):
        seq = keys.seq_of(key)
        raise DamagedError(seq, seq)
    return ts, batch


def encode_info(key: bytes, ts: int, count: int, size: int, bits: int) -> bytes:
    """`size`: record bytes of the messages that `bits` leaves, as StoreState.bytes counts them."""
    rest = _INFO.pack(ts, count, size) + bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    return _CRC.pack(crc32(rest, crc32(key[keys.STREAM_PREFIX :]))) + rest


def decode_info(key: bytes, value: bytes) -> tuple[int, int, int, int]:
    """Time, count, size, bits of deleted messages. Raises DamagedError."""
    if len(value) < _INFO_FIXED or _CRC.unpack_from(value)[0] != crc32(value[4:], crc32(key[keys.STREAM_PREFIX :])):
        seq = keys.seq_of(key)
        raise DamagedError(seq, seq)
    ts, count, size = _INFO.unpack_from(value, 4)
    bits = int.from_bytes(value[_INFO_FIXED:], "little") if len(value) > _INFO_FIXED else 0
    return ts, count, size, bits


ROW = 24
"""Bytes of memory per block in a `BlockTable`."""


class BlockTable:
    """Sorted columns of blocks: first sequence, count, live messages, their record bytes, time. 24 bytes each.

    Dropped blocks stay in the columns with no live message until they are an eighth of them, as taking one out of the
    middle of a million moves megabytes. An index into the columns holds until the next mutation.
    """

    def __init__(self) -> None:
        self.firsts = array("Q")
        self.counts = array("H")
        self.lives = array("H")
        self.sizes = array("I")
        self.times = array("q")
        self.bits: dict[int, int] = {}
        """First sequence of a block -> bits of messages deleted from its middle; only where there are any."""
        self.first_seq = 1
        """Messages below are gone; kept by the store. Only the first live block can reach below it."""
        self.messages = 0
        self.bytes = 0
        """Sum of the record bytes of all live messages."""
        self._head = 0
        self._dropped = 0

    @property
    def live_blocks(self) -> int:
        return len(self.firsts) - self._dropped

    def add(self, first: int, count: int, ts: int, size: int, bits: int = 0) -> None:
        """Appends a block behind all others; `first_seq` must be set right before."""
        self.firsts.append(first)
        self.sizes.append(size)
        self.bytes += size
        self.counts.append(count)
        self.times.append(ts)
        live = count
        if bits:
            self.bits[first] = bits
        if bits or first < self.first_seq:
            live -= (bits | self._cut(first)).bit_count()
        self.lives.append(live)
        self.messages += live

    def add_records(self, records: list[KeyValue]) -> None:
        """As `add`, for the INFO records of further blocks, ascending. Raises DamagedError."""
        values = [value for _, value in records]
        tails = [key[keys.STREAM_PREFIX :] for key, _ in records]
        firsts = array("Q", b"".join(tails))
        firsts.byteswap()
        if set(map(len, values)) == {_INFO_FIXED} and firsts[0] >= self.first_seq:
            # whole blocks, as nearly all are: in columns
            joined = b"".join(values)
            checks = array("I", map(crc32, [value[4:] for value in values], map(crc32, tails)))
            if checks == _column("I", joined, 0):
                counts, sizes = _column("H", joined, 12), _column("I", joined, 14)
                self.firsts += firsts
                self.counts += counts
                self.lives += counts
                self.sizes += sizes
                self.times += _column("q", joined, 4)
                self.messages += sum(counts)
                self.bytes += sum(sizes)
                return
        for key, value in records:
            ts, count, size, bits = decode_info(key, value)
            self.add(keys.seq_of(key), count, ts, size, bits)

    def find(self, seq: int) -> int:
        """Index of the block that holds live message `seq`, or -1."""
        at = bisect_right(self.firsts, seq) - 1
        if at < self._head or seq < self.first_seq:
            return -1
        first = self.firsts[at]
        if seq - first >= self.counts[at] or not self.lives[at]:
            return -1
        if first in self.bits and self.bits[first] >> (seq - first) & 1:
            return -1
        return at

    def find_block(self, first: int) -> int:
        """Index of the block that begins at `first`; there must be one."""
        at = bisect_right(self.firsts, first) - 1
        assert at >= 0 and self.firsts[at] == first
        return at

    def containing(self, seq: int) -> int:
        """Index of the block with room for `seq`, whether or not that message is live; -1 when none."""
        at = bisect_right(self.firsts, seq) - 1
        if at < self._head or not self.lives[at] or seq - self.firsts[at] >= self.counts[at]:
            return -1
        return at

    def from_seq(self, seq: int) -> int:
        """Index of the first live block that ends at or behind `seq`; len(firsts) when none."""
        at = max(bisect_right(self.firsts, seq) - 1, self._head)
        if at < len(self.firsts) and self.firsts[at] + self.counts[at] <= seq:
            at += 1
        return self.live_from(at)

    def live_from(self, at: int) -> int:
        """First index >= `at` of a live block; len(firsts) when none."""
        lives = self.lives
        at = max(at, self._head)
        while at < len(lives) and not lives[at]:
            at += 1
        return at

    def live_back(self, at: int) -> int:
        """Last index <= `at` of a live block; -1 when none."""
        lives = self.lives
        while at >= self._head and not lives[at]:
            at -= 1
        return at if at >= self._head else -1

    def dead_bits(self, at: int) -> int:
        """Bits of the messages of block `at` that are gone, for either reason."""
        first = self.firsts[at]
        bits = self.bits.get(first, 0)
        return bits | self._cut(first) if first < self.first_seq else bits

    def live_seqs(self, at: int, low: int = 0, high: int = keys.MAX_SEQ) -> list[int] | range:
        """Live sequences of block `at` within low..high, ascending."""
        first = self.firsts[at]
        low = max(low, first, self.first_seq)
        high = min(high, first + self.counts[at] - 1)
        bits = self.bits.get(first, 0)
        if not bits:
            return range(low, high + 1)
        return [seq for seq in range(low, high + 1) if not bits >> (seq - first) & 1]

    def first_live(self, seq: int, end: int, want: int) -> list[int]:
        """The first `want` live sequences in seq..end-1, ascending."""
        found: list[int] = []
        at = self.from_seq(seq)
        while at < len(self.firsts) and self.firsts[at] < end:
            found += self.live_seqs(at, seq, end - 1)[: want - len(found)]
            if len(found) >= want:
                break
            at = self.live_from(at + 1)
        return found

    def next_live(self, seq: int) -> int | None:
        """Lowest live sequence >= `seq`."""
        at = self.from_seq(seq)
        while at < len(self.firsts):
            first = self.firsts[at]
            low = max(seq - first, 0)
            alive = (~self.dead_bits(at) & ((1 << self.counts[at]) - 1)) >> low
            if alive:
                return first + low + (alive & -alive).bit_length() - 1
            at = self.live_from(at + 1)
        return None

    def prev_live(self, seq: int) -> int | None:
        """Highest live sequence <= `seq`."""
        at = self.live_back(bisect_right(self.firsts, seq) - 1)
        while at >= 0:
            first = self.firsts[at]
            size = min(self.counts[at], seq - first + 1)
            alive = ~self.dead_bits(at) & ((1 << size) - 1)
            if alive:
                return first + alive.bit_length() - 1
            at = self.live_back(at - 1)
        return None

    def nth_oldest(self, n: int) -> int:
        """The live sequence with exactly `n` live ones below it, 0 <= n < messages."""
        assert 0 <= n < self.messages
        at = self.live_from(0)
        while n >= self.lives[at]:
            n -= self.lives[at]
            at = self.live_from(at + 1)
        return self.live_seqs(at)[n]

    def nth_newest(self, n: int) -> int:
        """The live sequence with exactly `n` live ones above it, 0 <= n < messages."""
        assert 0 <= n < self.messages
        at = self.live_back(len(self.firsts) - 1)
        while n >= self.lives[at]:
            n -= self.lives[at]
            at = self.live_back(at - 1)
        return self.live_seqs(at)[-1 - n]

    def live_at_or_above(self, seq: int) -> int:
        """Number of live sequences >= `seq`; sums over the shorter side."""
        if seq <= self.first_seq:
            return self.messages
        at = self.from_seq(seq)
        if at == len(self.firsts):
            return 0
        inside = len(self.live_seqs(at, seq))
        if at - self._head < len(self.firsts) - at:
            return self.messages - sum(self.lives[self._head : at]) - self.lives[at] + inside
        return inside + sum(self.lives[at + 1 :])

    def seq_at_time(self, ts: int) -> int | None:
        """Lowest live sequence with time >= `ts`; times must not go back."""
        at = self.live_from(bisect_right(self.times, ts, lo=self._head) - 1)
        if at == len(self.firsts):
            return None
        return self.next_live(self.firsts[at] + min(max(ts - self.times[at], 0), self.counts[at]))

    def set_bits(self, at: int, bits: int, size: int) -> None:
        """Replaces the bits of deleted messages; some message must stay live, `size` is what the live ones take."""
        self.bits[self.firsts[at]] = bits
        self._shrink(at, size)

    def drop(self, at: int) -> None:
        self.bits.pop(self.firsts[at], None)
        self.messages -= self.lives[at]
        self.bytes -= self.sizes[at]
        self.lives[at] = self.sizes[at] = 0
        self._dropped += 1
        if at == self._head:
            self._head = self.live_from(at)
        if self._dropped * 8 > len(self.firsts) and self._dropped > 64:
            self._squeeze()

    def drop_below(self, at: int) -> None:
        """Drops all blocks in front of block `at`."""
        self.messages -= sum(self.lives[:at])
        self.bytes -= sum(self.sizes[:at])
        for first in [first for first in self.bits if first < self.firsts[at]]:
            del self.bits[first]
        for column in (self.firsts, self.counts, self.lives, self.sizes, self.times):
            del column[:at]
        self._dropped = self.lives.count(0)
        self._head = 0

    def cut(self, first_seq: int, gone_bytes: int) -> None:
        """Moves the first sequence up, within the first live block or to its beginning; `gone_bytes` of that block
        go with it."""
        self.first_seq = first_seq
        at = self.live_from(0)
        if at < len(self.firsts) and self.firsts[at] < first_seq:
            self._shrink(at, self.sizes[at] - gone_bytes)

    def settle(self, total: int) -> None:
        """After a load: what of the first block was cut off is only known from the total of all."""
        at = self.live_from(0)
        if at < len(self.firsts):
            size = total - (self.bytes - self.sizes[at])
            if not 0 < size <= self.sizes[at]:
                raise DamagedError(self.firsts[at], self.firsts[at] + self.counts[at] - 1)
            self.bytes = total
            self.sizes[at] = size

    def _shrink(self, at: int, size: int) -> None:
        live = self.counts[at] - self.dead_bits(at).bit_count()
        assert live and 0 < size <= self.sizes[at]
        self.messages -= self.lives[at] - live
        self.lives[at] = live
        self.bytes -= self.sizes[at] - size
        self.sizes[at] = size

    def part(self, low: int, high: int) -> BlockTable:
        """A copy of the rows low..high-1, which shares nothing with this table; without its sums."""
        part = BlockTable()
        for name in ("firsts", "counts", "lives", "sizes", "times"):
            setattr(part, name, getattr(self, name)[low:high])
        part.first_seq = self.first_seq
        if part.firsts and self.bits:
            first, last = part.firsts[0], part.firsts[-1]
            part.bits = {seq: bits for seq, bits in self.bits.items() if first <= seq <= last}
        return part

    def clear(self) -> None:
        for column in (self.firsts, self.counts, self.lives, self.sizes, self.times):
            del column[:]
        self.bits.clear()
        self.messages = self.bytes = self._head = self._dropped = 0

    def _cut(self, first: int) -> int:
        return (1 << (self.first_seq - first)) - 1 if first < self.first_seq else 0

    def _squeeze(self) -> None:
        live = [at for at, count in enumerate(self.lives) if count]
        for name in ("firsts", "counts", "lives", "sizes", "times"):
            column = getattr(self, name)
            setattr(self, name, array(column.typecode, map(column.__getitem__, live)))
        self._head = self._dropped = 0


def _column(code: str, records: bytes, at: int) -> array[int]:
    """The numbers at offset `at` of all INFO records, which have no bits."""
    width = array(code).itemsize
    raw = bytearray(len(records) // _INFO_FIXED * width)
    for byte in range(width):
        raw[byte::width] = records[at + byte :: _INFO_FIXED]
    return array(code, bytes(raw))


MOST_BYTES = 192 << 20
SHARE_OF_RAM = 50
"""A node's cache: a fiftieth of the machine's memory, 32 MiB at least, MOST_BYTES at most. A miss costs three times a
hit, so what is read at random should fit; the rest of the memory is the page cache's, which saves the disk."""

_of_kv: WeakKeyDictionary[object, BlockCache] = WeakKeyDictionary()


class BlockCache:
    """Bounded by the memory of the batches, about; a batch larger than a quarter of that is not kept."""

    def __init__(self, max_bytes: int = 32 << 20) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._batches: OrderedDict[tuple[int, int], tuple[Batch, int]] = OrderedDict()
        self._of_stream: dict[int, set[int]] = {}
        """First sequences by stream: one that goes costs what it has here, not a look at everybody's batches."""

    def get(self, stream: int, first_seq: int) -> Batch | None:
        found = self._batches.get((stream, first_seq))
        if found is None:
            return None
        self._batches.move_to_end((stream, first_seq))
        return found[0]

    def put(self, stream: int, first_seq: int, batch: Batch) -> None:
        # what the objects around the bytes take, about: columns, and with the second message subjects and offsets
        size = batch.encoded_bytes + 500 + 64 * batch.subject_count + 10 * batch.count
        if (stream, first_seq) in self._batches:
            self.drop(stream, first_seq)
        if size * 4 > self._max_bytes:
            return
        self._batches[stream, first_seq] = batch, size
        self._of_stream.setdefault(stream, set()).add(first_seq)
        self._bytes += size
        while self._bytes > self._max_bytes:
            self.drop(*next(iter(self._batches)))

    def drop(self, stream: int, first_seq: int) -> None:
        old = self._batches.pop((stream, first_seq), None)
        if old is not None:
            self._bytes -= old[1]
            held = self._of_stream[stream]
            held.discard(first_seq)
            if not held:
                del self._of_stream[stream]

    def drop_stream(self, stream: int) -> None:
        for first_seq in self._of_stream.pop(stream, ()):
            self._bytes -= self._batches.pop((stream, first_seq))[1]


def cache_of(kv: object, memory: int = 0) -> BlockCache:
    """The cache that all streams of `kv` share, so that the bound holds for the node and not for each stream. Who asks
    first makes it; `memory`: bytes that the machine has."""
    cache = _of_kv.get(kv)
    if cache is None:
        cache = _of_kv[kv] = BlockCache(bytes_of(memory))
    return cache


def bytes_of(memory: int) -> int:
    """The cache of a machine with so much memory."""
    return max(32 << 20, min(memory // SHARE_OF_RAM, MOST_BYTES))


_FIXED = struct.Struct("<IBQQQQq")
_HAS_MACHINE_STATE = 1


class Counters(NamedTuple):
    messages: int
    bytes: int
    first_seq: int
    last_seq: int
    last_ts: int


def encode_state(counters: Counters, machine_state: bytes | None) -> bytes:
    flags = 0 if machine_state is None else _HAS_MACHINE_STATE
    value = _FIXED.pack(0, flags, *counters) + (machine_state or b"")
    return _CRC.pack(zlib.crc32(value[4:])) + value[4:]


def decode_state(value: bytes) -> tuple[Counters, bytes | None]:
    """Raises DamagedError over all sequences."""
    if len(value) < _FIXED.size or _CRC.unpack_from(value)[0] != zlib.crc32(value[4:]):
        raise DamagedError(0, (1 << 64) - 1)
    _, flags, *numbers = _FIXED.unpack_from(value)
    machine_state = value[_FIXED.size :] if flags & _HAS_MACHINE_STATE else None
    return Counters(*numbers), machine_state
