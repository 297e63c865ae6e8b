"""The tables that one job keeps in step with one stream, and the way from a batch to their commits.

Each table says by itself how far it goes, and takes from a batch only what it lacks. So a crash between two commits
leaves tables that differ by a batch, and the next run brings the one behind up; no table gets a row twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from jetcluster import faults
from jetcluster.pipeline.result import DataLoss, UsageError
from jetcluster.pipeline.row_files import check_held
from jetcluster.pipeline.tables.columns import grown
from jetcluster.pipeline.tables.files import TablePart
from jetcluster.pipeline.tables.object_store import file_system
from jetcluster.pipeline.tables.table import ConflictError, DataFile, Span, Table

MAX_ATTEMPTS: Final = 5
"""Attempts to commit a batch while others commit to the same table, such as a compaction."""


class Landing(NamedTuple):
    """The open tables: those of the rows, and, if payloads are parsed, one of dead letters beside each."""

    rows: list[Table]
    dead: list[Table]

    @property
    def tables(self) -> list[Table]:
        """All tables; those of dead letters come first, so that no row is missed while its reason is not there."""
        return [*self.dead, *self.rows]

    def parts(self) -> tuple[TablePart, ...]:
        """Returns what tasks write, by table."""
        return tuple(
            TablePart(table.folder, table.end, place < len(self.dead)) for place, table in enumerate(self.tables)
        )

    def begin(self, first: int) -> int:
        """Returns the sequence to go on at; `first`: the stream's first one, for tables without any rows."""
        return min(table.end or first for table in self.tables)

    def columns(self, own: Any, declared: Any = None) -> Any:
        """Returns a struct of the columns of payloads: those of the tables without `own`, and the declared ones. Raises
        UsageError when a table has a column in another type."""
        fields = [declared or pa.struct([])]
        fields += [pa.struct([one for one in table.columns if one.name not in own.names]) for table in self.rows]
        wider = pa.struct([])
        for one in reversed(fields):
            wider = grown(wider, one, own.names)
        for one in fields:
            _check_types(wider, one)
        return wider

    def grow(self, schema: Any) -> None:
        """Gives the tables of rows the columns of `schema` that they lack. A crash after one of them is mended by the
        next run, which does the same."""
        for table in self.rows:
            for attempt in range(1, MAX_ATTEMPTS + 1):
                if set(_paths(pa.struct(list(schema)))) <= set(_paths(pa.struct(list(table.columns)))):
                    break
                try:
                    table.grow(schema)
                except ConflictError:
                    if attempt == MAX_ATTEMPTS:
                        raise
                    table.reload()

    def check_written(self, files: Sequence[DataFile]) -> None:
        """Raises DataLoss unless the files that tasks wrote are where the tables are: a commit would name files that
        nobody has."""
        for place, table in enumerate(self.tables):
            of_table = [one for one in files if one.table == place]
            system, path = file_system(table.folder)
            infos = system.get_file_info([f"{path}/{one.name}" for one in of_table])
            check_held(
                table.folder, [(one.rows, info.size == one.size) for one, info in zip(of_table, infos, strict=True)]
            )

    def commit(self, span: Span, change: Callable[[int, Table, Span], None]) -> None:
        """Calls `change(place, table, what the table lacks of span)` for each table that lacks some. Raises DataLoss
        when another job writes to one of them, and ConflictError when others do not let it."""
        for place, table in enumerate(self.tables):
            before = table.end
            for attempt in range(1, MAX_ATTEMPTS + 1):
                if table.end >= span.end:
                    break  # from before a crash, or the commit was refused and is there all the same
                if table.end != before:
                    raise DataLoss(f"{table.name} went on to {table.end - 1} meanwhile: another job writes to it")
                try:
                    change(place, table, Span(max(before, span.start), span.end))
                except ConflictError:
                    if attempt == MAX_ATTEMPTS:
                        raise
                    table.reload()
            faults.point("lakehouse.committed")


def dead_letters_of(name: str) -> str:
    """Returns the name of the table of dead letters beside a table."""
    return f"{name.rstrip('/')}_dead_letters"


def check_own(table: Table, own: Any) -> None:
    """Raises UsageError unless the table begins with the columns of `pyarrow.Schema` `own`."""
    if list(table.columns)[: len(own)] != list(own):
        raise UsageError(
            f"{table.name} is of another format: this job writes {', '.join(own.names)}, and the table has "
            f"{', '.join(table.columns.names)}"
        )


def _paths(kind: Any, path: str = "") -> list[str]:
    if pa.types.is_struct(kind):
        return [one for field in kind for one in (f"{path}.{field.name}", *_paths(field.type, f"{path}.{field.name}"))]
    return _paths(kind.value_type, f"{path}[]") if pa.types.is_list(kind) else []


def _check_types(wider: Any, one: Any) -> None:
    kinds = {field.name: field.type for field in wider}
    for field in one:
        kind = kinds.get(field.name)
        if kind is None:
            raise UsageError(f"column {field.name} cannot be one, or is there already in other letters")
        if not _holds(kind, field.type):
            raise UsageError(f"column {field.name} is {kind} in one table and {field.type} elsewhere")


def _holds(kind: Any, other: Any) -> bool:
    """Returns whether a type is another one, with more fields at most."""
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        kinds = {field.name: field.type for field in kind}
        return all(field.name in kinds and _holds(kinds[field.name], field.type) for field in other)
    if pa.types.is_list(kind) and pa.types.is_list(other):
        return _holds(kind.value_type, other.value_type)
    return bool(kind == other)
