"""Columns and their types as Spark has them (spark/columns.py)."""

from __future__ import annotations

import pytest

from jetcluster.arrow.schema import BUCKET_TYPES, KAFKA_TYPES, TYPES, SchemaError, arrow_schema
from jetcluster.spark.columns import columns_of, ddl


def test_columns_and_their_types_are_spark_s_to_the_letter() -> None:
    pytest.importorskip("pyspark", reason="pip install 'jetcluster[spark]'")
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    pair = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    types = {
        "string": StringType(), "bigint": LongType(), "int": IntegerType(), "binary": BinaryType(),
        "timestamp": TimestampType(), TYPES["headers"]: MapType(StringType(), ArrayType(StringType())),
        KAFKA_TYPES["headers"]: ArrayType(pair),
    }  # fmt: skip
    for known in (TYPES, KAFKA_TYPES, BUCKET_TYPES):
        schema = StructType([StructField(name, types[text]) for name, text in known.items()])
        assert [field.dataType.simpleString() for field in schema.fields] == list(known.values())
        assert to_arrow_schema(schema, timezone="UTC") == arrow_schema(list(known), known)
        assert columns_of(schema, known) == list(known)
    with pytest.raises(SchemaError, match="column seq is bigint, not string"):
        columns_of(StructType([StructField("seq", StringType())]))


def test_columns_as_a_schema_in_words() -> None:
    assert ddl(["seq", "data"]) == "`seq` bigint, `data` binary"
    assert ddl(["time"]) == "`time` timestamp_ltz", "TIMESTAMP is a session's choice (spark.sql.timestampType)"
