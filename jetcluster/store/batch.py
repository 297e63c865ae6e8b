"""`Batch`: n messages in columns, as one byte string.

The same bytes are the body of a Raft entry and the value of a RocksDB record: a follower stores what it received.
Layout, little-endian:

    u8 version | u8 flags | u16 count | u32 CRC-32 of version, flags, count and the rest | u32 length of the rest
    u16 number of distinct subjects | u16 length of each | the subjects, in order of first appearance
    MANY_SUBJECTS: count x (u8, or u16 with more than 256 subjects) number of the message's subject
    HEADERS:       count x u32 length of the header block, 0 when the message has none
    SAME_LENGTH:   u32 payload length of every message; else count x u32
    per message: header block, payload

Decoding reads only the columns; a message is cut out when it is requested. The first messages are found by sums over
the columns: random reads of a large stream take few messages out of a block and should not pay for the others. After
MESSAGES_BEFORE_UNPACK of them, or `unpack`, the subjects and offsets of all messages are computed.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from operator import add

from jetcluster import native
from jetcluster.checksum import crc32
from jetcluster.errors import PeerError

VERSION = 1

MAX_COUNT = 65_535
MAX_BYTES = (64 + 8) << 20
"""nats-server's largest max_payload (64 MiB) plus an almost full batch (8 MiB)."""
MAX_SUBJECT = 65_535

FILE_RECORD = 30
FILE_HEADER_LENGTH = 4
MEMORY_RECORD = 16
"""Bytes that nats-server adds to each message's own."""

_MANY_SUBJECTS = 1
_HEADERS = 2
_SAME_LENGTH = 4
_WIDE_INDEX = 8
_KNOWN_FLAGS = _MANY_SUBJECTS | _HEADERS | _SAME_LENGTH | _WIDE_INDEX

MESSAGES_BEFORE_UNPACK = 6
"""Messages read from a batch before it is unpacked."""
SHORT_MESSAGES = 512
"""A batch of no more messages is never unpacked for single ones if the loops are compiled: the sums cost less."""

_FIXED = struct.Struct("<BBHII")
_START = struct.Struct("<BBH")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")

assert sys.byteorder == "little", "columns are read and written with array.array, without swapping bytes"
assert array("H").itemsize == 2 and array("I").itemsize == 4


class BatchError(PeerError):
    """Bytes that are no batch: wrong checksum, version or lengths."""


class UnknownBatchError(BatchError):
    """A batch of an unknown version, or with unknown flags."""


class Batch:
    """A read-only view of an encoded batch."""

    __slots__ = (
        "_asked",
        "_body",
        "_end",
        "_ends",
        "_header_lengths",
        "_index",
        "_payload_length",
        "_payload_lengths",
        "_subject_lengths",
        "_subjects",
        "_subjects_at",
        "buffer",
        "count",
        "encoded_bytes",
        "has_headers",
        "single",
        "start",
        "subject_count",
    )

    buffer: bytes
    """The bytes that contain the batch, from `start` to their end."""
    start: int
    count: int
    encoded_bytes: int
    """Length of `raw`."""
    has_headers: bool
    single: list[bytes] | None
    """`subjects` if there is only one, else None."""
    subject_count: int
    """`len(subjects)`."""

    @staticmethod
    def encode(subjects: Sequence[bytes], headers: Sequence[bytes], payloads: Sequence[bytes]) -> bytes:
        """Return an encoded batch of `len(subjects)` messages, 1..MAX_COUNT.

        `headers[i]` is a whole header block or b""; an empty `headers` means that no message has one.
        """
        count = len(subjects)
        assert 0 < count <= MAX_COUNT, count
        assert len(payloads) == count
        assert not headers or len(headers) == count
        flags = 0
        first = subjects[0]
        parts: list[bytes] = [b""]
        if subjects.count(first) == count:
            assert 0 < len(first) <= MAX_SUBJECT
            parts += b"\x01\x00", _U16.pack(len(first)), first
        else:
            flags |= _MANY_SUBJECTS
            table = {subject: number for number, subject in enumerate(dict.fromkeys(subjects))}
            lengths = array("H", map(len, table))  # OverflowError above MAX_SUBJECT
            assert min(lengths) > 0
            parts += _U16.pack(len(table)), lengths.tobytes()
            parts += table
            wide = len(table) > 256
            flags |= _WIDE_INDEX if wide else 0
            parts.append(array("H" if wide else "B", map(table.__getitem__, subjects)).tobytes())
        has_headers = any(headers)
        if has_headers:
            flags |= _HEADERS
            parts.append(array("I", map(len, headers)).tobytes())
        sizes = list(map(len, payloads))
        if sizes.count(sizes[0]) == count:
            flags |= _SAME_LENGTH
            parts.append(_U32.pack(sizes[0]))
        else:
            parts.append(array("I", sizes).tobytes())
        parts += chain.from_iterable(zip(headers, payloads, strict=True)) if has_headers else payloads
        rest = b"".join(parts)
        size = _FIXED.size + len(rest)
        assert size <= MAX_BYTES, size
        crc = crc32(rest, crc32(_START.pack(VERSION, flags, count)))
        return _FIXED.pack(VERSION, flags, count, crc, len(rest)) + rest

    @classmethod
    def of(cls, subjects: Sequence[bytes], headers: Sequence[bytes], payloads: Sequence[bytes]) -> Batch:
        return cls.decode(cls.encode(subjects, headers, payloads), verify=False)

    @classmethod
    def decode(cls, raw: bytes, offset: int = 0, *, verify: bool = True) -> Batch:
        """Return the batch that starts at `offset` of `raw` and reaches to its end.

        `verify=False` skips the checksum, for bytes that another checksum has just covered (journal, wire); lengths are
        always checked. Raises BatchError.
        """
        try:
            return cls(raw, offset, verify)
        except (struct.error, ValueError, IndexError) as error:
            raise BatchError(f"not a batch: {error}") from error

    def __init__(self, raw: bytes, offset: int, verify: bool) -> None:
        version, flags, count, crc, length = _FIXED.unpack_from(raw, offset)
        at = offset + _FIXED.size
        if version != VERSION or flags & ~_KNOWN_FLAGS:
            raise UnknownBatchError(f"version {version}, flags {flags}")
        if not count or at + length != len(raw):
            raise BatchError(f"count {count}, {len(raw) - at} of {length} bytes")
        if verify and crc32(memoryview(raw)[at:], crc32(_START.pack(version, flags, count))) != crc:
            raise BatchError("wrong checksum")
        self.buffer = raw
        self.start = offset
        self._end = len(raw)
        self._subjects: list[bytes] | None
        self.count = count
        self.encoded_bytes = len(raw) - offset
        self.has_headers = bool(flags & _HEADERS)
        (subject_count,) = _U16.unpack_from(raw, at)
        self.subject_count = subject_count
        at += 2
        if subject_count == 1:
            (size,) = _U16.unpack_from(raw, at)
            at += 2 + size
            self._subjects = self.single = [raw[at - size : at]]
        else:
            at, self._subject_lengths = self._column("H", subject_count, at)
            self._subjects = self.single = None
            self._subjects_at = at
            at += sum(self._subject_lengths)
        self._index: array[int] | None = None
        if flags & _MANY_SUBJECTS:
            at, self._index = self._column("H" if flags & _WIDE_INDEX else "B", count, at)
        self._header_lengths: array[int] | None = None
        if flags & _HEADERS:
            at, self._header_lengths = self._column("I", count, at)
        self._payload_length = 0
        self._payload_lengths: array[int] | None = None
        if flags & _SAME_LENGTH:
            (self._payload_length,) = _U32.unpack_from(raw, at)
            at += 4
        else:
            at, self._payload_lengths = self._column("I", count, at)
        self._body = at
        self._ends: list[int] | None = None
        self._asked = 0
        if verify:
            return  # the checksum covers the columns too
        size = self._payload_length * count if not flags & _HEADERS and flags & _SAME_LENGTH else self._bodies(count)
        if size != len(raw) - at:
            raise BatchError(f"{len(raw) - at} bytes of bodies where the columns say {size}")

    def _column(self, code: str, count: int, at: int) -> tuple[int, array[int]]:
        column = array(code)
        end = at + count * column.itemsize
        if end > self._end:
            raise BatchError("cut off inside a column")
        column.frombytes(memoryview(self.buffer)[at:end])
        return end, column

    @property
    def subjects(self) -> list[bytes]:
        """The distinct subjects, in order of first appearance."""
        found = self._subjects
        if found is None:
            raw = self.buffer
            ends = accumulate(self._subject_lengths, initial=self._subjects_at)
            found = self._subjects = [raw[start:end] for start, end in pairwise(ends)]
        return found

    @property
    def raw(self) -> bytes:
        """The encoded batch; a copy only if it was decoded from the middle of a longer string."""
        return self.buffer[self.start :] if self.start else self.buffer

    def may_hold(self, part: bytes) -> bool:
        """Return False when no header block, payload or subject has `part`."""
        return self.buffer.find(part, self.start) >= 0

    @property
    def longest_headers(self) -> int:
        """Bytes of the longest header block."""
        return max(self._header_lengths or (0,))

    @property
    def body_bytes(self) -> int:
        """Bytes of all header blocks and payloads."""
        return self._end - self._body

    def message(self, i: int) -> tuple[bytes, bytes, bytes]:
        """Return subject, header block (b"" for none) and payload of message `i`, 0 <= i < count."""
        if self.count <= SHORT_MESSAGES and native.message_of is not None:
            found = native.message_of(self.buffer, self.start, i)
            if found is not None:
                return found
        if self._asked >= MESSAGES_BEFORE_UNPACK:
            start, end = self._span(i)
            subject = (self._subjects or self.subjects)[0 if self._index is None else self._index[i]]
        else:
            self._asked += 1
            start, end = self._first_span(i)
            subject = self._first_subject(i)
        if self._header_lengths is None:
            return subject, b"", self.buffer[start:end]
        middle = start + self._header_lengths[i]
        return subject, self.buffer[start:middle], self.buffer[middle:end]

    def messages(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        self._asked = MESSAGES_BEFORE_UNPACK
        return map(self.message, range(self.count))

    def columns(self, low: int, high: int) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """Return subjects, header blocks and payloads of messages low..high-1, 0 <= low < high <= count."""
        raw, count = self.buffer, high - low
        subjects = self.single or self.subjects
        index = self._index
        found = subjects * count if index is None else [subjects[number] for number in index[low:high]]
        self._span(high - 1)  # checks the bounds, and computes the offsets
        ends = self._ends
        if ends is None:
            size = self._payload_length
            at = self._body + low * size
            if not size:
                return found, [b""] * count, [b""] * count
            return found, [b""] * count, [raw[at : at + size] for at in range(at, at + count * size, size)]
        spans = pairwise(ends[low : high + 1])
        if self._header_lengths is None:
            return found, [b""] * count, [raw[start:end] for start, end in spans]
        middles = list(map(add, ends[low:high], self._header_lengths[low:high]))
        headers = [raw[start:middle] for start, middle in zip(ends[low:high], middles, strict=True)]
        payloads = [raw[middle:end] for middle, end in zip(middles, ends[low + 1 : high + 1], strict=True)]
        return found, headers, payloads

    def unpack(self) -> Batch:
        """Prepare for reads of many messages; returns the batch itself."""
        self._asked = MESSAGES_BEFORE_UNPACK
        return self

    def subject_of(self, i: int) -> bytes:
        return self.subjects[0 if self._index is None else self._index[i]]

    def subject_number(self, i: int) -> int:
        """Return the position of message `i`'s subject in `subjects`."""
        return 0 if self._index is None else self._index[i]

    def headers_of(self, i: int) -> bytes:
        if self._header_lengths is None:
            return b""
        start, _ = self._span(i)
        return self.buffer[start : start + self._header_lengths[i]]

    def size_of(self, i: int) -> int:
        """Return the bytes of message `i`'s header block and payload."""
        start, end = self._span(i)
        return end - start

    def positions(self) -> list[list[int]]:
        """Return, for every subject of `subjects`, the ascending positions of its messages."""
        if self._index is None:
            return [list(range(self.count))]
        result: list[list[int]] = [[] for _ in self.subjects]
        for position, number in enumerate(self._index):
            result[number].append(position)
        return result

    def positions_of(self, number: int) -> list[int]:
        """Return the ascending positions of the messages with subject `subjects[number]`."""
        if self._index is None:
            return list(range(self.count))
        return [position for position, other in enumerate(self._index) if other == number]

    def record_size(self, i: int, *, memory: bool = False) -> int:
        """Return the bytes that nats-server would count for message `i`."""
        size = self.size_of(i) + len(self.subject_of(i))
        if memory:
            return size + MEMORY_RECORD
        return size + FILE_RECORD + (FILE_HEADER_LENGTH if self._header_length(i) else 0)

    def bytes_of(self, indices: Sequence[int], subjects: Iterable[bytes], *, memory: bool = False) -> int:
        """Return the sum of `record_size` over the messages at `indices`, which have these `subjects`."""
        total = sum(map(len, subjects)) + len(indices) * (MEMORY_RECORD if memory else FILE_RECORD)
        if self._payload_lengths is None:
            total += len(indices) * self._payload_length
        else:
            total += sum(map(self._payload_lengths.__getitem__, indices))
        if self._header_lengths is not None:
            lengths = list(map(self._header_lengths.__getitem__, indices))
            total += sum(lengths)
            if not memory:
                total += FILE_HEADER_LENGTH * (len(lengths) - lengths.count(0))
        return total

    def record_bytes(self, *, memory: bool = False) -> int:
        """Return the sum of `record_size` over all messages; `uniform` batches take no step per message."""
        total = self._end - self._body + self.count * (MEMORY_RECORD if memory else FILE_RECORD)
        if self._index is None:
            total += len((self.single or self.subjects)[0]) * self.count
        else:
            lengths = [len(subject) for subject in self.subjects]
            total += sum(map(lengths.__getitem__, self._index))
        if self._header_lengths is not None and not memory:
            total += FILE_HEADER_LENGTH * (self.count - self._header_lengths.count(0))
        return total

    @property
    def uniform(self) -> bool:
        """True if `range_bytes` needs no step per message: one subject and no headers."""
        return self._index is None and self._header_lengths is None

    def range_bytes(self, start: int, end: int, *, memory: bool = False) -> int:
        """Return the sum of `record_size` over messages start..end-1."""
        if start == 0 and end == self.count:
            return self.record_bytes(memory=memory)
        if start >= end:
            return 0
        if not self.uniform:
            return sum(self.record_size(i, memory=memory) for i in range(start, end))
        per_message = (MEMORY_RECORD if memory else FILE_RECORD) + len(self.subjects[0])
        return self._span(end - 1)[1] - self._span(start)[0] + (end - start) * per_message

    def erased(self, indices: Iterable[int], subjects: Iterable[int] = ()) -> Batch:
        """Return the batch with zeros for header block and payload of the messages at `indices`, and for the subjects
        with the numbers `subjects`. Lengths stay, so this costs one copy and one checksum."""
        raw = bytearray(self.raw)
        spans = [self._span(i) for i in indices]
        if self._subjects is not None and len(self._subjects) == 1:
            at = _FIXED.size + 4 + self.start
            ends = [at, at + len(self._subjects[0])]
        else:
            ends = list(accumulate(self._subject_lengths, initial=self._subjects_at))
        spans += [(ends[number], ends[number + 1]) for number in subjects]
        for start, end in spans:
            raw[start - self.start : end - self.start] = bytes(end - start)
        version, flags, count, _, length = _FIXED.unpack_from(raw)
        crc = crc32(memoryview(raw)[_FIXED.size :], crc32(_START.pack(version, flags, count)))
        _FIXED.pack_into(raw, 0, version, flags, count, crc, length)
        return Batch.decode(bytes(raw), verify=False)

    def select(self, indices: Sequence[int]) -> Batch:
        """Return a new batch of the messages at `indices` (at least one), in that order."""
        messages = list(map(self.message, indices))
        headers = [headers for _, headers, _ in messages] if self.has_headers else []
        return Batch.of([subject for subject, _, _ in messages], headers, [payload for _, _, payload in messages])

    def _header_length(self, i: int) -> int:
        return 0 if self._header_lengths is None else self._header_lengths[i]

    def _span(self, i: int) -> tuple[int, int]:
        if not 0 <= i < self.count:
            raise IndexError(i)
        if self._ends is None:
            if self._header_lengths is None and self._payload_lengths is None:
                start = self._body + i * self._payload_length
                return start, start + self._payload_length
            self._ends = self._message_ends()
        return self._ends[i], self._ends[i + 1]

    def _bodies(self, i: int) -> int:
        """Return the bytes of the first `i` messages, by the columns."""
        headers, payloads = self._header_lengths, self._payload_lengths
        size = self._payload_length * i if payloads is None else sum(payloads[:i])
        return size if headers is None else size + sum(headers[:i])

    def _first_span(self, i: int) -> tuple[int, int]:
        """Return `_span(i)` without computing the offsets of all messages."""
        if self._ends is not None or not 0 <= i < self.count:
            return self._span(i)
        headers, payloads = self._header_lengths, self._payload_lengths
        start = self._body + self._bodies(i)
        end = start + (self._payload_length if payloads is None else payloads[i])
        return start, end if headers is None else end + headers[i]

    def _first_subject(self, i: int) -> bytes:
        number = 0 if self._index is None else self._index[i]
        if self._subjects is not None:
            return self._subjects[number]
        lengths = self._subject_lengths
        start = self._subjects_at + sum(lengths[:number])
        return self.buffer[start : start + lengths[number]]

    def _message_ends(self) -> list[int]:
        """Return the offset of the first message, then the end of each one."""
        headers, payloads = self._header_lengths, self._payload_lengths
        if headers is None:
            assert payloads is not None
            return list(accumulate(payloads, initial=self._body))
        if payloads is None:
            same = self._payload_length
            return list(accumulate([length + same for length in headers], initial=self._body))
        return list(accumulate(map(add, headers, payloads), initial=self._body))
