from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'jetcluster[spark]'")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.listener import QueryIdleEvent, QueryTerminatedEvent

from jetcluster.arrow.planner import RangeTask
from jetcluster.spark import task_report
from jetcluster.spark.listener import MetricsListener
from jetcluster.spark.source import StreamReader, TaskPartition
from tests.unit.arrow.fake_server import CREATED, StreamPeer, numbered, options_for, store_of
from tests.unit.arrow.test_fetch import TARGET
from tests.unit.spark.test_metrics import progress

QUERY = str(uuid.UUID(int=7))


@pytest.fixture
def listener() -> Iterator[MetricsListener]:
    one = MetricsListener(port=0, clock=lambda: 50.0)
    yield one
    one.close()


def fetched(listener: MetricsListener, path: str = "/metrics", body: bytes | None = None) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(listener.url.replace("/tasks", path), body, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def event(**more: Any) -> Any:
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(progress(query=QUERY, **more))))


def test_events_come_out_on_the_port(listener: MetricsListener) -> None:
    listener.onQueryProgress(event())
    listener.onQueryIdle(QueryIdleEvent(uuid.UUID(int=7), uuid.UUID(int=8), "t"))
    status, text = fetched(listener)
    assert status == 200 and text == listener.text() and 'behind_seconds{query="orders"' in text
    listener.onQueryTerminated(QueryTerminatedEvent(uuid.UUID(int=7), uuid.UUID(int=8), "boom", None))
    assert 'ended_total{outcome="failed"} 1' in fetched(listener)[1] and "orders" not in fetched(listener)[1]
    assert fetched(listener, "/other")[0] == 404


def test_events_come_out_in_a_file(tmp_path: Path) -> None:
    one = MetricsListener(file=tmp_path / "spark.prom", clock=lambda: 50.0)
    one.onQueryProgress(event())
    assert (tmp_path / "spark.prom").read_text() == one.text() and one.url == ""
    assert [path.name for path in tmp_path.iterdir()] == ["spark.prom"]
    one.close()


def test_a_task_says_whom_it_asked_and_how_often(listener: MetricsListener) -> None:
    with StreamPeer(store_of(numbered(30)), replicas=[None, store_of(numbered(30))]) as peer:
        options = options_for(peer, metricsUrl=listener.url, fetchBatch=10)
        task = RangeTask(replace(TARGET, created=CREATED), 1, 31, 0)
        reader = StreamReader(options, ["seq"], None)
        rows = sum(batch.num_rows for batch in reader.read(TaskPartition(task)))
    assert rows == 30
    text = fetched(listener)[1]
    assert 'task_rows_total{stream="S"} 30' in text and 'task_retries_total{stream="S"} 1' in text
    assert 'task_answers_total{stream="S",server="n1"} 3' in text


def test_a_querys_progress_has_what_its_own_tasks_told(listener: MetricsListener) -> None:
    with StreamPeer(store_of(numbered(30)), replicas=[None, store_of(numbered(30))]) as peer:
        options = options_for(peer, metricsUrl=listener.url, fetchBatch=10)
        mine, other = (StreamReader(options, ["seq"], None) for _ in range(2))
        start: dict[str, Any] = {"S": {"seq": 1, "created": CREATED}}
        end = mine.latestOffset(start, ReadAllAvailable())
        before = mine.reportLatestOffset()
        for partition in mine.partitions(start, end):
            list(mine.read(partition))
        after, foreign = mine.reportLatestOffset(), other.reportLatestOffset()
    assert before is not None and after is not None and foreign is not None
    assert (before["S"]["answers"], before["S"]["retries"]) == (foreign["S"]["answers"], foreign["S"]["retries"])
    assert (before["S"]["answers"], before["S"]["retries"]) == ({}, 0)
    assert (after["S"]["answers"], after["S"]["retries"]) == ({"n1": 3}, 1)


def test_what_is_no_report_is_refused(listener: MetricsListener) -> None:
    before = listener.text()
    assert fetched(listener, "/tasks", b"oops")[0] == 400
    assert fetched(listener, "/tasks", b"x" * (task_report.MAX_REPORT_BYTES + 1))[0] == 400
    assert fetched(listener, "/metrics", b"{}")[0] == 400
    assert listener.text() == before
