"""Which consumers want what was stored."""

from __future__ import annotations

from jetcluster.consumer.filters import ConsumerFilters


def test_those_with_a_filter_that_matches_each_once() -> None:
    filters: ConsumerFilters[str] = ConsumerFilters()
    filters.set(1, [b">"], "all")
    filters.set(2, [b"a.*", b"b.c"], "two")
    filters.set(3, [b"b.>"], "b")
    assert sorted(filters.takers([b"a.x"])) == ["all", "two"]
    assert sorted(filters.takers([b"a.x", b"a.y", b"b.c"])) == ["all", "b", "two"]
    assert filters.takers([b"c"]) == ["all"]
    assert filters.takers([]) == []


def test_filters_are_replaced_and_removed() -> None:
    filters: ConsumerFilters[str] = ConsumerFilters()
    filters.set(1, [b"a"], "one")
    filters.set(1, [b"b"], "one")
    assert filters.takers([b"a"]) == [] and filters.takers([b"b"]) == ["one"]
    filters.remove(1)
    filters.remove(1)
    assert filters.takers([b"b"]) == []
