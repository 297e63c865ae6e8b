from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.meta.state import SubjectBook
from jetcluster.model.subjects import overlap
from testkit.twins.memory import held

subjects = st.sampled_from(["a", "b", "a.b", "a.*", "a.>", "*", "*.b", ">", "b.c.d", "b.*.d"])


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from("XYZ"), st.lists(subjects, max_size=3)),
    st.sets(st.sampled_from("XYZ")),
    st.lists(subjects, max_size=2),
)
def test_the_book_agrees_with_comparing_all(streams: dict[str, list[str]], gone: set[str], wanted: list[str]) -> None:
    book = SubjectBook()
    for name, listed in streams.items():
        book.add(name, listed)
        book.overlaps(wanted, but="")  # what was asked before is kept up to date
    for name in gone & streams.keys():
        book.remove(name)
    left = {name: listed for name, listed in streams.items() if name not in gone}
    found = {n for n, listed in left.items() if any(overlap(one, s) for one in wanted for s in listed)}
    assert book.overlaps(wanted, but="") == bool(found)
    for name in streams:
        assert book.overlaps(wanted, but=name) == bool(found - {name})


def test_an_emptied_book_holds_nothing() -> None:
    book = SubjectBook()
    empty = held(book)
    book.add("X", ["a", "a.b", "*"])
    book.overlaps(["a.*"], but="")
    book.remove("X")
    assert not book
    assert held(book) == empty
    assert book.effort(["a"]) == 0


def test_many_streams_with_wildcards_in_front_are_compared_quickly() -> None:
    book = SubjectBook()
    for stream in range(20):
        book.add(f"S{stream}", [f"*.{stream}.{i}" for i in range(500)] + [f"x{stream}-{i}.b.c" for i in range(500)])
    begun = time.process_time()
    assert not book.overlaps([f"*.q.{i}" for i in range(2500)], but="")
    assert book.overlaps([f"*.q.{i}" for i in range(2500)] + ["*.b.c"], but="")
    assert not book.overlaps([f"*.3.{i}" for i in range(500)], but="S3")
    assert book.overlaps([f"*.3.{i}" for i in range(500)], but="S4")
    assert time.process_time() - begun < 1.0
