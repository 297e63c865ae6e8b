from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.model.times import SECOND
from jetcluster.stream.apply import cron as cron_module
from jetcluster.stream.apply.cron import Cron, CronError, parse


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


def _minute_by_minute(pattern: list[set[int]], day: date, start: int, zone: ZoneInfo) -> int | None:
    """The first second of the local day at or after `start` that the pattern takes, by looking at all of them."""
    seconds, minutes, hours = pattern
    midnight = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
    for at_minute in range(midnight - 27 * 3600, midnight + 51 * 3600, 60):
        local = datetime.fromtimestamp(at_minute, UTC).astimezone(zone)
        if local.date() == day and local.hour in hours and local.minute in minutes:
            for second in sorted(seconds):
                if at_minute + second >= start:
                    return at_minute + second
    return None


CHANGES = [
    ("America/New_York", date(2027, 3, 14)), ("America/New_York", date(2027, 11, 7)),
    ("Europe/Berlin", date(2026, 3, 29)),
    ("Europe/Berlin", date(2026, 10, 25)), ("Australia/Lord_Howe", date(2026, 4, 5)),
    ("Pacific/Apia", date(2011, 12, 30)),
    ("Pacific/Apia", date(2011, 12, 31)), ("America/Havana", date(2026, 3, 8)), ("Asia/Beirut", date(2026, 3, 29)),
    ("Africa/Casablanca", date(2026, 2, 15)), ("Antarctica/Troll", date(2026, 3, 29)),
    ("Asia/Kolkata", date(2026, 5, 5)),
]  # fmt: skip


@given(
    change=st.sampled_from(CHANGES),
    fields=st.tuples(
        st.sets(st.integers(0, 59), min_size=1, max_size=3),
        st.sets(st.integers(0, 59), min_size=1, max_size=3),
        st.sets(st.integers(0, 23), min_size=1, max_size=3),
    ),
    since=st.integers(-30 * 3600, 54 * 3600),
)
@settings(max_examples=60, deadline=None)
def test_a_day_on_which_clocks_change_is_as_if_every_minute_was_looked_at(
    change: tuple[str, date], fields: tuple[set[int], ...], since: int
) -> None:
    name, day = change
    zone = ZoneInfo(name)
    text = " ".join(",".join(map(str, sorted(values))) for values in fields)
    cron = Cron(f"{text} {day.day} {day.month} *")
    start = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) + since
    wanted = _minute_by_minute(list(fields), day, start, zone)
    found = cron.next_after(start - 1, zone)
    assert (found if found < start - since + 51 * 3600 else None) == wanted


class CountedZone(tzinfo):
    """The zone `name`, which counts how often it is asked."""

    def __init__(self, name: str) -> None:
        self.zone, self.asked = ZoneInfo(name), 0

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        self.asked += 1
        return self.zone.utcoffset(moment)

    def dst(self, moment: datetime | None) -> timedelta | None:
        return self.zone.dst(moment)

    def fromutc(self, moment: datetime) -> datetime:
        self.asked += 1
        return self.zone.fromutc(moment.replace(tzinfo=self.zone)).replace(tzinfo=self)


def test_an_hour_that_clocks_skip_is_found_out_with_few_questions() -> None:
    zone = CountedZone("America/New_York")
    assert Cron("0 30 2 14 3 *").next_after(at("2027-03-13T12:00:00Z"), zone) == at("2028-03-14T02:30:00-04:00")
    assert zone.asked < 200


@pytest.mark.parametrize("pattern", ["0 0 0 31 2,4,6,9,11 *", "* * * 30-31 2 *", "0 0 0 31 feb ?"])
def test_what_never_fires_is_known_without_looking_at_days(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    never = Cron(pattern)
    monkeypatch.setattr(cron_module, "date", None)  # no day can be looked at
    with pytest.raises(CronError):
        never.next_after(at("2026-03-01T00:00:00Z"))


@pytest.mark.parametrize("pattern", ["0 0 0 29 2 *", "0 0 0 30 1,2 *", "0 0 0 31 2 mon", "0 0 0 */31 2 *"])
def test_what_fires_some_time_is_no_pattern_that_never_does(pattern: str) -> None:
    assert Cron(pattern).next_after(at("2026-03-01T00:00:00Z")) > at("2026-03-01T00:00:00Z")


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
def test_next_of_a_schedule(value: str, after: int, expected: int) -> None:
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
def test_schedules_that_are_refused(value: str, zone: str | None) -> None:
    assert parse(value.encode(), zone.encode() if zone is not None else None) is None
