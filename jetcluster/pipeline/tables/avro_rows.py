"""Payloads of Avro records to rows of a table's columns, or to dead letters with the reason.

A payload is the record's bytes alone, or Avro's encoding of single objects: two bytes, the fingerprint of the schema
that wrote it, and the record. So records of older schemas are read as Avro resolves them: by names, aliases, defaults.
"""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from fastavro import schemaless_reader
from fastavro.read import LOGICAL_READERS

from jetcluster.pipeline.result import UsageError
from jetcluster.pipeline.tables.avro_count import AvroCount
from jetcluster.pipeline.tables.avro_schema import LOGICAL, OWN, AvroSchema, decimal_of, load, misread
from jetcluster.pipeline.tables.payload import MisfitError, SchemaRows, check_columns

MARK: Final = b"\xc3\x01"
"""The first bytes of a single object, before the fingerprint."""
_HEAD: Final = len(MARK) + 8
_EPOCH: Final = dt.date(1970, 1, 1)
_DAYS: Final = range((dt.date.min - _EPOCH).days, (dt.date.max - _EPOCH).days + 1)
"""The years 1 to 9999, as far as the readers of tables go."""
_MAX_DECIMAL_BYTES: Final = 32
"""More than 38 digits have: a number of thousands of digits is not even written out."""


@dataclass(frozen=True)
class AvroFormat:
    """Payloads of records; `PayloadFormat` says what its members are."""

    texts: tuple[str, ...]
    """Schemas as JSON: all that payloads were written with. The last one is the table's."""

    @cached_property
    def schemas(self) -> list[AvroSchema]:
        """Raises UsageError."""
        found = [load(text) for text in self.texts]
        kinds: dict[bytes, tuple[str, ...]] = {}
        for one in found:
            if kinds.setdefault(one.fingerprint, one.logical) != one.logical:
                raise UsageError(
                    f"two schemas of {one.name} have the fingerprint {one.fingerprint.hex()}, and other logical types: "
                    f"payloads do not tell which one wrote them"
                )
            if path := misread(one.columns, found[-1].columns):
                raise UsageError(
                    f"{path} is a time or a decimal number in one schema of {one.name}, and not in the last"
                )
        return found

    @property
    def columns(self) -> Any:
        return self.schemas[-1].columns

    def rows(self, columns: Any, reserved: Sequence[str]) -> AvroRows:
        check_columns(self.columns, reserved)
        return AvroRows(columns, self.schemas)

    def __getstate__(self) -> dict[str, Any]:
        return {"texts": self.texts}  # parsers hold functions, which are not sent to workers


class AvroRows(SchemaRows):
    """Rows of payloads that one of the schemas wrote."""

    def __init__(self, columns: Any, schemas: Sequence[AvroSchema]) -> None:
        super().__init__(columns)
        LOGICAL_READERS.update(_READERS)
        self._last = schemas[-1]
        self._writers = {one.fingerprint: one for one in schemas}
        self._counts = {one.fingerprint: AvroCount(one.parsed, self._room) for one in schemas}

    def _row(self, payload: bytes) -> Any:
        if not payload.startswith(MARK):
            return self._read(self._last, payload, 0)
        mark = payload[len(MARK) : _HEAD]
        if writer := self._writers.get(mark):
            return self._read(writer, payload, _HEAD)
        try:
            return self._read(self._last, payload, 0)  # a record may begin with these bytes, too
        except MisfitError:
            raise MisfitError(f"it was written with a schema of fingerprint {mark.hex()}, which is not given") from None

    def _read(self, writer: AvroSchema, payload: bytes, start: int) -> Any:
        self._room.used = 0
        self._counts[writer.fingerprint].check(payload, start)
        file = io.BytesIO(payload)
        file.seek(start)
        last = self._last
        try:
            value: Any = schemaless_reader(file, writer.parsed, None if writer is last else last.parsed)
            left = len(payload) - file.tell()
            if not left and last.convert is not None:
                value = last.convert(value)
        except Exception as error:  # fastavro's for bytes that are no record are of a dozen classes
            raise MisfitError(f"it is no {writer.name}: {type(error).__name__}: {error}") from error
        if left:
            raise MisfitError(f"it is no {writer.name}: {left} bytes are left over")
        return value


def _micros(multiply: int, divide: int) -> Any:
    low, high = _DAYS.start * 86_400_000_000, _DAYS.stop * 86_400_000_000

    def read(value: int, writer: Any = None, reader: Any = None) -> int:
        found = value * multiply // divide
        if not low <= found < high:
            raise ValueError(f"the time {value} is not of the years 1 to 9999")
        return found

    return read


def _days(value: int, writer: Any = None, reader: Any = None) -> int:
    if value not in _DAYS:
        raise ValueError(f"the date {value} is not of the years 1 to 9999")
    return value


def _decimal(value: bytes, writer: Any = None, reader: Any = None) -> Any:
    if len(value) > _MAX_DECIMAL_BYTES:
        raise ValueError(f"a decimal number has {len(value)} bytes")
    return decimal_of(value, writer.get("scale", 0))


_UNITS: Final = {"millis": _micros(1000, 1), "micros": _micros(1, 1), "nanos": _micros(1, 1000)}
_READERS: Final = {
    f"{beneath}-{OWN}{name}": _days if name == "date" else _UNITS[name.rpartition("-")[2]]
    for name, (beneath, _) in LOGICAL.items()
} | {f"{kind}-{OWN}decimal": _decimal for kind in ("bytes", "fixed")}
