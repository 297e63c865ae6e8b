from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.model import times
from jetcluster.model.times import parse_rfc3339, rfc3339, rfc3339_bytes
from testkit.twins.memory import kept_bytes


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0001-01-01T00:00:00Z"),
        (1_700_000_000_000_000_000, "2023-11-14T22:13:20Z"),
        (1_700_000_000_500_000_000, "2023-11-14T22:13:20.5Z"),
        (1_700_000_000_000_000_001, "2023-11-14T22:13:20.000000001Z"),
        (1_795_167_385_533_885_600, "2026-11-20T09:36:25.5338856Z"),
        (1_700_000_000_123_456_780, "2023-11-14T22:13:20.12345678Z"),
    ],
)
def test_rfc3339(ns: int, text: str) -> None:
    assert rfc3339(ns) == text
    assert times.rfc3339_bytes(ns) == text.encode()
    assert parse_rfc3339(text) == ns or ns == 0


@given(st.integers(min_value=1, max_value=(1 << 63) - 1))
def test_parse_undoes_rendering(ns: int) -> None:
    text = rfc3339(ns)
    assert parse_rfc3339(text) == ns
    assert datetime.fromisoformat(text[:19]).replace(tzinfo=UTC).timestamp() == ns // 1_000_000_000


def test_cache_is_bounded() -> None:
    assert kept_bytes(lambda: [rfc3339(second * 1_000_000_000) for second in range(1, 20_000)] and None) < 100_000


def test_offsets_and_long_fractions() -> None:
    assert parse_rfc3339("2026-11-20T10:36:25.1234567899+01:00") == 1_795_167_385_123_456_789
    assert parse_rfc3339("2026-11-20T09:06:25-00:30") == 1_795_167_385_000_000_000


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "2026-11-20", "2026-11-20T09:36:25", "2026-11-20 09:36:25Z", "2026-13-01T00:00:00Z",
        "2026-02-29T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:60:00Z", "2026-01-01T00:00:61Z",
        "2026-01-01T00:00:00.Z", "2026-01-01T00:00:00+24:00", "0000-01-01T00:00:00Z", "\uff12026-01-01T00:00:00Z",
    ],
)  # fmt: skip
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an|out of range|year"):
        parse_rfc3339(text)


def test_leap_day_and_zero_time() -> None:
    assert rfc3339(parse_rfc3339("2028-02-29T00:00:00Z")) == "2028-02-29T00:00:00Z"
    assert parse_rfc3339("0001-01-01T00:00:00Z") < 0


def test_years_have_four_digits() -> None:
    for text in ("0001-01-01T00:00:00Z", "0500-01-01T00:00:00.5Z", "9999-12-31T23:59:59Z"):
        assert rfc3339_bytes(parse_rfc3339(text)).decode() == text


def test_a_time_before_1970_is_written_as_bytes() -> None:
    assert times.rfc3339_bytes(-1) == b"1969-12-31T23:59:59.999999999Z"
    assert times.rfc3339_bytes(0) == b"0001-01-01T00:00:00Z"
