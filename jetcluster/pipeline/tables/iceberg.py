"""An Iceberg table, by pyiceberg.

How far it goes is a property of the table, which changes in the same commit as the rows; each snapshot's summary
has its range as well. A commit requires that the snapshot is still the one that this process saw, so of two jobs that
add the same sequences the second one is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, ValidationException
from pyiceberg.expressions import In

from jetcluster.pipeline.result import UsageError
from jetcluster.pipeline.tables.columns import plain_field
from jetcluster.pipeline.tables.object_store import catalog_properties
from jetcluster.pipeline.tables.table import LAST, ConflictError, DataFile, Span, TableIdentity

RETRIES: Final = "commit.retry.num-retries"
_SETTINGS: Final = {
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",  # else each commit leaves a file for ever
    "write.metadata.previous-versions-max": "100",
}


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Opens a catalog as pyiceberg does, also by its own configuration file. Raises UsageError."""
    try:
        return load_catalog(name, **catalog_properties(properties))
    except Exception as error:  # any of the catalogs' libraries
        raise UsageError(f"catalog {name}: {error}") from error


def open_table(catalog: Catalog, identifier: str, identity: TableIdentity, columns: Any) -> Iceberg:
    """Opens the table NAMESPACE.TABLE; makes it with `pyarrow.Schema` `columns` if there is none. Raises UsageError,
    DataLoss."""
    namespace, _, table = identifier.rpartition(".")
    if not namespace or not table:
        raise UsageError(f"--iceberg {identifier}: expected NAMESPACE.TABLE")
    if not catalog.table_exists(identifier):
        try:
            catalog.create_namespace_if_not_exists(namespace)
        except NamespaceAlreadyExistsError:
            pass  # by another process, just now
        catalog.create_table_if_not_exists(identifier, columns, properties=identity.properties() | _SETTINGS)
    found = Iceberg(catalog, identifier)
    identity.check(identifier, found.properties)
    return found


class Iceberg:
    """An open table; `Table` says what its methods do."""

    def __init__(self, catalog: Catalog, identifier: str) -> None:
        self.name = identifier
        self._catalog = catalog
        self.reload()

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._table.properties)

    def reload(self) -> None:
        self._table = self._catalog.load_table(self.name)
        self._files = f"{self._table.location().rstrip('/')}/data"
        """URL of the folder for data files, as commits name them."""
        # pyiceberg takes a local URL's path as it stands, %20 included
        self.folder = urlsplit(self._files).path if self._files.startswith("file:") else self._files
        self.end = int(self._table.properties.get(LAST, -1)) + 1
        self.columns = pa.schema([plain_field(field) for field in self._table.schema().as_arrow()])

    def grow(self, columns: Any) -> None:
        with _conflicts(), self._table.update_schema() as update:
            update.union_by_name(columns)
        self.reload()

    def append(self, files: Sequence[DataFile], span: Span) -> None:
        paths = [f"{self._files}/{one.name}" for one in files]
        with self._commit(span) as commit:
            if paths:
                commit.add_files(paths, span.properties(), check_duplicate_files=False)
            else:  # a snapshot without rows: it is the snapshot that keeps two jobs apart
                commit.append(self._table.schema().as_arrow().empty_table(), span.properties())

    def merge(self, rows: Any, gone: Sequence[str], span: Span) -> None:
        keys = {*gone, *rows.column(0).to_pylist()}
        with self._commit(span) as commit:
            if keys and self._table.current_snapshot() is not None:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "Delete operation did not match any records")
                    commit.delete(In(rows.column_names[0], keys), span.properties())
            commit.append(rows, span.properties())

    def keys(self) -> set[str]:
        key = self.columns.names[0]
        return set(self._table.scan(selected_fields=(key,)).to_arrow()[key].to_pylist())

    @contextmanager
    def _commit(self, span: Span) -> Iterator[Any]:
        # pyiceberg would put a refused append on top of the other commit, which may have the same rows.
        self._table.metadata.properties[RETRIES] = "0"
        with _conflicts(), self._table.transaction() as transaction:
            yield transaction
            transaction.set_properties({LAST: str(span.end - 1)})
        self.reload()


@contextmanager
def _conflicts() -> Iterator[None]:
    try:
        yield
    except (CommitFailedException, ValidationException) as error:
        raise ConflictError(f"pyiceberg: {error}") from error
