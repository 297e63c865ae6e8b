"""Which batches become one."""

from __future__ import annotations

import itertools

import pytest

from jetcluster.archive.manifest import FILE_BYTES, ArchivedFile, totals
from jetcluster.pipeline import compaction
from jetcluster.pipeline.archive_tasks import FilePart
from jetcluster.pipeline.result import DataLoss
from tests.unit.archive.made import manifest


@pytest.mark.parametrize(
    ("rows", "most", "found"),
    [
        ([5] * 9, 1000, []),
        ([5] * 10, 1000, [(0, 9)]),
        ([500, *[5] * 10, 700], 1000, [(1, 10)]),
        ([5] * 25, 50, [(10, 19), (0, 9)]),
        ([50, *[5] * 9, *[50] * 9], 1000, [(0, 18)]),
        ([0] * 12, 10, [(0, 11)]),
        ([5] * 5 + [50] + [5] * 5, 1000, []),
        ([], 1000, []),
    ],
)
def test_runs(rows: list[int], most: int, found: list[tuple[int, int]]) -> None:
    assert compaction.runs(rows, most) == found


def test_a_row_is_written_anew_once_per_power_of_ten() -> None:
    written, held = 0, []
    for _ in range(2000):
        held.append(7)
        for first, last in compaction.runs(held, 10**6):
            written += sum(held[first : last + 1])
            held[first : last + 1] = [sum(held[first : last + 1])]
    assert sum(held) == 14_000
    assert len(held) < 50
    assert written < 6 * 14_000


def test_parts_hold_each_sequence_once() -> None:
    found = compaction.parts([manifest(0, 1, 101), manifest(1, 101, 151)], 60)
    assert [(part.low, part.high) for part in found] == [(1, 51), (51, 101), (101, 151)]
    assert [len(part.files) for part in found] == [1, 1, 1]
    assert compaction.parts([manifest(0, 1, 5, files=[], rows=0)], 60) == []


def test_parts_are_cut_where_the_rows_are() -> None:
    """Ten batches of 10,000 rows each; all but the last are of ever fewer sequences near the end."""
    batches, start = [], 1
    for number in range(10):
        end = 1_000_000_000 if not number else start + 20_000
        file = ArchivedFile(f"{number}", 10_000, 10_000, (end - 10_000, end - 1), (1, 2), ("a", "a"))
        batches.append(manifest(number, start, end, files=[file], rows=10_000))
        start = end
    found = compaction.parts(batches, 25_000)
    assert [sum(rows_in(file, part) for file in part.files) for part in found] == [25_000] * 4
    assert (found[0].low, found[-1].high) == (1, start)
    assert all(before.high == after.low for before, after in itertools.pairwise(found))


def rows_in(file: ArchivedFile, part: FilePart) -> int:
    """Rows of a part of a file that has one for each sequence."""
    return min(file.seqs[1] + 1, part.high) - max(file.seqs[0], part.low)


def test_parts_of_large_rows_are_smaller() -> None:
    files = [
        ArchivedFile("small", 1000, 500, (1, 500), (1, 2), ("a", "a")),
        ArchivedFile("large", FILE_BYTES // 2, 500, (501, 1000), (1, 2), ("a", "a")),
    ]
    found = compaction.parts([manifest(0, 1, 1001, files=files, rows=1000)], 1000)
    assert [(part.low, part.high) for part in found] == [(1, 584), (584, 792), (792, 1001)]
    assert [file.path for file in found[0].files] == ["small", "large"]


def test_parts_of_files_that_do_not_tell_their_rows() -> None:
    files = [ArchivedFile(f"{at}", 10, -1, (1, 100), (1, 2)) for at in range(2)]
    found = compaction.parts([manifest(0, 1, 101, files=files, rows=100)], 60)
    assert (found[0].low, found[-1].high) == (1, 101)
    assert all(part.files == tuple(files) and part.low < part.high for part in found)


def test_one_manifest_for_many_has_the_same_rows() -> None:
    files = [
        ArchivedFile("a", 1, 2, (1, 2), (1, 2), ("a", "a"), 5, 6),
        ArchivedFile("b", 1, 1, (3, 3), (1, 2), ("a", "a"), 3, 4),
    ]
    replaced = [manifest(at, at + 1, at + 2, **totals([file])) for at, file in enumerate(files)]
    one = compaction.merged(replaced, [ArchivedFile("c", 1, 3, (1, 3), (1, 2), ("a", "a"), 5 ^ 3, 6 ^ 4)])
    assert (one.since, one.number, one.start, one.end, one.rows) == (0, 1, 1, 3, 3)
    with pytest.raises(DataLoss, match="have 3 rows, and 2 or others"):
        compaction.merged(replaced, files[:1])
