"""Resolution of a query's options to tasks and offsets, by the leaders' answers. It runs where a read is planned."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from jetcluster.archive.bounds import Bounds
from jetcluster.arrow import archived, cut, listing, planner
from jetcluster.arrow.archived import Archived
from jetcluster.arrow.frames import pending
from jetcluster.arrow.link import check_preference
from jetcluster.arrow.offsets import Offset, Offsets, Partitioning
from jetcluster.arrow.options import SourceOptions
from jetcluster.arrow.planner import NO_SUBJECTS, DataLossError, OrderedTask, RangeTask, Subjects, Target, Task
from jetcluster.client.connection import Connection
from jetcluster.client.listing import listed
from jetcluster.client.servers import ask
from jetcluster.client.stream_state import (
    StreamError,
    StreamState,
    is_ours,
    leader_next_time,
    seq_at_time,
    stream_state,
)

T = TypeVar("T")


class Extent(NamedTuple):
    """The part of one stream that a batch query reads, decided once."""

    target: Target
    low: int
    high: int
    subjects: Subjects = NO_SUBJECTS
    """For mode=last: the stored subjects."""
    mean_bytes: float = 0.0
    """The size of a stored message."""
    loss: str = ""
    """Describes messages that the options ask for and that are gone; "" for none. A caller that is about to read them
    raises it; a streaming query that resumes from a checkpoint does not."""
    archive: Archived | None = None
    cut: int = 0
    """Sequences below are read from the archive."""
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
    return ask(server, partial(extents_of, options=options), options.retry_timeout, reach=server.reach_timeout)


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


def stream_states(options: SourceOptions) -> dict[str, StreamState]:
    """Returns the states of the streams as their leaders report them."""
    return _asked(options, partial(_states, options=options))


def fresh_states(options: SourceOptions) -> dict[str, StreamState]:
    """Returns the states with ends as fresh as the options ask for. Raises what `cut.fresh_states` raises."""
    return _asked(options, lambda link: cut.fresh_states(link, _states(link, options), options))


class Remainder(NamedTuple):
    """The part of a stream that a query has not read yet."""

    state: StreamState
    messages: int
    """Sequences that are not read yet; gaps among them count."""
    oldest: int | None
    """The time of the first message among them, Unix nanoseconds; None for none."""


def remainders(options: SourceOptions, ends: Offsets) -> dict[str, Remainder]:
    """Returns what is left for a query that has read up to `ends`. Raises what `ask` raises."""
    return _asked(options, partial(_remainders, options=options, ends=ends))


def _remainders(link: Connection, options: SourceOptions, ends: Offsets) -> dict[str, Remainder]:
    subject = options.subjects[0] if len(options.subjects) == 1 else ">"
    found = {}
    for name, state in _states(link, options).items():
        at = ends[name].seq if name in ends else state.first
        if name not in options.archives:
            at = max(at, state.first)
        behind = max(planner.end_of(state) - at, 0)
        oldest = leader_next_time(link, name, at, subject) if behind else None
        found[name] = Remainder(state, behind, oldest)
    return found


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
    """Returns the tasks of one micro-batch: how many, and which rows each has in which order, depends on the offsets
    alone, if those of `end` have parts. Raises DataLossError when messages of it are gone."""
    found: list[Extent] = []
    for name in end:
        target, live = _asked(options, partial(_checked, name=name, options=options))
        begin = start.get(name, Offset(0))
        live = not_behind(live, begin, options)
        state, archive = united(live, begin.seq, options)
        low = planner.check_start(begin, state, fail=options.fail_on_data_loss)
        if end[name].created and end[name].created != state.created:
            planner.check_start(end[name], state, fail=options.fail_on_data_loss)
            low = end[name].seq  # the planned range is of a deleted stream
        extent = _with_archive(Extent(target, low, end[name].seq), archive, live, options)
        check_loss([extent])
        found.append(extent)
    tasks: list[Task] = []
    lows = {extent.target.stream: extent.low for extent in found}
    planned = with_parts(options, lows, end)
    for extent in found:
        high, _, parts = planned[extent.target.stream]
        if parts is not None:
            for low, upto in planner.cut_evenly(parts.low, high, parts.number):  # parts keep their numbers when empty
                tasks.append(_in_order(extent, min(max(low, extent.low), upto), upto, options, len(tasks)))
    return tasks


def with_parts(options: SourceOptions, lows: Mapping[str, int], end: Offsets) -> Offsets:
    """Returns the end of a micro-batch from `lows` on with the parts of each range, where it has none and is not empty.
    This is decided once, as it rests on the machine and on what the stream has."""
    wanted = [name for name, at in end.items() if at.parts is None and lows[name] < at.seq]
    if not wanted:
        return end
    live = [name for name in wanted if name not in options.archives]  # nobody can count what an archive has
    counts = dict(zip(live, _records([(name, lows[name], end[name].seq) for name in live], options), strict=True))
    whole = sum(max(at.seq - lows[name], 0) for name, at in end.items())
    found = dict(end)
    for name in wanted:
        span = end[name].seq - lows[name]
        count = planner.parts_of(span, options, span / whole, counts.get(name))
        found[name] = end[name]._replace(parts=Partitioning(lows[name], count))
    return found


def _in_order(extent: Extent, low: int, high: int, options: SourceOptions, index: int) -> Task:
    target = extent.target
    if target.stream not in options.archives:
        return RangeTask(target, low, high, index)
    if extent.archive is None:
        return OrderedTask(target, low, high, index)
    bounds = Bounds(low, min(high, extent.cut), subjects=options.subjects)
    files = tuple(file for file in extent.archive.files if file.may_hold(bounds))
    return OrderedTask(target, low, high, index, extent.cut, files)


def not_behind(state: StreamState, reached: Offset, options: SourceOptions) -> StreamState:
    """Returns the state; where it ends before a place that the query has reached, that of a leader that proves that it
    leads: one that was deposed may not know so much, and that is no loss."""
    if reached.seq <= planner.end_of(state) or (reached.created and reached.created != state.created):
        return state
    return _asked(options, partial(stream_state, stream=state.name, linearizable=True))


def united(state: StreamState, seq: int, options: SourceOptions) -> tuple[StreamState, Archived | None]:
    """Returns the state of archive and stream as one, and the archive, if the query has one and begins, at `seq`, below
    what the stream has, or prefers it. Raises what `archived.find` raises."""
    wanted = options.prefer_archive or seq < planner.lowest(state)
    archive = archived.find(state.name, state.created, options) if wanted else None
    return (state if archive is None else archive.united(state)), archive


def _with_archive(extent: Extent, archive: Archived | None, state: StreamState, options: SourceOptions) -> Extent:
    """Returns the extent, cut between archive and stream, with the loss of what is in neither."""
    if archive is None:
        return extent
    cut, loss = archive.cut(extent.low, state, options), extent.loss
    if options.fail_on_data_loss:
        loss = loss or archive.gap(state.name, extent.low, min(planner.lowest(state), extent.high))
    return extent._replace(archive=archive, cut=cut, loss=loss)


def _range_tasks(ranges: list[tuple[Target, int, int]], options: SourceOptions) -> list[Task]:
    counts = _records([(target.read_from, low, high) for target, low, high in ranges], options)
    return planner.range_tasks(ranges, options, counts)


def _records(ranges: Sequence[tuple[str, int, int]], options: SourceOptions) -> list[int | None]:
    """Returns how many messages of ranges [low, high) of streams match the filters; None: as many as sequences."""
    few = all(high - low <= planner.SMALL_TASK_SEQUENCES for _, low, high in ranges)
    if few or options.subjects == (">",):
        return [None] * len(ranges)
    return _asked(
        options,
        lambda link: [
            sum(matching(link, stream, subject, low, high, options) for subject in options.subjects)
            for stream, low, high in ranges
        ],
    )


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


def extents_of(link: Connection, options: SourceOptions) -> list[Extent]:
    """Returns the ranges of a batch query, as one server tells. Raises as `batch_extents`."""
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
    subjects = _subjects(link, name, high - 1, options) if options.mode == "last" else NO_SUBJECTS
    if options.mode == "last" and not is_ours(link) and not state.current:
        # nats-server does not report what a replica has applied: an older message would look like the last one.
        raise StreamError(f"{name}: mode=last on nats-server needs all replicas online and current")
    mean = state.bytes / state.messages if state.messages else 0.0
    return _with_archive(Extent(target, min(low, high), high, subjects, mean, loss), archive, live, options)


def _subjects(link: Connection, stream: str, at_least: int, options: SourceOptions) -> Subjects:
    return listing.plan(
        partial(listing.page, link, stream), options.subjects, at_least, size=options.max_records,
        least=options.min_partitions,
    )  # fmt: skip


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
