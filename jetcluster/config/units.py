"""Durations, sizes and URLs in the forms that configuration files and flags use (Go's `time.ParseDuration`)."""

from __future__ import annotations

import re

_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_TERM = re.compile(r"(\d+\.?\d*|\.\d+)([a-zµμ]*)")
_SIZE = re.compile(r"(-?\d+)([KMGT])(?:i?B)?", re.IGNORECASE)
_SIZE_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


def parse_duration(text: str) -> float:
    """Seconds in Go duration text such as "1h2m3.5s". Raises ValueError with Go's wording."""
    body = text[1:] if text[:1] in "+-" else text
    if body == "0":
        return 0.0
    if not body:
        raise ValueError(f'time: invalid duration "{text}"')
    total = 0.0
    position = 0
    while position < len(body):
        term = _TERM.match(body, position)
        if term is None:
            raise ValueError(f'time: invalid duration "{text}"')
        if not term[2]:
            raise ValueError(f'time: missing unit in duration "{text}"')
        if term[2] not in _UNITS:
            raise ValueError(f'time: unknown unit "{term[2]}" in duration "{text}"')
        total += float(term[1]) * _UNITS[term[2]]
        position = term.end()
    seconds = total / 1e9
    return -seconds if text[0] == "-" else seconds


def format_duration(nanoseconds: int) -> str:
    """Go's `Duration.String()`: 120 s is "2m0s", 1.5 ms is "1.5ms"."""
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


def friendly_bytes(count: int) -> str:
    """As nats-server writes sizes in its log: "512 B", "2.00 MB"."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 6)
    return f"{count / 1024**power:.2f} {' KMGTPE'[power]}B"


def parse_storage_size(name: str, value: object) -> int:
    """Bytes for a size of the jetstream block: an integer, or text such as "512M" (base 1024; "-1" = unlimited).

    Raises ValueError with the real server's text.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{name} must be int64 or string")
    text = value.strip()
    if not text:
        return 0
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    sized = _SIZE.fullmatch(text)
    if sized is None and text[-1] in _SIZE_POWERS:
        raise ValueError(f'{name} strconv.ParseInt: parsing "{text[:-1]}": invalid syntax')
    if sized is None:
        raise ValueError(f"{name} sizes defined as strings must end in K, M, G, T")
    size: int = int(sized[1]) * 1024 ** _SIZE_POWERS[sized[2].upper()]
    return size


def without_secret(url: str) -> str:
    """For messages: what stands before the host may be a password or a token."""
    scheme, colon, rest = url.rpartition("://")
    secret, at, address = rest.rpartition("@")
    return f"{scheme}{colon}{'[REDACTED]@' if at and secret else ''}{address}"
