"""Payloads of JSON objects to rows of a table's columns, or to dead letters with the reason.

Each value fits its column, or its message is a dead letter. A double column rounds; a string column takes any value:
what is no string is kept as JSON text.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final, NoReturn

import pyarrow as pa

from jetcluster.pipeline.result import UsageError
from jetcluster.pipeline.tables.columns import grown, is_text, is_told, merged, name_fault, size_of, type_of
from jetcluster.pipeline.tables.payload import Chunks, MisfitError, Parsed, ValueRoom

Convert = Callable[[Any, str], Any]
"""(value that is not null, path of the field) -> value for Arrow. Raises MisfitError."""
_MAX_SHOWN: Final = 40
_DIGITS: Final = Context(prec=38)
"""As many digits as a column of decimal numbers may have; Python's own context rounds at 28."""


@dataclass(frozen=True)
class JsonFormat:
    """Payloads of JSON objects; `PayloadFormat` says what its members are."""

    columns: Any = None

    def rows(self, columns: Any, reserved: Sequence[str]) -> JsonRows:
        return JsonRows(columns, infer=self.columns is None, reserved=reserved)


class JsonRows:
    """Parses payloads into the fields of struct `columns`. `infer`: fields that it lacks are collected in `found`, and
    a message that has some is a dead letter; otherwise they are ignored. `reserved`: the table's own columns."""

    def __init__(self, columns: Any, *, infer: bool, reserved: Sequence[str] = ()) -> None:
        """Raises UsageError for a type that JSON cannot be parsed to."""
        self._columns = columns
        self._infer = infer
        self._reserved = reserved
        self._room = ValueRoom()
        self._row = _converter(columns, infer, self._room)
        exact = _has_decimal(columns)
        self._decoder = json.JSONDecoder(parse_constant=_no_number, parse_float=_exact if exact else None)

    def parse(self, payloads: Sequence[bytes | None]) -> Parsed:
        dead: list[int] = []
        why: list[str] = []
        chunks = Chunks(self._columns)
        new: Any = pa.struct([])
        for place, payload in enumerate(payloads):
            value = None
            self._room.used = 0
            try:
                value = self._object(payload)
                chunks.add(place, self._row(value, ""), self._room.used)
            except (MisfitError, RecursionError) as error:
                dead.append(place)
                reason = str(error) if isinstance(error, MisfitError) else "it is nested too deeply"
                why.append(reason.encode(errors="backslashreplace").decode())  # it may show a name that is no text
                if self._infer and value is not None:
                    new = merged(new, type_of(value))
        columns = chunks.arrays()
        assert not chunks.faults, "each value was made for its column"
        return Parsed(columns, chunks.places, dead, why, self._found(new))

    def _object(self, payload: bytes | None) -> dict[str, Any]:
        try:
            value = self._decoder.decode((payload or b"").decode())
        except UnicodeDecodeError as error:
            raise MisfitError(f"it is not UTF-8: byte {error.start}") from None
        except ValueError as error:  # JSONDecodeError, and numbers of thousands of digits
            raise MisfitError(f"it is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise MisfitError(f"it is {_kind(value)}, not an object")
        return value

    def _found(self, new: Any) -> Any:
        wider = grown(self._columns, new, self._reserved)
        return None if wider == self._columns else wider


def _converter(kind: Any, infer: bool, room: ValueRoom) -> Convert:
    """Returns the conversion to an Arrow type. Raises UsageError."""
    if pa.types.is_struct(kind):
        return _to_struct(kind, infer, room)
    if pa.types.is_list(kind):
        return _to_list(_converter(kind.value_type, infer, room), 1 + size_of(kind.value_type), room)
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return _to_map(_converter(kind.item_type, infer, room), 2 + size_of(kind.item_type), room)
    if pa.types.is_integer(kind):
        return _to_integer(kind.bit_width)
    if pa.types.is_floating(kind):
        return _to_floating(kind.bit_width)
    if pa.types.is_decimal(kind):
        return _to_decimal(kind.precision, kind.scale)
    for is_kind, convert in _SIMPLE:
        if is_kind(kind):
            return convert
    raise UsageError(f"JSON is not parsed to columns of {kind}")


def _to_struct(kind: Any, infer: bool, room: ValueRoom) -> Convert:
    plan = [(field.name, _converter(field.type, infer, room), field.nullable) for field in kind]
    names = {field.name for field in kind}

    def convert(value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            _misfit(value, path, "an object")
        row = {}
        for name, one, nullable in plan:
            item = value.get(name)
            if item is not None:
                row[name] = one(item, f"{path}.{name}" if path else name)
            elif nullable:
                row[name] = None
            else:
                raise MisfitError(f"{path}.{name}: it is required".lstrip("."))
        if infer and not names.issuperset(value):
            for name in value:
                if name not in names and is_told(type_of(value[name])):
                    fault = name_fault(name) or "its name is taken, there are too many, or its own fields cannot be"
                    raise MisfitError(f"{path}.{name}: it cannot be a column: {fault}".lstrip("."))
        return row

    return convert


def _to_list(element: Convert, width: int, room: ValueRoom) -> Convert:
    """`width`: the number of values of each element."""

    def convert(value: Any, path: str) -> list[Any]:
        if not isinstance(value, list):
            _misfit(value, path, "an array")
        room.take(len(value) * width)
        return [None if one is None else element(one, f"{path}[{at}]") for at, one in enumerate(value)]

    return convert


def _to_map(item: Convert, width: int, room: ValueRoom) -> Convert:
    def convert(value: Any, path: str) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            _misfit(value, path, "an object")
        room.take(len(value) * width)
        return [
            (_text(name, path), None if one is None else item(one, f"{path}.{name}")) for name, one in value.items()
        ]

    return convert


def _to_integer(bits: int) -> Convert:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def convert(value: Any, path: str) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
            _misfit(value, path, "a whole number")
        if not low <= value <= high:  # before int(), which would write out 1e999999
            _misfit(value, path, f"a whole number of {bits} bits")
        if value != (whole := int(value)):
            _misfit(value, path, "a whole number")
        return whole

    return convert


def _to_decimal(precision: int, scale: int) -> Convert:
    def convert(value: Any, path: str) -> Decimal:
        wanted = f"a decimal number of {precision} digits, {scale} behind the point"
        if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
            _misfit(value, path, wanted)
        try:
            number = Decimal(str(value))
            digits = number.quantize(Decimal(1).scaleb(-scale), context=_DIGITS)
        except InvalidOperation:
            _misfit(value, path, wanted)
        if digits != number or len(digits.as_tuple().digits) > precision:
            _misfit(value, path, wanted)
        return digits

    return convert


def _to_floating(bits: int) -> Convert:
    high = 3.4028235e38 if bits == 32 else 1.7976931348623157e308

    def convert(value: Any, path: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
            _misfit(value, path, "a number")
        if not -high <= value <= high:
            _misfit(value, path, f"a number of {bits} bits")
        return float(value)

    return convert


def _to_bool(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        _misfit(value, path, "true or false")
    return value


def _to_text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=float)
    return _text(value, path)


def _text(value: str, path: str) -> str:
    if not is_text(value):
        raise MisfitError(f"{path}: it has half of a surrogate pair, which is no text")
    return value


def _to_binary(value: Any, path: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        _misfit(value, path, "base64")


def _to_time(value: Any, path: str) -> dt.datetime:
    try:
        found = dt.datetime.fromisoformat(value)
        return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found.astimezone(dt.UTC)
    except (TypeError, ValueError, OverflowError):
        _misfit(value, path, "a time as in RFC 3339")


def _to_date(value: Any, path: str) -> dt.date:
    try:
        return dt.date.fromisoformat(value)
    except (TypeError, ValueError):
        _misfit(value, path, "a date as 2026-11-29")


_SIMPLE: Final[tuple[tuple[Callable[[Any], bool], Convert], ...]] = (
    (pa.types.is_boolean, _to_bool),
    (pa.types.is_string, _to_text),
    (pa.types.is_binary, _to_binary),
    (pa.types.is_timestamp, _to_time),
    (pa.types.is_date32, _to_date),
)


def _has_decimal(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_decimal(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _has_decimal(kind.value_type)
    return _has_decimal(kind.item_type) if pa.types.is_map(kind) else pa.types.is_decimal(kind)


def _exact(word: str) -> Decimal:
    try:
        return Decimal(word)
    except InvalidOperation:
        raise ValueError(f"{word[:_MAX_SHOWN]} has an exponent of too many digits") from None


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _misfit(value: Any, path: str, wanted: str) -> NoReturn:
    shown = json.dumps(value, default=str)
    shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
    raise MisfitError(f"{path}: {shown} is not {wanted}")


def _kind(value: Any) -> str:
    kinds = {bool: "true or false", str: "a string", list: "an array", type(None): "null"}
    return kinds.get(type(value), "a number")
