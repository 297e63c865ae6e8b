"""`FilterSet` against each of its filters by itself."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.store.search import filters
from jetcluster.store.search.filters import FilterSet, parts_of
from jetcluster.store.search.sorted_subjects import SortedSubjects
from tests.unit.stream.fake_store import fits

TOKENS = st.sampled_from([b"a", b"bc", b"*", b">", b"a*", b"\n", b"(", b"\x00", b"\xff"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(b".".join)


@given(SUBJECTS, st.lists(SUBJECTS))
def test_agrees_with_the_definition(subject_filter: bytes, subjects: list[bytes]) -> None:
    wanted = [subject for subject in subjects if fits(subject_filter, subject)]
    assert filters.select(subject_filter, subjects) == wanted
    for subject in subjects:
        assert bool(filters.matcher(subject_filter)(subject)) == (subject in wanted)


@pytest.mark.parametrize(
    ("subject_filter", "literal"),
    [(b"a.b", True), (b"a.*", False), (b"a.>", False), (b">", False), (b"a*.b>", True), (b"a.>.b", True)],
)
def test_is_literal(subject_filter: bytes, literal: bool) -> None:
    assert filters.is_literal(subject_filter) == literal


SOME_TOKENS = [b"a", b"b", b"ab", b"*x", b">y", b"1"]
MANY_SUBJECTS = st.lists(st.sampled_from([*SOME_TOKENS, b""]), min_size=1, max_size=4).map(b".".join).filter(bool)
WHOLE = st.lists(st.sampled_from(SOME_TOKENS), min_size=1, max_size=4).map(b".".join)
FILTERS = st.builds(
    lambda tokens, rest: b".".join([*tokens, b">"] if rest else tokens),
    st.lists(st.sampled_from([*SOME_TOKENS, b"*", b"*"]), max_size=4),
    st.booleans(),
).filter(bool)


@given(st.lists(FILTERS, max_size=12), st.lists(MANY_SUBJECTS, max_size=20))
def test_a_set_matches_what_one_of_its_filters_matches(asked: list[bytes], subjects: list[bytes]) -> None:
    together = FilterSet(asked)
    for subject in subjects:
        expected = {one for one in asked if filters.matcher(one)(subject)}
        assert set(together.matched(subject)) == expected
        assert together.matches(subject) == bool(expected)
        assert {one for one in asked if filters.matches(one, subject)} == expected
    assert together.select(subjects) == [s for s in subjects if any(filters.matcher(one)(s) for one in asked)]


@given(st.lists(FILTERS, max_size=14), st.lists(st.sets(WHOLE, max_size=30), max_size=4))
def test_a_walk_over_sorted_subjects_finds_all_that_match(asked: list[bytes], groups: list[set[bytes]]) -> None:
    index = SortedSubjects()
    known: set[bytes] = set()
    for group in groups:
        for subject in group - known:
            index.add(subject)
        known |= group
        found = set(filter(None, index.select(FilterSet(asked))))
        assert found == {s for s in known if any(filters.matcher(one)(s) for one in asked)}


@given(st.lists(FILTERS, max_size=14, unique=True))
def test_every_filter_is_looked_for_once_and_in_its_range(asked: list[bytes]) -> None:
    parts = FilterSet(asked).parts
    assert sorted(one for part in parts for one in part.filters) == sorted(asked)
    for part in parts:
        for one in part.filters:
            low, high = filters.bounds(one)
            assert part.low <= low
            assert part.high is None or (high is not None and high <= part.high)
    whole = {one for wanted in parts_of(tuple(asked)) for one in getattr(wanted, "filters", (wanted,))}
    assert whole == set(asked)


def test_equal_sets_are_one_key() -> None:
    assert FilterSet([b"a.*", b"b.*"]) == FilterSet([b"b.*", b"a.*", b"a.*"])
    assert len({FilterSet([b"a.*"]), FilterSet([b"a.*"]), FilterSet([b"b.*"])}) == 2


def test_thousands_of_filters_cost_one_walk() -> None:
    index = SortedSubjects()
    for i in range(20_000):
        index.add(b"m.b%d.c" % i)
    asked = FilterSet([b"m.*.x%d" % i for i in range(4000)] + [b"m.*.*.%d" % i for i in range(4000)] + [b"m.b7.*"])
    begun = time.process_time()
    assert list(filter(None, index.select(asked))) == [b"m.b7.c"]
    assert time.process_time() - begun < 0.5  # one by one: 20 s


def test_filters_within_one_another_are_no_depth() -> None:
    asked = [b"a." * depth + b">" for depth in range(1, 1200)]
    index = SortedSubjects()
    known = [b"a." * depth + b"b" for depth in range(1, 1200, 200)]
    for subject in known:
        index.add(subject)
    together = FilterSet(asked)
    assert sorted(set(filter(None, index.select(together)))) == sorted(known)
    assert sorted(one for part in together.parts for one in part.filters) == sorted(asked)
