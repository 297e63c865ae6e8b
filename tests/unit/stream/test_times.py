from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.model.times import parse_rfc3339
from jetcluster.stream import times


@pytest.mark.parametrize(
    ("ts", "text"),
    [
        (0, b"0001-01-01T00:00:00Z"),
        (1_795_167_385_533_885_600, b"2026-11-20T09:36:25.5338856Z"),
        (1_795_167_385_000_000_001, b"2026-11-20T09:36:25.000000001Z"),
        (1_795_167_385_000_000_000, b"2026-11-20T09:36:25Z"),
        (1_795_167_385_100_000_000, b"2026-11-20T09:36:25.1Z"),
    ],
)
def test_render(ts: int, text: bytes) -> None:
    assert times.render(ts) == text
    assert parse_rfc3339(text.decode()) == ts or ts == 0


@given(st.integers(min_value=1, max_value=(1 << 63) - 1))
def test_parse_undoes_render(ts: int) -> None:
    text = times.render(ts).decode()
    assert parse_rfc3339(text) == ts
    assert datetime.fromisoformat(text[:19]).replace(tzinfo=UTC).timestamp() == ts // 1_000_000_000


def test_cache_is_bounded() -> None:
    for second in range(1, 2000):
        times.render(second * 1_000_000_000)
    assert len(times._seconds) <= times._SECONDS_KEPT
