"""The comparison of two replicas of a stream, so that catch-up ships only what differs.

The giver walks a fixed view of its records and announces them as **ranges**: the end, size and digest of each. The
receiver computes the digest of its own records between the same bounds, requests the ranges that differ, and replaces
its records there. Neither side remembers anything: an interrupted transfer continues, with any giver, because finished
ranges are equal, and a replica that was away fetches only what changed.

A **place** is `rank of the kind u8 | key without kind and stream`: its byte order is the order of the walk, in which
the state record comes last. It has no stream id, as the receiver may know the stream under another one. Ranges follow
each other without gaps from START to END and never span two kinds: so records that the giver lacks lie in a range too,
and the receiver deletes them with it.

A range as bytes is `u32 length of key | u32 length of value | key | value` for each pair. Its digest is SHA-256 cut to
128 bits: it has no accidental collisions and, with the processor's instructions for it, costs no more than reading.

`Scrub` reads all records of a stream from disk, piece by piece, verifies every checksum and compares the postings with
the subject table. Without it, records that no request reads could decay unnoticed until the replica is needed.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator

from jetcluster.records import NamedTuple
from jetcluster.store import keys
from jetcluster.store.api import DamagedError
from jetcluster.store.blocks import decode_block, decode_info
from jetcluster.store.kv import KeyValue, KvDamagedError, MemRecords
from jetcluster.store.rocks import Snapshot
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.search.posting_check import PostingCheck
from jetcluster.store.search.table_loader import check_posting

KINDS = (keys.BLOCK, keys.INFO, keys.POSTING, keys.SIDE, keys.STATE)
"""Kinds of a stream's records; the state record, which covers the others, comes last."""


class Scrub:
    """One pass over stream `stream` of `kv`. It may or may not see concurrent writes and removals. `begin_check` begins
    the comparison of its postings."""

    def __init__(self, kv: RocksKv, stream: int, begin_check: Callable[[], PostingCheck]) -> None:
        self._kv = kv
        self._stream = stream
        self._kind = 0
        self._next = keys.stream_prefix(KINDS[0], stream)
        self._passed = b""
        """The last key read of the kind; b"" at its beginning."""
        self._begin_check = begin_check
        self._check: PostingCheck | None = None
        self._comparing = False

    @property
    def done(self) -> bool:
        return self._kind >= len(KINDS)

    def step(self, max_bytes: int) -> int:
        """Verify about `max_bytes` more, at least one record, and return the bytes verified. Raises DamagedError."""
        total = 0
        while not self.done and total < max_bytes:
            total += self._compare(max_bytes - total) if self._comparing else self._read(max_bytes - total)
        return total

    def _read(self, max_bytes: int) -> int:
        """Verify about `max_bytes` of one kind."""
        kind = KINDS[self._kind]
        if kind == keys.POSTING and self._check is None:
            self._check = self._begin_check()
        check = self._check if kind == keys.POSTING else None
        total = 0
        key = b""
        try:
            end = keys.stream_end(kind, self._stream)
            for key, value in (
                self._kv.scan_after(self._passed, end) if self._passed else self._kv.scan(self._next, end)
            ):
                verify(kind, key, value)
                if check is not None:
                    check.count(key, value)
                total += len(key) + len(value)
                if total >= max_bytes:
                    self._passed = key
                    return total
        except KvDamagedError as error:
            seq = keys.seq_of(key) if key and kind <= keys.POSTING else 0
            raise DamagedError(seq, keys.MAX_SEQ) from error
        if check is not None and not check.counted():
            self._comparing = True
        else:
            self._next_kind()
        return total

    def _compare(self, max_bytes: int) -> int:
        assert self._check is not None
        work = self._check.step(max_bytes)
        if not work:
            self._comparing = False
            self._next_kind()
        return work

    def _next_kind(self) -> None:
        self._kind += 1
        self._passed = b""
        if not self.done:
            self._next = keys.stream_prefix(KINDS[self._kind], self._stream)


def verify(kind: int, key: bytes, value: bytes) -> None:
    """Raise DamagedError if a record is damaged. Other kinds have only RocksDB's checksums, which reading verifies."""
    if kind == keys.BLOCK:
        decode_block(key, value)
    elif kind == keys.INFO:
        decode_info(key, value)
    elif kind == keys.POSTING:
        check_posting(key, value)


START = b"\0"
END = bytes([len(KINDS)])
RANGE_BYTES = 32 << 10
"""A range ends with the record that makes it this large. A change of one byte ships that; announcing takes 0.2 %."""
MAX_PLACE = 65_535
"""Bytes of a place as it is announced. No range ends behind a longer key, such as of the longest subjects."""
PAIR_COST = 1 << 10
"""Bytes that take as long to read as the handling of a pair."""
MAX_RANGE_BYTES = 128 << 20

_PAIR = struct.Struct("<II")
_RANGE = struct.Struct("<HII16s")
_PLACE = struct.Struct("<H")


class Range(NamedTuple):
    """Announced records from place `start` up to `end`, excluded."""

    start: bytes
    end: bytes
    size: int
    """Bytes as shipped."""
    pairs: int
    digest: bytes

    @property
    def cost(self) -> int:
        """Time to read and digest the range, in bytes of large records."""
        return self.size + self.pairs * PAIR_COST


class WantedRange(NamedTuple):
    """A range whose content differs at the receiver."""

    range: Range
    keys: list[bytes] | None
    """The receiver's keys there, without kind and stream; None when there are many or some cannot be read."""


class Giver:
    """The records of stream `stream` in `snapshot`."""

    def __init__(self, snapshot: Snapshot, stream: int) -> None:
        self._snapshot = snapshot
        self._stream = stream

    def prepare(self, place: bytes) -> Iterator[None]:
        """Return the steps before an announcement from `place` on that takes no longer than its budget says."""
        return self._snapshot.prepare(KINDS[place[0]], self._stream)

    def announce(self, start: bytes, budget: int) -> list[Range]:
        """Return verified ranges from `start` on, at least one, of about `budget`, and none of another kind, which may
        have to be prepared first. Raises DamagedError, KvError."""
        found: list[Range] = []
        for one in self._ranges(start):
            found.append(one)
            budget -= one.cost
            if budget <= 0:
                break
        return found

    def read(self, spans: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the ranges between these places as bytes. Raises DamagedError, KvError."""
        parts: list[bytes] = []
        for start, end in spans:
            for key, value in _records(self._snapshot, self._stream, start, end):
                _encode(parts, key[keys.STREAM_PREFIX :], value)
        return b"".join(parts)

    def _ranges(self, start: bytes) -> Iterator[Range]:
        """Yield the ranges of the rest of one kind."""
        parts: list[bytes] = []
        size = pairs = 0
        kind_end = bytes([start[0] + 1])
        for key, value in _records(self._snapshot, self._stream, start, kind_end):
            verify(KINDS[start[0]], key, value)
            key = key[keys.STREAM_PREFIX :]
            size += _encode(parts, key, value)
            pairs += 1
            if size >= RANGE_BYTES and len(key) + 2 <= MAX_PLACE:
                end = start[:1] + key + b"\0"
                yield Range(start, end, size, pairs, _digest(b"".join(parts)))
                start = end
                parts.clear()
                size = pairs = 0
        yield Range(start, kind_end, size, pairs, _digest(b"".join(parts)))


class Taker:
    """The receiver, which makes the records of stream `stream` in `kv` equal to a giver's."""

    def __init__(self, kv: RocksKv | MemRecords, stream: int) -> None:
        self._kv = kv
        self._stream = stream
        self.place = START
        """End of the ranges compared so far."""
        self._missing = 0
        for kind in sorted(kv.unordered & set(KINDS)):  # their ranges cannot be compared: the giver's are taken
            kv.delete_range(keys.stream_prefix(kind, stream), keys.stream_end(kind, stream))

    def view(self) -> Snapshot:
        """Commit, and return the own records, to compare with the ranges announced next."""
        return self._kv.snapshot()

    def compare(self, announced: Range, view: Snapshot) -> WantedRange | None:
        """Return None when the own records are equal, else what to fetch for `take`; unreadable records differ. Ranges
        come in order. Reads about as much as was announced at most. Raises KvError, and DamagedError out of order."""
        if announced.start != self.place:
            raise _malformed()
        self.place = announced.end
        own = self._own(announced, view)
        if own is not None and own[1] == announced.digest:
            return None
        self._missing += 1
        return WantedRange(announced, own[0] if own is not None else None)

    def _own(self, announced: Range, view: Snapshot) -> tuple[list[bytes], bytes] | None:
        """Return keys and digest of the own records; None when they are larger than announced or unreadable."""
        found: list[bytes] = []
        parts: list[bytes] = []
        size = 0
        if KINDS[announced.start[0]] in self._kv.unordered:
            return found, _digest(b"")
        try:
            for key, value in _records(view, self._stream, announced.start, announced.end):
                found.append(key[keys.STREAM_PREFIX :])
                size += _encode(parts, found[-1], value)
                if size > announced.size:
                    return None
        except DamagedError:
            return None
        return found, _digest(b"".join(parts))

    def take(self, wanted: WantedRange, data: bytes) -> None:
        """Replace a range by the giver's content. Raises DamagedError, without a write, unless it is as announced."""
        announced, old = wanted
        if len(data) != announced.size or _digest(data) != announced.digest:
            raise _malformed()
        low, high = _bounds(self._stream, announced.start, announced.end)
        prefix = low[: keys.STREAM_PREFIX]
        pairs = [(prefix + key, value) for key, value in _decode(data)]
        if any(not low <= key < high for key, _ in pairs):
            raise _malformed()
        if old != []:
            self._outdate(low, high)
        if old is None:
            self._kv.delete_range(low, high)
        elif old:
            staying = {key for key, _ in pairs}
            self._kv.delete_each([key for key in (prefix + rest for rest in old) if key not in staying])
        for key, value in pairs:
            self._kv.put(key, value)
        self._missing -= 1

    def commit(self) -> None:
        """Commit what was taken so far. Raises KvError."""
        self._kv.commit()

    @property
    def overloaded(self) -> bool:
        """True when nothing more should be taken until a commit succeeds."""
        return self._kv.overloaded

    def give_up_rest(self) -> None:
        """Delete all own records that are not compared yet: the disk has no room for them beside the giver's."""
        start = self.place
        while start != END:
            end = bytes([start[0] + 1])
            low, high = _bounds(self._stream, start, end)
            self._outdate(low, high)
            if KINDS[start[0]] not in self._kv.unordered:
                self._kv.delete_range(low, high)
            start = end

    def _outdate(self, low: bytes, high: bytes) -> None:
        """Note that messages are replaced: of those that the giver lacks some may be erased."""
        if low[0] == keys.BLOCK:
            self._kv.outdated(low, high)

    def finish(self) -> None:
        """Raise DamagedError unless all ranges were announced and all differing ones taken."""
        if self.place != END or self._missing:
            raise _malformed()


def copy(snapshot: Snapshot, stream: int) -> Iterator[KeyValue]:
    """Yield all records of a stream, verified, in the order of the walk. Raises DamagedError, KvError."""
    for rank, kind in enumerate(KINDS):
        for key, value in _records(snapshot, stream, bytes([rank]), bytes([rank + 1])):
            verify(kind, key, value)
            yield key, value


def encode_ranges(ranges: Iterable[Range]) -> bytes:
    """Encode ranges without their starts: each begins at the end of the previous one."""
    parts: list[bytes] = []
    for one in ranges:
        parts += (_RANGE.pack(len(one.end), one.size, one.pairs, one.digest), one.end)
    return b"".join(parts)


def decode_ranges(start: bytes, data: bytes) -> list[Range]:
    """Decode ranges, of which the first begins at `start`. Raises DamagedError."""
    found: list[Range] = []
    at = 0
    try:
        while at < len(data):
            length, size, pairs, digest = _RANGE.unpack_from(data, at)
            at += _RANGE.size + length
            end = data[at - length : at]
            if at > len(data) or not start < end <= END or end[0] > start[0] + 1 or size > MAX_RANGE_BYTES:
                raise _malformed()
            if end[0] != start[0] and len(end) > 1:
                raise _malformed()  # the range would span two kinds
            found.append(Range(start, end, size, pairs, digest))
            start = end
    except struct.error as error:
        raise _malformed() from error
    return found


def encode_places(places: Iterable[bytes]) -> bytes:
    return b"".join([_PLACE.pack(len(place)) + place for place in places])


def decode_places(data: bytes) -> list[bytes]:
    """Decode what `encode_places` returned. Raises DamagedError."""
    found: list[bytes] = []
    at = 0
    while at < len(data):
        start = at + _PLACE.size
        if start > len(data):
            raise _malformed()
        at = start + _PLACE.unpack_from(data, at)[0]
        place = data[start:at]
        if at > len(data) or not START <= place <= END:
            raise _malformed()
        found.append(place)
    return found


def _bounds(stream: int, start: bytes, end: bytes) -> tuple[bytes, bytes]:
    """Return the bounds of the keys between two places of one kind."""
    kind = KINDS[start[0]]
    prefix = keys.stream_prefix(kind, stream)
    return prefix + start[1:], prefix + end[1:] if end[0] == start[0] else keys.stream_end(kind, stream)


def _records(snapshot: Snapshot, stream: int, start: bytes, end: bytes) -> Iterator[KeyValue]:
    try:
        yield from snapshot.scan(*_bounds(stream, start, end))
    except KvDamagedError as error:
        raise DamagedError(0, keys.MAX_SEQ) from error


def _encode(parts: list[bytes], key: bytes, value: bytes) -> int:
    parts += (_PAIR.pack(len(key), len(value)), key, value)
    return _PAIR.size + len(key) + len(value)


def _decode(data: bytes) -> Iterator[KeyValue]:
    at = 0
    while at < len(data):
        if at + _PAIR.size > len(data):
            raise _malformed()
        key_size, value_size = _PAIR.unpack_from(data, at)
        start = at + _PAIR.size
        at = start + key_size + value_size
        if at > len(data):
            raise _malformed()
        yield data[start : start + key_size], data[start + key_size : at]


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:16]


def _malformed() -> DamagedError:
    return DamagedError(0, keys.MAX_SEQ)
