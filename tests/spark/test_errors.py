"""Errors that users see: one sentence, before all that Spark and Python have to say."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from jetcluster.client.connection import Connection
from testkit.harness import ProcessCluster
from tests.spark.streams import create, fill, numbered, read

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


def said(call: Callable[[], Any], line: int = 0) -> str:
    """One line of what `call` raises."""
    with pytest.raises(Exception) as found:
        call()
    return str(found.value).splitlines()[line]


def row(spark: SparkSession, subject: str) -> DataFrame:
    return spark.createDataFrame([(subject, "x")], "subject string, data string")


def write(frame: DataFrame, servers: str, stream: str) -> None:
    frame.write.format("jetstream").mode("append").options(servers=servers, stream=stream, reachTimeout="300ms").save()


def test_a_sentence_comes_first(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection, servers: str
) -> None:
    create(connection, "SAID")
    fill(connection, numbered("SAID", 10))
    assert "StreamError: there is no stream NOPE" in said(lambda: read(spark, cluster, "NOPE"))
    assert "did you mean failOnDataLoss" in said(lambda: read(spark, cluster, "SAID", failOnDatLoss="x"))
    assert "SAID ends at 10, endingOffsets says 99" in said(
        lambda: read(spark, cluster, "SAID", endingOffsets=99).count()
    )
    assert "stream NOPE: stream not found" in said(lambda: write(row(spark, "x"), servers, "NOPE"))
    in_a_task = said(lambda: write(row(spark, "other"), servers, "SAID"), line=1)
    assert "stream SAID does not take subject other: it has said.>" in in_a_task, "behind Spark's own line"


def test_no_server_is_said_soon(spark: SparkSession) -> None:
    """Half a minute is for an outage."""
    nobody = "nats://127.0.0.1:1"
    frame = row(spark, "x")
    begun = time.monotonic()
    reader = spark.read.format("jetstream").options(servers=nobody, stream="S", reachTimeout="300ms")
    assert "no server could be reached: nats://127.0.0.1:1: " in said(reader.load)
    assert "no server could be reached: nats://127.0.0.1:1: " in said(lambda: write(frame, nobody, "S"))
    assert time.monotonic() - begun < 50, "twice"


def test_an_option_of_batch_queries_is_the_only_error_of_a_stream(
    spark: SparkSession, connection: Connection, servers: str, tmp_path: Path
) -> None:
    create(connection, "ENDLESS")
    reader = spark.readStream.format("jetstream").options(servers=servers, stream="ENDLESS", endingOffsets="5")
    writer = reader.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception) as found:
        writer.start().awaitTermination(60)
    assert "OptionError: endingOffsets and endingTimestamp are for batch queries" in str(found.value).splitlines()[0]
    assert "UnboundLocalError" not in str(found.value)


def test_a_streaming_query_appends(spark: SparkSession, connection: Connection, servers: str, tmp_path: Path) -> None:
    """Spark refuses update mode itself; complete mode would replace the stream."""
    create(connection, "APPENDED")
    counts = spark.readStream.format("rate").load().groupBy("value").count()
    rows = counts.selectExpr("'appended.x' AS subject", "CAST(count AS STRING) AS data")
    for mode, text in (("update", "does not support Update"), ("complete", "use append")):
        writer = rows.writeStream.format("jetstream").outputMode(mode).options(servers=servers, stream="APPENDED")
        with pytest.raises(Exception, match=text):
            writer.option("checkpointLocation", str(tmp_path / mode)).start().awaitTermination(60)
