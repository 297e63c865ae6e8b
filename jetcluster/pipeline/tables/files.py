"""Data files of tables, written by Spark's tasks: rows of a stream to Parquet, one file per task and table.

A file that a task leaves behind, because it or the job died, is named by no commit: readers never see it, and the
formats' own clean-up (vacuum, expiry of orphans) removes it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from jetcluster.pipeline.tables.columns import merged
from jetcluster.pipeline.tables.object_store import file_system
from jetcluster.pipeline.tables.payload import PayloadFormat, PayloadRows
from jetcluster.pipeline.tables.table import DataFile, Span

TEXTS: Final = pa.list_(pa.field("element", pa.string()))
RAW: Final = pa.schema(
    [
        pa.field("seq", pa.int64()),
        pa.field("subject", pa.string()),
        pa.field("time", pa.timestamp("us", tz="UTC")),
        pa.field("headers", pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", TEXTS))),
        pa.field("data", pa.binary()),
    ]
)
"""The columns of a table of messages as they are, and of the source's rows."""
DEAD: Final = RAW.append(pa.field("why", pa.string()))
"""The columns of a table of dead letters."""
OWN: Final = pa.schema([RAW.field(name).with_name(f"_{name}") for name in ("seq", "subject", "time")])
"""The columns that a table of parsed payloads has before those of the payloads."""
RESULT: Final = "place int, name string, rows bigint, size bigint, found binary"
"""Spark's type of what a task returns: a row per file, and one with `place` -1 for new fields."""
_RESULT: Final = pa.schema(
    [
        ("place", pa.int32()),
        ("name", pa.string()),
        ("rows", pa.int64()),
        ("size", pa.int64()),
        ("found", pa.binary()),
    ]
)
GROUP_ROWS: Final = 100_000
GROUP_BYTES: Final = 64 << 20
"""A row group is written when it has so many rows or bytes. A task holds one per table."""


@dataclass(frozen=True)
class TablePart:
    """The part of a batch that a task writes for one table."""

    folder: str
    start: int
    """The table has all before this sequence."""
    dead: bool
    """It takes the messages that do not parse, instead of those that do."""


@dataclass(frozen=True)
class WriteTask:
    """Writes the files of one task; runs in Spark's workers as the function of `mapInArrow`."""

    span: Span
    parts: tuple[TablePart, ...]
    columns: Any = None
    """A struct of the payloads' columns; None: payloads are kept as they are."""
    format: PayloadFormat | None = None
    """Their form, if they are parsed."""

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        parser = None if self.format is None else self.format.rows(self.columns, OWN.names)
        good_schema = RAW if self.columns is None else table_schema(self.columns)
        files = [_File(part.folder, self.span, DEAD if part.dead else good_schema) for part in self.parts]
        found = pa.struct([])
        for batch in batches:
            rows = pa.table(dict(zip(RAW.names, batch.select(RAW.names).columns, strict=True))).cast(RAW)
            dead = None
            if parser is not None:
                rows, dead, new = split(rows, parser, good_schema)
                found = merged(found, new) if new is not None else found
            for part, file in zip(self.parts, files, strict=True):
                file.add(_from(dead if part.dead else rows, part.start))
        done = [one for place, file in enumerate(files) if (one := file.close(place))]
        yield _result(done, found)


def table_schema(columns: Any) -> Any:
    """Returns the `pyarrow.Schema` of a table of payloads parsed to struct `columns`. No column of a table is required,
    as one that is declared later has no values before."""
    return pa.schema([*OWN, *(field.with_nullable(True) for field in columns)])


def split(rows: Any, parser: PayloadRows, schema: Any) -> tuple[Any, Any, Any]:
    """Returns (rows of `schema`, dead letters, struct with new fields or None) for rows of RAW."""
    parsed = parser.parse(rows["data"].to_pylist())
    good = rows.take(pa.array(parsed.good, pa.int64()))
    own = [good[name[1:]] for name in OWN.names]
    dead = rows.take(pa.array(parsed.dead, pa.int64())).append_column(
        DEAD.field("why"), pa.array(parsed.why, pa.string())
    )
    return pa.table([*own, *parsed.columns], schema=schema), dead, parsed.found


def results_of(rows: Sequence[Any]) -> tuple[list[DataFile], Any]:
    """Returns (files, struct with new fields or None) of the rows of `RESULT`."""
    files = [DataFile(row.place, row.name, row.rows, row.size) for row in rows if row.place >= 0]
    found = pa.struct([])
    for row in rows:
        if row.found is not None:
            found = merged(found, pa.struct(list(pa.ipc.read_schema(pa.py_buffer(bytes(row.found))))))
    return files, found if found.num_fields else None


def write_rows(folder: str, span: Span, rows: Any) -> list[DataFile]:
    """Writes the rows to a file of the driver's; none if there are none."""
    file = _File(folder, span, rows.schema)
    file.add(rows)
    done = file.close(0)
    return [] if done is None else [done]


def remove(folder: str, names: Iterable[str]) -> None:
    """Removes files that no commit names."""
    system, path = file_system(folder)
    for name in names:
        system.delete_file(f"{path}/{name}")


def _from(rows: Any, start: int) -> Any:
    """Returns the rows from a sequence on; they are sorted by it, as the source's are."""
    seqs = rows.column(0)
    return rows if not len(seqs) or seqs[0].as_py() >= start else rows.filter(pa.compute.greater_equal(seqs, start))


def _result(files: Sequence[DataFile], found: Any) -> Any:
    rows: list[dict[str, Any]] = [one._asdict() | {"place": one.table, "found": None} for one in files]
    if found.num_fields:
        rows.append({"place": -1, "found": pa.schema(list(found)).serialize().to_pybytes()})
    return pa.RecordBatch.from_pylist(rows, schema=_RESULT)


@dataclass
class _File:
    """One Parquet file, which exists once it has a row."""

    folder: str
    span: Span
    schema: Any
    _waiting: list[Any] = field(default_factory=list)
    _written: list[Any] = field(default_factory=list)
    _writer: Any = None
    _path: str = ""

    def add(self, rows: Any) -> None:
        if rows.num_rows:
            self._waiting.append(rows)
            if (
                sum(one.num_rows for one in self._waiting) >= GROUP_ROWS
                or sum(one.nbytes for one in self._waiting) >= GROUP_BYTES
            ):
                self._write()

    def _write(self) -> None:
        if self._writer is None:
            system, path = file_system(self.folder)
            if isinstance(system, fs.LocalFileSystem):  # an object store has no folders
                system.create_dir(path, recursive=True)
            self._path = f"{path}/{self.span.start}-{self.span.end - 1}-{uuid.uuid4().hex}.parquet"
            self._writer = pq.ParquetWriter(
                self._path, self.schema, filesystem=system, compression="zstd", metadata_collector=self._written
            )
        self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting.clear()

    def close(self, place: int) -> DataFile | None:
        if self._waiting:
            self._write()
        if self._writer is None:
            return None
        self._writer.close()
        system, _ = file_system(self.folder)
        if isinstance(system, fs.LocalFileSystem):
            _sync(self._path)
            _sync(self._path.rpartition("/")[0])
        metadata = self._written[0]
        name = self._path.rpartition("/")[2]
        size = system.get_file_info(self._path).size
        return DataFile(place, name, metadata.num_rows, size)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
