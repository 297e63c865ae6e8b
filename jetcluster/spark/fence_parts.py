"""`FenceParts`: the rows of one task behind several fences, one for each filter of `fenceSubjects`.

A fence needs its rows in order and in one task, but not those of other subjects. So a stream whose subjects are cut
into parts takes as many fences, each with markers of its own: the last message of the part's filter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from jetcluster.protocol.subjects import matches
from jetcluster.spark.fence import FenceError
from jetcluster.spark.fence_writer import FenceWriter
from jetcluster.spark.render import Rows
from jetcluster.spark.sink_options import SinkError

_REMEMBERED_SUBJECTS: Final = 100_000


class FenceParts:
    """Writes the rows of one task of a batch. Not thread-safe."""

    def __init__(self, filters: Sequence[str], writer_of: Callable[[int], FenceWriter]) -> None:
        """`writer_of` makes the writer of a part, by its number."""
        self.writers: dict[int, FenceWriter] = {}
        """By the number of their part; of parts that have rows here."""
        self._filters = [one.encode() for one in filters]
        self._writer_of = writer_of
        self._known: dict[bytes, int] = {}

    def write(self, batches: Iterable[Rows]) -> None:
        """Raises SinkError for a row of no part, and what `FenceWriter.write` raises."""
        for rows in batches:
            for number, part in self._split(rows):
                if (writer := self.writers.get(number)) is None:
                    writer = self.writers[number] = self._writer_of(number)
                    writer.begin()
                writer.add(part)
        for writer in self.writers.values():
            writer.finish()

    def _split(self, rows: Rows) -> list[tuple[int, Rows]]:
        """Returns the rows of each part, in their order."""
        coded = pc.dictionary_encode(rows.subjects)
        numbers = pa.array([self._part_of(one) for one in coded.dictionary.to_pylist()], pa.int32())
        parts = numbers.take(coded.indices)
        found = pc.unique(parts).to_pylist()
        if len(found) == 1:
            return [(found[0], rows)]
        return [(number, rows.taken(pc.indices_nonzero(pc.equal(parts, number)))) for number in found]

    def _part_of(self, subject: bytes) -> int:
        number = self._known.get(subject)
        if number is None:
            found = (at for at, one in enumerate(self._filters) if matches(subject, one))
            number = next(found, -1)
            if number < 0:
                raise SinkError(f"subject {subject.decode(errors='replace')} is of no part that fenceSubjects names")
            if len(self._known) >= _REMEMBERED_SUBJECTS:
                self._known.clear()
            self._known[subject] = number
        return number


def check_apart(tasks: Iterable[Sequence[int]], filters: Sequence[str]) -> None:
    """Raises FenceError when rows of one part were in two tasks. `tasks`: the parts of each task."""
    seen: set[int] = set()
    for parts in tasks:
        for number in parts:
            if number in seen:
                raise FenceError(
                    f"rows of {filters[number]} were in two tasks: bring those of each part of fenceSubjects together "
                    "(repartition by a column that says the part)"
                )
            seen.add(number)
