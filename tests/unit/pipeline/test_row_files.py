"""Rows of a result as files: what tasks write, what repeated ones leave, and files that are not where they belong."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from jetcluster.pipeline import row_files
from jetcluster.pipeline.result import DataLoss, UsageError

Work = Callable[[Iterable[Any]], Iterator[Any]]


class FakeFrame:
    """Rows of a frame in tasks. `after` is called when all of them have written."""

    def __init__(self, tasks: list[list[Any]], after: Callable[[], None] = lambda: None) -> None:
        self.schema = StructType([StructField("key", StringType()), StructField("revision", LongType())])
        self._tasks, self._after, self._work = tasks, after, None

    def mapInArrow(self, work: Work, schema: str) -> FakeFrame:
        self._work: Work | None = work
        return self

    def collect(self) -> list[Any]:
        assert self._work is not None
        found = [SimpleNamespace(**row) for task in self._tasks for one in self._work(task) for row in one.to_pylist()]
        self._after()
        return found


def batch(first: int, count: int) -> Any:
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pydict({"key": [f"k{n}" for n in numbers], "revision": list(numbers)})


def test_each_task_writes_files_and_what_others_have_left_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "FILE_BYTES", batch(0, 10).nbytes * 2)
    out = tmp_path / "new" / "out"
    frame: Any = FakeFrame(
        [[batch(0, 10), batch(10, 10), batch(20, 5)], [], [batch(25, 3)]],
        lambda: list(row_files.writer(str(out), "parquet")([batch(0, 10)])).clear(),  # a task that came to no end
    )
    assert row_files.write(frame, str(out)) == 28
    assert len(list(out.iterdir())) == 3
    assert sorted(pq.read_table(out)["revision"].to_pylist()) == list(range(28))
    row_files.remove(str(out))
    row_files.check_new(str(out))


def test_no_rows_are_a_table_all_the_same(tmp_path: Path) -> None:
    frame: Any = FakeFrame([[], []])
    assert row_files.write(frame, str(tmp_path / "out")) == 0
    table = pq.read_table(tmp_path / "out")
    assert (table.num_rows, table.column_names) == (0, ["key", "revision"])


def test_lines(tmp_path: Path) -> None:
    lines = pa.RecordBatch.from_pydict({"line": ['{"a":1}', '{"b":"ü"}']})
    (done,) = row_files.writer(str(tmp_path), "jsonl")([lines])
    (path,) = tmp_path.glob("part-*.json")
    assert path.read_text(encoding="utf-8") == '{"a":1}\n{"b":"ü"}\n'
    assert done.to_pylist() == [{"path": path.name, "size": path.stat().st_size, "rows": 2}]


def test_a_folder_that_workers_do_not_share(tmp_path: Path) -> None:
    out = tmp_path / "out"
    frame: Any = FakeFrame([[batch(0, 4)]], lambda: shutil.rmtree(out))
    with pytest.raises(DataLoss, match=r"tasks wrote 4 rows and .*/out has 0 of them: it has to be a folder that"):
        row_files.write(frame, str(out))


def test_what_has_anything_is_not_new(tmp_path: Path) -> None:
    row_files.check_new(str(tmp_path / "none"))
    row_files.check_new(str(tmp_path))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "x").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        row_files.check_new(str(tmp_path))
