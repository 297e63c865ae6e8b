"""`Sequences`: a set of stream sequences as ranges, such as the messages of a stream that are stored at a moment.

Packed it is pairs of varints, the gap before a range and its length, compressed with zlib; so a million messages
without a gap take as much room as one.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from jetcluster.errors import DiskError

MAX_RANGES: Final = 20_000_000
"""Ranges that a packed set may have, each of which takes some 100 bytes of memory."""
_MAX_SEQUENCE: Final = 1 << 63
_BOUND_BYTES: Final = 20
"""Bytes that a packed range may take."""


class DamagedBackupError(DiskError):
    """A file of a destination is missing, or is not what was written."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """Ascending ranges (first, last), both included, that do not touch."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def stored(cls, first: int, last: int, deleted: Iterable[int] = ()) -> Sequences:
        """The sequences from `first` to `last` but for the deleted ones, in any order."""
        ranges, at = [], max(first, 1)
        for gone in sorted({one for one in deleted if at <= one <= last}):
            if gone > at:
                ranges.append((at, gone - 1))
            at = gone + 1
        if at <= last:
            ranges.append((at, last))
        return cls(tuple(ranges))

    @classmethod
    def of(cls, ascending: Iterable[int]) -> Sequences:
        ranges: list[tuple[int, int]] = []
        for seq in ascending:
            if ranges and ranges[-1][1] + 1 == seq:
                ranges[-1] = ranges[-1][0], seq
            else:
                assert not ranges or ranges[-1][1] < seq, (ranges[-1], seq)
                ranges.append((seq, seq))
        return cls(tuple(ranges))

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges:
            yield from range(first, last + 1)

    def __contains__(self, seq: int) -> bool:
        at = bisect_right(self.ranges, (seq, _MAX_SEQUENCE)) - 1
        return at >= 0 and self.ranges[at][1] >= seq

    def __bool__(self) -> bool:
        return bool(self.ranges)

    @property
    def first(self) -> int:
        """0 for none."""
        return self.ranges[0][0] if self.ranges else 0

    @property
    def last(self) -> int:
        """0 for none."""
        return self.ranges[-1][1] if self.ranges else 0

    def within(self, first: int, last: int) -> Sequences:
        """Those from `first` to `last`."""
        at = max(bisect_right(self.ranges, (first, _MAX_SEQUENCE)) - 1, 0)
        found = []
        for low, high in self.ranges[at:]:
            if low > last:
                break
            if high >= first:
                found.append((max(low, first), min(high, last)))
        return Sequences(tuple(found))

    def after(self, seq: int) -> Sequences:
        return self.within(seq + 1, _MAX_SEQUENCE)

    def without(self, gone: Sequences) -> Sequences:
        """Those that are not in `gone`."""
        found: list[tuple[int, int]] = []
        holes, at = gone.ranges, 0
        for low, high in self.ranges:
            while at < len(holes) and holes[at][1] < low:
                at += 1
            hole = at
            while hole < len(holes) and holes[hole][0] <= high:
                if holes[hole][0] > low:
                    found.append((low, holes[hole][0] - 1))
                low = holes[hole][1] + 1
                hole += 1
            if low <= high:
                found.append((low, high))
        return Sequences(tuple(found))

    def joined(self, other: Sequences) -> Sequences:
        """Those that are in one of both."""
        if not self.ranges or not other.ranges:
            return self if self.ranges else other
        found: list[tuple[int, int]] = []
        if self.ranges[-1][1] < other.ranges[0][0]:
            pairs = (*self.ranges, *other.ranges)
        else:
            pairs = tuple(sorted((*self.ranges, *other.ranges)))
        for low, high in pairs:
            if found and low <= found[-1][1] + 1:
                found[-1] = found[-1][0], max(found[-1][1], high)
            else:
                found.append((low, high))
        return Sequences(tuple(found))

    def common(self, other: Sequences) -> Sequences:
        """Those that are in both."""
        return self.without(self.without(other))

    def slices(self, most: int) -> Iterator[Sequences]:
        """Parts of at most `most` sequences, in order."""
        part: list[tuple[int, int]] = []
        room = most
        for first, last in self.ranges:
            while first <= last:
                end = min(last, first + room - 1)
                part.append((first, end))
                room -= end - first + 1
                first = end + 1
                if not room:
                    yield Sequences(tuple(part))
                    part, room = [], most
        if part:
            yield Sequences(tuple(part))

    def packed(self) -> bytes:
        out, before = bytearray(), 0
        for first, last in self.ranges:
            for number in (first - before, last - first):
                while number >= 0x80:
                    out.append(number & 0x7F | 0x80)
                    number >>= 7
                out.append(number)
            before = last
        return zlib.compress(bytes(out), 6)

    @classmethod
    def unpacked(cls, data: bytes) -> Sequences:
        """Raises DamagedBackupError."""
        numbers = _numbers(data)
        if len(numbers) % 2:
            raise DamagedBackupError("a list of sequences is cut off")
        ranges, before = [], 0
        for gap, more in zip(numbers[::2], numbers[1::2], strict=True):
            first = before + gap
            before = first + more
            if gap < 1 or before >= _MAX_SEQUENCE:
                raise DamagedBackupError("a list of sequences is out of order")
            ranges.append((first, before))
        return cls(tuple(ranges))


def _numbers(data: bytes) -> list[int]:
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(data, MAX_RANGES * _BOUND_BYTES)
    except zlib.error as error:
        raise DamagedBackupError(f"a list of sequences: {error}") from None
    if not inflate.eof:
        raise DamagedBackupError("a list of sequences is cut off, or too long")
    found: list[int] = []
    number = shift = 0
    for byte in raw:
        number |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
            if shift > 63:
                raise DamagedBackupError("a list of sequences has a number that is too long")
        else:
            found.append(number)
            number = shift = 0
    if shift:
        raise DamagedBackupError("a list of sequences is cut off")
    return found
