"""Parts of an archive for tasks: in order, without overlap, with all rows, and counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from jetcluster.archive.manifest import ArchivedFile
from jetcluster.archive.parquet import write_files
from jetcluster.archive.storage import open_archive
from jetcluster.pipeline import restore_parts
from jetcluster.pipeline.archive_tasks import FilePart
from tests.unit.archive.made import SECOND, batch, manifest

HALF_A_DAY = 12 * 3600 * SECOND


def archived(folder: Path, *ranges: tuple[list[int], int]) -> list[Any]:
    """Manifests of an archive in a folder; each batch has sequences, and a time between two of them."""
    storage, found = open_archive(str(folder)), []
    for number, (seqs, step) in enumerate(ranges):
        files = list(write_files(storage, "ORDERS", [batch(seqs, ["b", "a"], step=step)]))
        found.append(manifest(number, seqs[0], seqs[-1] + 1, files=files, rows=len(seqs)))
    return found


def seqs_of(folder: Path, parts: list[FilePart]) -> list[int]:
    rows = (one for part in parts for one in restore_parts.in_order(str(folder), part, ("seq", "data")))
    return [seq for one in rows for seq in one["seq"].to_pylist()]


def test_all_rows_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that has files of several days, one whose rows are cut among tasks, and one with holes."""
    manifests = archived(tmp_path, (list(range(1, 50)), HALF_A_DAY), (list(range(50, 250)), 1), ([300, 302, 399], 1))
    size = max(file.size for one in manifests[1:] for file in one.files)
    monkeypatch.setattr(restore_parts, "PART_BYTES", size // 3)
    for end in (1000, 200, 301, 1):
        parts = restore_parts.cut(manifests, end)
        assert [part.low for part in parts] == sorted(part.low for part in parts)
        wanted = [seq for seq in (*range(1, 250), 300, 302, 399) if seq < end]
        assert seqs_of(tmp_path, parts) == wanted
    assert len(restore_parts.cut(manifests, 1000)) > len(manifests) + 3


def test_files_that_overlap_are_one_part() -> None:
    files = [ArchivedFile(f"{first}", 10, 5, (first, last), (1, 2)) for first, last in ((1, 9), (5, 12), (13, 20))]
    one = manifest(0, 1, 21, files=files)
    assert [(part.low, part.high, len(part.files)) for part in restore_parts.cut([one], 21)] == [
        (1, 13, 2),
        (13, 21, 1),
    ]
    assert [(part.low, part.high) for part in restore_parts.cut([one], 11)] == [(1, 11)]


def test_rows_are_counted_where_no_manifest_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = archived(tmp_path, (list(range(1, 101)), 1), (list(range(101, 131)), 1))
    asked: list[int] = []

    def here(_session: Any, wanted: list[int], work: Any) -> list[str]:
        asked.extend(wanted)
        return [text for one in wanted for text in work(one)]

    monkeypatch.setattr(restore_parts, "run_tasks", here)
    whole = restore_parts.cut(manifests, 131)
    assert restore_parts.count(None, str(tmp_path), whole) == [100, 30]  # type: ignore[arg-type]
    assert asked == []
    monkeypatch.setattr(restore_parts, "PART_BYTES", manifests[0].files[0].size // 2)
    parts = restore_parts.cut(manifests, 121)
    counts = restore_parts.count(None, str(tmp_path), parts)  # type: ignore[arg-type]
    assert asked and counts == [len(seqs_of(tmp_path, [part])) for part in parts]
    assert sum(counts) == 120


def test_what_is_ahead_is_bounded_and_in_order() -> None:
    begun: list[int] = []
    go = threading.Event()

    def call(number: int) -> int:
        begun.append(number)
        assert number or go.wait(10)
        return number

    results = restore_parts.ahead(range(10), call, 3)
    waiting = threading.Thread(target=lambda: begun.append(next(results) + 100))
    waiting.start()
    while sorted(begun) != [0, 1, 2]:
        assert waiting.is_alive()
    go.set()
    waiting.join(10)
    assert begun[-1] == 100 and sorted(begun[:-1]) == [0, 1, 2]
    assert list(results) == list(range(1, 10))


def test_an_error_comes_at_its_place() -> None:
    def call(number: int) -> int:
        return 1 // (3 - number)

    found: Iterator[int] = restore_parts.ahead(range(9), call, 4)
    assert [next(found) for _ in range(3)] == [0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(found)
