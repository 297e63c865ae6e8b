"""A task of the source on its executor: record batches of a range of a stream, complete or an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from jetcluster.errors import ApiError
from jetcluster.spark.arrow import Converter
from jetcluster.spark.fetch import RangeFetch, merged
from jetcluster.spark.frames import MessageBatch
from jetcluster.spark.last import LastFetch
from jetcluster.spark.link import Link
from jetcluster.spark.offsets import Offset
from jetcluster.spark.options import SourceOptions
from jetcluster.spark.planner import LastTask, RangeTask, Task, check_start, lowest
from jetcluster.spark.reply import ConnectionLostError, NoRespondersError, RequestTimeoutError
from jetcluster.spark.stream_state import DataLossError, StreamState, ask, stream_state

MAX_BATCH_BYTES: Final = 16 << 20
"""Bytes of one record batch; Arrow's binary columns end at 2 GiB."""


def read_task(task: Task, options: SourceOptions, names: Sequence[str]) -> Iterator[Any]:
    """Yields `pyarrow.RecordBatch`. Raises what the fetches raise, and DataLossError."""
    link = Link(options, task.target, task.index)
    converter = Converter(names, task.target.stream, kafka=options.kafka)
    try:
        batches = LastFetch(link, options, task) if isinstance(task, LastTask) else _range(link, options, task)
        for batch in collected(batches, options.arrow_rows):
            yield converter.convert(batch)
    finally:
        link.close()


def _range(link: Link, options: SourceOptions, task: RangeTask) -> Iterator[MessageBatch]:
    count = 0
    for batch in merged([
        RangeFetch(link, options, task.target.stream, subject, task.low, task.high) for subject in options.subjects
    ]):  # fmt: skip
        count += len(batch.heads)
        yield batch
    if options.fail_on_data_loss:
        dense = count == task.high - task.low
        try:
            state = _state(link, options, task.target.stream, 1.0 if dense else options.retry_timeout)
        except (ApiError, ConnectionLostError, NoRespondersError, RequestTimeoutError):
            if not dense:
                raise
            return  # nothing is missing, whether or not the stream has a leader now
        check_afterwards(task, state, dense=dense)


def _state(link: Link, options: SourceOptions, stream: str, patience: float) -> StreamState:
    """Over the connection that is there, if that goes well at once. Raises what `ask` raises."""
    try:
        return stream_state(link.connection, stream)
    except (ApiError, ConnectionLostError, NoRespondersError, RequestTimeoutError):
        link.close()
        return ask(options.server, partial(stream_state, stream=stream), patience)


def check_afterwards(task: RangeTask, state: StreamState, *, dense: bool) -> None:
    """Raises DataLossError when messages of the range may have been removed between planning and reading: a gap does
    not say why it is one."""
    target = task.target
    check_start(Offset(max(task.high, lowest(state)), target.created), state, fail=True)
    if not dense and lowest(state) > task.low:
        raise DataLossError(
            f"{target.stream}: limits or a purge removed messages up to {lowest(state) - 1} while {task.low} to "
            f"{task.high - 1} were read; some of them may be missing. failOnDataLoss=false takes what there is"
        )


def collected(batches: Iterable[MessageBatch], rows: int) -> Iterator[MessageBatch]:
    """Batches of about `rows` messages, cut by bytes as well."""
    heads: list[bytes] = []
    payloads: list[bytes] = []
    size = 0
    for batch in batches:
        if heads and (len(heads) + len(batch.heads) > rows or size + batch.size > MAX_BATCH_BYTES):
            yield MessageBatch(heads, payloads)
            heads, payloads, size = [], [], 0
        heads += batch.heads
        payloads += batch.payloads
        size += batch.size
    if heads:
        yield MessageBatch(heads, payloads)
