from __future__ import annotations

import json
from typing import Any

import pytest

from jetcluster.spark import metrics, task_counts
from jetcluster.spark.metrics import SourceMetrics


def progress(query: str = "q1", name: str | None = "orders", batch: int = 4, **more: Any) -> dict[str, Any]:
    source = {
        "description": "Python", "startOffset": {"S": 1}, "endOffset": {"S": {"seq": 31, "created": "x"}},
        "latestOffset": {"S": {"seq": 41, "created": "x", "behind_messages": 10, "behind_seconds": 2.5}},
    }  # fmt: skip
    return {
        "id": query, "name": name, "batchId": batch, "numInputRows": 30, "durationMs": {"triggerExecution": 1500},
        "sources": [source],
    } | more  # fmt: skip


def lines(found: SourceMetrics) -> list[str]:
    return [line.removeprefix("jetcluster_spark_") for line in found.text().splitlines() if line[0] != "#"]


def test_a_query_in_numbers() -> None:
    found = SourceMetrics()
    found.progress(progress(), 100.0)
    found.progress(progress(batch=5), 110.0)
    found.idle("q1", 111.5)
    found.idle("other", 1.0)
    labels = 'query="orders",id="q1"'
    assert set(lines(found)) == {
        f'behind_messages{{{labels},stream="S"}} 10', f'behind_seconds{{{labels},stream="S"}} 2.5',
        f'next_sequence{{{labels},stream="S"}} 31', f"batch{{{labels}}} 5", f"batch_seconds{{{labels}}} 1.5",
        f"progress_timestamp_seconds{{{labels}}} 111.5", f"rows_total{{{labels}}} 60",
        'queries_ended_total{outcome="failed"} 0', 'queries_ended_total{outcome="stopped"} 0',
    }  # fmt: skip
    found.ended("q1", failed=True)
    assert lines(found) == ['queries_ended_total{outcome="failed"} 1', 'queries_ended_total{outcome="stopped"} 0']


@pytest.mark.parametrize("latest", [None, "7", "no JSON", {"topic": {"0": 5}}, {"S": 9}, [1], 3])
def test_offsets_of_other_sources_are_passed_over(latest: object) -> None:
    found = SourceMetrics()
    found.progress(progress(sources=[{"endOffset": "17", "latestOffset": latest}]), 1.0)
    assert "stream=" not in found.text() and 'rows_total{query="orders",id="q1"} 30' in found.text()


def test_offsets_as_text_and_a_query_without_a_name() -> None:
    found, given = SourceMetrics(), progress(name=None)
    for name in ("endOffset", "latestOffset"):
        given["sources"][0][name] = json.dumps(given["sources"][0][name])
    found.progress(given, 1.0)
    assert 'next_sequence{query="q1",id="q1",stream="S"} 31' in lines(found)


def test_a_name_with_all_there_is() -> None:
    found = SourceMetrics()
    found.progress(progress(name='a"b\\c\nd'), 1.0)
    assert 'batch{query="a\\"b\\\\c\\nd",id="q1"} 4' in lines(found)


def test_tasks_in_numbers() -> None:
    found = SourceMetrics()
    for answers in ({"n1": 3}, {"n1": 1, "n2": 2}):
        found.task(json.dumps({"stream": "S", "rows": 100, "answers": answers, "retries": 1}).encode())
    assert set(lines(found)[2:]) == {
        'task_answers_total{stream="S",server="n1"} 4', 'task_answers_total{stream="S",server="n2"} 2',
        'task_retries_total{stream="S"} 2', 'task_rows_total{stream="S"} 200',
    }  # fmt: skip


def test_tasks_of_one_run_of_a_query() -> None:
    found = SourceMetrics()
    for reader, answers in (("r1", {"n1": 3}), ("r1", {"n2": 2, "n1": 1}), ("r2", {"n1": 9}), ("", {"n3": 1})):
        told = {"stream": "S", "rows": 1, "answers": answers, "retries": 2, "reader": reader}
        found.task(json.dumps(told).encode())
    assert found.reader("r1") == {"S": {"answers": {"n1": 4, "n2": 2}, "retries": 4}}
    assert found.reader("r2") == {"S": {"answers": {"n1": 9}, "retries": 2}}
    assert found.reader("") == found.reader("r3") == {}


@pytest.mark.parametrize(
    "report",
    [b"", b"x", b"[]", b"7", b'{"stream": "S"}', b'{"stream": "S", "rows": 1, "retries": 0, "answers": []}',
     b'{"stream": "S", "rows": -1, "retries": 0, "answers": {}}',
     b'{"stream": "S", "rows": null, "retries": 0, "answers": {}}'],
)  # fmt: skip
def test_what_is_no_report_changes_nothing(report: bytes) -> None:
    found = SourceMetrics()
    before = found.text()
    with pytest.raises(ValueError, match=r"report|JSON|Expecting"):
        found.task(report)
    assert found.text() == before


def test_what_grows_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_QUERIES", 3)
    monkeypatch.setattr(metrics, "MAX_READERS", 3)
    monkeypatch.setattr(task_counts, "MAX_SERIES", 3)
    found = SourceMetrics()
    for n in range(5):
        found.progress(progress(query=f"q{n}", name=None), 1.0)
        found.progress(progress(query="q0", name=None), 1.0)
        found.task(b'{"stream": "S%d", "rows": 1, "retries": 0, "answers": {"n%d": 1}, "reader": "r%d"}' % (n, n, n))
    assert [bool(found.reader(f"r{n}")) for n in range(5)] == [False, False, True, True, True]
    assert {line.split('"')[1] for line in lines(found) if line.startswith("batch{")} == {"q0", "q3", "q4"}
    assert 'task_answers_total{stream="other",server="other"} 2' in lines(found)
    assert 'task_rows_total{stream="other"} 2' in lines(found)
