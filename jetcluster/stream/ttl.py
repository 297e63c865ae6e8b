"""`Nats-TTL`: how long a message lives (ADR-43)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.model import durations
from jetcluster.model.times import SECOND

LEAST: Final = 1
"""Seconds."""
NEVER: Final = -1
"""The message outlives even the stream's max_age."""
LONGEST: Final = 2**63 - 1
"""Seconds; times so late that nanoseconds do not count that far mean the end of time (`due_index.MAX_DUE`)."""

_DISABLED: Final = errors.by_code(10166)
_INVALID: Final = errors.by_code(10165)


MAX_REMEMBERED: Final = 64
"""Bytes of a value that is read once for what uses it again and again."""


def parse_ttl(value: bytes) -> int | None:
    """As `_parse_ttl`."""
    return _remembered(value) if len(value) <= MAX_REMEMBERED else _parse_ttl(value)


def _parse_ttl(value: bytes) -> int | None:
    """Seconds (>= LEAST) of a non-empty header value, NEVER, or None when it is neither a Go duration (fractions of a
    second are cut off), a whole number of seconds, nor `never`, or is below LEAST."""
    if value.lower() == b"never":
        return NEVER
    duration = durations.parse(value)
    if duration is not None:
        seconds = duration // SECOND
    elif value.isdigit() and len(value) <= 19:
        seconds = int(value)
    else:
        return None
    return seconds if LEAST <= seconds <= LONGEST else None


_remembered = lru_cache(maxsize=1024)(_parse_ttl)


def check_ttl(fields: Mapping[bytes, bytes], *, allowed: bool) -> ApiError | None:
    """Fault of the `Nats-` header fields of a message: 10166 when the stream has no TTLs, 10165 when it is none."""
    value = fields.get(b"Nats-TTL")
    if not value:
        return None
    if not allowed:
        return _DISABLED
    return _INVALID if parse_ttl(value) is None else None
