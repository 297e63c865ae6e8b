"""Times on the wire: RFC 3339 in UTC with nanoseconds, trailing zeros trimmed, as Go writes and reads them."""

from __future__ import annotations

import re
import time
from calendar import timegm
from typing import Final

from jetcluster.clock import SECOND as SECOND

ZERO_TIME = "0001-01-01T00:00:00Z"
"""Go's zero time, which STREAM.INFO shows as first_ts and last_ts of an empty stream."""
_ZERO: Final = ZERO_TIME.encode()
MILLISECOND = 1_000_000
MINUTE = 60 * SECOND

_PATTERN: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)
_DAYS: Final = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_seconds: dict[int, bytes] = {}
_MAX_CACHED_SECONDS: Final = 256


def rfc3339(ns: int) -> str:
    """Returns Unix nanoseconds as `2026-11-20T09:36:25.625879404Z`; 0 is the zero time."""
    return rfc3339_bytes(ns).decode() if ns > 0 else ZERO_TIME


def rfc3339_bytes(ns: int) -> bytes:
    """Does the same in bytes, for the data path, where many messages share a second; also for times before 1970."""
    if not ns:
        return _ZERO
    second, fraction = divmod(ns, SECOND)
    text = _seconds.get(second)
    if text is None:
        if len(_seconds) >= _MAX_CACHED_SECONDS:
            _seconds.clear()
        at = time.gmtime(second)  # strftime does not pad years before 1000
        text = _seconds[second] = b"%04d%b" % (at.tm_year, time.strftime("-%m-%dT%H:%M:%S", at).encode())
    if fraction % 10:
        return b"%b.%09dZ" % (text, fraction)
    if not fraction:
        return text + b"Z"
    return b"%b.%bZ" % (text, (b"%09d" % fraction).rstrip(b"0"))


def parse_rfc3339(text: str) -> int:
    """Returns Unix nanoseconds (negative before 1970) of RFC 3339, rounded down. Raises ValueError."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"not an RFC 3339 time: {text!r}")
    year, month, day, hour, minute, second = map(int, match.group(1, 2, 3, 4, 5, 6))
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or not 1 <= day <= _DAYS[month] + leap or hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"out of range: {text!r}")
    # timegm uses datetime.date, which raises ValueError for year 0; Go's zero time is in year 1.
    seconds = timegm((year, month, day, hour, minute, second))
    if match[8]:
        offset = int(match[9]) * 3600 + int(match[10]) * 60
        if int(match[9]) > 23 or int(match[10]) > 59:
            raise ValueError(f"out of range: {text!r}")
        seconds += offset if match[8] == "-" else -offset
    fraction = (match[7] or "")[:9].ljust(9, "0")
    return seconds * SECOND + int(fraction)


def go_time(text: str) -> str:
    """Returns an RFC 3339 time in Go's form: same offset, no trailing zeros in the fraction. Raises ValueError."""
    parse_rfc3339(text)
    zone = "Z" if text[-1] == "Z" else text[-6:]
    digits = text[20 : -len(zone)][:9].rstrip("0")
    return text[:19] + (f".{digits}" if digits else "") + ("Z" if zone == "+00:00" else zone)
