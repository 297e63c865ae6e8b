"""`SourceMetrics`: what streaming queries and the tasks of the source tell, as Prometheus text.

Spark 4.3 takes no custom metrics from a Python source: `SourceProgress.metrics` stays empty. What the source knows on
the driver is in the offsets of its progress (`latestOffset`, spark/source.py); what a task knows, it tells by itself
(spark/task_report.py), and the source asks for it, for the progress of its query.
"""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from jetcluster.spark.task_counts import TaskCounts, report_of

MAX_QUERIES: Final = 200
"""Queries that are shown; a further one takes the place of the one that was silent longest."""
MAX_READERS: Final = 200
"""Runs of streaming queries whose tasks are counted by themselves; a further one takes the place of the one whose tasks
were silent longest."""
PREFIX: Final = "jetcluster_spark_"
_HELP: Final = {
    "behind_messages": ("gauge", "Sequences behind the end of the last micro-batch when it was planned"),
    "behind_seconds": ("gauge", "Age of the oldest message behind that end when it was planned; 0 for none"),
    "next_sequence": ("gauge", "The sequence at which the next micro-batch begins"),
    "batch": ("gauge", "Number of the last micro-batch"),
    "batch_seconds": ("gauge", "Duration of the last micro-batch"),
    "progress_timestamp_seconds": ("gauge", "Unix time of the last progress or idle event"),
    "rows_total": ("counter", "Rows that micro-batches have read, from all sources of the query"),
    "queries_ended_total": ("counter", "Queries that have ended"),
    "task_answers_total": ("counter", "Answers that tasks have read, by the server whose replica was asked"),
    "task_retries_total": ("counter", "Requests that tasks have repeated: no answer, no proof, a replica that lags"),
    "task_rows_total": ("counter", "Rows that tasks have read"),
}


class Sample(NamedTuple):
    """One line of the text."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


class SourceMetrics:
    """Counts of one listener. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, list[Sample]] = {}
        """By query, the one that told something last at the end."""
        self._rows: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._tasks = TaskCounts()
        self._readers: dict[str, TaskCounts] = {}
        """By run of a query, the one whose tasks told something last at the end."""

    def progress(self, found: Mapping[str, Any], now: float) -> None:
        """Takes a StreamingQueryProgress as its JSON has it. `now` is Unix time. Sources of other kinds count as rows
        only."""
        query = str(found["id"])
        labels = (("query", str(found.get("name") or query)), ("id", query))
        samples = [
            Sample("batch", labels, int(found["batchId"])),
            Sample("batch_seconds", labels, int(found["durationMs"].get("triggerExecution", 0)) / 1000),
            Sample("progress_timestamp_seconds", labels, now),
        ]
        for source in found["sources"]:
            samples += _of_source(source, labels)
        with self._lock:
            self._rows[query] += max(int(found["numInputRows"]), 0)
            samples.append(Sample("rows_total", labels, self._rows[query]))
            self._queries.pop(query, None)
            self._queries[query] = samples
            while len(self._queries) > MAX_QUERIES:
                self._forget(next(iter(self._queries)))

    def idle(self, query: str, now: float) -> None:
        """Takes that a query found nothing new to read."""
        with self._lock:
            samples = self._queries.pop(query, None)
            if samples is not None:
                self._queries[query] = [
                    sample._replace(value=now) if sample.name == "progress_timestamp_seconds" else sample
                    for sample in samples
                ]

    def ended(self, query: str, *, failed: bool) -> None:
        """Takes that a query has ended: its numbers are shown no longer."""
        with self._lock:
            self._ended["failed" if failed else "stopped"] += 1
            self._forget(query)

    def task(self, report: bytes) -> None:
        """Takes the report of a task. Raises ValueError for bytes that are none."""
        found = report_of(report)
        with self._lock:
            self._tasks.add(found)
            if found.reader:
                counts = self._readers.pop(found.reader, None) or TaskCounts()
                self._readers[found.reader] = counts
                counts.add(found)
                while len(self._readers) > MAX_READERS:
                    del self._readers[next(iter(self._readers))]

    def reader(self, name: str) -> dict[str, Any]:
        """Returns answers by server, and retries, of each stream, as the tasks of one run of a query have told."""
        with self._lock:
            counts = self._readers.get(name)
            return {} if counts is None else counts.by_stream()

    def text(self) -> str:
        """Returns all samples in Prometheus' text format (version 0.0.4)."""
        with self._lock:
            samples = list(self._samples())
        lines = []
        for name, (kind, text) in _HELP.items():
            lines += [f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} {kind}"]
            lines += [f"{PREFIX}{name}{_shown(one.labels)} {one.value:.15g}" for one in samples if one.name == name]
        return "\n".join([*lines, ""])

    def _samples(self) -> Iterator[Sample]:
        for samples in self._queries.values():
            yield from samples
        for outcome in ("failed", "stopped"):
            yield Sample("queries_ended_total", (("outcome", outcome),), self._ended[outcome])
        for (stream, server), count in self._tasks.answers.items():
            yield Sample("task_answers_total", (("stream", stream), ("server", server)), count)
        for stream, count in self._tasks.rows.items():
            yield Sample("task_rows_total", (("stream", stream),), count)
            yield Sample("task_retries_total", (("stream", stream),), self._tasks.retries[stream])

    def _forget(self, query: str) -> None:
        self._queries.pop(query, None)
        self._rows.pop(query, None)


def _of_source(source: Mapping[str, Any], labels: tuple[tuple[str, str], ...]) -> Iterator[Sample]:
    latest, ends = _object(source.get("latestOffset")), _object(source.get("endOffset"))
    for stream, at in latest.items():
        if not isinstance(at, dict) or "behind_messages" not in at:
            continue  # another source's offset
        own = (*labels, ("stream", stream))
        for name in ("behind_messages", "behind_seconds"):
            value = float(at[name])
            if math.isfinite(value):
                yield Sample(name, own, value)
        end = ends.get(stream)
        if end is not None:
            yield Sample("next_sequence", own, int(end["seq"] if isinstance(end, dict) else end))


def _object(offset: Any) -> dict[str, Any]:
    """Returns an offset that is a JSON object, or the text of one; {} for any other."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    return offset if isinstance(offset, dict) else {}


def _shown(labels: tuple[tuple[str, str], ...]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
