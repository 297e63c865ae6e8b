"""The indexes of nats-server's message blocks in an archive of format V1: which of a block's messages are there.

`msgs/index.db` (2.10 to 2.14) has those of all blocks:

    u8 11 | u8 version | messages | bytes | first sequence | time | last sequence | time | subjects
    | each subject: length, text, messages, first block, last block (version 4, or more than one message)
    | blocks | each block: number, bytes, first sequence, time, last sequence, time, deleted, TTLs (version 2),
      schedules (version 3), a set of the deleted sequences if there are any
    | number of the last block | u64 checksum of its last record | u64 checksum of the index

`msgs/N.idx` (up to 2.9) has that of one block: u8 22, u8 version, messages, bytes, first sequence, time, last sequence,
time, deleted, u64 checksum of the last record, then in version 1 each deleted sequence less the first one, or a set.

Numbers are Go's varints. A set is `u8 22 | u8 version | u32 nodes | u32 sequences`, and of each node `u64 base`, a
bitmap (2048 bits, in version 1 4096) and `u16`, little-endian. An index that cannot be read is as good as none.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from typing import Final

from jetcluster.protocol.stream_archive import ArchiveError
from jetcluster.records import NamedTuple

MAX_BLOCKS: Final = 1 << 17
MAX_PAGES: Final = 1 << 17
"""Bounds of what is held of the index of an archive: a terabyte in blocks of 8 MiB, and 268 million deleted messages if
they are close to each other."""
PAGE_BITS: Final = 11
PAGE_OVERHEAD_BYTES: Final = 160
BLOCK_OVERHEAD_BYTES: Final = 320
STEP_NUMBERS: Final = 256
_PAGE: Final = 1 << PAGE_BITS
_ALL, _ONE, _SET = 11, 22, 22
_SET_HEAD: Final = struct.Struct("<BBII")
_MAX_VERSION: Final = 4

_Reading = Generator[bool, None, int]
"""Yields True when it needs more bytes, False after a millisecond of work."""


class UnreadableIndexError(ArchiveError):
    """The index is damaged, or of an unknown version."""


class SequenceSet:
    """A set of sequences, as bitmaps of 2048 each."""

    __slots__ = ("pages",)

    def __init__(self) -> None:
        self.pages: dict[int, int] = {}

    def __contains__(self, seq: int) -> bool:
        return bool(self.pages.get(seq >> PAGE_BITS, 0) >> (seq & _PAGE - 1) & 1)

    def add(self, seq: int) -> None:
        self.add_page(seq >> PAGE_BITS, 1 << (seq & _PAGE - 1))

    def add_page(self, number: int, bits: int) -> None:
        """Raises ArchiveError when there are too many."""
        if bits:
            self.pages[number] = self.pages.get(number, 0) | bits
            if len(self.pages) > MAX_PAGES:
                raise ArchiveError("too many deleted messages in it")

    @property
    def held(self) -> int:
        return len(self.pages) * (PAGE_OVERHEAD_BYTES + _PAGE // 8)


class BlockIndex(NamedTuple):
    """The messages of a block: those from `first` to `last` that were not deleted."""

    first: int
    last: int
    deleted: SequenceSet
    checksum: bytes = b""
    """That of the block's last record, of `msgs/N.idx`."""

    def keeps(self, seq: int) -> bool:
        return self.first <= seq <= self.last and seq not in self.deleted


class IndexReader:
    """Reads an index in pieces of any size."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0
        self.pages = 0
        """Pages of the sets that were read."""
        self._reading = self._all()
        self._waits = False
        self.read = False
        """True once the whole index was read."""
        self.blocks: dict[int, BlockIndex] = {}
        self.last_seq = 0
        self.last_block = 0
        self.checksum = b""
        """That of the last record of the last block."""

    @property
    def held(self) -> int:
        return len(self._data) + len(self.blocks) * BLOCK_OVERHEAD_BYTES + self.pages * (_PAGE // 8)

    def feed(self, data: bytes) -> Iterator[None]:
        """Reads on, in steps. Raises UnreadableIndexError, and ArchiveError beyond its bounds."""
        if self.read:  # the checksum of the index, and whatever is behind it
            return
        del self._data[: self._at]
        self._at = 0
        self._data += data
        for waits in self._reading:
            if waits:
                return
            yield
        self.read = True
        self._data.clear()

    def _all(self) -> Iterator[bool]:
        kind = yield from self._byte()
        version = yield from self._byte()
        if kind != _ALL or not 1 <= version <= _MAX_VERSION:
            raise UnreadableIndexError("index of an unknown kind")
        for _ in range(4):
            yield from self._number()
        self.last_seq = yield from self._sequence()
        yield from self._number()
        subjects = yield from self._number()
        for number in range(subjects):
            yield from self._pass_subject(version)
            if number % (STEP_NUMBERS // 4) == 0:
                yield False
        blocks = yield from self._number()
        if blocks > MAX_BLOCKS:
            raise ArchiveError("too many message blocks in it")
        for _ in range(blocks):
            yield from self._block(version)
            yield False
        self.last_block = yield from self._number()
        while len(self._data) - self._at < 8:
            yield True
        self.checksum = bytes(self._data[self._at : self._at + 8])

    def _pass_subject(self, version: int) -> Iterator[bool]:
        size = yield from self._number()
        if not size:
            return
        while size:
            while self._at >= len(self._data):
                yield True
            more = min(size, len(self._data) - self._at)
            self._at += more
            size -= more
        messages = yield from self._number()
        yield from self._number()
        if messages > 1 or version >= 4:
            yield from self._number()

    def _block(self, version: int) -> Iterator[bool]:
        index = yield from self._number()
        yield from self._number()
        first = yield from self._sequence()
        yield from self._number()
        last = yield from self._sequence()
        yield from self._number()
        count = yield from self._number()
        for _ in range(min(version, 3) - 1):
            yield from self._number()
        deleted = SequenceSet()
        if count:
            yield from self._set(deleted)
        self.blocks[index] = BlockIndex(first, last, deleted)

    def _set(self, deleted: SequenceSet) -> Iterator[bool]:
        while len(self._data) - self._at < _SET_HEAD.size:
            yield True
        kind, version, nodes, _ = _SET_HEAD.unpack_from(self._data, self._at)
        self._at += _SET_HEAD.size
        if kind != _SET or version not in (1, 2):
            raise UnreadableIndexError("set of an unknown kind")
        size = _PAGE // 8 * (2 if version == 1 else 1)
        for number in range(nodes):
            while len(self._data) - self._at < size + 10:
                yield True
            base = int.from_bytes(self._data[self._at : self._at + 8], "little")
            bits = int.from_bytes(self._data[self._at + 8 : self._at + 8 + size], "little")
            self._at += size + 10
            self._add(deleted, base, bits)
            if number % STEP_NUMBERS == 0:
                yield False

    def _add(self, deleted: SequenceSet, base: int, bits: int) -> None:
        if base % _PAGE:
            raise UnreadableIndexError("set with a base out of place")
        while bits:
            deleted.add_page(base >> PAGE_BITS, bits & (1 << _PAGE) - 1)
            bits >>= _PAGE
            base += _PAGE
            self.pages += 1
        if self.pages > MAX_PAGES:
            raise ArchiveError("too many deleted messages in it")

    def _byte(self) -> _Reading:
        while self._at >= len(self._data):
            yield True
        self._at += 1
        return self._data[self._at - 1]

    def _sequence(self) -> _Reading:
        found = yield from self._number()
        if found >= 1 << 63:
            raise UnreadableIndexError("sequence out of bounds")
        return found

    def _number(self) -> _Reading:
        value = shift = 0
        while True:
            while self._at >= len(self._data):
                yield True
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise UnreadableIndexError("number too long")


class OneIndexReader(IndexReader):
    """Reads the index of one block, `msgs/N.idx`, whose number is `number`."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._block_number = number

    def _all(self) -> Iterator[bool]:
        kind = yield from self._byte()
        version = yield from self._byte()
        if kind != _ONE or version not in (1, 2):
            raise UnreadableIndexError("index of an unknown kind")
        for _ in range(2):
            yield from self._number()
        first = yield from self._sequence()
        yield from self._number()
        last = yield from self._sequence()
        yield from self._number()
        count = yield from self._number()
        while len(self._data) - self._at < 8:
            yield True
        checksum = bytes(self._data[self._at : self._at + 8])
        self._at += 8
        deleted = SequenceSet()
        if count and version == 2:
            yield from self._set(deleted)
        elif count:
            yield from self._listed(deleted, first, count)
        self.blocks[self._block_number] = BlockIndex(first, last, deleted, checksum)

    def _listed(self, deleted: SequenceSet, first: int, count: int) -> Iterator[bool]:
        for number in range(count):
            before = len(deleted.pages)
            more = yield from self._number()
            deleted.add(first + more)
            self.pages += len(deleted.pages) - before
            if number % STEP_NUMBERS == 0:
                yield False
