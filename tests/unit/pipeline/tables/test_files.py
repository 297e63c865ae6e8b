"""Data files as tasks write them, without Spark."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jetcluster.pipeline.tables import files
from jetcluster.pipeline.tables.files import DEAD, RAW, TablePart, WriteTask, results_of, table_schema
from jetcluster.pipeline.tables.json_rows import JsonFormat
from jetcluster.pipeline.tables.table import DataFile, Span

NOON = dt.datetime(2026, 11, 29, 12, 0, 0, 1500, tzinfo=dt.UTC)


class Row:
    """A row of Spark's result."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.__dict__.update(row)


def batch(first: int, *payloads: bytes) -> Any:
    rows = [
        {"seq": first + at, "subject": "a", "time": NOON, "headers": None, "data": data}
        for at, data in enumerate(payloads)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RAW)


def done(task: WriteTask, *batches: Any) -> tuple[list[DataFile], Any]:
    return results_of([Row(row) for one in task(batches) for row in one.to_pylist()])


def test_messages_as_they_are_from_where_each_table_ends(tmp_path: Path) -> None:
    parts = (
        TablePart(f"{tmp_path}/a", 0, False),
        TablePart(f"{tmp_path}/b", 3, False),
        TablePart(f"{tmp_path}/c", 9, False),
    )
    written, found = done(WriteTask(Span(1, 5), parts), batch(1, b"1", b"\xff"), batch(3, b"3", b""))
    assert found is None
    assert [(one.table, one.rows) for one in written] == [(0, 4), (1, 2)]
    assert pq.read_table(f"{tmp_path}/a/{written[0].name}").schema.equals(RAW)
    assert pq.read_table(f"{tmp_path}/a/{written[0].name}")["data"].to_pylist() == [b"1", b"\xff", b"3", b""]
    assert pq.read_table(f"{tmp_path}/b/{written[1].name}")["seq"].to_pylist() == [3, 4]
    assert written[0].size == (tmp_path / "a" / written[0].name).stat().st_size
    assert not (tmp_path / "c").exists()


def test_rows_and_dead_letters(tmp_path: Path) -> None:
    columns = pa.struct([("x", pa.int64())])
    parts = (TablePart(str(tmp_path / "dead"), 0, True), TablePart(str(tmp_path / "rows"), 0, False))
    task = WriteTask(Span(1, 4), parts, columns, JsonFormat())
    written, found = done(task, batch(1, b'{"x": 1}', b"no", b'{"x": 2, "y": true}'))
    assert found == pa.struct([("x", pa.int64()), ("y", pa.bool_())])
    dead, rows = (
        pq.read_table(tmp_path / name / one.name) for name, one in zip(("dead", "rows"), written, strict=True)
    )
    assert (dead.schema.names, dead["seq"].to_pylist()) == (DEAD.names, [2, 3])
    assert (rows.schema.names, rows["x"].to_pylist()) == (table_schema(columns).names, [1])


def test_files_that_no_commit_names_are_removed(tmp_path: Path) -> None:
    (written,), _ = done(WriteTask(Span(1, 2), (TablePart(str(tmp_path), 0, False),)), batch(1, b"1"))
    files.remove(f"file://{tmp_path}", [written.name])
    assert list(tmp_path.iterdir()) == []


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "GROUP_ROWS", 2)
    (written,), _ = done(
        WriteTask(Span(1, 6), (TablePart(str(tmp_path), 0, False),)), *(batch(n, b"x") for n in range(1, 6))
    )
    assert pq.ParquetFile(tmp_path / written.name).metadata.num_row_groups == 3


def test_rows_of_the_driver(tmp_path: Path) -> None:
    assert files.write_rows(str(tmp_path), Span(1, 2), RAW.empty_table()) == []
    (written,) = files.write_rows(str(tmp_path), Span(1, 2), pa.Table.from_batches([batch(1, b"x")]))
    assert (written.table, written.rows) == (0, 1)
