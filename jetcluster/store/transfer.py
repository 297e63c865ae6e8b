"""Finds what two replicas of a stream do not have in common: all that catch-up has to ship.

The giver walks through a fixed view of its records and announces them as **ranges**: where each one ends, how much is
in it, a digest of it. The receiver makes the digest of what it has between the same bounds, asks for the ranges that
differ, and puts what comes in the place of what it has there. Nothing is remembered on either side: a transfer that
broke off goes on because what has come is equal by then, with any giver, and a replica that was away fetches what
changed.

A **place** is `rank of the kind u8 | key without kind and stream`: its byte order is the order of the walk, in which
the state record comes last. The stream's id is left out, so that the receiver may know the stream under another one.
Ranges follow each other without gaps from START to END and never span two kinds; so what the giver does not have
belongs to a range as well, and goes from the receiver with it.

A range as bytes is `u32 length of key | u32 length of value | key | value` for each pair. Its digest is SHA-256 cut to
128 bits: no two contents have the same one by accident, and with the instructions that processors have for it, it costs
no more than to read the records.

`Scrub` reads everything that a stream has on disk, piece by piece, and verifies every checksum. Reads for requests
touch what is asked for; what nobody asks for may rot unseen until the replica is needed.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jetcluster.store import keys
from jetcluster.store.api import DamagedError
from jetcluster.store.blocks import decode_block, decode_info
from jetcluster.store.kv import KeyValue, KvDamagedError, MemRecords
from jetcluster.store.rocks import Snapshot
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.search.subject_index import check_posting

KINDS = (keys.BLOCK, keys.INFO, keys.POSTING, keys.SIDE, keys.STATE)
"""Kinds of a stream's records; the one that vouches for the others comes last."""


class Scrub:
    """One pass over stream `stream` of `kv`. What is written or removed meanwhile may be seen or not."""

    def __init__(self, kv: RocksKv, stream: int) -> None:
        self._kv = kv
        self._stream = stream
        self._kind = 0
        self._next = keys.stream_prefix(KINDS[0], stream)

    @property
    def done(self) -> bool:
        return self._kind >= len(KINDS)

    def step(self, max_bytes: int) -> int:
        """Verifies about `max_bytes` more, at least one record while there are any; how many it were. Raises
        DamagedError."""
        total = 0
        while not self.done and total < max_bytes:
            kind = KINDS[self._kind]
            end = keys.stream_end(kind, self._stream)
            key = b""
            try:
                for key, value in self._kv.scan(self._next, end):
                    verify(kind, key, value)
                    total += len(key) + len(value)
                    if total >= max_bytes:
                        self._next = key + b"\0"
                        return total
            except KvDamagedError as error:
                seq = keys.seq_of(key) if key and kind <= keys.POSTING else 0
                raise DamagedError(seq, keys.MAX_SEQ) from error
            self._kind += 1
            if not self.done:
                self._next = keys.stream_prefix(KINDS[self._kind], self._stream)
        return total


def verify(kind: int, key: bytes, value: bytes) -> None:
    """Raises DamagedError. Records of the other kinds have only the checksums of the store below, which reading has
    verified."""
    if kind == keys.BLOCK:
        decode_block(key, value)
    elif kind == keys.INFO:
        decode_info(key, value)
    elif kind == keys.POSTING:
        check_posting(key, value)


START = b"\0"
END = bytes([len(KINDS)])
RANGE_BYTES = 32 << 10
"""A range ends with the record that makes it as large as this. A change of one byte ships about so much; to announce it
takes 0.1 to 0.2 % of it."""
PAIR_COST = 1 << 10
"""Handling a pair takes as long as so many bytes more in it."""
MAX_RANGE = 128 << 20

_PAIR = struct.Struct("<II")
_RANGE = struct.Struct("<HII16s")
_PLACE = struct.Struct("<H")


class Range(NamedTuple):
    start: bytes
    end: bytes
    """Places; the first one behind it."""
    size: int
    """Bytes as they are shipped."""
    pairs: int
    digest: bytes

    @property
    def cost(self) -> int:
        """Time that it takes to read and sum up, in bytes of large records."""
        return self.size + self.pairs * PAIR_COST


class WantedRange(NamedTuple):
    """A range that the receiver has otherwise."""

    range: Range
    keys: list[bytes] | None
    """Keys that the receiver has there, without kind and stream; None: a lot, or it cannot be read."""


class Giver:
    """The records of stream `stream` in `snapshot`."""

    def __init__(self, snapshot: Snapshot, stream: int) -> None:
        self._snapshot = snapshot
        self._stream = stream

    def announce(self, start: bytes, budget: int) -> list[Range]:
        """Ranges from place `start` on, one at least, about so many that they cost `budget`. Every record is verified.
        Raises DamagedError, KvError."""
        found: list[Range] = []
        while start != END and budget > 0:
            for one in self._ranges(start):
                found.append(one)
                budget -= one.cost
                if budget <= 0:
                    break
            start = found[-1].end
        return found

    def read(self, spans: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The ranges between these places, as bytes. Raises DamagedError, KvError."""
        parts: list[bytes] = []
        for start, end in spans:
            for key, value in _records(self._snapshot, self._stream, start, end):
                _encode(parts, key[keys.STREAM_PREFIX :], value)
        return b"".join(parts)

    def _ranges(self, start: bytes) -> Iterator[Range]:
        """The rest of one kind."""
        parts: list[bytes] = []
        size = pairs = 0
        kind_end = bytes([start[0] + 1])
        for key, value in _records(self._snapshot, self._stream, start, kind_end):
            verify(KINDS[start[0]], key, value)
            key = key[keys.STREAM_PREFIX :]
            size += _encode(parts, key, value)
            pairs += 1
            if size >= RANGE_BYTES:
                end = start[:1] + key + b"\0"
                yield Range(start, end, size, pairs, _digest(b"".join(parts)))
                start = end
                parts.clear()
                size = pairs = 0
        yield Range(start, kind_end, size, pairs, _digest(b"".join(parts)))


class Taker:
    """Makes the records of stream `stream` in `kv` equal to a giver's."""

    def __init__(self, kv: RocksKv | MemRecords, stream: int) -> None:
        self._kv = kv
        self._stream = stream
        self.place = START
        """Up to there own records were compared."""
        self._missing = 0

    def view(self) -> Snapshot:
        """The own records, to be compared with the ranges announced next; commits what is open."""
        return self._kv.snapshot()

    def compare(self, announced: Range, view: Snapshot) -> WantedRange | None:
        """None when the own records are the same, else what to fetch for `take`. Ranges come in order. What cannot be
        read is another content. Reads no more than about as much as was announced. Raises KvError."""
        if announced.start != self.place:
            raise _malformed()
        self.place = announced.end
        own = self._own(announced, view)
        if own is not None and own[1] == announced.digest:
            return None
        self._missing += 1
        return WantedRange(announced, own[0] if own is not None else None)

    def _own(self, announced: Range, view: Snapshot) -> tuple[list[bytes], bytes] | None:
        """Keys and digest of the own records; None when there are more than announced, or some cannot be read."""
        found: list[bytes] = []
        parts: list[bytes] = []
        size = 0
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
        """Puts the giver's content of a range in the place of the own one. Raises DamagedError when it is not what was
        announced; nothing is written then."""
        announced, old = wanted
        if len(data) != announced.size or _digest(data) != announced.digest:
            raise _malformed()
        low, high = _bounds(self._stream, announced.start, announced.end)
        prefix = low[: keys.STREAM_PREFIX]
        pairs = [(prefix + key, value) for key, value in _decode(data)]
        if any(not low <= key < high for key, _ in pairs):
            raise _malformed()
        if old is None:
            self._kv.delete_range(low, high)
        elif old:
            staying = {key for key, _ in pairs}
            self._kv.delete_each([key for key in (prefix + rest for rest in old) if key not in staying])
        for key, value in pairs:
            self._kv.put(key, value)
        self._missing -= 1

    def commit(self) -> None:
        """Commits what was taken so far. Raises KvError."""
        self._kv.commit()

    @property
    def overloaded(self) -> bool:
        """Nothing more should be taken until a commit succeeds."""
        return self._kv.overloaded

    def give_up_rest(self) -> None:
        """Deletes all own records that were not compared yet: there is no room for them beside the giver's."""
        start = self.place
        while start != END:
            end = bytes([start[0] + 1])
            self._kv.delete_range(*_bounds(self._stream, start, end))
            start = end

    def finish(self) -> None:
        """Raises DamagedError unless all was announced, and all that was missing taken."""
        if self.place != END or self._missing:
            raise _malformed()


def copy(snapshot: Snapshot, stream: int) -> Iterator[KeyValue]:
    """All records of a stream, verified, in the order of the walk. Raises DamagedError, KvError."""
    for rank, kind in enumerate(KINDS):
        for key, value in _records(snapshot, stream, bytes([rank]), bytes([rank + 1])):
            verify(kind, key, value)
            yield key, value


def encode_ranges(ranges: Iterable[Range]) -> bytes:
    """Without their starts: each begins where the one before it ends."""
    parts: list[bytes] = []
    for one in ranges:
        parts += (_RANGE.pack(len(one.end), one.size, one.pairs, one.digest), one.end)
    return b"".join(parts)


def decode_ranges(start: bytes, data: bytes) -> list[Range]:
    """Ranges that `encode_ranges` was given; the first one begins at `start`. Raises DamagedError."""
    found: list[Range] = []
    at = 0
    try:
        while at < len(data):
            length, size, pairs, digest = _RANGE.unpack_from(data, at)
            at += _RANGE.size + length
            end = data[at - length : at]
            if at > len(data) or not start < end <= END or end[0] > start[0] + 1 or size > MAX_RANGE:
                raise _malformed()
            if end[0] != start[0] and len(end) > 1:
                raise _malformed()  # it would span two kinds
            found.append(Range(start, end, size, pairs, digest))
            start = end
    except struct.error as error:
        raise _malformed() from error
    return found


def encode_places(places: Iterable[bytes]) -> bytes:
    return b"".join([_PLACE.pack(len(place)) + place for place in places])


def decode_places(data: bytes) -> list[bytes]:
    """Raises DamagedError."""
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
    """The keys between two places of one kind."""
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
