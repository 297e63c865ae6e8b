"""RFC 3339 with nanoseconds as bytes, as Go writes it; `model.times` reads it."""

from __future__ import annotations

from time import gmtime, strftime
from typing import Final

ZERO_TIME: Final = b"0001-01-01T00:00:00Z"
"""Go's zero time: how "never" looks in a reply."""

_NS: Final = 1_000_000_000

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
    if fraction % 10:
        return b"%b.%09dZ" % (text, fraction)
    if not fraction:
        return text + b"Z"
    return b"%b.%bZ" % (text, (b"%09d" % fraction).rstrip(b"0"))
