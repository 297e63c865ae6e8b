"""Progress and metrics of a streaming query on a real SparkSession (docs/spark-metrics.md)."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING

from jetcluster.client.connection import Connection
from jetcluster.spark.listener import MetricsListener
from tests.spark.streams import create, fill, numbered, until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from testkit.harness import ProcessCluster


def test_a_query_is_behind_and_catches_up(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection, tmp_path: Path
) -> None:
    create(connection, "METERED")
    fill(connection, numbered("METERED", 1000))
    listener = MetricsListener(port=0, file=tmp_path / "spark.prom")
    spark.streams.addListener(listener)
    try:
        rows = spark.readStream.format("jetstream").options(
            servers=",".join(cluster.urls), stream="METERED", maxOffsetsPerTrigger="400", metricsUrl=listener.url
        )
        query = rows.load().writeStream.format("noop").queryName("meter").start()
        try:
            until(lambda: 'next_sequence{query="meter"' in listener.text() and "} 1001" in listener.text(), 120.0)
        finally:
            query.stop()
        offsets = [one.sources[0].latestOffset for one in query.recentProgress if one.numInputRows]
        reports = [json.loads(offset)["METERED"] for offset in offsets]
        assert [report["behind_messages"] for report in reports] == [600, 200, 0]
        answers = [sum(report["answers"].values()) for report in reports]
        assert answers[0] == 0 < answers[1] < answers[2], "of the micro-batches before"
        assert [report["retries"] for report in reports] == [0, 0, 0]
        metrics = [one.sources[0].metrics for one in query.recentProgress]
        assert metrics and not any(metrics), "Spark has taken metrics of a Python source: tell ours there"
        until(lambda: 'queries_ended_total{outcome="stopped"} 1' in listener.text())
        with urllib.request.urlopen(listener.url.replace("/tasks", "/metrics"), timeout=10) as answer:
            text = answer.read().decode()
        assert 'task_rows_total{stream="METERED"} 1000' in text and 'task_retries_total{stream="METERED"}' in text
        assert 'task_answers_total{stream="METERED",server="n' in text and "meter" not in text
        assert (tmp_path / "spark.prom").read_text().count("\n") == text.count("\n")
    finally:
        spark.streams.removeListener(listener)
        listener.close()
