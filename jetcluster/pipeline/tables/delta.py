"""A Delta Lake table, by deltalake.

How far it goes is the version of an application's transaction in its log (`txn`), which is in the same commit as the
rows. Two jobs that add the same sequences have the same application, and the log refuses the second one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from jetcluster.pipeline.result import UsageError
from jetcluster.pipeline.tables.columns import plain_field
from jetcluster.pipeline.tables.object_store import delta_options
from jetcluster.pipeline.tables.table import ConflictError, DataFile, Span, TableIdentity


def open_table(url: str, identity: TableIdentity, columns: Any) -> Delta:
    """Opens the table at a path or URL; makes it with `pyarrow.Schema` `columns` if there is none. Raises UsageError,
    DataLoss."""
    try:
        return _opened(url, identity, columns, delta_options(url))
    except OSError as error:
        if "://" not in url:
            raise
        raise UsageError(f"{url}: {error}") from error  # no such bucket, no key, no answer


def _opened(url: str, identity: TableIdentity, columns: Any, options: dict[str, str] | None) -> Delta:
    if not DeltaTable.is_deltatable(url, options):
        DeltaTable.create(
            url, columns, mode="ignore", configuration=identity.properties(), raise_if_key_not_exists=False,
            storage_options=options,
        )  # fmt: skip
    table = DeltaTable(url, storage_options=options)
    identity.check(url, table.metadata().configuration)
    return Delta(url, table, identity)


class Delta:
    """An open table; `Table` says what its methods do."""

    def __init__(self, url: str, table: DeltaTable, identity: TableIdentity) -> None:
        self.name = self.folder = url
        self._table = table
        self._application = f"jetcluster/{identity.stream}/{identity.created}"
        self._look()

    def _look(self) -> None:
        last = self._table.transaction_version(self._application)
        self.end = 0 if last is None else last + 1
        self.columns = pa.schema([plain_field(field) for field in pa.schema(self._table.schema().to_arrow())])

    def reload(self) -> None:
        self._table.update_incremental()
        self._look()

    def grow(self, columns: Any) -> None:
        with _conflicts():  # a write of no rows; the log has no other way to add a field to a struct
            write_deltalake(self._table, columns.empty_table(), mode="append", schema_mode="merge")
        self.reload()

    def append(self, files: Sequence[DataFile], span: Span) -> None:
        now = int(time.time() * 1000)
        # Without bounds of columns: where a file has some, deltalake's readers take a column without any as one that no
        # filter matches (1.6.6), and find no rows. The files' own bounds narrow the reads of their row groups.
        stats = [json.dumps({"numRecords": one.rows}) for one in files]
        actions: list[Any] = [
            AddAction(one.name, one.size, {}, now, True, found) for one, found in zip(files, stats, strict=True)
        ]
        with _conflicts():
            self._table.create_write_transaction(
                actions, "append", self._table.schema(), commit_properties=self._properties(span)
            )
        self.reload()

    def merge(self, rows: Any, gone: Sequence[str], span: Span) -> None:
        key, flag = rows.column_names[0], _free_name("_gone", rows.column_names)
        removed = pa.table({key: pa.array(gone, pa.string())})
        flags = [pa.array([False] * rows.num_rows + [True] * removed.num_rows)]
        source = pa.concat_tables([rows, removed], promote_options="default").append_column(flag, flags)
        values = {name: f"source.`{name}`" for name in rows.column_names}
        if source.num_rows:
            with _conflicts():
                self._table.merge(
                    source, f"target.`{key}` = source.`{key}`", source_alias="source", target_alias="target",
                    commit_properties=self._properties(span),
                ).when_matched_delete(f"source.{flag}").when_matched_update(values).when_not_matched_insert(
                    values, f"NOT source.{flag}"
                ).execute()  # fmt: skip
            self.reload()
        if self.end < span.end:  # a merge that changes nothing commits nothing, so also not how far it goes
            self.append([], span)

    def keys(self) -> set[str]:
        return set(self._table.to_pyarrow_table(columns=self.columns.names[:1]).column(0).to_pylist())

    def _properties(self, span: Span) -> CommitProperties:
        # Without retries: deltalake would look for conflicts again, but the caller looks how far the table goes, too.
        transaction = Transaction(self._application, span.end - 1)
        return CommitProperties(span.properties(), max_commit_retries=0, app_transactions=[transaction])


def _free_name(name: str, taken: Sequence[str]) -> str:
    """Returns the name, longer by underscores if a payload has such a field."""
    known = {one.lower() for one in taken}
    while name in known:
        name += "_"
    return name


@contextmanager
def _conflicts() -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        raise ConflictError(f"deltalake: {error}") from error
