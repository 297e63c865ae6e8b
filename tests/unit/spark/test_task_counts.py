from __future__ import annotations

import json

import pytest

from jetcluster.spark import task_counts
from jetcluster.spark.task_counts import TaskCounts, TaskReport, report_of


def test_a_report_as_older_tasks_send_it_and_with_its_reader() -> None:
    told = {"stream": "S", "rows": 5, "retries": 1, "answers": {"n1": 2}}
    assert report_of(json.dumps(told).encode()) == TaskReport("S", 5, 1, {"n1": 2}, "")
    assert report_of(json.dumps(told | {"reader": "r" * 99}).encode()).reader == "r" * 64


def test_sums_by_stream() -> None:
    counts = TaskCounts()
    for stream, answers in (("S", {"n2": 1}), ("S", {"n1": 2, "n2": 1}), ("T", {})):
        counts.add(TaskReport(stream, 10, 1, answers, ""))
    assert counts.by_stream() == {
        "S": {"answers": {"n1": 2, "n2": 2}, "retries": 2},
        "T": {"answers": {}, "retries": 1},
    }
    assert counts.rows == {"S": 20, "T": 10}


def test_what_is_too_much_is_counted_as_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_counts, "MAX_SERIES", 2)
    counts = TaskCounts()
    for n in range(4):
        counts.add(TaskReport(f"S{n}", 1, 0, {f"n{n}": 1}, ""))
    assert counts.rows == {"S0": 1, "S1": 1, "other": 2}
    assert counts.by_stream()["other"]["answers"] == {"other": 2}
