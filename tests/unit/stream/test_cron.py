from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.stream.cron import Cron, CronError


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


@pytest.mark.parametrize(
    ("pattern", "after", "expected"),
    [
        ("* * * * * *", "2026-03-01T12:00:00Z", "2026-03-01T12:00:01Z"),
        ("*/15 * * * * *", "2026-03-01T12:00:00Z", "2026-03-01T12:00:15Z"),
        ("5/20 * * * * *", "2026-03-01T12:00:26Z", "2026-03-01T12:00:45Z"),
        ("0 30 9 * * *", "2026-03-01T09:30:00Z", "2026-03-02T09:30:00Z"),
        ("0 0 0 31 * *", "2026-02-01T00:00:00Z", "2026-03-31T00:00:00Z"),
        ("0 0 0 29 feb *", "2026-03-01T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("0 0 12 * * MON-FRI", "2026-02-27T12:00:00Z", "2026-03-02T12:00:00Z"),
        ("0 0 0 1 * sun", "2026-02-24T00:00:00Z", "2026-03-01T00:00:00Z"),
        ("0 0 0 15 * sun", "2026-03-02T00:00:00Z", "2026-03-08T00:00:00Z"),  # either day matches
        ("0 0 0 15 * *", "2026-03-02T00:00:00Z", "2026-03-15T00:00:00Z"),
        ("0 0 0 ? * 1", "2026-03-03T00:00:00Z", "2026-03-09T00:00:00Z"),
        ("0 0 0 */2 * 1", "2026-03-02T00:00:00Z", "2026-03-03T00:00:00Z"),  # with a step, * restricts
        ("0 0 0 1,15 1,7 *", "2026-01-15T00:00:00Z", "2026-07-01T00:00:00Z"),
        ("59 59 23 31 12 *", "2026-12-31T23:59:59Z", "2027-12-31T23:59:59Z"),
        ("@yearly", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("@weekly", "2026-03-01T00:00:00Z", "2026-03-08T00:00:00Z"),
        ("@hourly", "2026-03-01T00:59:59Z", "2026-03-01T01:00:00Z"),
    ],
)
def test_next(pattern: str, after: str, expected: str) -> None:
    assert Cron(pattern).next_after(at(after)) == at(expected)


@pytest.mark.parametrize(
    ("pattern", "after", "expected"),
    [
        ("0 0 9 * * *", "2026-03-01T12:00:00+01:00", "2026-03-02T09:00:00+01:00"),
        ("0 30 2 * * *", "2026-03-28T12:00:00+01:00", "2026-03-30T02:30:00+02:00"),  # 2:30 is skipped on the 29th
        ("0 30 2 * * *", "2026-10-24T12:00:00+02:00", "2026-10-25T02:30:00+02:00"),
        ("0 30 2 * * *", "2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"),  # twice that night
        ("0 30 2 * * *", "2026-10-25T02:30:00+01:00", "2026-10-26T02:30:00+01:00"),
        ("0 0 * * * *", "2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00"),
        ("30 59 23 29 3 *", "2026-03-29T00:00:00+01:00", "2026-03-29T23:59:30+02:00"),
    ],
)
def test_next_in_a_zone(pattern: str, after: str, expected: str) -> None:
    assert Cron(pattern).next_after(at(after), ZoneInfo("Europe/Berlin")) == at(expected)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "* * * * *",
        "* * * * * * *",
        "60 * * * * *",
        "* * 24 * * *",
        "* * * 0 * *",
        "* * * * 13 *",
        "* * * * * 7",
        "5-1 * * * * *",
        "1-2-3 * * * * *",
        "*/0 * * * * *",
        "1/2/3 * * * * *",
        "a * * * * *",
        "-1 * * * * *",
        ", * * * * *",
        "1- * * * * *",
        "\u0661 * * * * *",
        "@foo",
        "@Hourly",
    ],
)
def test_refused(pattern: str) -> None:
    with pytest.raises(CronError):
        Cron(pattern)


def test_a_day_that_never_comes() -> None:
    with pytest.raises(CronError):
        Cron("0 0 0 30 2 *").next_after(at("2026-01-01T00:00:00Z"))


@given(
    st.integers(1_600_000_000, 1_900_000_000),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]),
    st.sampled_from([("*/7", "*", "*"), ("0", "*/13", "*"), ("30", "15", "1-3"), ("0", "0", "*/6")]),
)
def test_nothing_between_is_missed(start: int, zone: str, fields: tuple[str, str, str]) -> None:
    """Against a walk over every second."""
    second, minute, hour = fields
    found = Cron(f"{second} {minute} {hour} * * *").next_after(start, ZoneInfo(zone))

    def fits(text: str, value: int) -> bool:
        if text.startswith("*"):
            return value % int(text[2:] or 1) == 0
        low, _, high = text.partition("-")
        return int(low) <= value <= int(high or low)

    expected = start + 1
    step = 1
    while True:
        local = datetime.fromtimestamp(expected, UTC).astimezone(ZoneInfo(zone))
        if not fits(hour, local.hour) or not fits(minute, local.minute):
            step = 60 - local.second
        elif fits(second, local.second):
            break
        else:
            step = 1
        expected += step
    assert found == expected
