"""Filters of a query narrow what is read (spark/pushdown.py)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from jetcluster.arrow import resolve
from jetcluster.arrow.options import SourceOptions
from jetcluster.spark import pushdown
from jetcluster.spark.options import source_options
from jetcluster.spark.pushdown import Pushdown
from tests.unit.arrow.fake_server import StreamPeer, numbered, options_for, store_of


def options_of(**given: object) -> SourceOptions:
    given = {"servers": "nats://a:4222", "stream": "S", **given}
    return source_options({name: str(value) for name, value in given.items()})


def narrowed(*filters: tuple[str, str, object], **given: object) -> tuple[Pushdown, SourceOptions | None]:
    found = Pushdown()
    for kind, column, value in filters:
        found.take(type(kind, (SimpleNamespace,), {})(attribute=(column,), value=value))
    return found, found.options(options_of(**given))


def test_comparisons_of_the_sequence() -> None:
    found, _ = narrowed(("GreaterThan", "seq", 1000), ("LessThanOrEqual", "seq", 2000), ("IsNotNull", "seq", None))
    assert (found.low, found.high) == (1001, 2001)
    found, _ = narrowed(("EqualTo", "seq", 5), ("GreaterThanOrEqual", "seq", 3), ("LessThan", "seq", 9))
    assert (found.low, found.high) == (5, 6)
    found, _ = narrowed(("In", "seq", (4, 9, 6)))
    assert (found.low, found.high) == (4, 10)
    found, _ = narrowed(("GreaterThan", "time_ns", 7))
    assert (found.low, found.high) == (0, None)


def test_times_narrow_what_is_read_of_an_archive() -> None:
    at, second = datetime(2026, 11, 22, 10, 0, 0, 5, tzinfo=UTC), 10**9
    ns = 1_795_341_600 * second + 5_000
    found, _ = narrowed(("GreaterThan", "time", at), ("LessThanOrEqual", "time", at + timedelta(seconds=1)))
    assert (found.first_time, found.last_time) == (ns, ns + second + 999)
    found, _ = narrowed(("EqualTo", "time", at), ("LessThan", "time_ns", ns + 7), ("GreaterThan", "time_ns", 3))
    assert (found.first_time, found.last_time) == (ns, ns + 7)
    found, _ = narrowed(("EqualTo", "time", at.replace(tzinfo=None)), ("In", "time_ns", (1, 2)))
    assert (found.first_time, found.last_time) == (None, None)
    with StreamPeer(store_of(numbered(30))) as peer:
        options, bounds = options_for(peer), Pushdown()
        bounds.first_time = 5
        (extent,) = pushdown.narrowed(resolve.batch_extents(options), bounds, options)
        assert (extent.low, extent.high, extent.times) == (1, 31, (5, None))


@pytest.mark.parametrize(
    ("filters", "subjects", "left"),
    [
        ([("EqualTo", "subject", "a.b")], ">", ("a.b",)),
        ([("EqualTo", "subject", "c")], "a.*", None),
        ([("In", "subject", ("a.b", "a.c", "x"))], "a.*", ("a.b", "a.c")),
        ([("StringStartsWith", "subject", "a.b.c")], ">", ("a.b.>",)),
        ([("StringStartsWith", "subject", "a.b")], "a.b.c, a.d", ("a.b.c", "a.d")),
        ([("StringStartsWith", "subject", "abc")], ">", (">",)),
        ([("StringStartsWith", "subject", "a.b."), ("EqualTo", "subject", "a.b.x")], ">", ("a.b.x",)),
        ([("EqualTo", "subject", "a.*")], ">", (">",)),
        ([("EqualTo", "subject", "a"), ("EqualTo", "subject", "b")], ">", None),
        ([("Not", "subject", "a")], ">", (">",)),
    ],
)
def test_subjects(filters: list[tuple[str, str, object]], subjects: str, left: tuple[str, ...] | None) -> None:
    _, found = narrowed(*filters, subjects=subjects)
    assert (found and found.subjects) == left


def test_filters_narrow_the_range() -> None:
    with StreamPeer(store_of(numbered(30))) as peer:
        options = options_for(peer)
        bounds = Pushdown()
        bounds.low, bounds.high = 10, 20
        (extent,) = pushdown.narrowed(resolve.batch_extents(options), bounds, options)
        assert (extent.low, extent.high) == (10, 20)
