"""Rows of a job's result as files of a new folder or of an object store, written by Spark's tasks and counted there.

Tasks write by the folder's URL alone, as those of an archive do: Spark's own writers need a jar for an object store,
and say nothing of workers that do not share a folder with the driver.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from jetcluster.archive.storage import ArchiveStorage, open_archive
from jetcluster.pipeline.result import DataLoss, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMATS: Final = ("parquet", "jsonl")
FILE_BYTES: Final = 64 << 20
"""A file is written when its rows have so many bytes before compression. A task holds twice as much."""


def check_new(url: str) -> None:
    """Raises UsageError for a folder that has anything, and what its storage raises."""
    if next(iter(open_archive(url).list("")), None) is not None:
        raise UsageError(f"--out {url} is not empty")


def write(rows: DataFrame, url: str, form: str = "parquet") -> int:
    """Writes the rows to new files below `url`; one without rows if there are none. Returns their number. Raises
    DataLoss when they are not where the driver looks, and what Spark makes of the errors of tasks."""
    storage = open_archive(url)
    if form == "jsonl":
        from pyspark.sql import functions as F

        rows = rows.select(F.to_json(F.struct(*rows.columns)).alias("line"))
    written = rows.mapInArrow(writer(storage.url, form), "path string, size bigint, rows bigint").collect()
    held = {file.path: file.size for file in storage.list("")}
    for stray in held.keys() - {one.path for one in written}:
        storage.delete(stray)  # of tasks that were repeated
    check_held(storage.url, [(one.rows, held.get(one.path) == one.size) for one in written])
    if not written:
        storage.write(*_file(_empty(rows), form))
    return sum(one.rows for one in written)


def remove(url: str) -> None:
    """Removes what `write` has written."""
    storage = open_archive(url)
    for file in list(storage.list("")):
        storage.delete(file.path)


def check_held(url: str, files: Iterable[tuple[int, bool]]) -> None:
    """`files`: the rows of each file that tasks wrote, and whether it is there. Raises DataLoss: a worker that does not
    share the folder writes to one of its own, and Spark says nothing."""
    found = list(files)
    rows, here = sum(rows for rows, _ in found), sum(rows for rows, there in found if there)
    if not all(there for _, there in found):
        raise DataLoss(
            f"tasks wrote {rows} rows and {url} has {here} of them: it has to be a folder that the driver and all "
            "workers share, or an object store"
        )


def writer(url: str, form: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Returns a function for `mapInArrow`, from rows to (path, size, rows) of the files that it has written."""

    def work(batches: Iterable[Any]) -> Iterator[Any]:
        storage, held, size = open_archive(url), [], 0
        for batch in batches:
            held.append(batch)
            size += batch.nbytes
            if size >= FILE_BYTES:
                yield from _written(storage, held, form)
                held, size = [], 0
        yield from _written(storage, held, form)

    return work


def _written(storage: ArchiveStorage, batches: list[Any], form: str) -> Iterator[Any]:
    import pyarrow as pa

    count = sum(batch.num_rows for batch in batches)
    if count:
        path, data = _file(pa.Table.from_batches(batches), form)
        storage.write(path, data)
        yield pa.RecordBatch.from_pydict({"path": [path], "size": [len(data)], "rows": [count]})


def _file(table: Any, form: str) -> tuple[str, bytes]:
    """Returns (path, contents)."""
    import pyarrow.parquet as pq

    out = io.BytesIO()
    if form == "parquet":
        pq.write_table(table, out, compression="zstd")
    else:
        out.writelines(line.encode() + b"\n" for line in table.column("line").to_pylist())
    return f"part-{secrets.token_hex(8)}.{'parquet' if form == 'parquet' else 'json'}", out.getvalue()


def _empty(rows: DataFrame) -> Any:
    from pyspark.sql.pandas.types import to_arrow_schema

    to_arrow: Any = to_arrow_schema
    return to_arrow(rows.schema, timezone="UTC").empty_table()
