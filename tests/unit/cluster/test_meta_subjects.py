from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.cluster.meta_subjects import SubjectBook
from jetcluster.model.subjects import overlap

subjects = st.sampled_from(["a", "b", "a.b", "a.*", "a.>", "*", "*.b", ">", "b.c.d", "b.*.d"])


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from("XYZ"), st.lists(subjects, max_size=3)), st.sets(st.sampled_from("XYZ")), subjects
)
def test_the_book_agrees_with_comparing_all(streams: dict[str, list[str]], gone: set[str], wanted: str) -> None:
    book = SubjectBook()
    for name, listed in streams.items():
        book.add(name, listed)
    for name in gone & streams.keys():
        book.remove(name, streams[name])
    expected = {n for n, listed in streams.items() if n not in gone and any(overlap(wanted, s) for s in listed)}
    found = book.overlapping([wanted], but="")
    assert (found in expected) if expected else found is None
    for name in expected:
        assert book.overlapping([wanted], but=name) in (expected - {name} or {None})


def test_an_emptied_book_holds_nothing() -> None:
    book = SubjectBook()
    book.add("X", ["a", "a.b", "*"])
    book.remove("X", ["a", "a.b", "*"])
    assert book._by_first == {}
