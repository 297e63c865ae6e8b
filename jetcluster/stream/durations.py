"""Durations as Go writes them: `1h30m`, `1.5s`, `250ms`."""

from __future__ import annotations

import re
from typing import Final

SECOND: Final = 1_000_000_000
MAX_NS: Final = 2**63 - 1

_UNITS: Final = {
    b"ns": 1,
    b"us": 1_000,
    "\u00b5s".encode(): 1_000,  # micro sign
    "\u03bcs".encode(): 1_000,  # Greek mu
    b"ms": 1_000_000,
    b"s": SECOND,
    b"m": 60 * SECOND,
    b"h": 3600 * SECOND,
}
_PART: Final = re.compile(rb"([0-9]*)(?:\.([0-9]*))?(ns|us|\xc2\xb5s|\xce\xbcs|ms|s|m|h)")
_LONGEST: Final = 64
"""No duration that fits 63 bits needs more digits than this; longer ones are refused unread."""


def parse(text: bytes) -> int | None:
    """Nanoseconds, fractions of one cut off; None for what Go's time.ParseDuration refuses."""
    if len(text) > _LONGEST:
        return None
    sign = -1 if text.startswith(b"-") else 1
    rest = text[1:] if text[:1] in (b"-", b"+") else text
    if rest == b"0":
        return 0
    if not rest:
        return None
    total = at = 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None or not (part[1] or part[2]):
            return None
        unit = _UNITS[part[3]]
        total += int(part[1] or b"0") * unit
        if part[2]:
            total += int(part[2]) * unit // 10 ** len(part[2])
        at = part.end()
    return sign * total if total <= MAX_NS else None
