"""The sorted subjects against a filter run over every one of them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.store.search import filters, sorted_subjects
from jetcluster.store.search.sorted_subjects import SortedSubjects

TOKENS = [b"", b"a", b"b", b"a-b", b"a!", b"ab", b"*x", b"\x00", b"\xff", b"1"]
SUBJECTS = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=4).map(b".".join).filter(bool)
FILTERS = st.builds(
    lambda tokens, rest: b".".join([*tokens, b">"] if rest else tokens),
    st.lists(st.sampled_from([*TOKENS, b"*", b"*"]), min_size=1, max_size=4),
    st.booleans(),
)


@pytest.mark.parametrize("patience", [0, 2, 64])
@given(groups=st.lists(st.sets(SUBJECTS, max_size=40), max_size=5), asked=st.lists(FILTERS, min_size=1, max_size=5))
def test_select_finds_what_a_look_at_each_subject_finds(
    patience: int, groups: list[set[bytes]], asked: list[bytes]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_subjects, "MIN_SKIP_STEPS", patience)
        index = SortedSubjects()
        known: set[bytes] = set()
        for group in groups:
            for subject in group - known:
                index.add(subject)
            known |= group
            for subject_filter in asked:
                found = list(filter(None, index.select(subject_filter)))
                assert sorted(found) == sorted(filters.select(subject_filter, known))


@given(
    groups=st.lists(st.sets(SUBJECTS, max_size=40), max_size=5),
    gone=st.sets(SUBJECTS, max_size=20),
    most=st.integers(1, 7),
    asked=FILTERS,
)
def test_parts_are_all_of_it_in_order(groups: list[set[bytes]], gone: set[bytes], most: int, asked: bytes) -> None:
    """It holds for all that was pruned, and for subjects that came again."""
    index = SortedSubjects()
    for group in groups:
        for subject in group:
            index.add(subject)
        list(filter(None, index.select(b">")))
    known = set().union(*groups) - gone
    low, high = filters.bounds(asked)
    for _ in range(4):
        found: list[bytes] = []
        at: bytes | None = low
        while at is not None:
            part, at = index.part(at, high, most)
            found += part
        assert found == sorted(set(found))
        assert set(filters.select(asked, known)) <= set(found)
        assert all(low <= subject and (high is None or subject < high) for subject in found)
        assert index.last(known) == max(known, default=None)
        index.prune(known, most)
    for _ in range(100):
        index.prune(known, 50)
    assert [subject for run in index._runs for subject in run if subject in gone] == []


def test_a_subject_that_came_and_went_more_often_than_a_part_is_long() -> None:
    index = SortedSubjects()
    for _ in range(5):
        index.add(b"a")
    index.add(b"b")
    assert index.part(b"a", None, 2) == ([b"a"], b"b")
    assert index.part(b"b", None, 2) == ([b"b"], None)


def test_new_subjects_are_sorted_in_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_subjects, "SETTLE_SUBJECTS", 3)
    index = SortedSubjects()
    for subject in (b"c", b"a"):
        index.add(subject)
        index.settle()
    assert index._runs == []
    index.add(b"b")
    index.settle()
    assert index._runs == [[b"a", b"b", b"c"]]


@pytest.mark.parametrize("patience", [64, 1 << 60])
@pytest.mark.parametrize("tail", [b"*", b"7", b">"])
def test_thousands_of_wildcards_in_a_row_are_no_depth(
    monkeypatch: pytest.MonkeyPatch, patience: int, tail: bytes
) -> None:
    monkeypatch.setattr(sorted_subjects, "MIN_SKIP_STEPS", patience)
    index = SortedSubjects()
    known = [b"a." + b"x." * 1990 + b"%d" % n for n in range(9)] + [b"a.x%d.%b7" % (n, b"y." * 1989) for n in range(90)]
    for subject in known:
        index.add(subject)
    asked = b"a." + b"*." * 1990 + tail
    begun = time.process_time()
    assert sorted(filter(None, index.select(asked))) == sorted(filters.select(asked, known))
    assert patience > 64 or time.process_time() - begun < 2


def test_rebuild_forgets_what_is_gone() -> None:
    index = SortedSubjects()
    for subject in (b"a", b"b"):
        index.add(subject)
    assert list(filter(None, index.select(b"*"))) == [b"a", b"b"]
    index.rebuild([b"b", b"a.c"])
    assert list(filter(None, index.select(b">"))) == [b"a.c", b"b"]
    index.clear()
    assert list(filter(None, index.select(b">"))) == []


def test_a_selective_filter_looks_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 subjects, 100 tokens of 100 each: a literal behind a `*` steps over whole tokens."""
    index = SortedSubjects()
    for n in range(10_000):
        index.add(b"s.%d.%d" % (n // 100, n % 100))
    looked_at: list[bytes] = []
    monkeypatch.setattr(filters, "matcher", lambda subject_filter: looked_at.append)
    assert len(list(filter(None, index.select(b"s.*.7")))) == 100
    assert list(filter(None, index.select(b"s.12.7"))) == [b"s.12.7"]
    assert not looked_at
