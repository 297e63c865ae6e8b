"""Work of tasks, done without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.archive.manifest import ArchiveLossError
from jetcluster.archive.parquet import write_files
from jetcluster.archive.storage import ArchiveFolder
from jetcluster.pipeline import archive_tasks
from jetcluster.pipeline.archive_tasks import FilePart
from tests.unit.archive.made import batch


def test_many_files_become_few(tmp_path: Path) -> None:
    storage = ArchiveFolder(str(tmp_path))
    small = [
        file
        for at in range(1, 101, 10)
        for file in write_files(storage, "S", [batch(list(range(at, at + 10)), ["a", "b"])])
    ]
    assert len(small) == 10
    texts = list(archive_tasks.merger(str(tmp_path), "S", 1000)(FilePart(tuple(small), 5, 96)))
    (large,) = archive_tasks.files_of(texts)
    assert (large.rows, large.seqs) == (91, (5, 95))
    found = [
        seq for rows in archive_tasks.rows_of(storage, FilePart((large,)), ("seq",)) for seq in rows["seq"].to_pylist()
    ]
    assert sorted(found) == list(range(5, 96))
    assert found != sorted(found), "rows are sorted by subject first"
    assert list(archive_tasks.merger(str(tmp_path), "S", 1000)(FilePart((), 5, 96))) == []


def test_reading_back(tmp_path: Path) -> None:
    (file,) = write_files(ArchiveFolder(str(tmp_path)), "S", [batch([1, 2, 3], ["a"])])
    assert list(archive_tasks.back_reader(str(tmp_path))(file)) == [file.path]
    with pytest.raises(ArchiveLossError):
        list(archive_tasks.back_reader(str(tmp_path / "other"))(file))
