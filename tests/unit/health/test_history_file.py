"""The file of the history: a ring by time, with gaps where nothing was written or something was torn."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from jetcluster.health.history_file import ASIDE, HEADER_BYTES, PERIOD_SECONDS, POINTS, HistoryFile, Point

START = 1_700_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.ring"


def made(path: Path, columns: tuple[str, ...] = ("a", "b")) -> HistoryFile:
    file = HistoryFile(path, columns)
    assert file.prepare() == ""
    return file


def read(file: HistoryFile, since: int, until: int) -> list[Point | None]:
    return list(file.points(file.read(), since, until))


def test_points_and_gaps(path: Path) -> None:
    file = made(path)
    file.write(Point(START + 3, (1.0, math.nan)))
    file.write(Point(START + 20, (2.0, 4.0)))
    found = read(file, START - PERIOD_SECONDS, START + 30)
    assert [point and point.time for point in found] == [START + 3, None, START + 20, None]
    assert found[2] == Point(START + 20, (2.0, 4.0))


def test_they_are_there_after_a_restart(path: Path) -> None:
    made(path).write(Point(START, (1.0, 2.0)))
    again = made(path)
    again.write(Point(START + 50, (3.0, 4.0)))
    assert [point is not None for point in read(again, START - 10, START + 50)] == [True, *[False] * 4, True]


def test_the_size_is_fixed_and_a_day_overwrites_the_day_before(path: Path) -> None:
    file = made(path)
    size = path.stat().st_size
    for day in range(3):
        file.write(Point(START + day * POINTS * PERIOD_SECONDS, (float(day), 0.0)))
    assert path.stat().st_size == size == HEADER_BYTES + POINTS * (8 + 2 * 8)
    newest = START + 2 * POINTS * PERIOD_SECONDS
    assert read(file, newest - PERIOD_SECONDS, newest) == [Point(newest, (2.0, 0.0))]
    assert read(file, START - PERIOD_SECONDS, START) == [None], "another day's point in the same place"


def test_a_torn_point_is_a_gap(path: Path) -> None:
    file = made(path)
    file.write(Point(START, (1.0, 2.0)))
    offset = HEADER_BYTES + START // PERIOD_SECONDS % POINTS * 24
    content = bytearray(path.read_bytes())
    content[offset + 17] ^= 1
    path.write_bytes(content)
    assert read(file, START - PERIOD_SECONDS, START) == [None]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda content: b"something else", "it is not a history"),
        (lambda content: content[:-1], "bytes, not"),
        (lambda content: content.replace(b'"a"', b'"c"', 1), "it has other columns"),
        (lambda content: b"", "it is not a history"),
    ],
)
def test_a_file_that_does_not_fit_is_set_aside(path: Path, spoil, reason: str) -> None:  # type: ignore[no-untyped-def]
    made(path)
    spoilt = spoil(path.read_bytes())
    path.write_bytes(spoilt)
    file = HistoryFile(path, ("a", "b"))
    assert reason in file.prepare()
    assert path.with_name(path.name + ASIDE).read_bytes() == spoilt
    file.write(Point(START, (1.0, 2.0)))
    assert read(file, START - PERIOD_SECONDS, START) == [Point(START, (1.0, 2.0))]


def test_the_servers_own_file_is_about_a_megabyte_and_a_half(path: Path) -> None:
    from jetcluster.monitor.history import COLUMNS

    made(path, COLUMNS)
    assert 1_400_000 < path.stat().st_size < 1_600_000
