"""Avro schemas: the columns of their records, and what fastavro reads them with.

Logical types are read by functions of our own, which give what Arrow takes: fastavro's make Python's times, and round
decimal numbers to the schema's precision.

A schema is refused where bytes that are no payload of it could harm whoever reads them: fastavro recurses in C, without
a limit, through a record inside of itself, and it makes as many items of an array as the bytes say, also of no bytes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType, fingerprint, to_parsing_canonical_form

from jetcluster.pipeline.result import UsageError
from jetcluster.pipeline.tables.payload import check_size

Convert = Callable[[Any], Any]
"""A value that fastavro read, which is not null -> the value for Arrow."""
OWN: Final = "jetcluster-"
"""Before the names of the logical types that fastavro reads by functions of `avro_rows`."""
_PRIMITIVES: Final = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
_UTC: Final = pa.timestamp("us", tz="UTC")
_LOCAL: Final = pa.timestamp("us")
LOGICAL: Final = {
    "date": ("int", pa.date32()),
    "timestamp-millis": ("long", _UTC),
    "timestamp-micros": ("long", _UTC),
    "timestamp-nanos": ("long", _UTC),
    "local-timestamp-millis": ("long", _LOCAL),
    "local-timestamp-micros": ("long", _LOCAL),
    "local-timestamp-nanos": ("long", _LOCAL),
}
"""Logical types that become other columns than the types beneath; and there is `decimal`."""
_MAX_DIGITS: Final = 38


class Column(NamedTuple):
    """The Arrow type of an Avro type, and a conversion; None if values are as Arrow takes them."""

    kind: Any
    convert: Convert | None = None


class AvroSchema(NamedTuple):
    """One schema of a record."""

    parsed: Any
    """The schema as fastavro takes it."""
    name: str
    fingerprint: bytes
    """8 bytes, as they stand before a payload in Avro's encoding of single objects (CRC-64-AVRO)."""
    columns: Any
    """A struct of the columns."""
    convert: Convert | None
    logical: tuple[str, ...]
    """Paths and names of its logical types, of which the fingerprint says nothing."""


def load(text: str) -> AvroSchema:
    """Parses the JSON text of a schema. Raises UsageError if it is none, no record, or one that is refused."""
    try:
        schema = json.loads(text)
        parsed: Any = fastavro.parse_schema(schema)
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise UsageError("the Avro schema is not of a record")
        mark = bytes.fromhex(fingerprint(to_parsing_canonical_form(parsed), "CRC-64-AVRO"))
        walk = _Columns()
        record = walk.column(parsed, str(parsed["name"]))
        ours = fastavro.parse_schema(_renamed(schema))
    except (
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
        RecursionError,
        SchemaParseException,
        UnknownType,
    ) as error:
        raise UsageError(f"it is no Avro schema: {type(error).__name__}: {error}") from None
    found = record or Column(pa.struct([]))
    return AvroSchema(ours, str(parsed["name"]), mark, found.kind, found.convert, tuple(walk.logical))


def misread(writer: Any, reader: Any, path: str = "") -> str:
    """Returns the path of a column that has a time or a decimal number in one of two types, and something else in the
    other one: the bytes would be taken for it. "" if there is none."""
    if pa.types.is_struct(writer) and pa.types.is_struct(reader):
        kinds = {field.name: field.type for field in reader}
        found = [misread(one.type, kinds[one.name], f"{path}.{one.name}") for one in writer if one.name in kinds]
        return next(filter(None, found), "")
    if pa.types.is_list(writer) and pa.types.is_list(reader):
        return misread(writer.value_type, reader.value_type, f"{path}[]")
    if pa.types.is_map(writer) and pa.types.is_map(reader):
        return misread(writer.item_type, reader.item_type, f"{path}[]")
    marked = any(pa.types.is_temporal(one) or pa.types.is_decimal(one) for one in (writer, reader))
    return path.lstrip(".") if marked and writer != reader else ""


class _Columns:
    """Goes through a parsed schema, in which a name stands for a type that came before."""

    def __init__(self) -> None:
        self._named: dict[str, Column | None] = {}
        self._schemas: dict[str, Any] = {}
        self.logical: list[str] = []

    def column(self, schema: Any, path: str) -> Column | None:
        """Returns None if it is no column: null, or a record of nothing else. Raises UsageError."""
        if isinstance(schema, list):
            return self._union(schema, path)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return Column(_PRIMITIVES[schema])
            if schema == "null":
                return None
            if schema not in self._named:
                raise UsageError(f"{path}: a record inside of itself, {schema}, cannot be a column")
            return self._named[schema]
        kind = schema["type"]
        if "logicalType" in schema:
            self.logical.append(f"{path} {schema['logicalType']}")
        if kind == "array":
            return self._array(schema, path)
        if kind == "map":
            return self._map(schema, path)
        if kind == "fixed" and (type(schema["size"]) is not int or schema["size"] < 0):
            raise UsageError(f"{path}: the size of a fixed type is a number of bytes, not {schema['size']!r}")
        if kind in ("record", "error", "enum", "fixed"):
            self._schemas[schema["name"]] = schema
            found = self._record(schema, path) if kind in ("record", "error") else _plain(kind, schema, path)
            self._named[schema["name"]] = found
            return found
        return _plain(kind, schema, path)

    def _union(self, union: list[Any], path: str) -> Column | None:
        found = [one for member in union if (one := self.column(member, path)) is not None]
        kinds = {one.kind for one in found}
        if len(found) < 2:
            return found[0] if found else None
        if len(kinds) == 1 and not any(one.convert for one in found):
            return found[0]
        for wide, narrow in ((pa.int64(), pa.int32()), (pa.float64(), pa.float32())):
            if kinds == {wide, narrow}:
                return Column(wide)
        return Column(pa.string(), _text)

    def _array(self, schema: Any, path: str) -> Column:
        if self._is_empty(schema["items"]):
            raise UsageError(f"{path}: an array of items without bytes cannot be a column")
        item = self.column(schema["items"], f"{path}[]")
        if item is None:
            raise UsageError(f"{path}: an array of nulls cannot be a column")
        kind = pa.list_(pa.field("element", item.kind))
        convert = item.convert
        if convert is None:
            return Column(kind)
        return Column(kind, lambda value: [None if one is None else convert(one) for one in value])

    def _map(self, schema: Any, path: str) -> Column:
        item = self.column(schema["values"], f"{path}[]")
        if item is None:
            raise UsageError(f"{path}: a map of nulls cannot be a column")
        kind = pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", item.kind))
        convert = item.convert
        if convert is None:
            return Column(kind)
        return Column(kind, lambda value: {key: None if one is None else convert(one) for key, one in value.items()})

    def _record(self, schema: Any, path: str) -> Column | None:
        fields = [(one["name"], self.column(one["type"], f"{path}.{one['name']}")) for one in schema["fields"]]
        kinds = [pa.field(name, one.kind) for name, one in fields if one is not None]
        converts = [(name, one.convert) for name, one in fields if one is not None and one.convert is not None]

        def convert(value: Any) -> Any:
            for name, one in converts:
                if value[name] is not None:
                    value[name] = one(value[name])
            return value

        check_size(pa.struct(kinds))
        return Column(pa.struct(kinds), convert if converts else None) if kinds else None

    def _is_empty(self, schema: Any) -> bool:
        """Returns whether a type has no bytes. A reader takes as many of them as it is told, of nothing."""
        if isinstance(schema, str) and schema in self._schemas:
            schema = self._schemas[schema]
        if not isinstance(schema, dict):
            return bool(schema == "null")
        kind = schema["type"]
        if kind in ("record", "error"):
            return all(self._is_empty(one["type"]) for one in schema["fields"])
        return kind == "fixed" and bool(schema["size"] == 0)


def _plain(kind: str, schema: Any, path: str) -> Column:
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if not isinstance(precision, int) or not 1 <= precision <= _MAX_DIGITS or not 0 <= scale <= precision:
            raise UsageError(
                f"{path}: a decimal number has 1 to {_MAX_DIGITS} digits, no more of them behind the point"
            )
        return Column(pa.decimal128(precision, scale))
    if logical in LOGICAL and LOGICAL[logical][0] == kind:
        return Column(LOGICAL[logical][1])
    return Column({"enum": pa.string(), "fixed": pa.binary()}.get(kind) or _PRIMITIVES[kind])


def _text(value: Any) -> str:
    """Returns a value of a union of several types, as a column of texts has it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_word)


def _word(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _renamed(schema: Any) -> Any:
    """Returns a schema, not parsed yet, with names of our own for the logical types of columns, and without others."""
    if isinstance(schema, list):
        return [_renamed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: value for key, value in schema.items() if key != "logicalType"}
    for key in ("type", "items", "values"):
        if key in found:
            found[key] = _renamed(found[key])
    if "fields" in found:
        found["fields"] = [_renamed(one) for one in found["fields"]]
    logical, kind = schema.get("logicalType"), schema.get("type")
    if (logical in LOGICAL and LOGICAL[logical][0] == kind) or (logical == "decimal" and kind in ("bytes", "fixed")):
        found["logicalType"] = f"{OWN}{logical}"
    return found


def decimal_of(data: bytes, scale: int) -> Decimal:
    """Returns the number of the bytes of a decimal number, exactly."""
    whole = int.from_bytes(data, "big", signed=True)
    return Decimal((int(whole < 0), tuple(map(int, str(abs(whole)))), -scale))
