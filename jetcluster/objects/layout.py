"""The layouts of a bucket's objects in its stream: the specification's and that of stock clients.

| | specification (`$OBJ.<b>.>`) | stock clients (`$O.<b>.C.>`, `$O.<b>.M.>`) |
|---|---|---|
| metadata | `$OBJ.<b>.info.<object>` | `$O.<b>.M.<base64url of the name>` |
| chunks | `$OBJ.<b>.chunks.<nonce>` | `$O.<b>.C.<nuid>` |
| an incomplete upload | `$OBJ.<b>.upload.<nonce>` | - |
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from jetcluster.protocol.subjects import is_valid_literal
from jetcluster.records import NamedTuple

STREAM_PREFIX: Final = "OBJ_"
OWN: Final = b"$OBJ."


class Layout(NamedTuple):
    """The subjects of one bucket in the specification's layout (`own`), in that of stock clients (`real`), or both."""

    bucket: str
    own: bool
    real: bool

    @property
    def prefix(self) -> bytes:
        """`$OBJ.<bucket>.`"""
        return b"%b%b." % (OWN, self.bucket.encode())

    @property
    def infos(self) -> list[bytes]:
        """Filters of all metadata."""
        bucket = self.bucket.encode()
        found = [b"$OBJ.%b.info.>" % bucket] if self.own else []
        return [*found, b"$O.%b.M.>" % bucket] if self.real else found

    @property
    def uploads(self) -> bytes:
        return b"%bupload.*" % self.prefix

    def upload(self, nonce: str) -> bytes:
        return b"%bupload.%b" % (self.prefix, nonce.encode())

    def chunks(self, nonce: str, *, real: bool = False) -> bytes:
        if real:
            return b"$O.%b.C.%b" % (self.bucket.encode(), nonce.encode())
        return b"%bchunks.%b" % (self.prefix, nonce.encode())

    def info(self, remainder: bytes) -> bytes:
        return b"%binfo.%b" % (self.prefix, remainder)

    def infos_of(self, name: str) -> list[bytes]:
        """Return every possible metadata subject of an object of this name."""
        found = [self.info(remainder) for remainder in remainders(name)] if self.own else []
        if self.real:
            encoded = base64.urlsafe_b64encode(name.encode("utf-8", "replace"))
            found.append(b"$O.%b.M.%b" % (self.bucket.encode(), encoded))
        return found


def layout_of(config: Mapping[str, Any]) -> Layout | None:
    """Return the layout by a stream's normalised configuration; None when the stream is no bucket."""
    name = str(config.get("name") or "")
    bucket = name.removeprefix(STREAM_PREFIX)
    if bucket == name or not bucket or not is_valid_literal(bucket.encode()):
        return None
    subjects = set(config.get("subjects") or ())
    own = f"$OBJ.{bucket}.>" in subjects
    real = f"$O.{bucket}.>" in subjects or {f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"} <= subjects
    return Layout(bucket, own, real) if own or real else None


def remainders(name: str) -> list[bytes]:
    """Return the tokens that may follow `$OBJ.<b>.info.`: the name, if it is valid in a subject, and its base64url."""
    raw = name.encode("utf-8", "replace")
    encoded = base64.urlsafe_b64encode(raw)
    found = [raw] if is_valid_literal(raw) else []
    return list(dict.fromkeys([*found, encoded, encoded.rstrip(b"=")]))
