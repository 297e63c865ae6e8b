"""Times on the wire: RFC 3339 in UTC with nanoseconds, trailing zeros trimmed, as Go writes them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

ZERO_TIME = "0001-01-01T00:00:00Z"
"""Go's zero time: what STREAM.INFO shows as first_ts and last_ts of an empty stream."""

SECOND = 1_000_000_000
MILLISECOND = 1_000_000
MINUTE = 60 * SECOND

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(r"(\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2})(?:\.(\d+))?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)


def rfc3339(ns: int) -> str:
    """Unix nanoseconds as `2026-11-20T09:36:25.625879404Z`; 0 is the zero time."""
    if ns <= 0:
        return ZERO_TIME
    seconds, fraction = divmod(ns, SECOND)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{text}.{fraction:09d}".rstrip("0") + "Z" if fraction else text + "Z"


def parse_rfc3339(text: str) -> int:
    """Unix nanoseconds of an RFC 3339 time (`Z` or a numeric offset, up to nine decimals kept, more are cut).

    Raises ValueError. Years 1 to 9999; times before 1970 are negative.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"cannot parse {text!r} as an RFC 3339 time")
    whole, fraction, zone = match.groups()
    moment = datetime.fromisoformat(whole.upper() + ("+00:00" if zone in {"Z", "z"} else zone))
    since_epoch = moment - _EPOCH
    seconds = since_epoch.days * 86_400 + since_epoch.seconds
    return seconds * SECOND + int((fraction or "")[:9].ljust(9, "0"))
