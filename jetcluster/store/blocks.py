"""The blocks of a stream: their table in memory, the records it is rebuilt from, and the cache of their batches.

A block is one `Batch` as it was appended. It keeps its place and its count for life: messages deleted from its middle
are bits, and those cut off at its beginning are known only from the stream's first sequence. The state record holds a
stream's counters and its state machine's own bytes; it is written at most once per commit.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections import OrderedDict
from weakref import WeakKeyDictionary

from jetcluster.checksum import crc32
from jetcluster.records import NamedTuple
from jetcluster.store import keys
from jetcluster.store.api import DamagedError
from jetcluster.store.batch import Batch, BatchError
from jetcluster.store.kv import KeyValue

_VALUE_HEAD = struct.Struct("<Iq")
_INFO = struct.Struct("<qHI")
_INFO_FIXED = 4 + _INFO.size
_CRC = struct.Struct("<I")

VALUE_HEAD = _VALUE_HEAD.size
"""Bytes before the batch in a stored block."""

_BATCH_START = 12
"""Length of the batch's fixed part. It holds the batch's checksum, so a check over it covers the whole batch."""


def encode_block(key: bytes, ts: int, batch: bytes, start: int = 0) -> bytes:
    """Return the stored value of the batch that begins at `start`. Its check covers key, time and the batch's checksum,
    so that it detects a swapped value, but not the stream's id: an export may be imported under another one."""
    checked = b"%b%d %b" % (key[keys.STREAM_PREFIX :], ts, batch[start : start + _BATCH_START])
    return _VALUE_HEAD.pack(crc32(checked), ts) + batch[start:]


def decode_block(key: bytes, value: bytes) -> tuple[int, Batch]:
    """Return the time of the first message, and the verified batch. Raises DamagedError."""
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
    """Return the stored value. `size`: record bytes of the live messages, as StoreState.bytes counts them."""
    rest = _INFO.pack(ts, count, size) + bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    return _CRC.pack(crc32(rest, crc32(key[keys.STREAM_PREFIX :]))) + rest


def decode_info(key: bytes, value: bytes) -> tuple[int, int, int, int]:
    """Return time, count, size, and the bits of deleted messages. Raises DamagedError."""
    if len(value) < _INFO_FIXED or _CRC.unpack_from(value)[0] != crc32(value[4:], crc32(key[keys.STREAM_PREFIX :])):
        seq = keys.seq_of(key)
        raise DamagedError(seq, seq)
    ts, count, size = _INFO.unpack_from(value, 4)
    bits = int.from_bytes(value[_INFO_FIXED:], "little") if len(value) > _INFO_FIXED else 0
    return ts, count, size, bits


ROW_BYTES = 24
"""Bytes of memory per block in a `BlockTable`."""


class BlockTable:
    """Sorted columns of blocks: first sequence, count, live messages, their record bytes, time. 24 bytes per block.

    Dropped blocks stay in the columns, without live messages, until they are an eighth of all: removing one from the
    middle of a million moves megabytes. An index into the columns is valid until the next mutation.
    """

    def __init__(self) -> None:
        self.firsts = array("Q")
        self.counts = array("H")
        self.lives = array("H")
        self.sizes = array("I")
        self.times = array("q")
        self.bits: dict[int, int] = {}
        """First sequence of a block -> bits of messages deleted from its middle; only for blocks with any."""
        self.first_seq = 1
        """Messages below are gone; set by the store. Only the first live block can reach below it."""
        self.messages = 0
        self.bytes = 0
        """Sum of the record bytes of all live messages."""
        self._head = 0
        self._dropped = 0

    @property
    def live_blocks(self) -> int:
        return len(self.firsts) - self._dropped

    @property
    def gaps(self) -> int:
        """Dropped blocks that are still in the columns."""
        return self._dropped

    def add(self, first: int, count: int, ts: int, size: int, bits: int = 0) -> None:
        """Append a block after all others; `first_seq` must be set before."""
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
        """Add the blocks of further INFO records, ascending. Raises DamagedError."""
        values = [value for _, value in records]
        tails = [key[keys.STREAM_PREFIX :] for key, _ in records]
        firsts = array("Q", b"".join(tails))
        firsts.byteswap()
        if set(map(len, values)) == {_INFO_FIXED} and firsts[0] >= self.first_seq:
            # Nearly all blocks are whole: they are added as columns.
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
        """Return the index of the block that holds live message `seq`, or -1."""
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
        """Return the index of the block that begins at `first`, which must exist."""
        at = bisect_right(self.firsts, first) - 1
        assert at >= 0 and self.firsts[at] == first
        return at

    def containing(self, seq: int) -> int:
        """Return the index of the block that covers `seq`, whether or not that message is live; -1 for none."""
        at = bisect_right(self.firsts, seq) - 1
        if at < self._head or not self.lives[at] or seq - self.firsts[at] >= self.counts[at]:
            return -1
        return at

    def from_seq(self, seq: int) -> int:
        """Return the index of the first live block that ends at or after `seq`; len(firsts) for none."""
        at = max(bisect_right(self.firsts, seq) - 1, self._head)
        if at < len(self.firsts) and self.firsts[at] + self.counts[at] <= seq:
            at += 1
        return self.live_from(at)

    def live_from(self, at: int) -> int:
        """Return the first index >= `at` of a live block; len(firsts) for none."""
        lives = self.lives
        at = max(at, self._head)
        while at < len(lives) and not lives[at]:
            at += 1
        return at

    def live_back(self, at: int) -> int:
        """Return the last index <= `at` of a live block; -1 for none."""
        lives = self.lives
        while at >= self._head and not lives[at]:
            at -= 1
        return at if at >= self._head else -1

    def dead_bits(self, at: int) -> int:
        """Return the bits of the messages of block `at` that are deleted or cut off."""
        first = self.firsts[at]
        bits = self.bits.get(first, 0)
        return bits | self._cut(first) if first < self.first_seq else bits

    def live_seqs(self, at: int, low: int = 0, high: int = keys.MAX_SEQ) -> list[int] | range:
        """Return the live sequences of block `at` within low..high, ascending."""
        first = self.firsts[at]
        low = max(low, first, self.first_seq)
        high = min(high, first + self.counts[at] - 1)
        bits = self.bits.get(first, 0)
        if not bits:
            return range(low, high + 1)
        return [seq for seq in range(low, high + 1) if not bits >> (seq - first) & 1]

    def first_live(self, seq: int, end: int, want: int) -> list[int]:
        """Return the first `want` live sequences in seq..end-1, ascending."""
        found: list[int] = []
        at = self.from_seq(seq)
        while at < len(self.firsts) and self.firsts[at] < end:
            found += self.live_seqs(at, seq, end - 1)[: want - len(found)]
            if len(found) >= want:
                break
            at = self.live_from(at + 1)
        return found

    def next_live(self, seq: int) -> int | None:
        """Return the lowest live sequence >= `seq`."""
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
        """Return the highest live sequence <= `seq`."""
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
        """Return the live sequence with exactly `n` live ones below it, 0 <= n < messages."""
        assert 0 <= n < self.messages
        at = self.live_from(0)
        while n >= self.lives[at]:
            n -= self.lives[at]
            at = self.live_from(at + 1)
        return self.live_seqs(at)[n]

    def nth_newest(self, n: int) -> int:
        """Return the live sequence with exactly `n` live ones above it, 0 <= n < messages."""
        assert 0 <= n < self.messages
        at = self.live_back(len(self.firsts) - 1)
        while n >= self.lives[at]:
            n -= self.lives[at]
            at = self.live_back(at - 1)
        return self.live_seqs(at)[-1 - n]

    def live_at_or_above(self, seq: int) -> int:
        """Return the number of live sequences >= `seq`; sums over the shorter side."""
        if seq <= self.first_seq:
            return self.messages
        at = self.from_seq(seq)
        if at == len(self.firsts):
            return 0
        inside = len(self.live_seqs(at, seq))
        if at - self._head < len(self.firsts) - at:
            return self.messages - sum(self.lives[self._head : at]) - self.lives[at] + inside
        return inside + sum(self.lives[at + 1 :])

    def bytes_after(self, at: int) -> int:
        """Return the record bytes of the blocks behind block `at`; sums over the shorter side."""
        if at - self._head < len(self.firsts) - at:
            return self.bytes - sum(self.sizes[self._head : at + 1])
        return sum(self.sizes[at + 1 :])

    def seq_at_time(self, ts: int) -> int | None:
        """Return the lowest live sequence with time >= `ts`; times must not go back."""
        at = self.live_from(bisect_right(self.times, ts, lo=self._head) - 1)
        if at == len(self.firsts):
            return None
        return self.next_live(self.firsts[at] + min(max(ts - self.times[at], 0), self.counts[at]))

    def set_bits(self, at: int, bits: int, size: int) -> None:
        """Replace the bits of deleted messages; some must stay live, and `size` is the live ones' record bytes."""
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
        """Drop all blocks before block `at`."""
        self.messages -= sum(self.lives[:at])
        self.bytes -= sum(self.sizes[:at])
        for first in [first for first in self.bits if first < self.firsts[at]]:
            del self.bits[first]
        for column in (self.firsts, self.counts, self.lives, self.sizes, self.times):
            del column[:at]
        self._dropped = self.lives.count(0)
        self._head = 0

    def cut(self, first_seq: int, gone_bytes: int) -> None:
        """Move the first sequence up to the first live block or into it, which then loses `gone_bytes` record bytes."""
        self.first_seq = first_seq
        at = self.live_from(0)
        if at < len(self.firsts) and self.firsts[at] < first_seq:
            self._shrink(at, self.sizes[at] - gone_bytes)

    def settle(self, total: int) -> None:
        """End a load: `total` yields the size of the first block, which may be cut. Raises DamagedError."""
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
        """Return an independent copy of the rows low..high-1, without the sums."""
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

    def rows_to(self, last_seq: int) -> tuple[int, int]:
        """Return the live messages of all blocks that begin at or below `last_seq`, and a digest of these blocks. Any
        removal from them changes both."""
        end = bisect_right(self.firsts, last_seq)
        lives = self.lives[:end]
        runs: list[tuple[int, int]] = []
        """Blocks between dropped ones: any number of those may be forgotten, at a start all are."""
        low = 0
        for _ in range(lives.count(0) if self._dropped else 0):
            gap = lives.index(0, low)
            runs.append((low, gap))
            low = gap + 1
        runs.append((low, end))
        digest = 0
        for column in (self.firsts, self.times, lives, self.sizes):
            with memoryview(column) as rows:
                for low, high in runs:
                    digest = crc32(rows[low:high], digest)
        return sum(lives), digest

    def _cut(self, first: int) -> int:
        return (1 << (self.first_seq - first)) - 1 if first < self.first_seq else 0

    def _squeeze(self) -> None:
        live = [at for at, count in enumerate(self.lives) if count]
        for name in ("firsts", "counts", "lives", "sizes", "times"):
            column = getattr(self, name)
            setattr(self, name, array(column.typecode, map(column.__getitem__, live)))
        self._head = self._dropped = 0


def _column(code: str, records: bytes, at: int) -> array[int]:
    """Return the numbers at offset `at` of all INFO records, which have no bits."""
    width = array(code).itemsize
    raw = bytearray(len(records) // _INFO_FIXED * width)
    for byte in range(width):
        raw[byte::width] = records[at + byte :: _INFO_FIXED]
    return array(code, bytes(raw))


MAX_CACHE_BYTES = 192 << 20
SHARE_OF_RAM = 50
"""A node's cache takes a fiftieth of the machine's memory, at least 32 MiB and at most MAX_CACHE_BYTES. A miss costs
three times a hit, so random reads should fit; the page cache needs the rest of the memory."""

_of_kv: WeakKeyDictionary[object, BlockCache] = WeakKeyDictionary()


class BlockCache:
    """Decoded batches of all streams, the least recently used ones dropped first. `max_bytes` bounds their memory,
    roughly; a batch larger than a quarter of it is not kept."""

    def __init__(self, max_bytes: int = 32 << 20) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self.batches: OrderedDict[tuple[int, int], tuple[Batch, int]] = OrderedDict()
        """(stream, first sequence) -> batch and its bytes. `native/batches.pyx` reads it as `get` does."""
        self._of_stream: dict[int, set[int]] = {}
        """First sequences by stream, so that dropping a stream does not walk all batches."""

    def get(self, stream: int, first_seq: int) -> Batch | None:
        found = self.batches.get((stream, first_seq))
        if found is None:
            return None
        self.batches.move_to_end((stream, first_seq))
        return found[0]

    def put(self, stream: int, first_seq: int, batch: Batch) -> None:
        # Plus the objects around the bytes, roughly: columns, and after unpacking subjects and offsets.
        size = batch.encoded_bytes + 500 + 64 * batch.subject_count + 10 * batch.count
        if (stream, first_seq) in self.batches:
            self.drop(stream, first_seq)
        if size * 4 > self._max_bytes:
            return
        self.batches[stream, first_seq] = batch, size
        self._of_stream.setdefault(stream, set()).add(first_seq)
        self._bytes += size
        while self._bytes > self._max_bytes:
            (of, first), (_, size) = self.batches.popitem(last=False)
            self._forget(of, first, size)

    def drop(self, stream: int, first_seq: int) -> None:
        old = self.batches.pop((stream, first_seq), None)
        if old is not None:
            self._forget(stream, first_seq, old[1])

    def _forget(self, stream: int, first_seq: int, size: int) -> None:
        self._bytes -= size
        held = self._of_stream[stream]
        held.discard(first_seq)
        if not held:
            del self._of_stream[stream]

    def drop_stream(self, stream: int) -> None:
        for first_seq in self._of_stream.pop(stream, ()):
            self._bytes -= self.batches.pop((stream, first_seq))[1]


def cache_of(kv: object, memory: int = 0) -> BlockCache:
    """Return the cache that all streams of `kv` share. The first call makes it for a machine of `memory` bytes."""
    cache = _of_kv.get(kv)
    if cache is None:
        cache = _of_kv[kv] = BlockCache(bytes_of(memory))
    return cache


def bytes_of(memory: int) -> int:
    """Return the cache's bytes on a machine with `memory` bytes."""
    return max(32 << 20, min(memory // SHARE_OF_RAM, MAX_CACHE_BYTES))


_FIXED = struct.Struct("<IBQQQQq")
_HAS_MACHINE_STATE = 1


class Counters(NamedTuple):
    """The counters in a stream's state record."""

    messages: int
    bytes: int
    first_seq: int
    last_seq: int
    last_ts: int


def encode_state(counters: Counters, machine_state: bytes | None) -> bytes:
    flags = 0 if machine_state is None else _HAS_MACHINE_STATE
    value = _FIXED.pack(0, flags, *counters) + (machine_state or b"")
    return _CRC.pack(crc32(value[4:])) + value[4:]


def decode_state(value: bytes) -> tuple[Counters, bytes | None]:
    """Return counters and the state machine's bytes. Raises DamagedError over all sequences."""
    if len(value) < _FIXED.size or _CRC.unpack_from(value)[0] != crc32(value[4:]):
        raise DamagedError(0, keys.MAX_SEQ)
    _, flags, *numbers = _FIXED.unpack_from(value)
    machine_state = value[_FIXED.size :] if flags & _HAS_MACHINE_STATE else None
    return Counters(*numbers), machine_state
