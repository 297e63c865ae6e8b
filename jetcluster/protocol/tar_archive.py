"""An archive of format V1, which nats-server up to 2.14 makes: a tar stream of the files of a stream's store.

    meta.inf, meta.sum    the configuration, and its checksum
    msgs/<n>.blk          message blocks (`message_block`), ascending
    msgs/index.db         which of their messages are there; before 2.10 msgs/<n>.idx (`block_index`)
    obs/<name>/meta.inf, meta.sum, o.dat    each consumer: configuration, checksum, state (`consumer_file`)

Whether a message in a block was deleted is told behind it: by a tombstone in a later block, and by the index, which is
the last of the files of messages. So an archive is read twice: `TarSurvey` reads all but the messages, then
`TarMessages` the messages that are there.

An index counts where it is as old as the blocks, which its checksums of their last records tell. Else the blocks tell
alone: what is erased in them, and their tombstones. nats-server decides the same way when it starts on such files. The
checksums in meta.sum are not verified.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from jetcluster.budget import Steps
from jetcluster.protocol import stream_archive
from jetcluster.protocol.block_index import (
    BLOCK_OVERHEAD_BYTES,
    MAX_BLOCKS,
    BlockIndex,
    IndexReader,
    OneIndexReader,
    SequenceSet,
    UnreadableIndexError,
)
from jetcluster.protocol.message_block import ERASED, SEQUENCE, TOMBSTONE, RecordReader
from jetcluster.protocol.stream_archive import ArchiveEntry, ArchiveError
from jetcluster.protocol.tar_stream import TarPart, TarReader
from jetcluster.records import NamedTuple

META: Final = "meta.inf"
STATE: Final = "o.dat"
ERRORS: Final = "errors.txt"
INDEX: Final = "msgs/index.db"
MAX_META_BYTES: Final = 1 << 20
"""Bytes of a configuration."""
MAX_ERROR_CHARS: Final = 200
STEP_RECORDS: Final = 256
_BLOCK: Final = re.compile(r"msgs/([0-9]{1,9})\.blk")
_ONE_INDEX: Final = re.compile(r"msgs/([0-9]{1,9})\.idx")
_CONSUMER: Final = re.compile(r"obs[/\\]([^/\\]+)[/\\](meta\.inf|o\.dat)")
"""A server on Windows wrote the other slash."""


class TarConsumer(NamedTuple):
    """A consumer of the archive."""

    name: str
    config: bytes
    """Its configuration, as JSON."""
    state: bytes


class TarPlan(NamedTuple):
    """The messages of the archive, as a survey tells."""

    ranges: dict[int, BlockIndex]
    """Number of a block -> its messages."""
    exact: bool
    """A block that is not among `ranges` has none."""
    gone: SequenceSet
    """Sequences of tombstones, for other blocks."""

    def keeps(self, block: int, seq: int) -> bool:
        known = self.ranges.get(block)
        if known is not None:
            return known.keeps(seq) and seq not in self.gone
        return not self.exact and seq not in self.gone


class TarSurvey:
    """The first reading of an archive, in pieces of any size."""

    def __init__(self) -> None:
        self.config = b""
        """The stream's configuration, as JSON."""
        self.last_seq = 0
        self.idle = 0
        """Bytes that were no messages, or came a second time: whoever sends them in a few frames costs time."""
        self._newest = 0
        """Newest sequence of a message."""
        self._tar = TarReader()
        self._block: RecordReader | None = None
        self._last_block = 0
        self._checksums: dict[int, bytes] = {}
        """Number of a block -> checksum of its last record."""
        self._gone = SequenceSet()
        self._index: IndexReader | None = None
        self._all: IndexReader | None = None
        """The index of all blocks, once it was read."""
        self._ranges: dict[int, BlockIndex] = {}
        self._pages = 0
        self._file = bytearray()
        self._consumers: dict[str, dict[str, bytes]] = {}
        self._consumers_bytes = 0

    @property
    def held(self) -> int:
        """Bytes, roughly."""
        readers = sum(one.held for one in (self._block, self._index, self._all) if one is not None)
        blocks = (len(self._checksums) + len(self._ranges)) * BLOCK_OVERHEAD_BYTES
        return (
            self._tar.held
            + readers
            + blocks
            + self._gone.held
            + self._pages * 256
            + len(self._file)
            + self._consumers_bytes
        )

    @property
    def finished(self) -> bool:
        return self._tar.finished

    def feed(self, data: bytes) -> Iterator[None]:
        """Reads on, in steps of about a millisecond. Raises ArchiveError."""
        self.idle += len(data)
        for part in self._tar.feed(data):
            if part is not None:
                yield from self._take(part)
            yield

    def plan(self) -> Steps[TarPlan]:
        """Returns, in steps, what is known at the end of the archive. Raises ArchiveError."""
        if not self.config:
            raise ArchiveError(f"the archive has no {META}")
        every = self._all
        if every is not None:
            self.last_seq = max(self.last_seq, every.last_seq)
            if (yield from self._is_current(every)):
                return TarPlan(every.blocks, True, SequenceSet())
        ranges: dict[int, BlockIndex] = {}
        for count, (number, found) in enumerate(self._ranges.items()):
            self.last_seq = max(self.last_seq, found.last)
            if self._checksums.get(number) == found.checksum:
                ranges[number] = found
            if count % STEP_RECORDS == 0:
                yield
        return TarPlan(ranges, False, self._gone)

    def consumers(self) -> Iterator[TarConsumer]:
        """Raises ArchiveError for one without its configuration or state."""
        for name, files in self._consumers.items():
            if len(files) < 2:
                raise ArchiveError(f"the archive has not all files of consumer {name}")
            yield TarConsumer(name, files[META], files[STATE])

    def _is_current(self, index: IndexReader) -> Steps[bool]:
        """True when no record was written between the index and the blocks, and none of its blocks is missing."""
        newest = self._checksums.get(index.last_block)
        if index.last_block != self._last_block or newest != index.checksum:
            return False
        for count, (number, found) in enumerate(index.blocks.items()):
            if found.first <= found.last and number not in self._checksums:
                return False
            if count % STEP_RECORDS == 0:
                yield
        return True

    def _take(self, part: TarPart) -> Iterator[None]:
        if found := _BLOCK.fullmatch(part.name):
            yield from self._take_block(part, int(found[1]))
        elif part.name == INDEX:
            yield from self._take_index(part, None)
        elif found := _ONE_INDEX.fullmatch(part.name):
            yield from self._take_index(part, int(found[1]))
        elif found := _CONSUMER.fullmatch(part.name):
            self._take_consumer(part, found[1], found[2])
        elif part.name == META:
            self._gather(part, MAX_META_BYTES)
            if part.last:
                self.config = self._gathered()
        elif part.name == ERRORS:
            text = part.data[:MAX_ERROR_CHARS].decode("utf-8", "replace")
            raise ArchiveError(f"its server could not complete the archive: {text}")

    def _take_block(self, part: TarPart, number: int) -> Iterator[None]:
        if self._block is None:
            if self._last_block >= number:
                raise ArchiveError("message blocks out of order")
            if len(self._checksums) >= MAX_BLOCKS:
                raise ArchiveError("too many message blocks in it")
            self._last_block = number
            self._block = RecordReader(part.name, part.size, whole=False)
        block = self._block
        for count, record in enumerate(block.feed(part.data), 1):
            seq = record.marked & SEQUENCE
            self.last_seq = max(self.last_seq, seq)
            if record.marked == seq > self._newest:
                self._newest = seq
                self.idle -= record.size
            elif record.marked & TOMBSTONE and not record.marked & ERASED:
                self._gone.add(seq)
            if count % STEP_RECORDS == 0:
                yield
        if part.last:
            block.end()
            self._checksums[number] = block.checksum
            self._block = None

    def _take_index(self, part: TarPart, number: int | None) -> Iterator[None]:
        """`number`: that of the block, None for the index of all."""
        if not part.at:
            self._index = IndexReader() if number is None else OneIndexReader(number)
        index = self._index
        if index is None:
            return
        try:
            yield from index.feed(part.data)
        except UnreadableIndexError:
            self._index = None
            return
        if part.last:
            self._index = None
            if index.read and number is None:
                self._all = index
            elif index.read:
                self._pages += index.pages
                self._ranges |= index.blocks
                self._check_room()

    def _check_room(self) -> None:
        if len(self._ranges) > MAX_BLOCKS or self._pages > MAX_BLOCKS:
            raise ArchiveError("too many message blocks in it")

    def _take_consumer(self, part: TarPart, name: str, file: str) -> None:
        self._gather(part, MAX_META_BYTES if file == META else stream_archive.MAX_CONSUMER_BYTES)
        if not part.last:
            return
        content = self._gathered()
        self._consumers_bytes += len(name) + len(content) + stream_archive.CONSUMER_OVERHEAD_BYTES
        if self._consumers_bytes > stream_archive.MAX_CONSUMERS_BYTES:
            raise ArchiveError("too many consumers, or one of them is too large")
        self._consumers.setdefault(name, {})[file] = content

    def _gather(self, part: TarPart, limit: int) -> None:
        if part.size > limit:
            raise ArchiveError(f"{part.name} of {part.size} bytes")
        self._file += part.data

    def _gathered(self) -> bytes:
        content = bytes(self._file)
        self._file.clear()
        return content


class TarMessages:
    """The second reading of an archive: its messages."""

    def __init__(self, plan: TarPlan) -> None:
        self._plan = plan
        self._tar = TarReader()
        self._block: RecordReader | None = None
        self._seq = 0
        """Newest sequence of the present block."""

    @property
    def held(self) -> int:
        """Bytes in memory beside the plan."""
        return self._tar.held + (self._block.held if self._block is not None else 0)

    def feed(self, data: bytes) -> Iterator[ArchiveEntry | None]:
        """The messages that `data` completes, as entries of format V2, and None after steps. Raises ArchiveError."""
        for part in self._tar.feed(data):
            found = _BLOCK.fullmatch(part.name) if part is not None else None
            if part is not None and found is not None:
                yield from self._take(part, int(found[1]))
            yield None

    def _take(self, part: TarPart, number: int) -> Iterator[ArchiveEntry | None]:
        if self._block is None:
            self._block = RecordReader(part.name, part.size, whole=True)
            self._seq = 0
        for count, record in enumerate(self._block.feed(part.data), 1):
            seq = record.marked
            # A sequence comes a second time behind one that was erased, or was in the block already.
            if seq & TOMBSTONE == 0 and seq & SEQUENCE > self._seq:
                self._seq = seq & SEQUENCE
                if not seq & ERASED and self._plan.keeps(number, seq):
                    yield ArchiveEntry(record.subject, record.ts, seq, record.headers, record.payload)
            if count % STEP_RECORDS == 0:
                yield None
        if part.last:
            self._block = None
