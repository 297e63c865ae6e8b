"""The header fields that mean something to a stream: those whose name starts with `Nats-`, and KV-Operation.

`Nats-TTL`: how long a message lives (ADR-43).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.model import durations
from jetcluster.model.times import SECOND
from jetcluster.protocol import headers as header_block

FIELD: Final = b"\r\nNats-"
KV_OPERATION: Final = b"\r\nKV-Operation:"
NOTHING: Final[dict[bytes, bytes]] = {}
"""Answer of `nats_fields` for a message without any; not to be changed."""


def nats_fields(headers: bytes) -> dict[bytes, bytes]:
    """The fields of a header block whose name starts with `Nats-`: exact case, first occurrence, blanks around the
    value dropped."""
    if FIELD not in headers:
        return NOTHING
    fields: dict[bytes, bytes] = {}
    at = headers.find(FIELD)
    while at >= 0:  # not by splitting it: there may be thousands of lines that mean nothing here
        end = headers.find(b"\r\n", at + 2)
        key, _, value = (headers[at + 2 : end] if end >= 0 else headers[at + 2 :]).partition(b":")
        fields.setdefault(key, value.strip(b" \t"))
        at = headers.find(FIELD, end) if end >= 0 else -1
    return fields


def without(headers: bytes, keys: frozenset[bytes], prefixes: tuple[bytes, ...]) -> bytes:
    """The block without the `Nats-` fields that are named in `keys`, or begin with one of `prefixes`; what is left
    keeps its bytes, but for a status behind the version."""
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
    """A sequence in a header: decimal digits only; -1, which matches none, for anything else."""
    return int(text) if text.isdigit() and len(text) <= 20 else -1


def is_delete_marker(headers: bytes) -> bool:
    """A subject delete marker, or what a KV client writes to purge a key: neither leaves a marker when it expires."""
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
