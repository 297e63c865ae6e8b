"""Times on the wire: RFC 3339 in UTC with nanoseconds, trailing zeros trimmed, as Go writes them."""

from __future__ import annotations

import time

ZERO_TIME = "0001-01-01T00:00:00Z"
"""Go's zero time: what STREAM.INFO shows as first_ts and last_ts of an empty stream."""

SECOND = 1_000_000_000
MILLISECOND = 1_000_000
MINUTE = 60 * SECOND


def rfc3339(ns: int) -> str:
    """Unix nanoseconds as `2026-11-20T09:36:25.625879404Z`; 0 is the zero time."""
    if ns <= 0:
        return ZERO_TIME
    seconds, fraction = divmod(ns, SECOND)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{text}.{fraction:09d}".rstrip("0") + "Z" if fraction else text + "Z"
