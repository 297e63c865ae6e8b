"""The plan of a query: converts positions in options to ranges of sequences, cuts ranges into tasks, limits triggers.

Nothing here does I/O: leaders' answers come as `StreamState`. Every end is exclusive, as in Spark's Kafka source.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from jetcluster.archive.bounds import Bounds
from jetcluster.archive.manifest import ArchivedFile
from jetcluster.arrow.offsets import Offset, Offsets
from jetcluster.arrow.options import EARLIEST, LATEST, Place, SourceOptions
from jetcluster.client.stream_state import StreamState
from jetcluster.errors import JetclusterError

SMALL_TASK_SEQUENCES: Final = 10_000
"""Below this number of sequences a task costs more to start than to read."""
MAX_SIGNED_SEQ: Final = (1 << 63) - 1
LAST_CHUNK_SUBJECTS: Final = 512
"""Subjects in one request for last messages; the server accepts up to 1024."""


class DataLossError(JetclusterError):
    """Messages that the query should read are gone (`failOnDataLoss`)."""


@dataclass(frozen=True)
class Target:
    """The stream of a task, and the servers that can answer for it."""

    stream: str
    """The stream that the query names; its leader is authoritative."""
    read_from: str
    """The stream whose replicas are read: the same one, or a mirror of it."""
    created: str
    leader: str
    """The server that led `read_from` at planning."""
    peers: tuple[str, ...] = ()
    """The servers that had a replica of it."""


class SubjectRange(NamedTuple):
    """The subjects of a filter with `low` <= subject < `high`, which a task lists itself."""

    filter: str
    low: str
    high: str
    """"": up to the last one."""
    place: int
    """The number of subjects of the filter before them at planning, where the task begins to look."""
    elsewhere: tuple[str, ...] = ()
    """Filters whose subjects are of other ranges."""


class Subjects(NamedTuple):
    """The subjects of a stream: their names, or ranges of them where they are many."""

    names: tuple[str, ...] = ()
    ranges: tuple[SubjectRange, ...] = ()


NO_SUBJECTS: Final = Subjects()


@dataclass(frozen=True)
class RangeTask:
    """The messages with `low` <= sequence < `high`."""

    target: Target
    low: int
    high: int
    index: int


@dataclass(frozen=True)
class LastTask:
    """The last message of each of `subjects`, or of those `within` a range, up to the sequence `up_to`."""

    target: Target
    subjects: tuple[str, ...]
    up_to: int
    index: int
    newest: bool = False
    """Messages after `up_to` count, too."""
    within: SubjectRange | None = None


@dataclass(frozen=True)
class ArchiveTask:
    """The archived rows within `bounds`, and the files that may have them."""

    target: Target
    url: str
    files: tuple[ArchivedFile, ...]
    bounds: Bounds
    index: int


@dataclass(frozen=True)
class OrderedTask:
    """As `RangeTask`, of a stream with an archive, whose files have what is below `cut`: all in order of sequence."""

    target: Target
    low: int
    high: int
    index: int
    cut: int = 0
    files: tuple[ArchivedFile, ...] = ()


Task = RangeTask | LastTask | ArchiveTask | OrderedTask


def lowest(state: StreamState) -> int:
    return max(state.first, 1)


def end_of(state: StreamState) -> int:
    if state.last >= MAX_SIGNED_SEQ:
        raise OverflowError(f"{state.name}: sequences beyond 2^63-1 do not fit Spark's bigint")
    return state.last + 1


def of_stream(place: Place, stream: str, default: int) -> int | Mapping[str, Any]:
    return place.get(stream, default) if isinstance(place, dict) else place


def starting_offset(place: Place, state: StreamState, *, fail: bool) -> Offset:
    """Returns the offset to begin at. Raises DataLossError for a sequence that is gone or not reached yet."""
    value = of_stream(place, state.name, EARLIEST)
    if value == EARLIEST:
        return Offset(lowest(state), state.created)
    if value == LATEST:
        return Offset(end_of(state), state.created)
    if isinstance(value, int) and value < EARLIEST:
        return Offset(_before_end(value, state), state.created)
    given = Offset(int(value["seq"]), str(value.get("created", ""))) if isinstance(value, Mapping) else Offset(value)
    if given.seq > end_of(state) and not given.created and fail:
        raise DataLossError(
            f"{state.name} ends at {state.last}, startingOffsets says {given.seq}. failOnDataLoss=false begins at its "
            "end"
        )
    return Offset(check_start(given, state, fail=fail), state.created)


def ending_offset(place: Place, state: StreamState, *, fail: bool) -> int:
    """Returns the end of the range. Raises DataLossError for a sequence that the stream has not reached."""
    value = of_stream(place, state.name, LATEST)
    if value == LATEST:
        return end_of(state)
    if value == EARLIEST:
        return lowest(state)
    if isinstance(value, int) and value < EARLIEST:
        return _before_end(value, state)
    seq = int(value["seq"]) if isinstance(value, Mapping) else value
    if seq > end_of(state) and fail:
        raise DataLossError(
            f"{state.name} ends at {state.last}, endingOffsets says {seq} (exclusive). failOnDataLoss=false reads "
            "what is there"
        )
    return min(seq, end_of(state))


def _before_end(place: int, state: StreamState) -> int:
    """Returns the sequence for `latest-N`, which is written as EARLIEST - N."""
    return max(end_of(state) - (EARLIEST - place), lowest(state))


def check_start(start: Offset, state: StreamState, *, fail: bool) -> int:
    """Returns `start`, or the nearest sequence that the stream has. Raises DataLossError instead with `fail`."""
    if start.created and state.created != start.created:
        if fail:
            raise DataLossError(
                f"{state.name} was created anew at {state.created}: what was to be read from {start.seq} on was of the "
                f"one created at {start.created}. failOnDataLoss=false begins with the new one"
            )
        return lowest(state)
    if start.seq < lowest(state) and fail and start.seq > 0:
        kept = state.config.get("retention", "limits")
        why = "limits or a purge removed them" if kept == "limits" else f"retention {kept} removes what is acknowledged"
        raise DataLossError(
            f"{state.name}: messages {start.seq} to {lowest(state) - 1} are gone ({why}). failOnDataLoss=false goes on "
            f"at {lowest(state)}"
        )
    if start.seq > end_of(state):
        if fail:
            raise DataLossError(
                f"{state.name} ends at {state.last}, before the place {start.seq} where reading was to go on: it was "
                "restored from an older copy, or this is another stream. failOnDataLoss=false goes on at its end"
            )
        return end_of(state)
    return max(start.seq, lowest(state))


def narrower_limits(origin: Mapping[str, Any], mirror: Mapping[str, Any]) -> str:
    """Describes the first limit by which a mirror may remove messages that its origin keeps; "" for none."""
    for name in ("max_msgs", "max_bytes", "max_age", "max_msgs_per_subject"):
        of_origin, of_mirror = int(origin.get(name) or 0), int(mirror.get(name) or 0)
        if of_mirror > 0 and not 0 < of_origin <= of_mirror:
            return f"{name} is {of_mirror} there and {of_origin if of_origin > 0 else 'unlimited'} here"
    return ""


def split(
    low: int, high: int, options: SourceOptions, share: float = 1.0, records: int | None = None
) -> list[tuple[int, int]]:
    """Cuts [low, high) into ranges of about equal size: none above `maxRecordsPerPartition`, and at least `share` of
    `minPartitions` (default: one per core of this machine, but none below SMALL_TASK_SEQUENCES). `records`: how many
    messages match the filters there, if it is known; they are taken to be spread evenly."""
    return cut_evenly(low, high, parts_of(high - low, options, share, records))


def parts_of(span: int, options: SourceOptions, share: float = 1.0, records: int | None = None) -> int:
    """Returns into how many ranges `split` cuts so many sequences."""
    if span <= 0:
        return 0
    wanted = span if records is None else records
    least = options.min_partitions or min(os.cpu_count() or 1, wanted // SMALL_TASK_SEQUENCES)
    return min(max(-(-wanted // options.max_records), round(least * share), 1), span)


def cut_evenly(low: int, high: int, count: int) -> list[tuple[int, int]]:
    """Cuts [low, high) into `count` ranges of about equal size."""
    span = high - low
    return [(low + span * at // count, low + span * (at + 1) // count) for at in range(count)]


def range_tasks(
    ranges: Sequence[tuple[Target, int, int]], options: SourceOptions, records: Sequence[int | None] = ()
) -> list[Task]:
    """Returns tasks for ranges [low, high) of several streams; `records`: for each range, as for `split`."""
    whole = sum(max(high - low, 0) for _, low, high in ranges) or 1
    tasks: list[Task] = []
    for (target, low, high), matching in itertools.zip_longest(ranges, records):
        for begin, end in split(low, high, options, max(high - low, 0) / whole, matching):
            tasks.append(RangeTask(target, begin, end, len(tasks)))
    return tasks


def last_tasks(target: Target, subjects: Subjects, up_to: int, options: SourceOptions) -> list[Task]:
    """Returns tasks for the last message of each subject; subjects that sort together stay together."""
    if subjects.ranges:
        return [LastTask(target, (), up_to, at, options.newest, one) for at, one in enumerate(subjects.ranges)]
    names = sorted(subjects.names)
    chunks = [tuple(names[at : at + LAST_CHUNK_SUBJECTS]) for at in range(0, len(names), LAST_CHUNK_SUBJECTS)]
    count = options.min_partitions or max(min(os.cpu_count() or 1, len(chunks)), -(-len(names) // options.max_records))
    count = max(min(count, len(chunks)), 1)
    tasks: list[Task] = []
    for at in range(count):
        taken = [
            name for chunk in chunks[at * len(chunks) // count : (at + 1) * len(chunks) // count] for name in chunk
        ]
        if taken:
            tasks.append(LastTask(target, tuple(taken), up_to, len(tasks), options.newest))
    return tasks


def advance(
    start: Offsets, ends: Offsets, states: Mapping[str, StreamState], *, rows: int = 0, size: int = 0
) -> Offsets:
    """Returns the end of a micro-batch from `start` when the streams end at `ends`: all of it, or `rows` sequences or
    about `size` bytes, shared in proportion to the backlogs. A stream created again counts from its beginning."""
    begins = {name: _begin(start.get(name), end, states[name]) for name, end in ends.items()}
    waiting = backlog(start, ends, states)
    total = sum(waiting.values())
    if size:
        rows = sum(_rows_of(size, waiting[name] / total, states[name]) for name in ends if total and waiting[name])
    if not rows or rows >= total:
        return dict(ends)
    found: Offsets = {}
    left = rows
    for name, end in sorted(ends.items()):
        part = min(-(-rows * waiting[name] // total), left, waiting[name])
        left -= part
        found[name] = Offset(begins[name] + part, end.created)
    return found


def backlog(start: Offsets, ends: Offsets, states: Mapping[str, StreamState]) -> dict[str, int]:
    """Returns the number of sequences from `start` to the ends, by stream."""
    return {name: max(end.seq - _begin(start.get(name), end, states[name]), 0) for name, end in ends.items()}


def _begin(start: Offset | None, end: Offset, state: StreamState) -> int:
    if start is None or (start.created and end.created and start.created != end.created):
        return lowest(state)
    return max(start.seq, min(lowest(state), end.seq))


def _rows_of(size: int, share: float, state: StreamState) -> int:
    """Returns the number of messages in `share` of `size` bytes, by the stream's mean size; at least one."""
    mean = state.bytes / state.messages if state.messages else 1.0
    return max(int(size * share / max(mean, 1.0)), 1)
