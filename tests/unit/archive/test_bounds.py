"""Which files a query may leave out: never one with a row that it wants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.archive.bounds import Bounds
from jetcluster.protocol import subjects
from tests.unit.archive.made import batch

TOKEN = st.sampled_from(["a", "b", "ab", "é", "z", "\U0001f600"])
SUBJECT = st.lists(TOKEN, min_size=1, max_size=3).map(".".join)
PATTERN = st.lists(TOKEN | st.just("*"), min_size=1, max_size=3).flatmap(
    lambda tokens: st.sampled_from([".".join(tokens), ".".join([*tokens[:-1], ">"])])
)


@given(names=st.lists(SUBJECT, min_size=1, max_size=5), pattern=PATTERN)
def test_no_file_with_a_matching_subject_is_left_out(names: list[str], pattern: str) -> None:
    matching = any(subjects.matches(name.encode(), pattern.encode()) for name in names)
    kept = Bounds(subjects=(pattern,)).may_hold(names=(min(names), max(names)))
    assert kept or not matching


@pytest.mark.parametrize(
    ("pattern", "reach", "kept"),
    [
        ("a.b", ("a.a", "a.c"), True), ("a.b", ("a.c", "a.d"), False), ("a.>", ("a", "a"), False),
        ("a.>", ("a.x", "b"), True), ("b.*.c", ("a.x", "a.y"), False), ("b.*.c", ("a", "c"), True),
        (">", ("x", "y"), True),
    ],
)  # fmt: skip
def test_subjects(pattern: str, reach: tuple[str, str], kept: bool) -> None:
    assert Bounds(subjects=(pattern,)).may_hold(names=reach) is kept


def test_sequences_and_times() -> None:
    bounds = Bounds(10, 20, first_time=100, last_time=200)
    assert [bounds.may_hold(seqs=reach) for reach in ((1, 9), (1, 10), (19, 30), (20, 30))] == [0, 1, 1, 0]
    assert [bounds.may_hold(times=reach) for reach in ((1, 99), (1, 100), (200, 300), (201, 300))] == [0, 1, 1, 0]
    assert bounds.may_hold()


def test_masks() -> None:
    rows = batch(list(range(1, 9)), ["a.0", "a.1", "b"])
    assert Bounds(1, 9).mask(rows) is None
    assert Bounds(3, 5).mask(rows).to_pylist() == [seq in (3, 4) for seq in range(1, 9)]
    assert Bounds(2, 9, subjects=("a.*",)).mask(rows).to_pylist() == [seq >= 2 and seq % 3 != 2 for seq in range(1, 9)]


def test_a_subject_that_is_no_text_counts_byte_by_byte() -> None:
    rows = batch([1, 2, 3], ["a"], raw={2: b"b.\xff"})
    assert Bounds(subjects=("b.*",)).mask(rows).to_pylist() == [False, True, False]
    assert Bounds(subjects=("b.\ufffd",)).mask(rows).to_pylist() == [False, False, False]
