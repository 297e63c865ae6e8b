"""The comparison of a stream's postings with its subject table, which a start may have from its saved record.

Postings that are gone have no checksum that could fail, and removals that miss them would make this replica another.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from jetcluster.store import keys
from jetcluster.store.api import DamagedError
from jetcluster.store.blocks import BlockTable
from jetcluster.store.search.subject_index import SubjectIndex

PIECE_POSTINGS: Final = 256
"""Postings of one subject that are read before other work gets its turn."""
SUBJECT_BYTES: Final = 2048
POSTING_BYTES: Final = 512
"""Bytes that take as long to verify as passing one posting, and SUBJECT_BYTES as the look-up of a subject."""


class PostingCheck:
    """One pass over a stream's postings, in steps between which the stream may change.

    The caller counts all postings. If meanwhile no message went, they must be as many messages as the stream had at the
    beginning. Otherwise, unless it was so before, each subject's postings are compared by themselves.
    """

    def __init__(self, blocks: BlockTable, index: SubjectIndex, last_seq: int, removals: Callable[[], int]) -> None:
        self._blocks = blocks
        self._index = index
        self._removals = removals
        self._end = last_seq
        """Later messages, whose postings may or may not be seen, do not count."""
        self._since = removals()
        self._found = 0
        self._left: list[bytes] = []
        self._skipped = False
        self._wanted = self._place = 0
        """The messages up to `_end` of the last of `_left`, and where to read on; 0 before it is begun."""

    def count(self, key: bytes, value: bytes) -> None:
        """Count a posting, in any order. Raises DamagedError for one of a missing block."""
        if keys.seq_of(key) <= self._end and self._removals() == self._since:
            self._found += len(self._index.posting_seqs(key, value))

    def counted(self) -> bool:
        """End the count; returns False when `step` must go on. Raises DamagedError for too few or too many."""
        if self._removals() != self._since:
            if not self._index.compared:
                self._left = list(self._index.table)
            return not self._left
        blocks = self._blocks
        if self._found != blocks.messages - blocks.live_at_or_above(self._end + 1):
            raise DamagedError(blocks.first_seq, self._end)
        self._index.compared = True
        return True

    def step(self, max_bytes: int) -> int:
        """Compare the next subjects; returns the work as bytes, 0 when all are done. Raises DamagedError."""
        work = 0
        while self._left and work < max_bytes:
            work += self._compare_piece(self._left[-1])
        if not self._left and not self._skipped:
            self._index.compared = True
        return work

    def _compare_piece(self, subject: bytes) -> int:
        index = self._index
        if not self._place:
            self._since, self._found, self._place = self._removals(), 0, 1
            self._wanted, self._end = index.count_of(subject), index.last_of(subject)
        elif self._removals() != self._since:  # a later pass may find it at rest
            self._skipped = True
            self._next()
            return SUBJECT_BYTES
        passed = 0
        for part in islice(index.walk(subject, self._place, self._end + 1), PIECE_POSTINGS):
            passed += 1
            self._found += len(part)
            self._place = part[-1] + 1
        if passed < PIECE_POSTINGS:
            if self._found != self._wanted:
                raise DamagedError(self._blocks.first_seq, self._end)
            self._next()
        return SUBJECT_BYTES + passed * POSTING_BYTES

    def _next(self) -> None:
        self._left.pop()
        self._place = 0
