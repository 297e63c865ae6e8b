"""Durations as Go writes them: `1h30m`, `1.5s`, `250ms`."""

from __future__ import annotations

import re
from typing import Final

from jetcluster.model.times import SECOND

MAX_NS: Final = 2**63 - 1

UNITS: Final = {
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
_MAX_CHARS: Final = 64
"""A longer text is refused without parsing: 63 bits need fewer digits."""


def parse(text: bytes) -> int | None:
    """Returns nanoseconds, rounded towards zero; None for a text that Go's time.ParseDuration refuses."""
    if len(text) > _MAX_CHARS:
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
        unit = UNITS[part[3]]
        total += int(part[1] or b"0") * unit
        if part[2]:
            total += int(part[2]) * unit // 10 ** len(part[2])
        at = part.end()
    return sign * total if total <= MAX_NS else None


def render(nanoseconds: int) -> str:
    """Returns Go's `Duration.String()`: 120 s is "2m0s", 1.5 ms is "1.5ms"."""
    if nanoseconds == 0:
        return "0s"
    sign, n = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if n < 10**9:
        unit, name = (1, "ns") if n < 10**3 else (10**3, "µs") if n < 10**6 else (10**6, "ms")
        return f"{sign}{_decimal(n, unit)}{name}"
    minutes, rest = divmod(n, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_decimal(rest, 10**9)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else f"{sign}{seconds}"


def _decimal(value: int, unit: int) -> str:
    whole, fraction = divmod(value, unit)
    if not fraction:
        return str(whole)
    digits = str(fraction).rjust(len(str(unit)) - 1, "0").rstrip("0")
    return f"{whole}.{digits}"
