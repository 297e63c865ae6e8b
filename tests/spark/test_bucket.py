"""A bucket's keys, operations and revisions as columns, read and written (docs/spark-source.md, docs/spark-sink.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jetcluster.arrow import read_bucket
from jetcluster.client.connection import Connection
from testkit.harness import ProcessCluster
from tests.spark.streams import create

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")]


def bucket(connection: Connection, name: str, history: int) -> None:
    create(
        connection, f"KV_{name}", subjects=[f"$KV.{name}.>"], max_msgs_per_subject=history, allow_rollup_hdrs=True,
        deny_delete=True,
    )  # fmt: skip


def stored(servers: str, name: str) -> list[tuple[Any, ...]]:
    """A client without Spark reads: key, value and operation of each revision."""
    table = read_bucket(servers, name, history=True).read_all()
    return [
        (row["key"], row["value"] if row["operation"] == "PUT" else None, row["operation"], row["revision"])
        for row in table.to_pylist()
    ]


def test_changes_are_read_and_written(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection, servers: str, tmp_path: Path
) -> None:
    for name, history in (("USERS", 64), ("COPY", 64), ("LATEST", 1)):
        bucket(connection, name, history)
    rows: list[Any] = [(f"eu.k{n % 50}", b"%d" % n, None) for n in range(2000)]
    rows += [("eu.k7", b"ignored", "DEL"), ("us.k", b"x", "PUT"), ("eu.k8", None, "PURGE")]
    frame = spark.createDataFrame(rows, "key string, value binary, operation string").coalesce(1)
    frame.write.format("jetstream").mode("append").options(servers=servers, bucket="USERS").save()

    where = {"servers": servers, "bucket": "USERS"}
    read = spark.read.format("jetstream").options(**where).load()
    assert read.columns == ["key", "value", "operation", "revision", "created"]
    found = [(r.key, None if r.value is None else bytes(r.value), r.operation, r.revision) for r in read.collect()]
    assert found == stored(servers, "USERS")
    assert found[-3:] == [("eu.k7", None, "DEL", 2001), ("us.k", b"x", "PUT", 2002), ("eu.k8", None, "PURGE", 2003)]
    assert [r.revision for r in read.where("key = 'eu.k8'").collect()] == [2003], "a purge removes what was before"

    last = spark.read.format("jetstream").options(mode="last", keys="eu.*", **where).load()
    state = {r.key: (r.operation, r.revision) for r in last.collect()}
    assert len(state) == 50 and "us.k" not in state
    assert (state["eu.k7"], state["eu.k8"], state["eu.k9"]) == (("DEL", 2001), ("PURGE", 2003), ("PUT", 1960))

    for target in ("COPY", "LATEST"):
        changes = spark.readStream.format("jetstream").options(maxOffsetsPerTrigger="700", minPartitions="1", **where)
        query = changes.load().writeStream.format("jetstream").options(servers=servers, bucket=target)
        query = query.option("checkpointLocation", str(tmp_path / target)).trigger(availableNow=True)
        query.start().awaitTermination()
    newest = {r["key"]: r["value"] for r in read_bucket(servers, "USERS").read_all().to_pylist()}
    for target in ("COPY", "LATEST"):
        assert {r["key"]: r["value"] for r in read_bucket(servers, target).read_all().to_pylist()} == newest
    assert [row[:3] for row in stored(servers, "COPY")] == [row[:3] for row in found], "all revisions, in order"


def test_what_is_wrong_is_said(spark: SparkSession, connection: Connection, servers: str) -> None:
    bucket(connection, "WRONG", 1)
    row = spark.createDataFrame([("k", b"v")], "key string, value binary")

    def write(frame: Any) -> None:
        frame.write.format("jetstream").mode("append").options(servers=servers, bucket="WRONG").save()

    for frame, match in (
        (row.selectExpr("'a b' AS key", "value"), "'a b' is no key of a bucket"),
        (row.selectExpr("CAST(NULL AS STRING) AS key", "value"), "None is no key of a bucket"),
        (row.selectExpr("key", "value", "'UPSERT' AS operation"), "PUT, DEL, PURGE or null, not 'UPSERT'"),
        (row.select("key"), "there is no column value"),
        (row.selectExpr("key AS subject", "key", "value"), "column 'subject' is not known to the sink"),
    ):
        with pytest.raises(Exception, match=match):
            write(frame)
    for more, match in (
        ({"stream": "S"}, "stream is about a stream: bucket=WRONG goes without it"),
        ({"subjects": "a.>"}, "subjects is about a stream"),
        ({"columns": "seq"}, "there is no column 'seq'"),
    ):
        with pytest.raises(Exception, match=match):
            spark.read.format("jetstream").options(servers=servers, bucket="WRONG", **more).load()
    with pytest.raises(Exception, match="keys is about a bucket: bucket=NAME goes with it"):
        spark.read.format("jetstream").options(servers=servers, stream="KV_WRONG", keys="a").load()
