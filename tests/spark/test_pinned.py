"""Sentences of our pages on Spark's ways, tried: a session without filter pushdown, a start that the stream has not
reached, and events that come late."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest

from jetcluster.client.connection import Connection
from tests.spark.streams import create, fill, numbered, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from testkit.harness import ProcessCluster

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def first_line(action: Any) -> str:
    with pytest.raises(Exception, match=r".") as raised:
        action()
    return str(raised.value).splitlines()[0]


def test_a_session_without_the_setting_of_pushdown_says_so(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection
) -> None:
    create(connection, "UNPUSHED")
    fill(connection, numbered("UNPUSHED", 20))
    spark.conf.set(PUSHDOWN, "false")
    try:
        once = read(spark, cluster, "UNPUSHED", pushdown="once")
        with pytest.raises(Exception, match="DATA_SOURCE_PUSHDOWN_DISABLED") as refused:
            once.where("seq <= 10").count()
        assert PUSHDOWN in str(refused.value)
        assert read(spark, cluster, "UNPUSHED").where("seq <= 10").count() == 10
    finally:
        spark.conf.set(PUSHDOWN, "true")
    assert read(spark, cluster, "UNPUSHED", pushdown="once").where("seq <= 10").count() == 10


def test_a_start_behind_the_end_is_an_error(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection, tmp_path: Path
) -> None:
    create(connection, "SHORT")
    fill(connection, numbered("SHORT", 20))
    where = {"servers": ",".join(cluster.urls), "stream": "SHORT", "startingOffsets": '{"SHORT": 99}'}
    sentence = "SHORT ends at 20, startingOffsets says 99. failOnDataLoss=false begins at its end"
    assert sentence in first_line(lambda: read(spark, cluster, "SHORT", startingOffsets=99).count())

    def streamed(**more: str) -> int:
        rows = spark.readStream.format("jetstream").options(**where, **more).load()
        query = rows.writeStream.format("noop").trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(one["numInputRows"] for one in query.recentProgress)

    assert sentence in first_line(streamed)
    assert streamed(failOnDataLoss="false") == 0
    assert read(spark, cluster, "SHORT", startingOffsets=99, failOnDataLoss="false").count() == 0
    assert read(spark, cluster, "SHORT", startingOffsets=21).count() == 0, "the next one is no error"


def test_an_event_that_comes_late_is_in_its_partition_once(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection, tmp_path: Path
) -> None:
    """Rows of a query are those of the stream; a watermark drops nothing before an aggregation."""
    create(connection, "BELATED")
    days = ["2026-11-20", "2026-11-21", "2026-11-20", "2026-11-22", "2026-11-19", "2026-11-20"]
    rows = spark.readStream.format("jetstream").options(servers=",".join(cluster.urls), stream="BELATED").load()
    event = rows.selectExpr("seq", "from_json(cast(data AS string), 'at TIMESTAMP').at AS at")
    event = event.withWatermark("at", "1 hour").selectExpr("seq", "at", "to_date(at) AS day")

    def land() -> None:
        writer = event.writeStream.format("parquet").partitionBy("day").option("path", str(tmp_path / "out"))
        query = writer.option("checkpointLocation", str(tmp_path / "at")).trigger(availableNow=True).start()
        query.awaitTermination()

    for day in days:  # each is in a micro-batch after those before
        fill(connection, [("belated.x", json.dumps({"at": f"{day}T10:00:00Z"}).encode())])
        land()
    land()
    found = pyarrow.dataset.dataset(str(tmp_path / "out"), format="parquet", partitioning="hive").to_table()
    assert sorted(zip(found["seq"].to_pylist(), found["day"].to_pylist(), strict=True)) == list(enumerate(days, 1))
