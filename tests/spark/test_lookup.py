"""Rows joined with a bucket by key, in batch and streaming (docs/spark-lookup.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jetcluster.arrow.options import OptionError
from jetcluster.client.connection import Connection
from jetcluster.spark.lookup import lookup
from tests.spark.streams import create, fill

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from testkit.harness import ProcessCluster

pytestmark = [
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(400),
]

DELETED = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"


def test_rows_get_what_the_bucket_has(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection, tmp_path: Path
) -> None:
    create(connection, "KV_BUYERS", subjects=["$KV.BUYERS.>"], max_msgs_per_subject=1)
    fill(connection, [(f"$KV.BUYERS.k{n}", b"buyer %d" % n) for n in range(3000)])
    fill(connection, [("$KV.BUYERS.k7", b"", DELETED)])
    options = {"servers": ",".join(cluster.urls)}
    keys = spark.range(6000).selectExpr("id", "IF(id = 5, NULL, concat('k', id % 3500)) AS buyer")
    joined = lookup(keys, "buyer", "BUYERS", options, prefix="b_")
    assert joined.columns == ["id", "buyer", "b_value", "b_revision", "b_operation", "b_created"]
    rows = {row.id: row for row in joined.collect()}
    assert len(rows) == 6000

    def wanted(n: int) -> tuple[Any, Any, Any]:
        key = n % 3500
        if n == 5 or key >= 3000:
            return None, None, None
        return (None, 3001, "DEL") if key == 7 else (b"buyer %d" % key, key + 1, "PUT")

    for n, row in rows.items():
        value = None if row.b_value is None else bytes(row.b_value)
        assert (value, row.b_revision, row.b_operation) == wanted(n) and (row.b_created is None) == (
            wanted(n)[2] is None
        )

    create(connection, "BUYS")
    fill(connection, [("buys.x", b"k%d" % n) for n in range(100)])
    stream = spark.readStream.format("jetstream").options(stream="BUYS", **options).load()
    stream = stream.selectExpr("seq", "CAST(data AS STRING) AS buyer")

    def run() -> dict[int, Any]:
        query = lookup(stream, "buyer", "BUYERS", options, max_age=0.0).writeStream.format("parquet")
        query = query.options(path=str(tmp_path / "sink"), checkpointLocation=str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
        return {row.seq: row for row in spark.read.parquet(str(tmp_path / "sink")).collect()}

    assert [bytes(row.value or b"-") for _, row in sorted(run().items())][6:9] == [b"buyer 6", b"-", b"buyer 8"]
    fill(connection, [("$KV.BUYERS.k7", b"back"), ("buys.x", b"k7")])
    assert bytes(run()[101].value) == b"back"


def test_what_is_wrong_is_said_at_once(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("id", "'a' AS key", "1 AS value")
    for key, more, match in (
        ("id", {}, "'id' is none"), ("none", {}, "'none' is none"), ("key", {}, "column value already"),
        ("key", {"prefix": "b_", "max_age": -1.0}, "max_age"), ("key", {"prefix": "b_", "bucket": "a.b"}, "name"),
    ):  # fmt: skip
        given: dict[str, Any] = {"bucket": "B", **more}
        with pytest.raises(OptionError, match=match):
            lookup(frame, key, given.pop("bucket"), {"servers": "nats://a"}, **given)
