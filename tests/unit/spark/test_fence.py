"""The place where a fenced job continues, and the cases in which it must not."""

from __future__ import annotations

import pytest

from jetcluster.spark import fence
from jetcluster.spark.fence import FenceError, Last, Marker, Resume


def last(seq: int, job: str, batch: int, rows: int) -> Last:
    return Last(seq, Marker(job, batch, rows).encode())


def test_markers_go_round() -> None:
    marker = Marker("load-2026.11:a", 12, 3456)
    assert marker.encode() == b"load-2026.11:a/12/3456"
    assert fence.parse(marker.encode()) == marker
    for value in (None, b"", b"a/b/c", b"a/1", b"a/1/2/3", b"/1/2", b"a b/1/2", b"a/1/-2"):
        assert fence.parse(value) is None, value


@pytest.mark.parametrize("job", ["", "a/b", "a b", "x" * 129, "a\r\n"])
def test_names_that_no_marker_can_hold(job: str) -> None:
    with pytest.raises(ValueError, match="jobId"):
        fence.check_job(job)


def test_begins_on_an_empty_stream_and_where_it_is_asked_to() -> None:
    assert fence.resume("S", "j", 0, Last(0), None) == Resume(0, 0)
    assert fence.resume("S", "j", 0, Last(57), 57) == Resume(57, 0)
    assert fence.resume("S", "j", 3, Last(57, there=False), 57) == Resume(57, 0)


def test_goes_on_behind_its_own_marker() -> None:
    assert fence.resume("S", "j", 2, last(9, "j", 2, 5), None) == Resume(9, 5)
    assert fence.resume("S", "j", 3, last(9, "j", 2, 5), None) == Resume(9, 0)
    assert fence.resume("S", "j", 2, last(90, "j", 2, 5), 57) == Resume(90, 5)


@pytest.mark.parametrize(
    ("at", "start_after", "says"),
    [
        (Last(57), None, "written by another writer, .* startAfter=57"),
        (Last(58), 57, "written by another writer"),
        (Last(58, b"rubbish"), 57, "written by another writer"),
        (last(9, "k", 2, 5), None, "written by job k"),
        (Last(9, there=False), None, r"last message, 9, is gone .* startAfter=9"),
        (last(9, "j", 7, 5), None, "at batch 7 there, and is to write batch 2: the checkpoint is older"),
    ],
)
def test_stops(at: Last, start_after: int | None, says: str) -> None:
    with pytest.raises(FenceError, match=says):
        fence.resume("S", "j", 2, at, start_after)
