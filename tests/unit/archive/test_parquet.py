"""Files of an archive: what is written is read, and no more of it than is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jetcluster.archive import parquet
from jetcluster.archive.bounds import Bounds
from jetcluster.archive.manifest import COLUMNS, ArchivedFile, ArchiveLossError, totals
from jetcluster.archive.parquet import read_back, read_file, write_files
from jetcluster.archive.storage import ArchiveFolder
from tests.unit.archive.made import NOON, SECOND, batch

EVERY = Bounds()
SUBJECTS = [f"s.{n:02}" for n in range(20)]


@pytest.fixture
def storage(tmp_path: Path) -> ArchiveFolder:
    return ArchiveFolder(str(tmp_path))


def rows(storage: Any, files: list[ArchivedFile], bounds: Bounds = EVERY, columns: Any = COLUMNS) -> list[Any]:
    found = [row for file in files for one in read_file(storage, file, columns, bounds, 50) for row in one.to_pylist()]
    return sorted(found, key=lambda row: row["seq"])


def test_round_trip(storage: ArchiveFolder) -> None:
    given = [batch(list(range(at, at + 100)), SUBJECTS, raw={7: b"\xff.x"}) for at in range(1, 1001, 100)]
    files = list(write_files(storage, "S", given, 250))
    assert [(file.rows, file.seqs) for file in files] == [(200, (at, at + 199)) for at in range(1, 1001, 200)]
    assert rows(storage, files) == pa.Table.from_batches(given).to_pylist()
    for file in files:
        read_back(storage, file)
    made = totals(files)
    assert (made["rows"], made["first_seq"], made["last_seq"]) == (1000, 1, 1000)
    assert (made["first_time"], made["last_time"]) == (NOON + SECOND, NOON + 1000 * SECOND)


def test_a_file_is_of_one_day(storage: ArchiveFolder) -> None:
    files = list(write_files(storage, "S", [batch(list(range(1, 73)), ["a"], step=3600 * SECOND)]))
    assert [file.path.split("/")[1] for file in files] == [f"day=2026-11-{day}" for day in (22, 23, 24, 25)]
    assert [file.rows for file in files] == [11, 24, 24, 13]
    assert [row["seq"] for row in rows(storage, files)] == list(range(1, 73))


def test_large_messages_make_small_files(storage: ArchiveFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "FILE_BYTES", 20_000)
    given = [batch(list(range(at, at + 100)), SUBJECTS) for at in range(1, 1001, 100)]
    files = list(write_files(storage, "S", given))
    assert len(files) > 3
    assert len(rows(storage, files)) == 1000


def test_large_messages_are_read_in_small_batches(storage: ArchiveFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    files = list(write_files(storage, "S", [batch(list(range(1, 301)), SUBJECTS)]))
    whole = rows(storage, files)
    monkeypatch.setattr(parquet, "BATCH_BYTES", 1000)
    batches = [one for file in files for one in read_file(storage, file, COLUMNS, EVERY)]
    assert sorted((row for one in batches for row in one.to_pylist()), key=lambda row: row["seq"]) == whole
    assert max(one.num_rows for one in batches) < 20
    monkeypatch.setattr(parquet, "BATCH_BYTES", 1)
    assert {one.num_rows for one in read_file(storage, files[0], ["seq"], EVERY)} == {1}


def test_no_rows_are_no_file(storage: ArchiveFolder) -> None:
    assert list(write_files(storage, "S", [])) == []


def test_only_row_groups_that_may_hold_a_subject_are_read(
    storage: ArchiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MAX_GROUP_ROWS", 100)
    (file,) = write_files(storage, "S", [batch(list(range(1, 2001)), SUBJECTS)])
    read: list[int] = []
    whole = pq.ParquetFile.read_row_group

    def spy(self: Any, group: int, **more: Any) -> Any:
        read.append(group)
        return whole(self, group, **more)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", spy)
    found = rows(storage, [file], Bounds(500, 1500, subjects=("s.07",)), ("data", "seq"))
    assert [row["seq"] for row in found] == list(range(507, 1500, 20))
    assert list(found[0]) == ["data", "seq"]
    assert read == [7]
    assert rows(storage, [file], Bounds(first_time=NOON + 3000 * SECOND)) == []
    assert read == [7]


def test_a_damaged_file_is_told(storage: ArchiveFolder, tmp_path: Path) -> None:
    (file,) = write_files(storage, "S", [batch(list(range(1, 2001)), SUBJECTS)])
    where = tmp_path / file.path
    whole = where.read_bytes()
    where.write_bytes(whole[:-9])
    with pytest.raises(ArchiveLossError, match="is damaged"):
        rows(storage, [file])
    where.write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
    with pytest.raises(ArchiveLossError, match="is damaged"):
        rows(storage, [file])
    where.write_bytes(whole)
    with pytest.raises(ArchiveLossError, match="has 2000 rows, its manifest says 1999"):
        rows(storage, [file._replace(rows=1999)])
    with pytest.raises(ArchiveLossError, match="reads back 2000 rows that are not"):
        read_back(storage, file._replace(digest=1))
    where.unlink()
    with pytest.raises(FileNotFoundError):
        rows(storage, [file])
    with pytest.raises(ArchiveLossError, match="is not there"):
        read_back(storage, file)
