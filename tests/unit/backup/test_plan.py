"""The decisions of backups, against models of streams."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.backup import plan
from jetcluster.backup.plan import StreamProgress
from jetcluster.backup.point import Blob, RestorePoint, Segment, StreamPoint
from jetcluster.backup.segment import SEGMENT_BYTES
from jetcluster.backup.sequences import Sequences

CREATED = "2026-11-01T00:00:00Z"


def segments_of(held: set[int], size: int, bytes_each: int = 100) -> tuple[Segment, ...]:
    made, seqs = [], sorted(held)
    for at in range(0, len(seqs), size):
        part = seqs[at : at + size]
        made.append(Segment(Blob.of(repr(part).encode()), part[0], part[-1], len(part), bytes_each * len(part)))
    return tuple(made)


@given(st.sets(st.integers(1, 200)), st.sets(st.integers(1, 200)), st.integers(1, 30), st.sampled_from([1, 1 << 20]))
def test_rewriting_ends(held: set[int], deleted: set[int], size: int, each: int) -> None:
    """Segments that were rewritten are not rewritten again, and then there are few segments, or large ones."""
    live = Sequences.of(sorted(held - deleted))
    segments = tuple(one for one in segments_of(held, size, each) if live.within(one.first, one.last))
    found = plan.rewriting(segments, live)
    ends = [edge for one in found for edge in (one.start, one.end)]
    assert ends == sorted(ends) and all(one.start < one.end <= len(segments) for one in found)
    after: list[Segment] = []
    at = 0
    for one in found:
        after += segments[at : one.start]
        left = {seq for old in segments[one.start : one.end] for seq in live.within(old.first, old.last)}
        after += segments_of(left, max(SEGMENT_BYTES // each, 1), each)
        at = one.end
    after += segments[at:]
    assert plan.rewriting(after, live) == []
    alive = sum(len(live.within(one.first, one.last)) for one in after)
    assert sum(one.messages for one in after) <= 2 * alive
    assert len(after) <= (plan.MAX_SMALL_SEGMENTS + 1) * (2 + each * len(live) // SEGMENT_BYTES * 2)


NAMES = ["A", "B", "C", "D"]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES))))
def test_a_copy_is_read_before_its_origin(links: list[tuple[str, str]]) -> None:
    configs: dict[str, dict[str, Any]] = {name: {} for name in NAMES}
    for copy, origin in links:
        if copy < origin:  # no circle
            configs[copy].setdefault("sources", []).append({"name": origin})
    found = plan.order(configs)
    assert sorted(found) == NAMES
    for copy, origin in links:
        if copy < origin:
            assert found.index(copy) < found.index(origin)


def test_circles_and_streams_elsewhere_have_an_order_too() -> None:
    configs: dict[str, dict[str, Any]] = {
        "A": {"sources": [{"name": "B"}]}, "B": {"sources": [{"name": "A"}]}, "C": {"mirror": {"name": "X"}},
        "D": {"mirror": {"name": "A", "external": {"api": "$JS.far.API"}}},
    }  # fmt: skip
    assert sorted(plan.order(configs)) == ["A", "B", "C", "D"]
    assert plan.origins(configs["D"]) == []


def point(name: str, *streams: tuple[str, str, bytes]) -> RestorePoint:
    made = tuple(
        StreamPoint(stream, created, {"name": stream}, {"messages": 1}, Blob.of(b"live"),
                    (Segment(Blob.of(data), 1, 5, 5, 9),))
        for stream, created, data in streams
    )  # fmt: skip
    return RestorePoint(name, 1, 2, made)


def test_a_run_goes_on_from_the_newest_point_with_the_same_stream() -> None:
    points = [
        point("20260101T000000Z", ("S", CREATED, b"old"), ("T", CREATED, b"t")),
        point("20260102T000000Z", ("S", CREATED, b"new")),
    ]
    assert plan.base_of(points, "S", CREATED).segments[0].blob == Blob.of(b"new")
    assert plan.base_of(points, "T", CREATED).segments[0].blob == Blob.of(b"t")
    assert plan.base_of(points, "S", "2026-12-01T00:00:00Z").segments == ()
    assert plan.base_of(points, "U", CREATED).segments == ()


def test_the_progress_of_an_interrupted_run_counts_if_it_is_farther_and_of_the_same_stream() -> None:
    base = StreamProgress(CREATED, segments_of({1, 2}, 2))
    partial = StreamProgress(CREATED, segments_of({1, 2, 3, 4}, 2))
    assert plan.longer(base, None) is base
    assert plan.longer(base, partial) is partial
    assert plan.longer(partial, base) is partial
    assert plan.longer(base, StreamProgress("another", partial.segments)) is base


@given(st.sets(st.integers(0, 30)), st.integers(1, 9))
def test_the_newest_points_are_kept(points: set[int], keep: int) -> None:
    names = [f"202601{day:02d}T000000Z" for day in points]
    gone = plan.expired([RestorePoint(name, 0, 0, ()) for name in names], keep)
    kept = set(names) - set(gone)
    assert len(kept) == min(keep, len(names))
    assert all(old < new for old in gone for new in kept)


def test_only_what_nothing_needs_is_unused() -> None:
    kept = point("20260102T000000Z", ("S", CREATED, b"new"))
    held = [Blob.of(data).path for data in (b"live", b"new", b"old", b"begun")]
    assert plan.unused(held, [kept], [Blob.of(b"begun")]) == [Blob.of(b"old").path]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026-01-02T00:00", "20260102T000000Z-002"), ("2026-01-02 00:00:00Z", "20260102T000000Z-002"),
        ("2026-01-01T23:59:59", "20260101T000000Z"), ("2026-01-02T01:00+01:00", "20260102T000000Z-002"),
        ("2026-01-02T00:59:59+01:00", "20260101T000000Z"), ("2025-12-31T23:59", None),
        ("0999-12-31T23:59", None), ("9999-12-31T23:59Z", "20260103T120000Z"),
    ],
)  # fmt: skip
def test_a_time_names_the_newest_point_that_is_not_later(text: str, found: str | None) -> None:
    names = ["20260103T120000Z", "20260102T000000Z", "20260101T000000Z", "20260102T000000Z-002"]
    time = plan.moment(text)
    assert time is not None and plan.not_after(names, time) == found
    assert plan.not_after([], time) is None


@pytest.mark.parametrize(
    "text",
    ["", "latest", "yesterday", "v1", "2026-01-02", "2026-01-02T00", "20260102T000000Z", "2026-13-01T00:00",
     "2026-01-02T25:00", "2026-01-02T00:00+99:00", "0001-01-01T00:00+10:00"],
)  # fmt: skip
def test_what_is_no_time(text: str) -> None:
    assert plan.moment(text) is None


def test_origins_are_restored_before_their_copies() -> None:
    copy = StreamPoint("A", CREATED, {"name": "A", "mirror": {"name": "Z"}}, {}, Blob.of(b""), ())
    origin = StreamPoint("Z", CREATED, {"name": "Z"}, {}, Blob.of(b""), ())
    assert [one.name for one in plan.at_point([copy, origin], [])] == ["Z", "A"]
    assert [one.name for one in plan.at_point([copy, origin], ["A"])] == ["A"]
