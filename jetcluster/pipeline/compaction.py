"""Compaction of an archive: which small batches become one, and how. A job that follows a stream makes a batch every
few seconds, and a table of many small files is slow to plan and to read."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from jetcluster.archive import manifest
from jetcluster.archive.manifest import FILE_BYTES, PACKED, ArchivedFile, Manifest
from jetcluster.pipeline.archive_tasks import FilePart
from jetcluster.pipeline.result import DataLoss

MIN_BATCHES: Final = 10


def runs(rows: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Returns runs (first, last) of neighbours to make one, the last run first. A run has MIN_BATCHES batches of the
    same power of ten of rows and none of a higher one, and at most `most` rows: so a row is written anew once per
    power of ten, not once per batch."""
    found: list[tuple[int, int]] = []
    taken = [False] * len(rows)
    for power in range(len(str(most))):
        first = 0
        while first < len(rows):
            last, total, large = first - 1, 0, 0
            while last + 1 < len(rows) and not taken[last + 1] and _power(rows[last + 1]) <= power:
                if total + rows[last + 1] > most:
                    break
                last += 1
                total += rows[last]
                large += _power(rows[last]) == power
            if large >= MIN_BATCHES:
                found.append((first, last))
                taken[first : last + 1] = [True] * (last + 1 - first)
            first = max(last, first) + 1
    return sorted(found, reverse=True)


def _power(rows: int) -> int:
    return len(str(rows)) - 1


def parts(replaced: Sequence[Manifest], rows: int) -> list[FilePart]:
    """Cuts the sequences of batches into ranges of about the same weight, at most `rows` rows or FILE_BYTES in memory:
    a task holds all of a range. Rows may be anywhere among the sequences, so the cuts are where the files' rows are."""
    weighed = sorted(
        ((file, _weight(file, one, rows)) for one in replaced for file in one.files), key=lambda pair: pair[0].seqs
    )
    total = sum(weight for _, weight in weighed)
    count = max(1, -(-total // (rows * FILE_BYTES)))
    cuts = [replaced[0].start]
    before = 0
    for file, weight in weighed:
        first, last = file.seqs
        while len(cuts) < count and total * len(cuts) // count < before + weight:
            into = max(total * len(cuts) // count - before, 0)
            cuts.append(max(first + (last + 1 - first) * into // weight, cuts[-1]))
        before += weight
    found = []
    for begin, end in itertools.pairwise([*cuts, replaced[-1].end]):
        held = tuple(file for file, _ in weighed if file.seqs[0] < end and file.seqs[1] >= begin)
        if held and begin < end:
            found.append(FilePart(held, begin, end))
    return found


def _weight(file: ArchivedFile, batch: Manifest, rows: int) -> int:
    """Returns the part of a task's memory that a file takes; `rows` * FILE_BYTES is all of it."""
    count = file.rows if file.rows >= 0 else -(-batch.rows // len(batch.files))
    return max(count * FILE_BYTES, PACKED * file.size * rows)


def merged(replaced: Sequence[Manifest], files: list[ArchivedFile]) -> Manifest:
    """Returns the manifest in place of several. Raises DataLoss unless the files have the same rows."""
    first, last = replaced[0], replaced[-1]
    found = Manifest(
        number=last.number,
        since=first.since,
        stream=last.stream,
        created=last.created,
        subjects=last.subjects,
        start=first.start,
        end=last.end,
        config=last.config,
        read=last.read,
        **manifest.totals(files),
    )
    rows = sum(one.rows for one in replaced)
    digest = places = 0
    for one in replaced:
        digest ^= int(one.digest, 16)
        places ^= int(one.places, 16)
    if (found.rows, found.digest, found.places) != (rows, f"{digest:016x}", f"{places:016x}"):
        raise DataLoss(
            f"batches {first.since} to {last.number} have {rows} rows, and {found.rows} or others were read from them: "
            "a file is damaged"
        )
    return found
