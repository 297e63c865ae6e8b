"""Payloads and their rows: what every form of payloads (JSON, Avro, Protobuf) gives a job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from jetcluster.errors import PeerError
from jetcluster.pipeline.result import UsageError
from jetcluster.pipeline.tables.columns import MAX_COLUMNS, name_fault, size_of

_MAX_REASON: Final = 200
_MISFITS: Final = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""Raised by Arrow for a value that its type does not hold."""


class MisfitError(PeerError):
    """A payload does not fit the columns; the text is the reason for the dead letter."""


class Parsed(NamedTuple):
    """The rows and dead letters that the payloads of one batch became."""

    columns: list[Any]
    """One Arrow array per column, of the payloads that fit."""
    good: list[int]
    """Their places in the batch."""
    dead: list[int]
    """The places of the others."""
    why: list[str]
    """The reasons, as many as `dead`."""
    found: Any = None
    """A struct of all the columns, and of the fields that are new; None without any."""


class PayloadRows(Protocol):
    """Makes rows of payloads, one batch after the other."""

    def parse(self, payloads: Sequence[bytes | None]) -> Parsed: ...


class PayloadFormat(Protocol):
    """A form of payloads. It goes to Spark's workers, so that it holds texts and bytes, and no parsers."""

    @property
    def name(self) -> str:
        """As in the table's properties."""

    @property
    def columns(self) -> Any:
        """A struct of the payloads' columns; None: they are inferred. Raises UsageError."""

    def rows(self, columns: Any, reserved: Sequence[str]) -> PayloadRows:
        """Returns a parser for the columns of a table, which may have more of them than the payloads. `reserved`: the
        table's own. Raises UsageError."""


class SchemaRows(ABC):
    """Rows of payloads whose schema is given: a payload has it, or is a dead letter."""

    def __init__(self, columns: Any) -> None:
        self._columns = columns

    @abstractmethod
    def _row(self, payload: bytes) -> Mapping[str, Any]:
        """Returns the fields of a payload, as Arrow takes them. Raises MisfitError."""

    def parse(self, payloads: Sequence[bytes | None]) -> Parsed:
        places: list[int] = []
        rows: list[Mapping[str, Any]] = []
        faults: dict[int, str] = {}
        for place, payload in enumerate(payloads):
            try:
                rows.append(self._row(payload or b""))
                places.append(place)
            except MisfitError as error:
                faults[place] = str(error)[:_MAX_REASON]
        try:
            columns = self._arrays(rows)
        except _MISFITS:  # one of them is out of its type's range: bytes that are no such payload read as any number
            for place, row in zip(places, rows, strict=True):
                try:
                    self._arrays([row])
                except _MISFITS as error:
                    faults[place] = f"a value is not one of its type: {error}"[:_MAX_REASON]
            rows = [row for place, row in zip(places, rows, strict=True) if place not in faults]
            places = [place for place in places if place not in faults]
            columns = self._arrays(rows)
        dead = sorted(faults)
        return Parsed(columns, places, dead, [faults[place] for place in dead])

    def _arrays(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [pa.array([row.get(field.name) for row in rows], field.type) for field in self._columns]


def check_columns(columns: Any, reserved: Sequence[str]) -> None:
    """Raises UsageError unless the fields of struct `columns`, which a schema names, can be a table's columns.
    `reserved`: the table's own."""
    if not columns.num_fields:
        raise UsageError("the schema has no fields that can be columns")
    check_size(columns)
    _check_names(columns, reserved, "")


def check_size(columns: Any) -> None:
    """Raises UsageError for a struct of more fields than a table may have. Whoever makes one of a schema looks after
    each struct in it: types that have each other many times would make more fields than there is memory."""
    if size_of(columns) > MAX_COLUMNS:
        raise UsageError(
            f"the schema has more than {MAX_COLUMNS} fields, those of its records counted wherever they are"
        )


def _check_names(kind: Any, reserved: Sequence[str], path: str) -> None:
    if pa.types.is_list(kind):
        _check_names(kind.value_type, (), f"{path}[]")
    elif pa.types.is_map(kind):
        _check_names(kind.item_type, (), f"{path}[]")
    elif pa.types.is_struct(kind):
        taken = {name.lower() for name in reserved}
        for field in kind:
            where = f"{path}.{field.name}".lstrip(".")
            if fault := name_fault(field.name):
                raise UsageError(f"{where} cannot be a column: {fault}")
            if field.name.lower() in taken:
                raise UsageError(f"{where} cannot be a column: there is one of that name, perhaps in other letters")
            taken.add(field.name.lower())
            _check_names(field.type, (), where)
