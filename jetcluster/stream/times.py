"""RFC 3339 with nanoseconds, both ways, as Go writes and reads it (shared/reference/streams.md 1.6)."""

from __future__ import annotations

import re
from calendar import timegm
from time import gmtime, strftime
from typing import Final

ZERO_TIME: Final = b"0001-01-01T00:00:00Z"
"""Go's zero time: how "never" looks in a reply."""

_NS: Final = 1_000_000_000
_PATTERN: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)
_DAYS: Final = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_seconds: dict[int, bytes] = {}
_SECONDS_KEPT: Final = 256


def render(ts: int) -> bytes:
    """Unix nanoseconds -> `2026-11-20T09:36:25.5338856Z`: UTC, trailing zeros of the fraction trimmed; 0 is Go's
    zero time."""
    if not ts:
        return ZERO_TIME
    second, fraction = divmod(ts, _NS)
    text = _seconds.get(second)
    if text is None:
        if len(_seconds) >= _SECONDS_KEPT:
            _seconds.clear()
        text = _seconds[second] = strftime("%Y-%m-%dT%H:%M:%S", gmtime(second)).encode()
    if not fraction:
        return text + b"Z"
    return b"%b.%bZ" % (text, (b"%09d" % fraction).rstrip(b"0"))


def parse(text: str) -> int:
    """RFC 3339 -> Unix nanoseconds (negative before 1970), digits beyond nanoseconds cut. ValueError."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"not an RFC 3339 time: {text!r}")
    year, month, day, hour, minute, second = map(int, match.group(1, 2, 3, 4, 5, 6))
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or not 1 <= day <= _DAYS[month] + leap or hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"out of range: {text!r}")
    # timegm counts days by datetime.date, which wants years from 1: Go's zero time is year 1, year 0 is refused
    seconds = timegm((year, month, day, hour, minute, second))
    if match[8]:
        offset = int(match[9]) * 3600 + int(match[10]) * 60
        if int(match[9]) > 23 or int(match[10]) > 59:
            raise ValueError(f"out of range: {text!r}")
        seconds += offset if match[8] == "-" else -offset
    fraction = (match[7] or "")[:9].ljust(9, "0")
    return seconds * _NS + int(fraction)
