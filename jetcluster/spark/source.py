"""Spark's side of the source: readers for batch and streaming queries (docs/spark-source.md).

A batch query is fixed where `schema()` is called, once per `load()`: all that is derived from one DataFrame sees the
same messages. With a schema of the user's, Spark asks for none, and each action looks anew.
Nothing is kept on the server: Direct Gets have no state there, and Spark need not say when a query ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from jetcluster.spark import offsets as offset_json
from jetcluster.spark import planner, resolve
from jetcluster.spark.offsets import Offset, Offsets
from jetcluster.spark.options import SourceOptions, check_streaming
from jetcluster.spark.resolve import Extent, Pushdown
from jetcluster.spark.stream_state import StreamState

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


class TaskPartition(InputPartition):
    """One task of the plan. Spark makes a partition of its own, without a task, where the plan has none."""

    def __init__(self, task: planner.Task) -> None:
        super().__init__(None)
        self.task = task


def _read(partition: InputPartition, options: SourceOptions, names: Sequence[str]) -> Iterator[Any]:
    if isinstance(partition, TaskPartition):
        from jetcluster.spark.read_task import read_task

        yield from read_task(partition.task, options, names)


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, names: Sequence[str], extents: list[Extent] | None) -> None:
        """`extents` is what was decided when the query was loaded; None: decide when Spark plans."""
        self._options = options
        self._names = list(names)
        self._extents = extents

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
    """For `pushdown=true`: Spark refuses a reader that has `pushFilters` unless
    `spark.sql.python.filterPushdown.enabled` is set."""

    def __init__(self, options: SourceOptions, names: Sequence[str], extents: list[Extent] | None) -> None:
        super().__init__(options, names, extents)
        self._pushdown = Pushdown(kafka=options.kafka)

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Narrows what is read. All filters are given back: Spark applies them again, which costs little."""
        for one in filters:
            self._pushdown.take(one)
            yield one

    def partitions(self) -> Sequence[InputPartition]:
        narrowed = self._pushdown.options(self._options)
        if narrowed is None:
            return []
        self._options = narrowed
        extents = resolve.narrowed(self._resolved(), self._pushdown, self._options)
        return [TaskPartition(task) for task in resolve.tasks_of(extents, self._options)]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, names: Sequence[str], extents: list[Extent] | None) -> None:
        """`extents` say where a query without a checkpoint begins, if that was decided when it was loaded: Spark asks
        for it twice, and "latest" must not move between. Raises OptionError for options of batch queries."""
        check_streaming(options)
        self._options = options
        self._names = list(names)
        self._extents = extents
        self._target: Offsets | None = None
        """Where a run of `Trigger.AvailableNow` ends."""

    def initialOffset(self) -> dict[str, Any]:
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

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begins = offset_json.from_json(start)
        states = resolve.stream_states(self._options)
        ends = self._ends(begins, states)
        if self._target is not None:
            for name, end in self._target.items():
                if ends[name].created == end.created and ends[name].seq > end.seq:
                    ends[name] = Offset(max(end.seq, begins[name].seq if name in begins else 0), end.created)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else 0
        return offset_json.to_json(planner.advance(begins, ends, states, rows=rows, size=size))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        states = resolve.stream_states(self._options)
        return offset_json.to_json({name: Offset(planner.end_of(at), at.created) for name, at in states.items()})

    def prepareForTriggerAvailableNow(self) -> None:
        states = resolve.stream_states(self._options)
        self._target = {name: Offset(planner.end_of(at), at.created) for name, at in states.items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found = resolve.range_between(self._options, offset_json.from_json(start), offset_json.from_json(end))
        return [TaskPartition(task) for task in found]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition, self._options, self._names)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: no place is kept on the server."""

    def stop(self) -> None:
        """Nothing is open."""

    def _ends(self, begins: Offsets, states: dict[str, StreamState]) -> Offsets:
        """Where the streams end. Raises DataLossError when a stream is no longer the one that was read."""
        ends: Offsets = {}
        for name, state in states.items():
            if (begin := begins.get(name)) is not None:
                planner.check_start(begin, state, fail=self._options.fail_on_data_loss)
            ends[name] = Offset(planner.end_of(state), state.created)
        return ends
