"""Payloads and their rows: what every form of payloads (JSON, Avro, Protobuf) gives a job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from jetcluster.errors import PeerError
from jetcluster.pipeline.result import UsageError
from jetcluster.pipeline.tables.columns import MAX_COLUMNS, name_fault, size_of

MAX_VALUES: Final = 1_000_000
"""Values that one payload may become, those that are absent in the objects of its lists counted: two bytes may be an
object of a thousand columns. And so many are held before they become columns of Arrow."""
_MAX_REASON: Final = 200
_MISFITS: Final = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""Raised by Arrow for a value that its type does not hold."""


class MisfitError(PeerError):
    """A payload does not fit the columns; the text is the reason for the dead letter."""


class ValueRoom:
    """The values that a payload becomes, counted before they are made."""

    def __init__(self) -> None:
        self.used = 0

    def take(self, count: int) -> None:
        """Raises MisfitError beyond MAX_VALUES."""
        self.used += count
        if self.used > MAX_VALUES:
            raise MisfitError(f"it would be more than {MAX_VALUES:,} values")


class Chunks:
    """Rows of parsed payloads, which become columns whenever they are many values: as objects of Python these take
    ten times the memory."""

    def __init__(self, columns: Any) -> None:
        """`columns`: a struct."""
        self.places: list[int] = []
        """Places of the payloads whose rows are columns now."""
        self.faults: dict[int, str] = {}
        """Place -> why a payload whose row was added does not fit after all."""
        self._columns = columns
        self._waiting: list[tuple[int, Mapping[str, Any]]] = []
        self._values = 0
        self._made: list[list[Any]] = []

    def add(self, place: int, row: Mapping[str, Any], values: int) -> None:
        self._waiting.append((place, row))
        self._values += values
        if self._values > MAX_VALUES:
            self._make()

    def arrays(self) -> list[Any]:
        """Returns one Arrow array per column, of all rows that were added and fit."""
        self._make()
        parts = list(zip(*self._made, strict=True))
        return [one[0] if len(one) == 1 else pa.concat_arrays(one) for one in parts]

    def _make(self) -> None:
        try:
            made = self._arrays(self._waiting)
        except _MISFITS:  # one of them is out of its type's range: bytes that are no such payload read as any number
            fit = []
            for one in self._waiting:
                try:
                    self._arrays([one])
                    fit.append(one)
                except _MISFITS as error:
                    self.faults[one[0]] = f"a value is not one of its type: {error}"[:_MAX_REASON]
            self._waiting, made = fit, self._arrays(fit)
        self.places += [place for place, _ in self._waiting]
        self._made.append(made)
        self._waiting, self._values = [], 0

    def _arrays(self, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> list[Any]:
        return [pa.array([row.get(field.name) for _, row in rows], field.type) for field in self._columns]


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
    def columns(self) -> Any:
        """A struct of the payloads' columns; None: they are inferred. Raises UsageError."""

    def rows(self, columns: Any, reserved: Sequence[str]) -> PayloadRows:
        """Returns a parser for the columns of a table, which may have more of them than the payloads. `reserved`: the
        table's own. Raises UsageError."""


class SchemaRows(ABC):
    """Rows of payloads whose schema is given: a payload has it, or is a dead letter."""

    def __init__(self, columns: Any) -> None:
        self._columns = columns
        self._room = ValueRoom()
        """The values of the payload that is being parsed."""

    @abstractmethod
    def _row(self, payload: bytes) -> Mapping[str, Any]:
        """Returns the fields of a payload, as Arrow takes them. Raises MisfitError."""

    def parse(self, payloads: Sequence[bytes | None]) -> Parsed:
        chunks = Chunks(self._columns)
        faults: dict[int, str] = {}
        for place, payload in enumerate(payloads):
            self._room.used = 0
            try:
                chunks.add(place, self._row(payload or b""), self._room.used)
            except MisfitError as error:
                faults[place] = str(error)[:_MAX_REASON]
        columns = chunks.arrays()
        faults |= chunks.faults
        dead = sorted(faults)
        return Parsed(columns, chunks.places, dead, [faults[place] for place in dead])


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
            if pa.types.is_struct(field.type) and not field.type.num_fields:
                raise UsageError(f"{where} cannot be a column: it has no fields")
            taken.add(field.name.lower())
            _check_names(field.type, (), where)
