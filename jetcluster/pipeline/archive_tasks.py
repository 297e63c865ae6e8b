"""Work of Spark's tasks on an archive: they write, read back and read its files themselves, by the archive's URL.

A task gets its number from Spark and finds its part in a list that comes with the function. So neither a data
source of Spark's nor a jar for an object store is between a stream and its Parquet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from jetcluster.archive.bounds import MAX_SEQ, Bounds
from jetcluster.archive.manifest import COLUMNS, ArchivedFile
from jetcluster.archive.storage import ArchiveStorage, open_archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jetcluster.arrow.options import SourceOptions
    from jetcluster.arrow.planner import Task

P = TypeVar("P")


class FilePart(NamedTuple):
    """Files of an archive, of which one task reads the rows of the sequences [low, high)."""

    files: tuple[ArchivedFile, ...]
    low: int = 0
    high: int = MAX_SEQ


def run_tasks(session: SparkSession, parts: Sequence[P], work: Callable[[P], Iterator[str]]) -> list[str]:
    """Returns what `work` yields for all parts, each in a task of its own. Raises what Spark makes of its errors."""
    import pyarrow as pa

    held = list(parts)

    def rows(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for at in batch.column(0).to_pylist():
                for text in work(held[at]):
                    yield pa.RecordBatch.from_arrays([pa.array([text], pa.string())], ["text"])

    if not held:
        return []
    numbers = session.range(0, len(held), 1, len(held))
    return [row.text for row in numbers.mapInArrow(rows, "text string").collect()]


def writer(options: SourceOptions, url: str, rows: int) -> Callable[[Task], Iterator[str]]:
    """Returns the work that archives one range of a stream and yields its files."""

    def work(task: Task) -> Iterator[str]:
        from jetcluster.archive.parquet import write_files
        from jetcluster.arrow.read_task import read_task

        batches = read_task(task, options, COLUMNS)
        for file in write_files(open_archive(url), task.target.stream, batches, rows):
            yield json.dumps(file)

    return work


def back_reader(url: str) -> Callable[[ArchivedFile], Iterator[str]]:
    """Returns the work that reads a file back and compares it with its entry."""

    def work(file: ArchivedFile) -> Iterator[str]:
        from jetcluster.archive.parquet import read_back

        read_back(open_archive(url), file)
        yield file.path

    return work


def merger(url: str, stream: str, rows: int) -> Callable[[FilePart], Iterator[str]]:
    """Returns the work that writes the rows of many files to few."""

    def work(part: FilePart) -> Iterator[str]:
        import pyarrow as pa

        from jetcluster.archive.parquet import write_files
        from jetcluster.arrow.schema import arrow_schema

        storage = open_archive(url)
        batches = list(rows_of(storage, part, COLUMNS))
        if batches:
            table = pa.Table.from_batches([batch.cast(arrow_schema(COLUMNS)) for batch in batches])
            ordered = table.sort_by("seq").to_batches(max_chunksize=10_000)
            for file in write_files(storage, stream, ordered, rows):
                yield json.dumps(file)

    return work


def rows_of(storage: ArchiveStorage, part: FilePart, columns: Sequence[str]) -> Iterator[Any]:
    """Yields the rows of a part. Raises what `read_file` raises."""
    from jetcluster.archive.parquet import read_file

    for file in part.files:
        yield from read_file(storage, file, columns, Bounds(part.low, part.high))


def frame(session: SparkSession, url: str, parts: Sequence[FilePart], columns: Sequence[str]) -> DataFrame:
    """Returns the rows of the parts with these columns of an archive, one task for each part."""
    from jetcluster.arrow.schema import arrow_schema
    from jetcluster.spark.columns import ddl

    held, names = list(parts), list(columns)

    def rows(batches: Iterable[Any]) -> Iterator[Any]:
        storage = open_archive(url)
        for batch in batches:
            for at in batch.column(0).to_pylist():
                for found in rows_of(storage, held[at], names):
                    yield found.cast(arrow_schema(names))

    return session.range(0, len(held), 1, max(len(held), 1)).mapInArrow(rows, ddl(names))


def files_of(texts: Iterable[str]) -> list[ArchivedFile]:
    """Returns the files that tasks have written, in order of their sequences."""
    return sorted((ArchivedFile.from_json(json.loads(text)) for text in texts), key=lambda one: (one.seqs, one.path))
