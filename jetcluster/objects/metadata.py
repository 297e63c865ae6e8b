"""The metadata of an object: `Meta` begins an upload, `Info` is stored and shown."""

from __future__ import annotations

import base64
import json
import math
from typing import Any, Final

from jetcluster.errors import OBJECT_METADATA, OBJECT_MISMATCH, ApiError, by_code
from jetcluster.model.times import rfc3339
from jetcluster.objects.layout import remainders
from jetcluster.protocol.subjects import is_valid_literal
from jetcluster.records import NamedTuple
from jetcluster.store.api import Msg

MAX_METADATA_BYTES: Final = 64 << 10
MAX_NAME: Final = 1024
"""Bytes of the longest name in UTF-8."""
MAX_NONCE_BYTES: Final = 64
MAX_COUNT: Final = (1 << 63) - 1
MAX_DEPTH: Final = 32
"""Depth of nested objects and lists."""

_OPTIONAL: Final = {
    "description": str,
    "headers": dict,
    "options": dict,
    "metadata": dict,
    "bucket": str,
    "digest": str,
    "deleted": bool,
}
_KEPT: Final = ("headers", "options", "metadata")
"""Optional keys that the info keeps."""


class Meta(NamedTuple):
    """The metadata that a client publishes to begin an upload, checked."""

    name: str
    nonce: str
    chunks: int
    size: int
    digest: bytes
    """SHA-256 that the content must have; b"" when the client gave none."""
    deleted: bool
    """True when the message requests the object's deletion instead."""
    fields: dict[str, Any]

    def info(self, bucket: str, digest: bytes) -> bytes:
        """Return the info to store once the content is complete."""
        return dump(
            {
                "name": self.name,
                "description": self.fields.get("description") or "",
                "nonce": self.nonce,
                "bucket": bucket,
                "chunks": self.chunks,
                "size": self.size,
                "digest": digest_text(digest),
                "deleted": False,
                **{key: self.fields[key] for key in _KEPT if self.fields.get(key)},
            }
        )


class Info(NamedTuple):
    """An object by its stored metadata, of either layout, with the specification's field names."""

    fields: dict[str, Any]
    subject: bytes
    seq: int
    ts: int
    real: bool
    """True in the layout of stock clients."""
    stored: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.fields["name"])

    @property
    def nonce(self) -> str:
        return str(self.fields["nonce"])

    @property
    def chunks(self) -> int:
        return int(self.fields["chunks"])

    @property
    def deleted(self) -> bool:
        return bool(self.fields["deleted"])

    @property
    def link(self) -> bool:
        """True for a stock client's link to another object, which has no content."""
        return bool((self.fields.get("options") or {}).get("link"))

    def wire(self) -> dict[str, Any]:
        return {**self.fields, "mtime": rfc3339(self.ts)}

    def tombstone(self) -> bytes:
        """Return the metadata that replaces this one when the object is deleted."""
        source = self.stored if self.real else self.fields
        return dump({**source, "size": 0, "chunks": 0, "digest": "", "deleted": True})


def parse_meta(payload: bytes, bucket: str, remainder: bytes) -> Meta:
    """Parse the metadata that begins an upload; `remainder` followed `$OBJ.<b>.info.`. Raises ApiError 11005, 11003."""
    fields = _object(payload)
    name, nonce = fields.get("name"), fields.get("nonce")
    if not isinstance(name, str) or not name or len(_encoded(name)) > MAX_NAME:
        raise invalid("name")
    if not isinstance(nonce, str) or not is_nonce(nonce):
        raise invalid("nonce")
    for key, kind in _OPTIONAL.items():
        if fields.get(key) is not None and type(fields[key]) is not kind:
            raise invalid(key)
    if fields.get("bucket") not in (None, "", bucket):
        raise invalid("bucket is another one")
    if remainder not in remainders(name) or not is_valid_literal(remainder):
        raise invalid("the subject names another object")
    chunks, size = _count(fields, "chunks"), _count(fields, "size")
    if size and not chunks:
        raise by_code(OBJECT_MISMATCH, err=f"{size} bytes in no chunk")
    return Meta(name, nonce, chunks, size, _digest(fields), bool(fields.get("deleted")), fields)


def parse_info(message: Msg, bucket: str) -> Info | None:
    """Parse a stored message; None when it is metadata of neither layout."""
    try:
        stored = load(message.payload)
        name = stored["name"]
        real = message.subject.startswith(b"$O.")
        digest = stored.get("digest") or ""
        fields: dict[str, Any] = {
            "name": name,
            "description": stored.get("description") or "",
            "nonce": stored["nuid" if real else "nonce"],
            "bucket": stored.get("bucket") or bucket,
            "chunks": int(stored.get("chunks") or 0),
            "size": int(stored.get("size") or 0),
            "digest": "sha-256=" + digest[8:] if digest[:8].lower() == "sha-256=" else digest,
            "deleted": bool(stored.get("deleted")),
            **{key: stored[key] for key in _KEPT if stored.get(key)},
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    nonce = fields["nonce"]  # a wildcard among the subjects to purge would be a disaster
    sound = isinstance(name, str) and isinstance(nonce, str) and is_nonce(nonce)
    sound = sound and isinstance(fields.get("options", {}), dict)
    return Info(fields, message.subject, message.seq, message.ts, real, stored) if sound else None


def is_nonce(nonce: str) -> bool:
    raw = _encoded(nonce)
    return 0 < len(raw) <= MAX_NONCE_BYTES and b"." not in raw and is_valid_literal(raw)


def digest_text(digest: bytes) -> str:
    return "sha-256=" + base64.urlsafe_b64encode(digest).decode()


def invalid(what: str) -> ApiError:
    return by_code(OBJECT_METADATA, err=what)


def dump_error(error: ApiError) -> bytes:
    """Return the answer to a refused request."""
    return dump({"error": error.to_dict()})


def dump(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def load(text: bytes) -> dict[str, Any]:
    """Return a JSON object that `dump` can encode. Raises ValueError, RecursionError."""
    fields = _decode_json(text.decode())
    if not isinstance(fields, dict):
        raise ValueError("no JSON object")
    _check_depth(fields, MAX_DEPTH)
    return fields


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"invalid number {text}")
    return number


_decode_json: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_finite).decode


def _check_depth(value: Any, left: int) -> None:
    """Raise ValueError beyond `left` levels: a value decoded at one call depth must be encodable at any other."""
    if not left:
        raise ValueError("nested too deeply")
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            _check_depth(item, left - 1)


def _object(payload: bytes) -> dict[str, Any]:
    if len(payload) > MAX_METADATA_BYTES:
        raise invalid(f"longer than {MAX_METADATA_BYTES} bytes")
    try:
        return load(payload)
    except (ValueError, RecursionError):
        raise invalid("no JSON object") from None


def _count(fields: dict[str, Any], key: str) -> int:
    value = fields.get(key)
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise invalid(key)
    return value


def _digest(fields: dict[str, Any]) -> bytes:
    text = fields.get("digest") or ""
    if not text:
        return b""
    if text[:8].lower() != "sha-256=":
        raise invalid("digest")
    try:
        digest = base64.b64decode(text[8:].rstrip("=") + "=", altchars=b"-_", validate=True)
    except ValueError:
        raise invalid("digest") from None
    if len(digest) != 32:
        raise invalid("digest")
    return digest


def _encoded(text: str) -> bytes:
    """Encode text; a lone surrogate, which JSON can hold and UTF-8 cannot, becomes a question mark."""
    return text.encode("utf-8", "replace")
