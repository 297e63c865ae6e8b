"""SQL over streams, and names of the Kafka source (docs/spark-source.md, docs/spark-sink.md)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from jetcluster.client.connection import Connection
from testkit.harness import ProcessCluster
from tests.spark.streams import create, drain, fill, numbered, read, stored

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.thorough


@pytest.fixture
def tables(spark: SparkSession) -> Iterator[None]:
    yield
    spark.sql("DROP VIEW IF EXISTS lines")
    spark.sql("DROP TABLE IF EXISTS wares")
    spark.sql("DROP TABLE IF EXISTS wares2")


@pytest.mark.usefixtures("tables")
def test_a_view_is_written_and_read(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection, servers: str
) -> None:
    create(connection, "LINES")
    options = f"OPTIONS (servers '{servers}', stream 'LINES')"
    spark.sql(f"CREATE TEMPORARY VIEW lines (subject STRING, seq BIGINT, data BINARY) USING jetstream {options}")
    for text in ("one", "two"):
        spark.sql(f"INSERT INTO lines (subject, data) VALUES ('lines.a', CAST('{text}' AS BINARY))")
    spark.sql("INSERT INTO lines (subject, data) SELECT 'lines.b', data FROM lines WHERE seq = 1")
    rows = read(spark, cluster, "LINES").selectExpr("subject", "seq", "CAST(data AS STRING)").orderBy("seq").collect()
    assert [tuple(row) for row in rows] == [("lines.a", 1, "one"), ("lines.a", 2, "two"), ("lines.b", 3, "one")]
    with pytest.raises(Exception, match="overwriteMode=purge"):
        spark.sql("INSERT OVERWRITE lines (subject, data) VALUES ('lines.a', X'00')")
    assert stored(connection, "LINES") == 3


@pytest.mark.usefixtures("tables")
def test_a_table_needs_its_options_in_each_statement(spark: SparkSession, connection: Connection, servers: str) -> None:
    create(connection, "WARES")
    fill(connection, numbered("WARES", 5))
    options = f"OPTIONS (servers '{servers}', stream 'WARES')"
    spark.sql(f"CREATE TABLE wares USING jetstream {options}")  # the columns are the source's
    spark.sql(f"CREATE TABLE wares2 (subject STRING, data BINARY) USING jetstream {options}")
    named = f"WITH (servers='{servers}', stream='WARES')"
    assert spark.sql(f"SELECT max(seq) FROM wares {named}").first()[0] == 5
    spark.sql(f"INSERT INTO wares2 {named} VALUES ('wares.x', X'00ff')")
    assert spark.sql(f"SELECT hex(data) FROM wares2 {named} WHERE subject = 'wares.x'").first()[0] == "00FF"
    for statement in ("SELECT * FROM wares", "INSERT INTO wares2 VALUES ('wares.x', X'00')"):
        with pytest.raises(Exception, match="there are no options: Spark's catalog keeps those of CREATE TABLE"):
            spark.sql(statement).collect()


def test_save_modes(spark: SparkSession, connection: Connection, servers: str) -> None:
    """Spark itself refuses two of them for every Python sink, also its default."""
    create(connection, "MODES")
    row = spark.createDataFrame([("modes.a", "x")], "subject string, data string")
    for mode in ("errorifexists", "ignore"):
        with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            row.write.format("jetstream").mode(mode).options(servers=servers, stream="MODES").save()
    row.write.format("jetstream").mode("append").options(servers=servers, stream="MODES").save()
    row.write.format("jetstream").mode("overwrite").options(
        servers=servers, stream="MODES", overwriteMode="purge"
    ).save()
    info = connection.api("STREAM.INFO.MODES")["state"]
    assert (info["messages"], info["last_seq"]) == (1, 2)


def test_names_of_the_kafka_source(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection, servers: str, tmp_path: Path
) -> None:
    for name in ("SHOP_A", "SHOP_B", "STORE"):
        create(connection, name)
        fill(connection, numbered(name, 10))
    time.sleep(0.01)
    between = time.time_ns() // 10**6
    time.sleep(0.01)
    fill(connection, numbered("SHOP_A", 5, 11))
    by_time = json.dumps({"SHOP_A": {"0": between}})
    assert read(spark, cluster, "SHOP_A", startingOffsetsByTimestamp=by_time).count() == 5
    assert read(spark, cluster, "SHOP_A", endingOffsetsByTimestamp=by_time).count() == 10
    shops = spark.read.format("jetstream").options(servers=servers, subscribePattern="SHOP_.*").load()
    assert {row["stream"]: row["count"] for row in shops.groupBy("stream").count().collect()} == {
        "SHOP_A": 15,
        "SHOP_B": 10,
    }
    sink, checkpoint = str(tmp_path / "sink"), str(tmp_path / "checkpoint")
    options = {"subscribePattern": "SHOP_.*", "minOffsetsPerTrigger": "1000"}
    assert drain(spark, cluster, "", sink, checkpoint, **options) == [25], "such a run waits for nothing"
    create(connection, "SHOP_C")
    fill(connection, numbered("SHOP_C", 3))
    assert drain(spark, cluster, "", sink, checkpoint, **options) == [3], (
        "a stream that came later is read from its start"
    )
