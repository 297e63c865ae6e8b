"""Resolution of a query's options to tasks and offsets, by the leaders' answers. It runs where Spark plans.

Two kinds of filters narrow the read: comparisons of `seq` with literals, and `subject` as a literal or with a prefix.
Other filters have no effect here; Spark applies every filter again.

A filter on `time` narrows only what is read of an archive, whose files tell the times of their rows. A stream's times
come from its leaders' clocks and may go back, so no range of sequences holds exactly the messages of a range of times.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from jetcluster.archive.bounds import Bounds
from jetcluster.client.connection import Connection
from jetcluster.client.listing import listed
from jetcluster.client.servers import ask
from jetcluster.client.stream_state import StreamError, StreamState, is_ours, seq_at_time, stream_state
from jetcluster.protocol import subjects
from jetcluster.spark import archived, cut, planner
from jetcluster.spark.archived import Archived
from jetcluster.spark.cut import ChangedError
from jetcluster.spark.frames import pending
from jetcluster.spark.link import check_preference
from jetcluster.spark.offsets import Offset, Offsets
from jetcluster.spark.options import SourceOptions
from jetcluster.spark.planner import DataLossError, Target, Task

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_SUBJECTS = 16
"""An IN filter with more subjects narrows nothing, as each one would become a scan."""


class Pushdown:
    """The bounds that the filters of a query set: sequences [low, high) and subjects."""

    def __init__(self, *, kafka: bool = False) -> None:
        self._seq_name, self._time_name = ("offset", "timestamp") if kafka else ("seq", "time")
        self.low = 0
        self.high: int | None = None
        self.subjects: set[str] | None = None
        """Subjects, or one wildcard filter for a prefix; None: any."""
        self.first_time: int | None = None
        self.last_time: int | None = None
        """Unix nanoseconds, inclusive; None: any."""

    def take(self, one: Filter) -> None:
        name = type(one).__name__
        attribute = getattr(one, "attribute", ())
        value = getattr(one, "value", None)
        if attribute == (self._seq_name,):
            self._sequence(name, value)
        elif attribute == ("subject",):
            self._subject(name, value)
        elif attribute == ("time_ns",) and isinstance(value, int):
            self._time(name, value, value)
        elif attribute == (self._time_name,) and isinstance(value, datetime) and value.tzinfo is not None:
            begin = (value - _EPOCH) // timedelta(microseconds=1) * 1000
            self._time(name, begin, begin + 999)

    def options(self, options: SourceOptions) -> SourceOptions | None:
        """Returns `options` with the subjects that are left; None when none is left."""
        if self.subjects is None:
            return options
        found = []
        for wanted in sorted(self.subjects):
            if any(subjects.is_subset(wanted.encode(), known.encode()) for known in options.subjects):
                found.append(wanted)
            elif not subjects.is_literal(wanted.encode()):
                return options  # the filters overlap only in part: left to Spark
        return dataclasses.replace(options, subjects=tuple(found)) if found else None

    def _sequence(self, name: str, value: Any) -> None:
        if name == "In" and value and all(isinstance(one, int) for one in value):
            self._bound(min(value), max(value) + 1)
        elif isinstance(value, int):
            if name in ("EqualTo", "EqualNullSafe"):
                self._bound(value, value + 1)
            elif name in ("GreaterThan", "GreaterThanOrEqual"):
                self._bound(value + (name == "GreaterThan"), None)
            elif name in ("LessThan", "LessThanOrEqual"):
                self._bound(0, value + (name == "LessThanOrEqual"))

    def _bound(self, low: int, high: int | None) -> None:
        self.low = max(self.low, low)
        if high is not None:
            self.high = high if self.high is None else min(self.high, high)

    def _time(self, name: str, begin: int, end: int) -> None:
        """Takes a comparison with a moment of the nanoseconds from `begin` to `end`."""
        if name in ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"):
            self.first_time = begin if self.first_time is None else max(self.first_time, begin)
        if name in ("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual"):
            self.last_time = end if self.last_time is None else min(self.last_time, end)

    def _subject(self, name: str, value: Any) -> None:
        if name in ("EqualTo", "EqualNullSafe") and isinstance(value, str):
            self._literals({value})
        elif name == "In" and len(value) <= MAX_SUBJECTS and all(isinstance(one, str) for one in value):
            self._literals(set(value))
        elif name == "StringStartsWith" and isinstance(value, str) and "." in value and self.subjects is None:
            wanted = value[: value.rindex(".")] + ".>"
            if subjects.is_valid(wanted.encode()) and subjects.is_literal(wanted[:-2].encode()):
                self.subjects = {wanted}

    def _literals(self, wanted: set[str]) -> None:
        if not all(subjects.is_valid_literal(one.encode()) for one in wanted):
            return  # no stream has such a subject; Spark's own filter removes all rows
        if self.subjects is None or not all(subjects.is_literal(one.encode()) for one in self.subjects):
            self.subjects = wanted
        else:
            self.subjects &= wanted


T = TypeVar("T")


class Extent(NamedTuple):
    """The part of one stream that a batch query reads, decided once."""

    target: Target
    low: int
    high: int
    subjects: tuple[str, ...] = ()
    """For mode=last: the stored subjects."""
    loss: str = ""
    """Describes messages that the options ask for and that are gone; "" for none. A caller that is about to read them
    raises it; a streaming query that resumes from a checkpoint does not."""
    archive: Archived | None = None
    cut: int = 0
    """What is below is read from the archive."""
    times: tuple[int | None, int | None] = (None, None)
    """Bounds of the query's filters, Unix nanoseconds."""


def check_loss(extents: Sequence[Extent]) -> None:
    """Raises DataLossError for the first extent with a loss."""
    for extent in extents:
        if extent.loss:
            raise DataLossError(extent.loss)


def batch_extents(options: SourceOptions) -> list[Extent]:
    """Returns the ranges of a batch query, by options and leaders' state. A query begins with it, so it gives up soon
    when no server is there. Raises StreamError, and what `ask` raises."""
    server = options.server
    return ask(server, partial(_extents, options=options), options.retry_timeout, reach=server.reach_timeout)


def tasks_of(extents: Sequence[Extent], options: SourceOptions) -> list[Task]:
    if options.mode == "last":
        tasks: list[Task] = []
        for extent in extents:
            tasks += planner.last_tasks(extent.target, extent.subjects, extent.high - 1, options)
        return tasks
    found: list[Task] = []
    for one in extents:
        if one.archive is not None and one.low < one.cut:
            bounds = Bounds(one.low, min(one.high, one.cut), *one.times, options.subjects)
            found += archived.tasks(one.target, one.archive, bounds, options, len(found))
    return found + _range_tasks([(e.target, max(e.low, e.cut), e.high) for e in extents], options)


def narrowed(extents: Sequence[Extent], pushdown: Pushdown, options: SourceOptions) -> list[Extent]:
    """Returns the ranges of a scan, cut to the bounds of its filters."""
    if options.mode == "last":
        return list(extents)
    found = []
    for extent in extents:
        low = max(extent.low, pushdown.low)
        high = extent.high if pushdown.high is None else min(extent.high, pushdown.high)
        times = (pushdown.first_time, pushdown.last_time)
        found.append(extent._replace(low=min(low, high), high=high, times=times))
    return found


def stream_states(options: SourceOptions) -> dict[str, StreamState]:
    """Returns the states of the streams as their leaders report them."""
    return _asked(options, partial(_states, options=options))


def fresh_states(options: SourceOptions) -> dict[str, StreamState]:
    """Returns the states with ends as fresh as the options ask for. Raises what `cut.fresh_states` raises."""
    return _asked(options, lambda link: cut.fresh_states(link, _states(link, options), options))


def _states(link: Connection, options: SourceOptions) -> dict[str, StreamState]:
    return {name: stream_state(link, name) for name in streams_of(link, options)}


def streams_of(link: Connection, options: SourceOptions) -> tuple[str, ...]:
    """Returns the names of the streams to read. Raises StreamError when `subscribePattern` matches none."""
    if not options.pattern:
        return options.streams
    names = listed(link.api, "STREAM.NAMES", "streams").entries
    found = tuple(sorted(name for name in names if re.fullmatch(options.pattern, name)))
    if not found:
        raise StreamError(f"subscribePattern={options.pattern} matches none of {len(names)} streams")
    return found


def range_between(options: SourceOptions, start: Offsets, end: Offsets) -> list[Task]:
    """Returns the tasks of one micro-batch. Raises DataLossError when messages of it are gone."""
    found = []
    for name in end:
        target, live = _asked(options, partial(_checked, name=name, options=options))
        begin = start.get(name, Offset(0))
        state, archive = united(live, begin.seq, options)
        low = planner.check_start(begin, state, fail=options.fail_on_data_loss)
        if end[name].created and end[name].created != state.created:
            planner.check_start(end[name], state, fail=options.fail_on_data_loss)
            continue  # the planned range is of a deleted stream
        extent = _with_archive(Extent(target, low, end[name].seq), archive, live, options)
        check_loss([extent])
        found.append(extent)
    return tasks_of(found, options)


def united(state: StreamState, seq: int, options: SourceOptions) -> tuple[StreamState, Archived | None]:
    """Returns the state of archive and stream as one, and the archive, if the query has one and begins, at `seq`, below
    what the stream has. Raises what `archived.find` raises."""
    archive = archived.find(state.name, state.created, options) if seq < planner.lowest(state) else None
    return (state if archive is None else archive.united(state)), archive


def _with_archive(extent: Extent, archive: Archived | None, state: StreamState, options: SourceOptions) -> Extent:
    """Returns the extent, cut between archive and stream, with the loss of what is in neither."""
    if archive is None:
        return extent
    cut, loss = archive.cut(state, options), extent.loss
    if options.fail_on_data_loss:
        loss = loss or archive.gap(state.name, extent.low, min(planner.lowest(state), extent.high))
    return extent._replace(archive=archive, cut=cut, loss=loss)


def _range_tasks(ranges: list[tuple[Target, int, int]], options: SourceOptions) -> list[Task]:
    few = all(high - low <= planner.SMALL_TASK_SEQUENCES for _, low, high in ranges)
    if few or options.subjects == (">",):
        return planner.range_tasks(ranges, options)
    counts = _asked(
        options,
        lambda link: [
            sum(matching(link, target.read_from, subject, low, high, options) for subject in options.subjects)
            for target, low, high in ranges
        ],
    )
    return planner.range_tasks(ranges, options, counts)


def matching(link: Connection, stream: str, subject: str, low: int, high: int, options: SourceOptions) -> int:
    """Returns how many messages of [low, high) match a filter, as some replica has them: a measure of the work, not a
    promise. Raises what `Connection.gather` raises."""
    counts = []
    for seq in (low, high):
        body = json.dumps({"seq": seq, "next_by_subj": subject, "batch": 1}).encode()
        gather = link.gather(f"{link.api_prefix}DIRECT.GET.{stream}", body, timeout=options.request_timeout)
        gather.wait()
        counts.append(pending(gather.heads[0]) + 1 if gather.heads else 0)
    return max(counts[0] - counts[1], 0)


def _asked(options: SourceOptions, question: Callable[[Connection], T]) -> T:
    return ask(options.server, question, options.retry_timeout)


def _extents(link: Connection, options: SourceOptions) -> list[Extent]:
    checked = {name: _checked(link, name, options) for name in streams_of(link, options)}
    states = cut.fresh_states(link, {name: state for name, (_, state) in checked.items()}, options)
    return [_extent(link, target, states[name], options) for name, (target, _) in checked.items()]


def _extent(link: Connection, target: Target, state: StreamState, options: SourceOptions) -> Extent:
    name, loss, live = state.name, "", state
    archive = archived.find(name, state.created, options)
    if archive is not None:
        state = archive.united(state)
    seq_at = partial(_seq_at_time, link, live, archive)
    try:
        low, high = _start(seq_at, state, options).seq, _end(seq_at, state, options)
    except DataLossError as error:
        loss = str(error)
        lenient = dataclasses.replace(options, fail_on_data_loss=False)
        low, high = _start(seq_at, state, lenient).seq, _end(seq_at, state, lenient)
    subjects = stored_subjects(link, name, options.subjects, high - 1) if options.mode == "last" else ()
    if options.mode == "last" and not is_ours(link) and not state.current:
        # nats-server does not report what a replica has applied: an older message would look like the last one.
        raise StreamError(f"{name}: mode=last on nats-server needs all replicas online and current")
    return _with_archive(Extent(target, min(low, high), high, subjects, loss), archive, live, options)


def _seq_at_time(link: Connection, state: StreamState, archive: Archived | None, ns: int) -> int:
    """Returns the first sequence at or after a time, of the archive below the stream's first one, or of the stream."""
    found = None if archive is None else archive.seq_at_time(ns, planner.lowest(state))
    return seq_at_time(link, state, ns) if found is None else found


def _start(seq_at: Callable[[int], int], state: StreamState, options: SourceOptions) -> Offset:
    begin = options.starting_times.get(state.name) if options.starting_time is None else options.starting_time
    if begin is not None:
        return Offset(seq_at(begin), state.created)
    return planner.starting_offset(options.starting, state, fail=options.fail_on_data_loss)


def _end(seq_at: Callable[[int], int], state: StreamState, options: SourceOptions) -> int:
    if options.as_of_time is not None:  # including that time
        return seq_at(options.as_of_time + 1)
    end = options.ending_times.get(state.name) if options.ending_time is None else options.ending_time
    if end is not None:
        return seq_at(end)
    if options.as_of_seq:
        return planner.ending_offset(options.as_of_seq + 1, state, fail=options.fail_on_data_loss)
    return planner.ending_offset(options.ending, state, fail=options.fail_on_data_loss)


def _checked(link: Connection, name: str, options: SourceOptions) -> tuple[Target, StreamState]:
    """Returns the target and the stream's state. Raises StreamError when the options do not fit the stream."""
    state = stream_state(link, name)
    source = state
    if options.preference.kind == "mirror":
        source = stream_state(link, options.preference.name)
        mirror = source.config.get("mirror") or {}
        if mirror.get("name") != name:
            raise StreamError(f"{source.name} is no mirror of {name}")
        if mirror.get("filter_subject") or mirror.get("subject_transforms") or source.config.get("subject_transform"):
            raise StreamError(f"{source.name} mirrors {name} only in part, or under other subjects")
        if options.fail_on_data_loss and (narrow := planner.narrower_limits(state.config, source.config)):
            raise StreamError(
                f"{source.name} may hold less than {name}: {narrow}. failOnDataLoss=false reads what it has"
            )
    if not source.config.get("allow_direct"):
        raise StreamError(
            f"{source.name} has allow_direct=false, and the source reads by Direct Get: "
            f"nats stream edit {source.name} --allow-direct"
        )
    check_preference(options, source.peers)
    return Target(name, source.name, state.created, source.leader, source.peers), state


def stored_subjects(link: Connection, stream: str, filters: Sequence[str], at_least: int = 0) -> tuple[str, ...]:
    """Returns the subjects of the stream's messages up to `at_least` or a later one, requested page by page. Raises
    ChangedError when a leader that answers has not reached that sequence."""
    found: dict[str, None] = {}
    for one in filters:
        offset = 0
        while True:
            body = {"subjects_filter": one, "offset": offset}
            info = link.api(f"STREAM.INFO.{stream}", body, timeout=30.0)
            if int(info["state"]["last_seq"]) < at_least:
                raise ChangedError(f"{stream}: the leader that answers ends before {at_least}")
            page = info["state"].get("subjects") or {}
            found.update(dict.fromkeys(page))
            offset += len(page)
            if not page or offset >= int(info.get("total", 0)):
                break
    return tuple(found)
