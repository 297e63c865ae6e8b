"""A table as jobs use it, whatever its format: how far it goes, its columns, and commits that say how far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from jetcluster.errors import PassingError
from jetcluster.pipeline.result import DataLoss, UsageError

PREFIX: Final = "jetcluster."
STREAM: Final = f"{PREFIX}stream"
CREATED: Final = f"{PREFIX}created"
FIRST: Final = f"{PREFIX}first-seq"
LAST: Final = f"{PREFIX}last-seq"
_IDENTITY: Final = (STREAM, CREATED, f"{PREFIX}source", f"{PREFIX}format", f"{PREFIX}subjects")


class ConflictError(PassingError):
    """Another commit came between. The table is as it was before, or it has the rows: open it again and look."""


class TableIdentity(NamedTuple):
    """The origin of a table's rows. All of it is in the table's properties from the beginning, and never changes: rows
    of something else would stand among its own, or be left out below its end, and nobody could tell."""

    stream: str
    created: str
    """RFC 3339 time of the stream's creation: one that was deleted and made again has other messages under the same
    sequences."""
    source: str
    """`stream`: a row per message; `bucket`: a row per key."""
    format: str
    """The form of the payloads: `raw`, `json`, or `dead-letters`."""
    subjects: str
    """The filters, sorted, by commas."""

    def properties(self) -> dict[str, str]:
        return dict(zip(_IDENTITY, self, strict=True))

    def check(self, name: str, found: Mapping[str, str | None]) -> None:
        """Checks the properties of an existing table. Raises UsageError for a table of something else, DataLoss for
        one of a stream that was deleted."""
        if found.get(STREAM) != self.stream:
            held = f"follows {found[STREAM]}" if found.get(STREAM) else "was not made by this job"
            raise UsageError(f"{name} {held}: one table, one stream")
        if found.get(CREATED) != self.created:
            raise DataLoss(
                f"{name} follows {self.stream} as it was created at {found.get(CREATED)}; the one on the server was "
                f"created at {self.created}, and its sequences mean other messages: choose another table"
            )
        for key, wanted in self.properties().items():
            kept = found.get(key) or "unknown"
            if kept != wanted:
                what = key.removeprefix(PREFIX)
                raise UsageError(f"{name} was made with {what} {kept}, and this job has {wanted}: choose another table")


class Span(NamedTuple):
    """The sequences [start, end) that a commit adds to a table."""

    start: int
    end: int

    def properties(self) -> dict[str, str]:
        """Returns first and last sequence, as the commit shows them."""
        return {FIRST: str(self.start), LAST: str(self.end - 1)}


class DataFile(NamedTuple):
    """A Parquet file that a task wrote and no commit has named yet."""

    table: int
    """The place of its table in the job's list."""
    name: str
    """Its name in the table's folder for data."""
    rows: int
    size: int


class Table(Protocol):
    """A table that exists, as its last commit left it. `open_table` of a format makes it where it does not exist."""

    name: str
    """Its name, as users call it."""
    folder: str
    """URL of the folder for data files."""
    end: int
    """The next sequence that the table lacks; 0 before the first commit with rows of a stream."""
    columns: Any
    """`pyarrow.Schema`, in plain types."""

    def reload(self) -> None:
        """Reads the table's newest state."""

    def grow(self, columns: Any) -> None:
        """Adds what `pyarrow.Schema` `columns` has more than the table. Raises ConflictError."""

    def append(self, files: Sequence[DataFile], span: Span) -> None:
        """Adds files, and moves `end` to the end of `span`, in one commit. Raises ConflictError."""

    def merge(self, rows: Any, gone: Sequence[str], span: Span) -> None:
        """Replaces or adds the rows of a `pyarrow.Table` by their first column, removes the rows with the keys `gone`
        there, and moves `end`, in one commit. Raises ConflictError."""

    def keys(self) -> set[str]:
        """Returns all values of the first column."""
