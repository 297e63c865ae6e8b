"""Places, ranges, limits (arrow/planner.py, arrow/offsets.py) and what filters narrow (arrow/resolve.py)."""

from __future__ import annotations

import os
from typing import Any

import pytest

from jetcluster.arrow import planner
from jetcluster.arrow.offsets import Offset
from jetcluster.arrow.options import EARLIEST, LATEST, SourceOptions
from jetcluster.arrow.planner import DataLossError, RangeTask, Subjects, Target
from jetcluster.client.stream_state import StreamState
from jetcluster.spark.options import source_options

TARGET = Target("S", "S", "c1", "n1")


def state(first: int = 1, last: int = 100, name: str = "S", created: str = "c1", size: int = 10) -> StreamState:
    count = last - first + 1
    return StreamState(name, created, first, last, count, count * size, "n1", ("n1",), True, {"retention": "limits"})


def options(**given: object) -> SourceOptions:
    return source_options({"servers": "a", "stream": "S"} | {name: str(value) for name, value in given.items()})


def test_where_reading_begins_and_ends() -> None:
    stream = state(11, 100)
    assert planner.starting_offset(EARLIEST, stream, fail=True) == Offset(11, "c1")
    assert planner.starting_offset(LATEST, stream, fail=True) == Offset(101, "c1")
    assert planner.starting_offset({"S": 50}, stream, fail=True) == Offset(50, "c1")
    assert planner.starting_offset({"T": 50}, stream, fail=True) == Offset(11, "c1")
    for text, seq in (("latest-1", 100), ("latest-0", 101), ("Latest-90", 11), ("latest-91", 11)):
        place = options(startingOffsets=text, endingOffsets=f'{{"S": "{text}"}}')
        assert planner.starting_offset(place.starting, stream, fail=True) == Offset(seq, "c1")
        assert planner.ending_offset(place.ending, stream, fail=True) == seq
    assert (
        planner.ending_offset(LATEST, stream, fail=True) == 101 and planner.ending_offset(20, stream, fail=True) == 20
    )
    assert planner.ending_offset(999, stream, fail=False) == 101
    with pytest.raises(DataLossError, match="S ends at 100, endingOffsets says 999"):
        planner.ending_offset(999, stream, fail=True)
    assert planner.starting_offset(101, stream, fail=True) == planner.starting_offset(999, stream, fail=False)
    for place in (102, {"S": 102}, {"S": {"seq": 102}}):
        with pytest.raises(DataLossError, match="S ends at 100, startingOffsets says 102"):
            planner.starting_offset(place, stream, fail=True)
    empty = state(0, 0)
    assert (
        planner.starting_offset(EARLIEST, empty, fail=True).seq == planner.ending_offset(LATEST, empty, fail=True) == 1
    )


@pytest.mark.parametrize(
    ("start", "said", "lenient"),
    [
        (Offset(3, "c1"), "messages 3 to 10 are gone", 11),
        (Offset(50, "c0"), "created anew", 11),
        (Offset(200, "c1"), "ends at 100, before the place 200", 101),
    ],
)
def test_what_is_gone_is_said_or_passed_over(start: Offset, said: str, lenient: int) -> None:
    with pytest.raises(DataLossError, match=said):
        planner.check_start(start, state(11), fail=True)
    assert planner.check_start(start, state(11), fail=False) == lenient
    assert planner.check_start(Offset(11, "c1"), state(11), fail=True) == 11
    assert planner.check_start(Offset(101, "c1"), state(11), fail=True) == 101


@pytest.mark.parametrize(("low", "high", "given", "count"), [
    (1, 100_001, {"maxRecordsPerPartition": 30_000}, 4), (1, 11, {"minPartitions": 3}, 3), (5, 5, {}, 0),
    (1, 3, {"minPartitions": 9}, 2), (1, 5001, {}, 1),
])  # fmt: skip
def test_a_range_is_cut_without_gap_or_overlap(low: int, high: int, given: dict[str, int], count: int) -> None:
    parts = planner.split(low, high, options(**given))
    assert len(parts) == count
    assert [seq for a, b in parts for seq in range(a, b)] == list(range(low, high))


def test_large_ranges_use_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert len(planner.split(1, 60_001, options())) == 4
    tasks = planner.range_tasks([(TARGET, 1, 40_001), (TARGET, 1, 20_001)], options())
    assert [task.index for task in tasks] == list(range(len(tasks))) and len(tasks) == 4
    assert all(isinstance(task, RangeTask) for task in tasks)


def test_tasks_of_last_messages_name_every_subject_once() -> None:
    names = [f"k.{n}" for n in range(2000)]
    tasks: Any = planner.last_tasks(TARGET, Subjects(tuple(names)), 50, options(minPartitions=3))
    assert len(tasks) == 3 and sorted(name for task in tasks for name in task.subjects) == sorted(names)
    assert planner.last_tasks(TARGET, Subjects(), 50, options()) == []


def test_a_trigger_takes_so_many_rows_of_all_streams_together() -> None:
    states = {"A": state(1, 300, "A"), "B": state(1, 100, "B")}
    ends = {name: Offset(at.last + 1, at.created) for name, at in states.items()}
    start = {"A": Offset(1, "c1"), "B": Offset(1, "c1")}
    once = planner.advance(start, ends, states, rows=40)
    assert once == {"A": Offset(31, "c1"), "B": Offset(11, "c1")}
    runs = 0
    while start != ends:
        following = planner.advance(start, ends, states, rows=7)
        moved = sum(following[name].seq - start[name].seq for name in ends)
        assert 0 < moved <= 7
        start, runs = following, runs + 1
    assert runs == -(-400 // 7)
    assert planner.advance({"A": Offset(1, "c1")}, ends, states, rows=0) == ends
    assert planner.advance(ends, ends, states, rows=5) == ends


def test_a_trigger_takes_about_so_many_bytes() -> None:
    states = {"S": state(1, 1000, size=100)}
    ends = {"S": Offset(1001, "c1")}
    assert planner.advance({"S": Offset(1, "c1")}, ends, states, size=5000) == {"S": Offset(51, "c1")}
    assert planner.advance({"S": Offset(1, "c1")}, ends, states, size=1) == {"S": Offset(2, "c1")}, "one at least"


def test_a_stream_made_anew_is_read_from_its_beginning() -> None:
    states = {"S": state(1, 100, created="c2")}
    ends = {"S": Offset(101, "c2")}
    assert planner.advance({"S": Offset(500, "c1")}, ends, states, rows=10) == {"S": Offset(11, "c2")}


# ---- filters


# Filters that narrow a read.
