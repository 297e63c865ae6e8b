from __future__ import annotations

import pytest

from jetcluster.model.times import rfc3339


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0001-01-01T00:00:00Z"),
        (1_700_000_000_000_000_000, "2023-11-14T22:13:20Z"),
        (1_700_000_000_500_000_000, "2023-11-14T22:13:20.5Z"),
        (1_700_000_000_000_000_001, "2023-11-14T22:13:20.000000001Z"),
        (1_700_000_000_123_456_780, "2023-11-14T22:13:20.12345678Z"),
    ],
)
def test_rfc3339(ns: int, text: str) -> None:
    assert rfc3339(ns) == text
