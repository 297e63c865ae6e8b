"""Fences of parts of a stream's subjects: each has its rows once and in order, whatever is between (fence_parts.py)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jetcluster.spark import publish
from jetcluster.spark.fence import FenceError, read_last
from jetcluster.spark.fence_parts import FenceParts, check_apart
from jetcluster.spark.fence_writer import FenceWriter
from jetcluster.spark.render import Rows
from jetcluster.spark.sink_options import SinkError
from tests.unit.spark.test_fence_writer import Stream, columns

FILTERS = ("p.0.*", "p.1.*", "p.2.*", "p.3.*")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "FIRST_PAUSE_SECONDS", 0.0)


def linked(stream: Stream) -> Any:
    """Another connection to the same stream."""
    found = Stream(stream.fate, stream.trouble)
    found.stored = stream.stored
    return found


def parts(stream: Stream, batch: int = 0, size: int = 5, **options: Any) -> FenceParts:
    def writer_of(number: int) -> FenceWriter:
        return FenceWriter(linked(stream), "S", "job", batch, atomic_batch=size, within=FILTERS[number], **options)

    return FenceParts(FILTERS, writer_of)


def task(numbers: list[int], start: int, count: int, wide: int) -> list[Rows]:
    """Rows of some parts in turn, `wide` in a record batch."""
    names = [(number, n) for n in range(start, start + count) for number in numbers]
    return [
        columns(
            [b"p.%d.x" % at for at, _ in names[first : first + wide]],
            [b"%d" % n for _, n in names[first : first + wide]],
        )
        for first in range(0, len(names), wide)
    ]


def of_part(stream: Stream, number: int) -> list[int]:
    return [int(payload) for subject, _, payload in stream.stored if subject.startswith(b"p.%d." % number)]


def test_each_part_has_its_own_markers_and_others_may_publish() -> None:
    stream = Stream()
    stream.stored.append((b"q", b"", b"of another writer"))
    first = parts(stream)
    first.write(task([0, 1], 0, 7, 4))
    stream.stored.append((b"q", b"", b"of another writer"))
    parts(stream).write(task([3], 0, 3, 9))
    assert [of_part(stream, number) for number in range(4)] == [[*range(7)], [*range(7)], [], [*range(3)]]
    assert [one.stored for one in first.writers.values()] == [7, 7]
    connection: Any = stream
    assert [read_last(connection, "S", one).marker for one in FILTERS] == [b"job/0/7", b"job/0/7", None, b"job/0/3"]
    assert read_last(connection, "S", FILTERS[2]).seq == 0
    again = parts(stream)
    again.write(task([1, 0], 0, 7, 3))
    assert [(one.stored, one.skipped) for one in again.writers.values()] == [(0, 7), (0, 7)]
    parts(stream, 2).write(task([2, 0], 7, 2, 3))
    assert (of_part(stream, 0), of_part(stream, 2)) == ([*range(9)], [7, 8])


def test_what_was_there_before_the_job() -> None:
    stream = Stream()
    stream.stored += [(b"p.0.x", b"", b"0"), (b"p.1.x", b"", b"0"), (b"q", b"", b"0")]
    with pytest.raises(FenceError, match=r"p\.0\.\*: the last message, 1, was written by another writer"):
        parts(stream).write(task([0], 1, 3, 9))
    parts(stream, start_after=3).write(task([0, 1, 2], 1, 3, 9))
    assert [of_part(stream, number) for number in range(3)] == [[0, 1, 2, 3], [0, 1, 2, 3], [1, 2, 3]]


class _DeadError(Exception):
    pass


@pytest.mark.parametrize("seed", range(40))
def test_tasks_beside_each_other_in_any_trouble(seed: int) -> None:
    """Each of two tasks has two parts; they die, are tried again, and their twins go on."""
    fate = random.Random(seed)
    stream = Stream(fate, 0.1)
    for batch in range(3):
        waiting = [[0, 2], [1, 3]]
        while waiting:
            numbers = fate.choice(waiting)
            rows = task(numbers, 9 * batch, 9, fate.randrange(1, 8))
            cut = fate.choice([len(rows), fate.randrange(len(rows) + 1)])

            def dying(rows: list[Rows] = rows, cut: int = cut) -> Any:
                yield from rows[:cut]
                if cut < len(rows):
                    raise _DeadError

            try:
                parts(stream, batch, fate.randrange(1, 7), retry_seconds=600).write(dying())
            except _DeadError:
                continue
            waiting.remove(numbers)
        if fate.random() < 0.5:
            stream.stored.append((b"q", b"", b""))
    assert [of_part(stream, number) for number in range(4)] == [[*range(27)]] * 4


def test_a_guest_in_a_part_trips_its_fence() -> None:
    stream = Stream()
    parts(stream).write(task([0, 1], 0, 3, 9))
    stream.stored.append((b"p.1.y", b"", b"guest"))
    with pytest.raises(FenceError, match=r"p\.1\.\*: the last message, 7, was written by another writer"):
        parts(stream, 1).write(task([0, 1], 3, 3, 9))


def test_rows_of_no_part_and_of_two_tasks_are_refused() -> None:
    stream = Stream()
    with pytest.raises(SinkError, match="subject q is of no part that fenceSubjects names"):
        parts(stream).write([columns([b"q"], [b""])])
    check_apart([(0, 1), (), (3,)], FILTERS)
    with pytest.raises(FenceError, match=r"rows of p\.1\.\* were in two tasks"):
        check_apart([(0, 1), (3, 1)], FILTERS)
