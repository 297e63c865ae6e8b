"""The columns of a query as Spark writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from jetcluster.arrow.schema import TYPES, SchemaError, check_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_DDL: Final = {"timestamp": "timestamp_ltz"}
"""Types whose name a session may take for another one (its setting timestampType) -> a name that is always theirs."""


def ddl(names: Sequence[str], known: Mapping[str, str] = TYPES) -> str:
    return ", ".join(f"`{name}` {_DDL.get(known[name], known[name])}" for name in names)


def columns_of(schema: StructType, known: Mapping[str, str] = TYPES) -> list[str]:
    """Returns the columns of a user's schema. Raises SchemaError."""
    names = check_columns(schema.fieldNames(), known)
    for field in schema.fields:
        if (given := field.dataType.simpleString()) != known[field.name]:
            raise SchemaError(f"column {field.name} is {known[field.name]}, not {given}")
    return names
