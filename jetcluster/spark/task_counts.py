"""Counts that tasks of the source have reported (spark/task_report.py): rows, retries, and answers by server."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final, NamedTuple

MAX_SERIES: Final = 1000
"""Pairs of stream and server of which answers are counted, and as many streams; further ones count as "other"."""
OTHER: Final = "other"


class TaskReport(NamedTuple):
    """The report of one task."""

    stream: str
    rows: int
    retries: int
    answers: dict[str, int]
    """By the server whose replica was asked."""
    reader: str
    """The run of a streaming query that the task is of; "" for a batch query."""


def report_of(body: bytes) -> TaskReport:
    """Returns a report as a task has sent it. Raises ValueError for bytes that are none."""
    found = json.loads(body)
    try:
        stream, retries, rows = str(found["stream"])[:255], int(found["retries"]), int(found["rows"])
        answers = {str(server)[:255]: int(count) for server, count in found["answers"].items()}
        reader = str(found.get("reader", ""))[:64]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no report of a task: {body[:80]!r}") from error
    if min(retries, rows, *answers.values()) < 0:
        raise ValueError(f"a report with negative counts: {body[:80]!r}")
    return TaskReport(stream, rows, retries, answers, reader)


class TaskCounts:
    """Sums of reports. One thread at a time may call it."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.answers: Counter[tuple[str, str]] = Counter()
        """By stream and server."""

    def add(self, report: TaskReport) -> None:
        stream = report.stream
        if stream not in self.rows and len(self.rows) >= MAX_SERIES:
            stream = OTHER
        self.rows[stream] += report.rows
        self.retries[stream] += report.retries
        for server, count in report.answers.items():
            known = (stream, server) in self.answers or len(self.answers) < MAX_SERIES
            self.answers[(stream, server) if known else (OTHER, OTHER)] += count

    def by_stream(self) -> dict[str, Any]:
        """Returns answers by server, and retries, of each stream, as JSON has them."""
        found: dict[str, Any] = {stream: {"answers": {}, "retries": self.retries[stream]} for stream in self.rows}
        for (stream, server), count in sorted(self.answers.items()):
            found.setdefault(stream, {"answers": {}, "retries": 0})["answers"][server] = count
        return found
