"""Spark's side of the source: readers for batch and streaming queries (docs/spark-source.md).

The range of a batch query is fixed when Spark calls `schema()`, once per `load()`: everything derived from one
DataFrame sees the same messages. If the user gives a schema, Spark does not ask for one, and each action resolves the
range again. The server keeps no state for a query, as Direct Gets have none; so the end of a query needs no clean-up.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from jetcluster.arrow import offsets as offset_json
from jetcluster.arrow import planner, resolve
from jetcluster.arrow.offsets import Offset, Offsets
from jetcluster.arrow.options import SourceOptions
from jetcluster.arrow.resolve import Extent
from jetcluster.client.stream_state import StreamState
from jetcluster.model.times import SECOND
from jetcluster.spark import task_report
from jetcluster.spark.options import check_streaming
from jetcluster.spark.pushdown import Pushdown, narrowed
from jetcluster.spark.sentence import SentenceFirst

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

NO_COUNTS: Final[dict[str, Any]] = {"answers": {}, "retries": 0}
"""The counts of tasks in a progress before any has told its own."""


class TaskPartition(InputPartition):
    """One task of the plan. For an empty plan, Spark creates a partition of its own without a task."""

    def __init__(self, task: planner.Task, reader: str = "") -> None:
        """`reader`: the run of a streaming query, for the report of the task."""
        super().__init__(None)
        self.task = task
        self.reader = reader


def _read(partition: InputPartition, options: SourceOptions, names: Sequence[str]) -> Iterator[Any]:
    if not isinstance(partition, TaskPartition):
        return
    from jetcluster.arrow.bucket import BucketColumns
    from jetcluster.arrow.link import Link
    from jetcluster.arrow.read_task import read_task

    task, rows = partition.task, 0
    keyed = BucketColumns(names) if options.bucket else None
    with SentenceFirst(), contextlib.closing(Link(options, task.target, task.index)) as link:
        for batch in read_task(task, options, keyed.needed if keyed else names, link):
            rows += batch.num_rows
            yield keyed.convert(batch) if keyed else batch
    if options.metrics_url:
        told = (task.target.stream, rows, link.answers, link.retries)
        task_report.send(options.metrics_url, *told, partition.reader)


class BatchReader(DataSourceReader):
    """The reader of `spark.read.format("jetstream")`."""

    def __init__(self, options: SourceOptions, names: Sequence[str], extents: list[Extent] | None) -> None:
        """`extents` are the ranges decided when the query was loaded; None: decide when Spark plans."""
        self._options = options
        self._names = list(names)
        self._extents = extents

    @SentenceFirst()
    def partitions(self) -> Sequence[InputPartition]:
        return [TaskPartition(task) for task in resolve.tasks_of(self._resolved(), self._options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition, self._options, self._names)

    def _resolved(self) -> list[Extent]:
        if self._extents is None:
            self._extents = resolve.batch_extents(self._options)
        resolve.check_loss(self._extents)
        return self._extents


class PushdownReader(BatchReader):
    """For `pushdown=once`: `pushFilters` in a reader is an error without `spark.sql.python.filterPushdown.enabled`."""

    def __init__(self, options: SourceOptions, names: Sequence[str], extents: list[Extent] | None) -> None:
        super().__init__(options, names, extents)
        self._pushdown = Pushdown(kafka=options.kafka, bucket=bool(options.bucket))

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Narrows the ranges. It returns all filters, so Spark applies them again, which costs little."""
        for one in filters:
            self._pushdown.take(one)
            yield one

    @SentenceFirst()
    def partitions(self) -> Sequence[InputPartition]:
        options = self._pushdown.options(self._options)
        if options is None:
            return []
        self._options = options
        extents = narrowed(self._resolved(), self._pushdown, self._options)
        return [TaskPartition(task) for task in resolve.tasks_of(extents, self._options)]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of `spark.readStream.format("jetstream")`."""

    def __init__(self, options: SourceOptions, names: Sequence[str], extents: list[Extent] | None) -> None:
        """`extents` are the start of a query without a checkpoint, if decided when it was loaded: Spark asks for it
        twice, and "latest" must not move in between."""
        self._options = options
        self._names = list(names)
        self._extents = extents
        self._target: Offsets | None = None
        """The end of a run of `Trigger.AvailableNow`."""
        self._planned_at: float | None = None
        """Monotonic time of the last micro-batch; None before the first."""
        self._planned: Offsets = {}
        """The end of the last micro-batch that was planned."""
        self._name = os.urandom(9).hex()
        """The run of the query, by which its tasks are counted."""

    @SentenceFirst()
    def initialOffset(self) -> dict[str, Any]:
        """Raises OptionError for options of batch queries: after an error of the constructor, Spark's own code would
        raise another one, as it stops a reader that is not there."""
        check_streaming(self._options)
        if self._extents is None:
            self._extents = resolve.batch_extents(self._options)
        resolve.check_loss(self._extents)
        return offset_json.to_json({e.target.stream: Offset(e.low, e.target.created) for e in self._extents})

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_rows:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    @SentenceFirst()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        end = self._end(start, limit)
        self._planned = offset_json.from_json(end)
        return end

    def _end(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        check_streaming(self._options)
        begins = offset_json.from_json(start)
        fixed = self._target is not None
        states = resolve.stream_states(self._options) if fixed else resolve.fresh_states(self._options)
        for name, state in states.items():
            begin = begins.get(name, Offset(0))
            states[name], _ = resolve.united(resolve.not_behind(state, begin, self._options), begin.seq, self._options)
        ends = self._ends(begins, states)
        if self._target is not None:
            for name, end in self._target.items():
                if ends[name].created == end.created:
                    ends[name] = Offset(max(end.seq, begins[name].seq if name in begins else 0), end.created)
        if self._target is None and self._delays(sum(planner.backlog(begins, ends, states).values())):
            return offset_json.to_json(begins)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else 0
        found = planner.advance(begins, ends, states, rows=rows, size=size)
        if {name: at[:2] for name, at in found.items()} == {name: at[:2] for name, at in begins.items()}:
            return offset_json.to_json(begins)  # the parts of the last micro-batch are no news
        fail = self._options.fail_on_data_loss
        lows = {name: planner.check_start(begins.get(name, Offset(0)), states[name], fail=fail) for name in found}
        return offset_json.to_json(resolve.with_parts(self._options, lows, found))

    @SentenceFirst()
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Spark shows it in the query's progress, and asks right after `latestOffset`. A Python source has no other
        place for its metrics, so the offsets also say how far the planned micro-batch ends behind the stream's end."""
        report: dict[str, Any] = {}
        url = self._options.metrics_url
        told = task_report.counts(url, self._name) if url else {}
        for name, left in sorted(resolve.remainders(self._options, self._planned).items()):
            age = 0.0 if left.oldest is None else max(time.time() - left.oldest / SECOND, 0.0)
            report[name] = {
                "seq": planner.end_of(left.state), "created": left.state.created,
                "behind_messages": left.messages, "behind_seconds": round(age, 3),
                **(told.get(name, NO_COUNTS) if url else {}),
            }  # fmt: skip
        return report

    @SentenceFirst()
    def prepareForTriggerAvailableNow(self) -> None:
        check_streaming(self._options)
        states = resolve.fresh_states(self._options)
        self._target = {name: Offset(planner.end_of(at), at.created) for name, at in states.items()}

    @SentenceFirst()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found = resolve.range_between(self._options, offset_json.from_json(start), offset_json.from_json(end))
        return [TaskPartition(task, self._name) for task in found]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition, self._options, self._names)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the server keeps no offsets."""

    def stop(self) -> None:
        """Does nothing: no connection stays open."""

    def _delays(self, waiting: int) -> bool:
        """Returns whether so few sequences wait for more of them (`minOffsetsPerTrigger`, `maxTriggerDelay`)."""
        now = time.monotonic()
        late = self._planned_at is None or now - self._planned_at >= self._options.max_delay
        if waiting < self._options.min_rows and not late:
            return True
        if waiting:
            self._planned_at = now
        return False

    def _ends(self, begins: Offsets, states: dict[str, StreamState]) -> Offsets:
        """Returns the ends of the streams. Raises DataLossError when reading cannot continue at `begins`."""
        ends: Offsets = {}
        gone = begins.keys() - states.keys()
        if gone and self._options.fail_on_data_loss:
            raise planner.DataLossError(f"{', '.join(sorted(gone))} was read, and is no stream any more")
        for name, state in states.items():
            if (begin := begins.get(name)) is not None:
                planner.check_start(begin, state, fail=self._options.fail_on_data_loss)
            ends[name] = Offset(planner.end_of(state), state.created)
        return ends
