"""Filters that narrow a read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jetcluster.spark.options import SourceOptions
from jetcluster.spark.resolve import Pushdown
from tests.unit.spark.test_planner import options


def narrowed(*filters: tuple[str, str, object], **given: object) -> tuple[Pushdown, SourceOptions | None]:
    pushdown = Pushdown()
    for kind, column, value in filters:
        pushdown.take(type(kind, (SimpleNamespace,), {})(attribute=(column,), value=value))
    return pushdown, pushdown.options(options(**given))


def test_comparisons_of_the_sequence() -> None:
    found, _ = narrowed(("GreaterThan", "seq", 1000), ("LessThanOrEqual", "seq", 2000), ("IsNotNull", "seq", None))
    assert (found.low, found.high) == (1001, 2001)
    found, _ = narrowed(("EqualTo", "seq", 5), ("GreaterThanOrEqual", "seq", 3), ("LessThan", "seq", 9))
    assert (found.low, found.high) == (5, 6)
    found, _ = narrowed(("In", "seq", (4, 9, 6)))
    assert (found.low, found.high) == (4, 10)
    found, _ = narrowed(("GreaterThan", "time_ns", 7))
    assert (found.low, found.high) == (0, None)


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
