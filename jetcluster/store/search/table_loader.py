"""The load of a stream's subject table at a start: the saved table and the blocks after it, or else all postings."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence

from jetcluster.checksum import crc32
from jetcluster.store import keys
from jetcluster.store.api import DamagedError
from jetcluster.store.batch import Batch
from jetcluster.store.blocks import BlockTable
from jetcluster.store.kv import KeyValue
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.search import saved_table
from jetcluster.store.search.kept_filters import COUNT_BITS
from jetcluster.store.search.saved_table import Covered

WHOLE_BLOCK = b"*"
POSTING_PREFIX = len(keys.posting_prefix(0, b""))
"""Position of the subject in a posting's key."""
_COUNT_MASK = (1 << COUNT_BITS) - 1
_CRC = struct.Struct("<I")
_SEQ = struct.Struct(">Q")
_DISTANCE = struct.Struct("=H")


class TableLoader:
    """One load of `table`, which is empty, of stream `stream`; the block table `blocks` is loaded."""

    def __init__(
        self, kv: RocksKv, stream: int, blocks: BlockTable, table: dict[bytes, int],
        seqs_of: Callable[[bytes, bytes], Sequence[int]], batch_at: Callable[[int], Batch],
    ) -> None:  # fmt: skip
        """`seqs_of` returns the live sequences of a posting; `batch_at`: see `BlockReader.batch`."""
        self._kv = kv
        self._stream = stream
        self._blocks = blocks
        self._table = table
        self._seqs_of = seqs_of
        self._batch_at = batch_at

    def steps(self) -> Generator[None, None, tuple[int, int]]:
        """Fill the table, piece by piece. Returns the number of messages that it names, and up to which sequence they
        are from the saved table (0: all are from the postings). Raises DamagedError."""
        saved = self._load_saved()
        total = -1
        if saved is not None:
            try:
                total = yield from self._add_newer(saved)
            except DamagedError:  # by the postings the stream may be read all the same, but for that block
                saved = None
        if saved is None:
            self._table.clear()
            total = yield from self._load_postings()
        return total, saved.last_seq if saved is not None else 0

    def _load_saved(self) -> Covered | None:
        """Take over the saved table unless it is damaged or outdated."""
        key = keys.stream_prefix(keys.TABLE, self._stream)
        record = self._kv.get(key)
        found = saved_table.decode(key, record) if record is not None else None
        if found is None:
            return None
        covered, table = found
        if covered[1:] != self._blocks.rows_to(covered.last_seq):
            return None
        self._table.update(table)
        return covered

    def _add_newer(self, saved: Covered) -> Generator[None, None, int]:
        """Add the messages of the blocks after the saved table; returns the number of all messages."""
        table, blocks = self._table, self._blocks
        total = saved.messages
        for at in range(bisect_right(blocks.firsts, saved.last_seq), len(blocks.firsts)):
            first, dead = blocks.firsts[at], blocks.dead_bits(at)
            batch = self._batch_at(at)
            for subject, positions in zip(batch.subjects, batch.positions(), strict=True):
                alive = alive_of(positions, dead)
                if alive:
                    count = (table.get(subject, 0) & _COUNT_MASK) + len(alive)
                    table[subject] = first + alive[-1] << COUNT_BITS | count
                    total += len(alive)
            yield
        return total

    def _load_postings(self) -> Generator[None, None, int]:
        total = 0
        for chunk in self._kv.chunks(*posting_range(self._stream)):
            total += self._load_singles(chunk) or self._load_any(chunk)
            yield
        return total

    def _load_singles(self, chunk: list[KeyValue]) -> int:
        """Load a chunk of postings with one message each, all of new subjects; 0, and no change, for any other."""
        table = self._table
        if b"".join([value for _, value in chunk]):
            return 0
        subjects = [key[POSTING_PREFIX:-8] for key, _ in chunk]
        if subjects[0] in table or len(set(subjects)) < len(subjects):
            return 0
        seqs = array("Q", b"".join([key[-8:] for key, _ in chunk]))
        seqs.byteswap()
        if min(seqs) < self._blocks.first_seq:
            return 0
        table.update(zip(subjects, [seq << COUNT_BITS | 1 for seq in seqs], strict=True))
        return len(chunk)

    def _load_any(self, chunk: list[KeyValue]) -> int:
        table = self._table
        total = 0
        first_seq = self._blocks.first_seq
        seq_at, distance_at = _SEQ.unpack_from, _DISTANCE.unpack_from
        # A subject's postings are adjacent; those of the first one may have begun in the previous chunk.
        current = chunk[0][0][POSTING_PREFIX:-8]
        last, count = divmod(table.get(current, 0), 1 << COUNT_BITS)
        before = count
        for key, value in chunk:
            end = len(key) - 8
            subject = key[POSTING_PREFIX:end]
            if subject != current:
                if count:
                    table[current] = last << COUNT_BITS | count
                    total += count
                current, count, last = subject, 0, 0
            if len(value) >= 6:
                # The count and the last of `posting_seqs`, without making the list.
                (seq,) = seq_at(key, end)
                if seq >= first_seq:
                    check_posting(key, value)
                    count += len(value) // 2 - 1
                    last = seq + distance_at(value, len(value) - 2)[0]
                    continue
            if value:
                seqs = self._seqs_of(key, value)
                if seqs:
                    count += len(seqs)
                    last = seqs[-1]
            else:
                (seq,) = seq_at(key, end)
                if seq >= first_seq:
                    count += 1
                    last = seq
        if count:
            table[current] = last << COUNT_BITS | count
            total += count
        return total - before


def posting_range(stream: int) -> tuple[bytes, bytes]:
    return keys.stream_prefix(keys.POSTING, stream), keys.stream_end(keys.POSTING, stream)


def check_posting(key: bytes, value: bytes) -> None:
    """Raise DamagedError for a wrong checksum. The values of a single sequence and of a whole block have none."""
    if value and value != WHOLE_BLOCK and (len(value) < 6 or _CRC.unpack_from(value)[0] != checksum(key, value[4:])):
        seq = keys.seq_of(key)
        raise DamagedError(seq, seq)


def checksum(key: bytes, further: bytes) -> int:
    return crc32(further, crc32(key[keys.STREAM_PREFIX :]))


def alive_of(positions: list[int], dead: int) -> list[int]:
    return [position for position in positions if not dead >> position & 1] if dead else positions
