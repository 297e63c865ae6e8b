"""The header fields that mean something to a stream: those whose name starts with `Nats-`, and KV-Operation."""

from __future__ import annotations

from typing import Final

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
