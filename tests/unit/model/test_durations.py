from __future__ import annotations

import pytest

from jetcluster.model.durations import MAX_NS, parse, render
from jetcluster.model.times import SECOND


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1s", SECOND),
        ("+1s", SECOND),
        ("-1s", -SECOND),
        ("1.5s", 3 * SECOND // 2),
        (".5s", SECOND // 2),
        ("1.s", SECOND),
        ("1h2m3s", 3723 * SECOND),
        ("1s1s", 2 * SECOND),
        ("250ms", 250_000_000),
        ("1us", 1000),
        ("1\u00b5s", 1000),
        ("1\u03bcs", 1000),
        ("7ns", 7),
        ("1.9ns", 1),
        ("9223372036854775807ns", MAX_NS),
        ("9223372036854775808ns", None),
        ("2562048h", None),
        ("", None),
        ("-", None),
        ("s", None),
        (".s", None),
        ("1", None),
        ("1d", None),
        ("1 s", None),
        ("1s ", None),
        ("1sx", None),
        ("--1s", None),
        ("\u0661s", None),
        ("1" * 100 + "ns", None),
    ],
)
def test_parse(text: str, expected: int | None) -> None:
    assert parse(text.encode()) == expected


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (120 * 10**9, "2m0s"),
        (3661 * 10**9, "1h1m1s"),
        (100_000_000, "100ms"),
        (3723 * 10**9 + 5 * 10**8, "1h2m3.5s"),
        (1_500_000, "1.5ms"),
        (690_634, "690.634µs"),
        (12, "12ns"),
        (-(10**9), "-1s"),
    ],
)
def test_durations_are_printed_as_by_go(nanoseconds: int, text: str) -> None:
    assert render(nanoseconds) == text
