from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.store import filters

from .model import matches

TOKENS = st.sampled_from([b"a", b"bc", b"*", b">", b"a*", b"\n", b"(", b"\x00", b"\xff"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(b".".join)


@given(SUBJECTS, st.lists(SUBJECTS))
def test_agrees_with_the_definition(subject_filter: bytes, subjects: list[bytes]) -> None:
    wanted = [subject for subject in subjects if matches(subject_filter, subject)]
    assert filters.select(subject_filter, subjects) == wanted
    for subject in subjects:
        assert bool(filters.matcher(subject_filter)(subject)) == (subject in wanted)


@pytest.mark.parametrize(
    ("subject_filter", "literal"),
    [(b"a.b", True), (b"a.*", False), (b"a.>", False), (b">", False), (b"a*.b>", True), (b"a.>.b", True)],
)
def test_is_literal(subject_filter: bytes, literal: bool) -> None:
    assert filters.is_literal(subject_filter) == literal
