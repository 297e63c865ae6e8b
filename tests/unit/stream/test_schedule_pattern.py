from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from jetcluster.model.times import SECOND
from jetcluster.stream.cron import parse

T = 1_700_000_000 * SECOND


@pytest.mark.parametrize(
    ("value", "after", "expected"),
    [
        ("@at 2023-11-14T22:13:20Z", T + 5, T),
        ("@at 2023-11-14T23:13:20.5+01:00", T, T + SECOND // 2),
        ("@at 1960-01-01T00:00:00Z", T, 0),
        ("@every 10s", T, T + 10 * SECOND),
        ("@every 10s", T + SECOND // 2, T + 11 * SECOND),  # from the nearest second on
        ("@every 10s", T + SECOND // 2 - 1, T + 10 * SECOND),
        ("@every 1.5s", T, T + 3 * SECOND // 2),
        ("*/30 * * * * *", T + 1, T + 10 * SECOND),
        ("@hourly", T, T + 2800 * SECOND),
    ],
)
def test_next(value: str, after: int, expected: int) -> None:
    pattern = parse(value.encode(), None)
    assert pattern is not None
    assert pattern.next_after(after) == expected
    assert pattern.repeats is not value.startswith("@at")


def test_zone() -> None:
    pattern = parse(b"0 0 9 * * *", b"Europe/Berlin")
    assert pattern is not None and pattern.zone == "Europe/Berlin"
    expected = datetime.fromisoformat("2023-11-15T09:00:00+01:00")
    assert pattern.next_after(T, ZoneInfo("Europe/Berlin")) == int(expected.timestamp()) * SECOND
    utc = parse(b"0 0 9 * * *", b"UTC")
    assert utc is not None and utc.zone == ""


@pytest.mark.parametrize(
    ("value", "zone"),
    [
        ("", None),
        ("junk", None),
        ("@at junk", None),
        ("@at 2023-11-14", None),
        ("@at  2023-11-14T22:13:20Z", None),
        ("@at 2023-11-14T22:13:20Z", "UTC"),
        ("@every 1h", "UTC"),
        ("@every 999ms", None),
        ("@every 10", None),
        ("@every -5s", None),
        ("@every", None),
        ("0 0 * * *", None),
        ("\u0661 * * * * *", None),
    ],
)
def test_refused(value: str, zone: str | None) -> None:
    assert parse(value.encode(), zone.encode() if zone is not None else None) is None
