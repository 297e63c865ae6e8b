"""What fails beside the stream is counted and told, and a flood of it does not fill the log (replica/failures.py)."""

from __future__ import annotations

from jetcluster.replica.failures import LOGGED, Failures
from tests.unit.cluster.nodes import ListLog


def test_a_failure_is_told_with_where_it_came_from() -> None:
    log = ListLog()
    failures = Failures(log, "S")
    try:
        int("of a link")
    except ValueError as error:
        failures.failed("links fail", error, index=7, kind=8)
    ((_, event, line),) = log.lines
    assert event == "links fail"
    assert (line["stream"], line["index"], line["kind"], line["so_far"]) == ("S", 7, 8, 1)
    assert "of a link" in line["error"] and "test_a_failure_is_told" in line["error"]


def test_of_many_failures_some_are_told_and_all_are_counted() -> None:
    log = ListLog()
    failures = Failures(log, "S")
    for _ in range(2_000):
        failures.failed("links fail", ValueError("again"))
    assert failures.count == 2_000
    assert [line["so_far"] for _, _, line in log.lines] == [*range(1, LOGGED + 1), 1_000, 2_000]
    assert all("index" not in line for _, _, line in log.lines)
