"""The source on a real SparkSession and real servers (docs/spark-source.md)."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from jetcluster.arrow.convert import digest
from jetcluster.client.connection import Connection
from tests.spark.streams import create, drain, fill, numbered, read

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from testkit.harness import ProcessCluster

BLOCK = b"NATS/1.0\r\nA: 1\r\nb:2\r\nA: 3\r\n\r\n"


def values(rows: list[Any], column: str = "seq") -> list[Any]:
    return sorted(row[column] for row in rows)


def test_a_batch_query_sees_one_state_of_the_stream(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection
) -> None:
    """And Spark finds the source by itself: nobody registers it here."""
    create(connection, "BATCH")
    fill(connection, [(*row, BLOCK) if n % 5 == 0 else row for n, row in enumerate(numbered("BATCH", 3000))])
    frame = read(spark, cluster, "BATCH", minPartitions=3)
    fill(connection, numbered("BATCH", 10, 3001))
    assert frame.count() == 3000 == frame.where("seq > 0").count()
    rows = frame.where("seq <= 6").orderBy("seq").collect()
    assert [(r.stream, r.subject, r.seq, bytes(r.data)) for r in rows][1] == ("BATCH", "batch.2", 2, b"2")
    assert [r.headers for r in rows] == [
        {"A": ["1", "3"], "b": ["2"]},
        None,
        None,
        None,
        None,
        {"A": ["1", "3"], "b": ["2"]},
    ]
    assert all(r.time.timestamp() == r.time_ns // 1000 / 1e6 for r in rows)
    distinct = frame.selectExpr("count(distinct seq) a", "min(seq) b", "max(seq) c").first()
    assert tuple(distinct) == (3000, 1, 3000)


def test_only_the_columns_that_are_asked_for(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection
) -> None:
    create(connection, "COLUMNS")
    fill(connection, [("columns.1", b"one"), ("columns.2", b"two", BLOCK)])
    frame = read(spark, cluster, "COLUMNS", columns="digest,headers_raw,seq")
    assert [tuple(row) for row in frame.orderBy("seq").collect()] == [
        (digest(b"columns.1", b"", b"one"), None, 1),
        (digest(b"columns.2", BLOCK, b"two"), bytearray(BLOCK), 2),
    ]
    own = spark.read.format("jetstream").schema("data binary, seq bigint")
    own = own.options(servers=cluster.urls[0], stream="COLUMNS").load()
    assert [tuple(row) for row in own.orderBy("seq").collect()] == [(bytearray(b"one"), 1), (bytearray(b"two"), 2)]
    kafka = read(spark, cluster, "COLUMNS", kafkaColumns="true").orderBy("offset").collect()[1]
    assert (bytes(kafka.key), bytes(kafka.value), kafka.topic, kafka.offset) == (b"columns.2", b"two", "COLUMNS", 2)


def test_a_session_whose_timestamps_have_no_zone(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection
) -> None:
    create(connection, "ZONED")
    fill(connection, numbered("ZONED", 3))
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        found = read(spark, cluster, "ZONED")
        assert dict(found.dtypes)["time"] == "timestamp" and found.count() == len(found.collect()) == 3
        assert read(spark, cluster, "ZONED", kafkaColumns="true").count() == 3
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_places_times_and_subjects(spark: SparkSession, cluster: ProcessCluster, connection: Connection) -> None:
    create(connection, "PLACES")
    fill(connection, numbered("PLACES", 50))
    time.sleep(0.01)
    between = time.time_ns()
    time.sleep(0.01)
    fill(connection, numbered("PLACES", 50, 51))
    connection.api("STREAM.MSG.DELETE.PLACES", {"seq": 60})
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(between // 10**9)) + f".{between % 10**9:09d}Z"
    for options, wanted in (
        ({"startingOffsets": 31, "endingOffsets": 41}, range(31, 41)),
        ({"startingTimestamp": stamp, "endingOffsets": 71}, [*range(51, 60), *range(61, 71)]),
        ({"endingTimestamp": stamp}, range(1, 51)),
        ({"startingOffsets": "latest"}, []),
        ({"asOfSeq": 20, "subjects": "places.1,places.3"}, [n for n in range(1, 21) if n % 7 in (1, 3)]),
    ):
        assert values(read(spark, cluster, "PLACES", **options).collect()) == list(wanted), options
    frame = read(spark, cluster, "PLACES", pushdown="once")
    rows = frame.where("seq between 10 and 90 and subject = 'places.2'").collect()
    assert values(rows) == [n for n in range(10, 91) if n % 7 == 2 and n != 60]


def test_what_one_filter_has_left_is_all_that_another_query_reads(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection
) -> None:
    """A behaviour of Spark 4.3, for which `pushdown=true` is refused. When this fails, Spark asks for each query."""
    create(connection, "NARROWED")
    fill(connection, numbered("NARROWED", 100))
    plain, once = (read(spark, cluster, "NARROWED", pushdown=value) for value in ("false", "once"))
    for frame, wanted in ((plain, 100), (once, 10)):
        assert frame.where("seq <= 10").count() == 10
        assert frame.count() == wanted
        assert frame.where("seq <= 10").union(frame.where("seq > 95")).count() == (15 if wanted == 100 else 5)
    with pytest.raises(Exception, match="pushdown=true is not to be had") as refused:
        read(spark, cluster, "NARROWED", pushdown="true")
    assert "pushdown=once" in str(refused.value).splitlines()[0]


def test_a_state_of_long_ago(spark: SparkSession, cluster: ProcessCluster, connection: Connection) -> None:
    """Keys with five values of history, against a model."""
    create(connection, "KV_PAST", subjects=["$KV.PAST.>"], max_msgs_per_subject=100)
    rng = random.Random(7)
    states: list[dict[str, bytes]] = [{}]
    for n in range(300):
        key = f"$KV.PAST.k{rng.randrange(40)}"
        states.append({**states[-1], key: b"%d" % n})
        connection.publish_acked(key, b"%d" % n)
    connection.acks()
    for seq in (1, 137, 300):
        rows = read(spark, cluster, "KV_PAST", mode="last", asOfSeq=seq, minPartitions=2).collect()
        assert {row.subject: bytes(row.data) for row in rows} == states[seq] and len(rows) == len(states[seq])
    some = read(spark, cluster, "KV_PAST", mode="last", subjects="$KV.PAST.k1,$KV.PAST.k2").collect()
    assert {row.subject: bytes(row.data) for row in some} == {
        key: value for key, value in states[-1].items() if key in ("$KV.PAST.k1", "$KV.PAST.k2")
    }
    whole = connection.api("STREAM.MSG.GET.KV_PAST", {"seq": 50})["message"]["time"]
    rows = read(spark, cluster, "KV_PAST", mode="last", asOfTime=whole).collect()
    assert {row.subject: bytes(row.data) for row in rows} == states[50], "up to that time and with it"


def test_a_stream_is_followed_from_where_it_was_left(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection, tmp_path: Path
) -> None:
    sink, checkpoint = str(tmp_path / "sink"), str(tmp_path / "checkpoint")
    create(connection, "FOLLOW")
    fill(connection, numbered("FOLLOW", 1000))
    assert drain(spark, cluster, "FOLLOW", sink, checkpoint, maxOffsetsPerTrigger=400) == [400, 400, 200]
    assert drain(spark, cluster, "FOLLOW", sink, checkpoint, maxOffsetsPerTrigger=400) == []
    fill(connection, numbered("FOLLOW", 300, 1001))
    runs = drain(spark, cluster, "FOLLOW", sink, checkpoint, maxBytesPerTrigger=10_000)
    assert sum(runs) == 300 and len(runs) > 1
    assert values(spark.read.parquet(sink).select("seq").collect()) == list(range(1, 1301))
    # what is gone before it was read is said, or passed over
    fill(connection, numbered("FOLLOW", 100, 1301))
    connection.api("STREAM.PURGE.FOLLOW", {"seq": 1351})
    with pytest.raises(Exception, match="FOLLOW: messages 1301 to 1350 are gone"):
        drain(spark, cluster, "FOLLOW", sink, checkpoint)
    assert drain(spark, cluster, "FOLLOW", sink, checkpoint, failOnDataLoss="false") == [50]
    # and so is a stream that only has the name of the one that was read
    connection.api("STREAM.DELETE.FOLLOW")
    create(connection, "FOLLOW")
    fill(connection, numbered("FOLLOW", 2000))
    with pytest.raises(Exception, match="FOLLOW was created anew"):
        drain(spark, cluster, "FOLLOW", sink, checkpoint)
    assert drain(spark, cluster, "FOLLOW", sink, checkpoint, failOnDataLoss="false") == [2000]


def test_two_streams_in_one_query(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection, tmp_path: Path
) -> None:
    for name, count in (("LEFT", 300), ("RIGHT", 100)):
        create(connection, name)
        fill(connection, numbered(name, count))
    query = spark.readStream.format("jetstream").options(servers=cluster.urls[1], subscribe="LEFT,RIGHT")
    query = query.option("maxOffsetsPerTrigger", "200").option("startingOffsets", '{"LEFT": 101}').load()
    running = query.writeStream.format("memory").queryName("both").trigger(availableNow=True).start()
    running.awaitTermination()
    assert [p["numInputRows"] for p in running.recentProgress if p["numInputRows"]] == [200, 100]
    rows = spark.sql("select stream, count(distinct seq) n, min(seq) a, max(seq) b from both group by stream").collect()
    assert sorted(tuple(row) for row in rows) == [("LEFT", 200, 101, 300), ("RIGHT", 100, 1, 100)]


def test_what_cannot_be_is_said_in_a_line(spark: SparkSession, cluster: ProcessCluster, connection: Connection) -> None:
    create(connection, "CLOSED", allow_direct=False)
    for stream, options, said in (
        ("NOWHERE", {}, "there is no stream NOWHERE"),
        ("CLOSED", {}, "nats stream edit CLOSED --allow-direct"),
        ("CLOSED", {"startingOfsets": "latest"}, "did you mean startingOffsets"),
    ):
        with pytest.raises(Exception, match=said):
            read(spark, cluster, stream, **options)
