"""Columns of a table whose rows are parsed payloads: what is inferred of values, and how a table's columns grow.

A column keeps its type for ever. New fields of payloads become new columns, also inside of structs. Types of values of
one new field that differ are merged: whole numbers and fractions to double, anything else to string.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

MAX_COLUMNS: Final = 1000
"""Columns of a table, those inside of structs counted. Fields beyond that are refused."""
MAX_DEPTH: Final = 8
"""Objects and arrays that are nested deeper are kept as JSON text."""
BAD_CHARACTERS: Final = frozenset(" ,;{}()\n\t=`.")
"""Characters that Delta Lake and others do not take in the name of a column."""
OF_DELTALAKE: Final = "__delta_rs_"
"""The beginning of the names of columns that deltalake's MERGE adds to those of the table."""
_INT64: Final = range(-(2**63), 2**63)


def type_of(value: Any, depth: int = 1) -> Any:
    """Returns the Arrow type of a parsed JSON value, with Arrow's null where it tells none."""
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if value in _INT64 else pa.string()
    if isinstance(value, (float, Decimal)):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if depth > MAX_DEPTH:
        return pa.string()
    if isinstance(value, Mapping):
        # Arrow takes no name that is no text. The empty one stands for it: it cannot be a column's either.
        fields = [(name if is_text(name) else "", one) for name, one in value.items()]
        return pa.struct([pa.field(name, type_of(one, depth + 1)) for name, one in fields])
    element = pa.null()
    for one in value:
        element = merged(element, type_of(one, depth + 1))
    return pa.list_(pa.field("element", element))


def is_told(kind: Any) -> bool:
    """Returns whether a type can be a column's: of null, [] and {} alone it cannot."""
    if pa.types.is_struct(kind):
        return any(is_told(field.type) for field in kind)
    return is_told(kind.value_type) if pa.types.is_list(kind) else not pa.types.is_null(kind)


def merged(one: Any, other: Any) -> Any:
    """Returns the type that holds values of both types of a new field."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        kinds = {field.name: field.type for field in one}
        for field in other:
            kinds[field.name] = merged(kinds.get(field.name, pa.null()), field.type)
        return pa.struct([pa.field(name, kind) for name, kind in kinds.items()])
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(pa.field("element", merged(one.value_type, other.value_type)))
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    return pa.string()


def grown(known: Any, found: Any, reserved: Iterable[str] = ()) -> Any:
    """Returns struct `known` with the fields of struct `found` that it lacks, as far as they may be columns; what it
    has keeps its type. `reserved`: names of the table's own columns."""
    count = size_of(known)
    fields = {field.name: field for field in known}
    taken = {name.lower() for name in (*fields, *reserved)}
    for field in found or ():
        old = fields.get(field.name)
        if old is not None:
            kind = _grown_type(old.type, field.type)
            count += size_of(kind) - size_of(old.type)
            if count <= MAX_COLUMNS:
                fields[field.name] = old.with_type(kind)
        elif not name_fault(field.name) and field.name.lower() not in taken:
            kind = cleaned(field.type)
            count += 1 + size_of(kind)
            if kind is not None and count <= MAX_COLUMNS:
                taken.add(field.name.lower())
                fields[field.name] = pa.field(field.name, kind)
    return pa.struct(list(fields.values()))


def _grown_type(old: Any, new: Any) -> Any:
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return grown(old, new)
    if pa.types.is_list(old) and pa.types.is_list(new):
        return pa.list_(pa.field("element", _grown_type(old.value_type, new.value_type)))
    return old


def cleaned(kind: Any) -> Any:
    """Returns the type without fields that cannot be columns; None if nothing is left."""
    if pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind):
        found = grown(pa.struct([]), kind)
        return found if found.num_fields else None
    if pa.types.is_list(kind):
        element = cleaned(kind.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    return kind


def size_of(kind: Any) -> int:
    """Returns the number of fields inside of a type."""
    if kind is not None and pa.types.is_struct(kind):
        return sum(1 + size_of(field.type) for field in kind)
    if kind is not None and pa.types.is_map(kind):
        return size_of(kind.item_type)
    return size_of(kind.value_type) if kind is not None and pa.types.is_list(kind) else 0


def is_text(value: str) -> bool:
    """Returns whether a string of JSON can be encoded: one with half of a surrogate pair (`"\\ud800"`) cannot."""
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def name_fault(name: str) -> str:
    """Returns why a field's name cannot be a column's; "" if it can."""
    if not name:
        return "it has no name"
    if not is_text(name):
        return "its name has half of a surrogate pair"
    if bad := sorted(BAD_CHARACTERS & set(name)):
        return f"its name has {bad[0]!r}"
    if name.lower().startswith(OF_DELTALAKE):
        return f"its name begins with {OF_DELTALAKE}"
    return "" if name.isprintable() else "its name has control characters"


def required(columns: Any, declared: Any) -> Any:
    """Returns struct `columns`, of which those are required that are so in struct `declared`."""
    needed = {field.name for field in declared or () if not field.nullable}
    return pa.struct([field.with_nullable(field.name not in needed) for field in columns])


def plain(kind: Any) -> Any:
    """Returns a type as this package writes it: a library may say large_string, or name elements otherwise."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_struct(kind):
        return pa.struct([plain_field(field) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", plain(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(pa.field("key", plain(kind.key_type), nullable=False), pa.field("value", plain(kind.item_type)))
    return kind


def plain_field(field: Any) -> Any:
    """Returns a field with its plain type, and without metadata such as a table's own field ids."""
    return pa.field(field.name, plain(field.type), field.nullable)
