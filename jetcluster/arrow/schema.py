"""Columns of a read: names, Spark types, Arrow types. A query gets the columns that it names, or the defaults."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jetcluster.errors import CallerError

HEADERS: Final = "map<string,array<string>>"

TYPES: Final[dict[str, str]] = {
    "stream": "string",
    "subject": "string",
    "seq": "bigint",
    "time": "timestamp",
    "time_ns": "bigint",
    "headers": HEADERS,
    "data": "binary",
    "headers_raw": "binary",
    "subject_raw": "binary",
    "digest": "bigint",
}
"""Column -> Spark's DDL type. docs/spark-source.md describes their contents."""

OPTIONAL: Final = ("headers_raw", "subject_raw", "digest")
"""Columns that a query gets only when `columns` or its schema names them."""

KAFKA_TYPES: Final[dict[str, str]] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""The columns of Spark's Kafka source, for `kafkaColumns=true`."""


BUCKET_TYPES: Final[dict[str, str]] = {
    "key": "string",
    "value": "binary",
    "operation": "string",
    "revision": "bigint",
    "created": "timestamp",
}
"""The columns of a key-value bucket, for `bucket=NAME`."""


class SchemaError(CallerError, ValueError):
    """A column does not exist, or has another type."""


def known_columns(kafka: bool, *, bucket: bool = False) -> dict[str, str]:
    return BUCKET_TYPES if bucket else KAFKA_TYPES if kafka else TYPES


def default_columns(*, kafka: bool = False, bucket: bool = False, headers: bool = True) -> list[str]:
    return [n for n in known_columns(kafka, bucket=bucket) if n not in OPTIONAL and (headers or n != "headers")]


def check_columns(names: Sequence[str], known: Mapping[str, str] = TYPES) -> list[str]:
    """Returns `names`, which must be `known`, as a list. Raises SchemaError for an unknown or repeated column, or
    none."""
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SchemaError(f"there is no column {name!r}{hint} (there are: {', '.join(known)})")
    if len(set(names)) < len(names) or not names:
        raise SchemaError(f"columns must be named once, and one at least: {', '.join(names) or 'none'}")
    return list(names)


def arrow_schema(
    names: Sequence[str], known: Mapping[str, str] = TYPES, *, kafka: bool = False, time_unit: str = "us"
) -> Any:
    """Returns the `pyarrow.Schema` for these columns of `known` (with `kafka`, of KAFKA_TYPES), exactly as Spark
    expects it with times in microseconds."""
    import pyarrow as pa

    text, many = pa.string(), pa.list_(pa.field("element", pa.string()))
    types = {
        "string": text,
        "bigint": pa.int64(),
        "int": pa.int32(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp(time_unit, tz="UTC"),
        HEADERS: pa.map_(pa.field("key", text, nullable=False), pa.field("value", many)),
        KAFKA_TYPES["headers"]: pa.list_(
            pa.field("element", pa.struct([pa.field("key", text), pa.field("value", pa.binary())]))
        ),
    }
    if kafka:
        known = KAFKA_TYPES
    return pa.schema([pa.field(name, types[known[name]]) for name in names])
