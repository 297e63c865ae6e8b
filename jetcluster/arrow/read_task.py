"""A task of the source on its executor: record batches of a range of a stream, complete or an error.

`LastFetch` reads the last message of each of many subjects as of a sequence, by `multi_last` Direct Gets. A replica
that has not applied the stream up to that sequence would answer with older messages, so its answer counts only with the
proof `Jc-Applied-Seq`. nats-server sends none: there, planning has seen all replicas current (`resolve`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from jetcluster.archive.bounds import Bounds
from jetcluster.archive.manifest import ArchivedFile
from jetcluster.arrow import archived, in_order, listing
from jetcluster.arrow.archived import Seen
from jetcluster.arrow.archived_rows import ArchivedConverter
from jetcluster.arrow.convert import Converter
from jetcluster.arrow.fetch import (
    LOOK_SECONDS,
    MAX_PAUSE_SECONDS,
    MIN_PAUSE_SECONDS,
    PROOF,
    IncompleteError,
    RangeFetch,
    ReplicaLagError,
    check_there,
    is_behind,
    merged,
    refuse,
)
from jetcluster.arrow.frames import Batch, taken
from jetcluster.arrow.link import Link
from jetcluster.arrow.offsets import Offset
from jetcluster.arrow.options import SourceOptions
from jetcluster.arrow.planner import (
    LAST_CHUNK_SUBJECTS,
    ArchiveTask,
    DataLossError,
    LastTask,
    OrderedTask,
    RangeTask,
    Task,
    check_start,
    lowest,
)
from jetcluster.client.reply import ConnectionLostError, NoRespondersError, RequestTimeoutError
from jetcluster.client.servers import ask
from jetcluster.client.stream_state import StreamState, is_ours, stream_state
from jetcluster.errors import ApiError, JetclusterError


class LastFetch:
    """The last message of each subject of `task`."""

    def __init__(self, link: Link, options: SourceOptions, task: LastTask) -> None:
        self._link = link
        self._options = options
        self._task = task

    def __iter__(self) -> Iterator[Batch]:
        """Yields one batch per request, by sequence. Raises StreamError, and the error of the last attempt."""
        for names in self._names():
            for at in range(0, len(names), LAST_CHUNK_SUBJECTS):
                yield from self._chunk(names[at : at + LAST_CHUNK_SUBJECTS])

    def _names(self) -> Iterator[tuple[str, ...]]:
        """Yields the subjects; those within a range page by page, so that the task holds one page."""
        task = self._task
        if task.within is None:
            return iter([task.subjects])
        return listing.within(self._listed, task.within, task.up_to)

    def _listed(self, subject_filter: str, place: int) -> listing.Page:
        """Asks over the open connection once, then over new ones."""
        stream = self._task.target.stream
        try:
            return listing.page(self._link.connection, stream, subject_filter, place)
        except (ApiError, ConnectionLostError, NoRespondersError, RequestTimeoutError):
            self._link.close()
            return listing.asked_page(self._options, stream, subject_filter, place)

    def _chunk(self, names: tuple[str, ...]) -> Iterator[Batch]:
        """Yields the messages page by page, as `max_bytes` may cut an answer short. What a page of the newest ones
        shows is not asked for again, as it may have changed."""
        after = 0
        while True:
            batch, left = self._patiently(names, after)
            if batch.count:
                if self._task.newest and left:
                    found = set(Converter(["subject"], "").convert(batch).column(0).to_pylist())
                    names = tuple(name for name in names if name not in found)
                else:
                    after = batch.last
                yield batch
            if not left:
                return

    def _patiently(self, names: tuple[str, ...], after: int) -> tuple[Batch, int]:
        begun, pause = time.monotonic(), MIN_PAUSE_SECONDS
        while True:
            try:
                return self._page(names, after)
            except ReplicaLagError as error:
                failure: JetclusterError = error
                most = self._options.replica_wait
                self._link.go_on()
            except NoRespondersError as error:
                failure, most = error, self._options.retry_timeout
                if time.monotonic() - begun > LOOK_SECONDS:
                    check_there(self._link, self._task.target.stream, self._options.request_timeout)
                self._link.no_responders()
            except (ConnectionLostError, RequestTimeoutError, IncompleteError, ApiError) as error:
                if not error.retriable:
                    raise
                failure, most = error, self._options.retry_timeout
                self._link.go_on()
            self._link.retries += 1
            if time.monotonic() - begun + pause > most:
                raise failure
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    def _page(self, names: tuple[str, ...], after: int) -> tuple[Batch, int]:
        """Returns (messages, number of messages that follow)."""
        request = {
            "multi_last": names, "seq": after + 1, "batch": LAST_CHUNK_SUBJECTS,
            "max_bytes": self._options.fetch_bytes, "min_last_seq": self._task.up_to,
        }  # fmt: skip
        if not self._task.newest:
            request["up_to_seq"] = self._task.up_to
        link, task = self._link, self._task
        gather = link.connection.gather(
            link.subject, json.dumps(request).encode(), PROOF, self._options.request_timeout, columns=True
        )
        end = gather.wait()
        if end.status not in (204, 404) and not is_behind(end):
            refuse(end, task.target.stream)
        applied = int(end.get("Jc-Applied-Seq") or 0) if end.get("Jc-Stream") == link.stream else 0
        if applied < task.up_to and is_ours(link.connection):
            raise ReplicaLagError(
                f"{task.target.stream}: the replica on {end.get('Jc-Peer') or end.get('Nats-Answered-By')} has applied "
                f"{applied or end.get('Nats-Applied-Sequence')} of {task.up_to}"
            )
        batch = taken(gather)
        if not batch.count:
            return batch, 0
        left = int(end.get("Nats-Num-Pending") or -1)
        if not batch.is_whole(left, int(end.get("Nats-Last-Sequence") or 0)):
            raise IncompleteError(f"an answer of {batch.count} last messages has holes")
        if batch.stream != link.stream:
            raise IncompleteError(f"a mirror answered for {link.stream}")
        link.answered()
        return batch, left


MAX_BATCH_BYTES: Final = 16 << 20
"""Bytes of one record batch; an Arrow binary column holds at most 2 GiB."""


def read_task(task: Task, options: SourceOptions, names: Sequence[str], open_link: Link | None = None) -> Iterator[Any]:
    """Yields `pyarrow.RecordBatch`. `open_link`: a link that stays open, instead of one for this task. Raises what the
    fetches raise, and DataLossError."""
    of_archive = ArchivedConverter(names, task.target.stream, kafka=options.kafka, time_unit=options.time_unit)
    if isinstance(task, ArchiveTask):
        yield from map(of_archive.convert, archived.read(task, options, of_archive.columns))
        return
    if isinstance(task, OrderedTask):
        yield from collected(_ordered(task, options, names, of_archive, open_link), options.arrow_rows)
        return
    seen = Seen() if task.target.stream in options.archives else None
    link = open_link or Link(options, task.target, task.index)
    converter = Converter(names, task.target.stream, kafka=options.kafka, time_unit=options.time_unit)
    try:
        batches = LastFetch(link, options, task) if isinstance(task, LastTask) else _range(link, options, task, seen)
        yield from collected(map(converter.convert, batches), options.arrow_rows)
    finally:
        if open_link is None:
            link.close()
    if seen is not None and seen.removed and isinstance(task, RangeTask):
        bounds = Bounds(task.low, min(task.high, seen.removed), subjects=options.subjects)
        lost = ArchiveTask(task.target, options.archives[task.target.stream], (), bounds, task.index)
        yield from map(of_archive.convert, archived.repair(lost, options, of_archive.columns, seen))


def _range(link: Link, options: SourceOptions, task: RangeTask, seen: Seen | None) -> Iterator[Batch]:
    """`seen`: for a stream with an archive, takes the sequences, and up to where messages may be missing."""
    count = 0
    for batch in _fetched(link, options, task, task.low):
        count += batch.count
        if seen is not None:
            _note(seen, batch)
        yield batch
    if options.fail_on_data_loss or seen is not None:
        dense = count == task.high - task.low
        try:
            state = leader_state(link, options, task.target.stream, 1.0 if dense else options.retry_timeout)
        except (ApiError, ConnectionLostError, NoRespondersError, RequestTimeoutError):
            if not dense:
                raise
            return  # no message is missing, so the state is not needed
        if seen is not None and not dense and lowest(state) > task.low:
            seen.removed = lowest(state)
        if options.fail_on_data_loss:
            check_afterwards(task, state, dense=dense or (seen is not None and seen.removed > 0))


def _ordered(
    task: OrderedTask,
    options: SourceOptions,
    names: Sequence[str],
    of_archive: ArchivedConverter,
    open_link: Link | None,
) -> Iterator[Any]:
    """Yields the rows in order, from the archive below the cut. What limits remove from the stream meanwhile is looked
    for in the archive before any row that follows."""
    link = open_link or Link(options, task.target, task.index)
    converter = Converter(names, task.target.stream, kafka=options.kafka, time_unit=options.time_unit)

    def of(low: int, high: int, files: tuple[ArchivedFile, ...] = ()) -> ArchiveTask:
        bounds = Bounds(low, min(high, task.high), subjects=options.subjects)
        return ArchiveTask(task.target, options.archives[task.target.stream], files, bounds, task.index)

    at = max(task.low, min(task.cut, task.high))
    try:
        if task.low < at:
            lower = in_order.read(of(task.low, at, task.files), options, of_archive.columns)
            yield from map(of_archive.convert, lower)
        while at < task.high:
            first = 0
            for rows, count, last in _portions(_fetched(link, options, task, at), converter, options.arrow_rows):
                if last - at + 1 != count and (first := _first(link, options, task)) > at:
                    link.close()  # drops what was asked ahead
                    break  # some that belong before these rows, or among them, may be gone
                yield from rows
                at = last + 1
            else:
                first = _first(link, options, task, complete=at >= task.high)
            if first <= at:
                return
            lost = of(at, first)
            yield from map(of_archive.convert, in_order.removed(lost, options, of_archive.columns))
            at = lost.bounds.high
    finally:
        if open_link is None:
            link.close()


def _fetched(link: Link, options: SourceOptions, task: RangeTask | OrderedTask, low: int) -> Iterator[Batch]:
    alone = len(options.subjects) == 1
    return merged([
        RangeFetch(link, options, task.target.stream, subject, low, task.high, columns=alone)
        for subject in options.subjects
    ])  # fmt: skip


def _portions(batches: Iterable[Batch], converter: Converter, rows: int) -> Iterator[tuple[list[Any], int, int]]:
    """Yields record batches with together about `rows` rows or MAX_BATCH_BYTES, their rows, and the last sequence."""
    held: list[Any] = []
    count = size = last = 0
    for batch in batches:
        if batch.count:
            held.append(converter.convert(batch))
            count, size, last = count + batch.count, size + held[-1].nbytes, batch.last
        if count >= rows or size >= MAX_BATCH_BYTES:
            yield held, count, last
            held, count, size = [], 0, 0
    if held:
        yield held, count, last


def _first(link: Link, options: SourceOptions, task: OrderedTask, *, complete: bool = False) -> int:
    """Returns the stream's first sequence now; with `complete`, when nothing depends on it, 0 if no leader answers.
    Raises DataLossError for a stream that was created anew."""
    try:
        state = leader_state(link, options, task.target.stream, 1.0 if complete else options.retry_timeout)
    except (ApiError, ConnectionLostError, NoRespondersError, RequestTimeoutError):
        if not complete:
            raise
        return 0
    if options.fail_on_data_loss:
        check_start(Offset(max(task.high, lowest(state)), task.target.created), state, fail=True)
    return lowest(state)


def _note(seen: Seen, batch: Batch) -> None:
    if not batch.count:
        return
    if batch.last - batch.first + 1 == batch.count:
        seen.add_range(batch.first, batch.last)
    else:
        seen.add(batch.sequences())


def leader_state(link: Link, options: SourceOptions, stream: str, patience: float) -> StreamState:
    """Asks over the open connection once, then over new ones. Whether a gap is a deletion or a loss rests on the
    answer, and a leader that was deposed before the loss would hide it: so the leader proves that it leads. Raises what
    `ask` raises."""
    question = partial(stream_state, stream=stream, linearizable=True)
    try:
        return question(link.connection)
    except (ApiError, ConnectionLostError, NoRespondersError, RequestTimeoutError):
        link.close()
        return ask(options.server, question, patience)


def check_afterwards(task: RangeTask, state: StreamState, *, dense: bool) -> None:
    """Raises DataLossError when messages of the range may have been removed since planning: a gap shows no reason."""
    target = task.target
    check_start(Offset(max(task.high, lowest(state)), target.created), state, fail=True)
    if not dense and lowest(state) > task.low:
        raise DataLossError(
            f"{target.stream}: limits or a purge removed messages up to {lowest(state) - 1} while {task.low} to "
            f"{task.high - 1} were read; some of them may be missing. failOnDataLoss=false takes what there is"
        )


def collected(batches: Iterable[Any], rows: int) -> Iterator[Any]:
    """Joins record batches to about `rows` rows, and MAX_BATCH_BYTES."""
    parts: list[Any] = []
    count = size = 0
    for batch in batches:
        if parts and (count + batch.num_rows > rows or size + batch.nbytes > MAX_BATCH_BYTES):
            yield _joined(parts)
            parts, count, size = [], 0, 0
        parts.append(batch)
        count += batch.num_rows
        size += batch.nbytes
    if parts:
        yield _joined(parts)


def _joined(parts: list[Any]) -> Any:
    import pyarrow as pa

    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
