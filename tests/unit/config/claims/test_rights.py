"""A user's rights: from where, when, and what is wrong with them as they are written."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from jetcluster.config.claims.rights import Rights, read_rights
from jetcluster.config.claims.token import Fields

TOKYO = "Asia/Tokyo"


def at(clock: str) -> float:
    return datetime.strptime(f"2026-11-22 {clock}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=ZoneInfo(TOKYO)).timestamp()


@pytest.mark.parametrize(
    ("windows", "now", "left"),
    [
        ([], "12:00:00", 0.0),
        ([("08:00:00", "17:00:00")], "12:00:00", 5 * 3600.0),
        ([("08:00:00", "17:00:00")], "07:59:59", None),
        ([("08:00:00", "17:00:00")], "17:00:01", None),
        ([("22:00:00", "06:00:00")], "23:00:00", 7 * 3600.0),
        ([("22:00:00", "06:00:00")], "05:00:00", 3600.0),
        ([("22:00:00", "06:00:00")], "12:00:00", None),
        ([("08:00:00", "13:00:00"), ("11:00:00", "14:00:00")], "12:00:00", 2 * 3600.0),
    ],
)
def test_windows_of_time(windows: list[tuple[str, str]], now: str, left: float | None) -> None:
    assert Rights(times=windows, locale=TOKYO).seconds_left(at(now)) == left


@pytest.mark.parametrize(
    ("sources", "address", "allowed"),
    [
        ([], "anything", True),
        (["10.0.0.0/8"], "10.1.2.3", True),
        (["10.0.0.0/8"], "11.1.2.3", False),
        (["10.0.0.0/8"], "::ffff:10.1.2.3", True),
        (["fe80::/10", "10.0.0.0/8"], "fe80::1%eth0", True),
        (["10.0.0.0/8"], "", False),
    ],
)
def test_networks(sources: list[str], address: str, allowed: bool) -> None:
    assert Rights(sources=sources).is_from_allowed(address) is allowed


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"src": ["10.0.0.1"]}, 'invalid cidr "10.0.0.1" in user src limits'),
        ({"times": [{"end": "06:00:00"}]}, "time ranges start must contain a start"),
        ({"times": [{"start": "06:00:00"}]}, "time ranges end must contain an end"),
        ({"times": [{"start": "24:00:00", "end": "06:00:00"}]}, 'start in time range is invalid "24:00:00"'),
        ({"times": [{"start": "1:00:00", "end": "6:0:0"}]}, 'end in time range is invalid "6:0:0"'),
        ({"times_location": "Nowhere/At"}, "could not parse iana time zone by name: unknown time zone Nowhere/At"),
        ({"pub": {"allow": ["a b"]}}, 'Permission Subject "a b" is not allowed to contain queue'),
        ({"sub": {"deny": ["a b c"]}}, 'Permission Subject "a b c" contains too many spaces'),
        ({"sub": {"allow": ["a..b"]}}, 'subject "a..b" cannot contain consecutive `.`'),
        ({"sub": {"allow": [".a"]}}, 'subject ".a" cannot start or end with a `.`'),
        ({"sub": {"allow": [""]}}, "subject cannot be empty"),
    ],
)
def test_what_is_wrong_is_reported(body: dict[str, object], problem: str) -> None:
    assert list(read_rights(Fields(body)).problems()) == [problem]


def test_rights_are_read_as_they_are_written() -> None:
    found = read_rights(Fields({"src": "10.0.0.0/8, FE80::/10", "sub": {"allow": ["a q"]}, "resp": {}, "data": 5}), -1)
    assert list(found.problems()) == []
    assert found.sources == ["10.0.0.0/8", "fe80::/10"]
    assert (found.data, found.payload, found.subscriptions) == (5, -1, -1)
    assert found.permissions.subscribe.allow == ["a q"] and found.permissions.subscribe.deny is None
    assert found.permissions.responses is not None
    assert not found.is_blank and read_rights(Fields({})).is_blank and not Rights().is_blank
