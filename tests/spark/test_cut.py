"""Ends of one moment, and sequences that are waited for, on a real SparkSession and real servers (arrow/cut.py)."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest

from jetcluster.client.connection import Connection
from testkit.harness import ProcessCluster, frozen
from tests.spark.streams import causal_writer, create, fill, numbered, read, stored, until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.thorough


def counts(frame: Any, streams: tuple[str, str]) -> tuple[int, int]:
    found = {row["stream"]: row["count"] for row in frame.groupBy("stream").count().collect()}
    return found.get(streams[0], 0), found.get(streams[1], 0)


def read_both(spark: SparkSession, cluster: ProcessCluster, streams: tuple[str, str], **options: str) -> Any:
    frame = spark.read.format("jetstream").options(servers=",".join(cluster.urls), subscribe=",".join(streams))
    return frame.options(consistent="true", cutTimeout="40s", **options).load()


@pytest.mark.parametrize("order", [1, -1], ids=["as read", "the other way"])
def test_a_cut_has_the_cause_of_what_it_has(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection, order: int
) -> None:
    """In both orders: a plan that asks one stream after the other breaks it in one of them."""
    streams = (f"CAUSE{order + 1}", f"EFFECT{order + 1}")
    for name in streams:
        create(connection, name)
    with causal_writer(cluster, streams):
        before = (0, 0)
        for _ in range(4):
            acked = stored(connection, streams[0]), stored(connection, streams[1])
            cause, effect = counts(read_both(spark, cluster, streams[::order]), streams)
            assert effect <= cause <= effect + 1
            assert cause >= max(acked[0], before[0]) and effect >= max(acked[1], before[1]), "and what was acknowledged"
            before = cause, effect
    assert before[1] > 0


def test_micro_batches_end_at_cuts(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection, tmp_path: Path
) -> None:
    streams = ("CAUSE", "EFFECT")
    for name in streams:
        create(connection, name)
    seen: dict[int, tuple[int, int]] = {}
    """By micro-batch: one that was under way when the query stopped comes again."""
    frame = spark.readStream.format("jetstream").options(servers=",".join(cluster.urls), subscribe=",".join(streams))
    frame = frame.options(consistent="true", cutTimeout="40s").load()

    def take(batch: Any, number: int) -> None:
        seen[number] = counts(batch, streams)

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path))
    with causal_writer(cluster, streams):
        query = writer.start()
        try:
            until(lambda: len(seen) >= 4 or not query.isActive, within=90, what="the fourth micro-batch")
        finally:
            query.stop()
    writer.trigger(availableNow=True).start().awaitTermination(60)
    ends = list(itertools.accumulate(seen.values(), lambda sums, more: (sums[0] + more[0], sums[1] + more[1])))
    assert all(effect <= cause <= effect + 1 for cause, effect in ends), ends
    assert ends[-1] == tuple(stored(connection, name) for name in streams), "each row once"


def test_a_replica_that_was_paused_waits_for_the_end_of_the_cut(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection
) -> None:
    streams = ("PAUSED_A", "PAUSED_B")
    for name in streams:
        create(connection, name)
        fill(connection, numbered(name, 500))
    leader = asyncio.run(cluster.stream_leader("PAUSED_A"))
    node = next(one for one in cluster.nodes if one is not leader)
    asyncio.run(cluster.wait_current("PAUSED_B"))
    with Connection([leader.url]) as direct:
        with frozen([node]):
            until(lambda: stored(direct, "PAUSED_B") == 500, what="a leader that is awake")
            for name in streams:
                fill(direct, numbered(name, 1500, 501))
            servers = ",".join([node.url, leader.url])
            options = {"connectTimeout": "1s", "requestTimeout": "1s", "servers": servers}
            assert counts(read_both(spark, cluster, streams, **options), streams) == (2000, 2000)
        frame = read_both(spark, cluster, streams, readPreference=f"peer:{node.name}", replicaWait="30s")
        assert counts(frame, streams) == (2000, 2000)


def test_a_mirror_that_is_behind_is_waited_for_or_refused(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection
) -> None:
    """A full mirror stays behind until it is given room. Who wrote to its origin has the sequence of the ack."""
    create(connection, "ORIGIN")
    create(connection, "EDGE", subjects=None, mirror={"name": "ORIGIN"}, max_msgs=100, discard="new", num_replicas=1)
    token = fill(connection, numbered("ORIGIN", 200))
    until(lambda: stored(connection, "EDGE") == 100, what="a full mirror")
    with pytest.raises(Exception, match="EDGE ends at 100, and minLastSeq asks for 200"):
        read(spark, cluster, "EDGE", minLastSeq=token, replicaWait="300ms").count()
    config = connection.api("STREAM.INFO.EDGE")["config"]
    timer = threading.Timer(1.0, lambda: connection.api("STREAM.UPDATE.EDGE", config | {"max_msgs": -1}))
    timer.start()
    try:
        assert read(spark, cluster, "EDGE", minLastSeq=token, replicaWait="60s").count() == 200
    finally:
        timer.join()
    assert read(spark, cluster, "ORIGIN", maxStaleness="0s").count() == 200
    assert read(spark, cluster, "ORIGIN", maxStaleness="2s", mode="last").count() == 7
