"""Durations, sizes and URLs in the forms that configuration files and flags use."""

from __future__ import annotations

import re

from jetcluster.model import durations

_TERM = re.compile(r"(\d+\.?\d*|\.\d+)([a-zµμ]*)")
_SIZE = re.compile(r"(-?\d+)([KMGT])(?:i?B)?", re.IGNORECASE)
_SIZE_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


def parse_duration(text: str) -> float:
    """Seconds in Go duration text such as "1h2m3.5s". Raises ValueError with Go's wording."""
    found = durations.parse(text.encode())
    if found is not None:
        return found / 1e9
    position = int(text[:1] in ("+", "-"))
    while term := _TERM.match(text, position):
        if not term[2]:
            raise ValueError(f'time: missing unit in duration "{text}"')
        if term[2].encode() not in durations.UNITS:
            raise ValueError(f'time: unknown unit "{term[2]}" in duration "{text}"')
        position = term.end()
    raise ValueError(f'time: invalid duration "{text}"')


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
