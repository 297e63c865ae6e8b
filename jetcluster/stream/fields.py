"""The header fields with a meaning for a stream, `Nats-...` and KV-Operation, and values of `Nats-TTL` (ADR-43)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from jetcluster import API_LEVEL, errors
from jetcluster.errors import ApiError
from jetcluster.model import durations
from jetcluster.model.times import SECOND
from jetcluster.protocol import headers as header_block

FIELD: Final = b"\r\nNats-"
KV_OPERATION: Final = b"\r\nKV-Operation:"
REQUIRED_LEVEL: Final = b"Nats-Required-Api-Level"
NO_FIELDS: Final[dict[bytes, bytes]] = {}
"""Result of `nats_fields` for a message without fields; it must not be changed."""


def nats_fields(headers: bytes) -> dict[bytes, bytes]:
    """The fields of a header block that start with `Nats-`: exact case, first occurrence, value stripped of blanks."""
    if FIELD not in headers:
        return NO_FIELDS
    fields: dict[bytes, bytes] = {}
    at = headers.find(FIELD)
    while at >= 0:  # without splitting: thousands of lines may have no meaning here
        end = headers.find(b"\r\n", at + 2)
        key, _, value = (headers[at + 2 : end] if end >= 0 else headers[at + 2 :]).partition(b":")
        fields.setdefault(key, value.strip(b" \t"))
        at = headers.find(FIELD, end) if end >= 0 else -1
    return fields


def level_is_met(level: bytes | None) -> bool:
    """False when a value of REQUIRED_LEVEL is above our API level, or no number."""
    if not level:
        return True
    return level.isdigit() and len(level) < 19 and int(level) <= API_LEVEL


def without(headers: bytes, keys: frozenset[bytes], prefixes: tuple[bytes, ...]) -> bytes:
    """The block without a status and the `Nats-` fields in `keys` or with one of `prefixes`; other bytes stay."""
    headers = header_block.without_status(headers) if headers else b"NATS/1.0\r\n\r\n"
    kept: list[bytes] = []
    start, at = 0, headers.find(FIELD)
    while at >= 0:
        end = headers.find(b"\r\n", at + 2)
        if end < 0:
            break
        key = headers[at + 2 : end].partition(b":")[0]
        if key in keys or key.startswith(prefixes):
            kept.append(headers[start:at])
            start = end
        at = headers.find(FIELD, end)
    return b"".join((*kept, headers[start:])) if kept else headers


def number(text: bytes) -> int:
    """A sequence in a header, of decimal digits; -1, which matches none, for other text."""
    return int(text) if text.isdigit() and len(text) <= 20 else -1


def is_delete_marker(headers: bytes) -> bool:
    """True for a subject delete marker, and for a KV client's purge of a key: neither leaves a marker on expiry."""
    if b"\r\nNats-Marker-Reason:" in headers:
        return bool(header_block.get(headers, b"Nats-Marker-Reason"))
    return KV_OPERATION in headers and header_block.get(headers, b"KV-Operation") == b"PURGE"


def appended(headers: bytes, key: bytes, value: bytes) -> bytes:
    """The block (b"" for none) with one more line at its end."""
    return b"%b%b: %b\r\n\r\n" % (headers[:-2] if headers else b"NATS/1.0\r\n", key, value)


def replaced(headers: bytes, key: bytes, value: bytes) -> bytes:
    """The block with `value` in the first line of `key`, or in one more line at its end."""
    start = headers.find(b"\r\n%b:" % key)
    if start < 0:
        return appended(headers, key, value)
    end = headers.find(b"\r\n", start + 2)
    return b"%b\r\n%b: %b%b" % (headers[:start], key, value, headers[end:] if end >= 0 else b"\r\n\r\n")


MIN_TTL_SECONDS: Final = 1
NEVER: Final = -1
"""TTL of a message that outlives even the stream's max_age."""
MAX_TTL_SECONDS: Final = 2**63 - 1
"""The latest due time in nanoseconds is smaller (`due_index.MAX_DUE`)."""

_DISABLED: Final = errors.by_code(10166)
_INVALID: Final = errors.by_code(10165)


MAX_CACHED_BYTES: Final = 64
"""Bytes of a value whose parsed form is cached."""


def parse_ttl(value: bytes) -> int | None:
    """Returns `_parse_ttl` of the value, from a cache."""
    return _remembered(value) if len(value) <= MAX_CACHED_BYTES else _parse_ttl(value)


def _parse_ttl(value: bytes) -> int | None:
    """Seconds of a non-empty value, NEVER, or None when it is neither a Go duration (rounded down), a whole number of
    seconds, nor `never`, or is below MIN_TTL_SECONDS."""
    if value.lower() == b"never":
        return NEVER
    duration = durations.parse(value)
    if duration is not None:
        seconds = duration // SECOND
    elif value.isdigit() and len(value) <= 19:
        seconds = int(value)
    else:
        return None
    return seconds if MIN_TTL_SECONDS <= seconds <= MAX_TTL_SECONDS else None


_remembered = lru_cache(maxsize=1024)(_parse_ttl)


def check_ttl(fields: Mapping[bytes, bytes], *, allowed: bool) -> ApiError | None:
    """Fault of a message's Nats-TTL, or None: 10166 when the stream has no TTLs, 10165 when it is invalid."""
    value = fields.get(b"Nats-TTL")
    if not value:
        return None
    if not allowed:
        return _DISABLED
    return _INVALID if parse_ttl(value) is None else None
