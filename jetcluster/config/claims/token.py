"""JWTs of NATS, signed with Ed25519 nkeys, versions 1 and 2.

A token names its issuer, and the signature is checked against that key. The callers decide if the issuer is trusted:
operators by the configuration, accounts by their operator, users by their account.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jetcluster.config.nkeys import decode_key, kind_of
from jetcluster.errors import OperatorError

MAX_TOKEN_BYTES = 1024 * 1024
_VERSION = 2
_ISSUERS = {"operator": "O", "account": "AO", "user": "A", "activation": "AO"}
"""Claim -> the kinds of nkeys that may sign it."""
_ALGORITHMS = ("ed25519", "ed25519-nkey")
_TOKEN = re.compile(r"[\w\-.=]+")
_FENCE = "---"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_BASE64 = re.compile(r"[A-Za-z0-9_-]*")


class ClaimsError(OperatorError, ValueError):
    """A token that is not valid. The text contains no secret."""


class Fields:
    """A JSON object with typed access to its values. A missing value and null are the type's zero value, as in Go; a
    value of another type raises ClaimsError."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def _get(self, name: str, wanted: type, zero: Any) -> Any:
        value = self._values.get(name)
        if value is None:
            return zero
        if type(value) is not wanted:
            raise ClaimsError(f"cannot unmarshal {type(value).__name__} into field {name}")
        return value

    def text(self, name: str) -> str:
        found: str = self._get(name, str, "")
        return found

    def number(self, name: str, missing: int = 0) -> int:
        value = self._values.get(name)
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
            return int(value)  # some languages encode an integer as 1.0 or 1e3
        found: int = self._get(name, int, missing)
        if not -(2**63) <= found < 2**63:
            raise ClaimsError(f"cannot unmarshal number into field {name}: out of range")
        return found

    def flag(self, name: str) -> bool:
        found: bool = self._get(name, bool, False)
        return found

    def texts(self, name: str) -> list[str]:
        found: list[Any] = self._get(name, list, [])
        if not all(type(item) is str for item in found):
            raise ClaimsError(f"cannot unmarshal into field {name}: not all are strings")
        return found

    def items(self, name: str) -> list[Any]:
        """Returns a list of values of any type."""
        found: list[Any] = self._get(name, list, [])
        return found

    def objects(self, name: str) -> list[Fields]:
        found: list[Any] = self._get(name, list, [])
        if not all(type(item) is dict for item in found):
            raise ClaimsError(f"cannot unmarshal into field {name}: not all are objects")
        return [Fields(item) for item in found]

    def object(self, name: str) -> Fields:
        return Fields(self._get(name, dict, {}))

    def numbers_by_name(self, name: str) -> dict[str, int]:
        found: dict[str, Any] = self._get(name, dict, {})
        return {key: Fields(found).number(key) for key in found}

    def names(self) -> list[str]:
        return list(self._values)

    def raw(self) -> Mapping[str, Any]:
        return self._values


@dataclass(slots=True, frozen=True)
class Token:
    """A token with a valid signature of its issuer. Times are seconds since the epoch, 0 is never."""

    text: str
    kind: str
    """`operator`, `account`, `user` or `activation`."""
    version: int
    issuer: str
    subject: str
    name: str
    id: str
    audience: str
    issued_at: int
    expires: int
    not_before: int
    tags: tuple[str, ...]
    top: Fields
    """The whole object: version 1 has some of the fields outside of `nats`."""
    body: Fields
    """Its `nats` object."""

    def time_problem(self, now: float) -> str:
        """Returns "" while the token is valid at the epoch second `now`, else the error."""
        second = int(now)
        if 0 < self.expires < second:
            return "claim is expired"
        return "claim is not yet valid" if self.not_before > max(second, 0) else ""


def undecorated(text: str) -> str:
    """Returns the token in a file, which may be decorated with lines that name its kind."""
    return next(iter(decorated(text)), None) or text.strip()


def decorated(text: str) -> list[str]:
    """Returns the tokens between pairs of lines such as `-----BEGIN NATS USER JWT-----`. It reads line by line, because
    nats.go's regular expression takes minutes for a file of dashes."""
    lines = [line for line in text.split("\n") if line.strip()]
    found, at = [], 0
    while at + 2 < len(lines):
        before, token, after = lines[at].removesuffix("\r"), lines[at + 1].strip(), lines[at + 2]
        if (
            before.endswith(_FENCE)
            and _FENCE in before[: -len(_FENCE)]
            and _TOKEN.fullmatch(token)
            and after.startswith(_FENCE)
            and _FENCE in after[len(_FENCE) :]
        ):
            found.append(token)
            at += 3
        else:
            at += 1
    return found


def decode(text: str, kind: str) -> Token:
    """Returns a token of the kind, after checking its signature. Raises ClaimsError."""
    header, payload, signature = _parts(text)
    _check_header(_object(header))
    claims = _object(payload)
    fields = Fields(claims)
    body = fields.object("nats")
    is_old = bool(fields.text("type"))
    version = 1 if is_old else body.number("version")
    found = fields.text("type") or body.text("type")
    if version > _VERSION:
        raise ClaimsError("JWT was generated by a newer version ")
    if found != kind:
        raise ClaimsError(f"not {kind} claim")
    if version not in (1, _VERSION):
        raise ClaimsError(f"library supports version {_VERSION} or less - received {version}")
    issuer = fields.text("iss")
    signed = payload if version == 1 else f"{header}.{payload}"  # version 1 does not sign the header
    if not _is_signed(issuer, signed.encode(), _decode_part(signature)):
        raise ClaimsError(f"claim failed V{version} signature verification")
    if kind_of(issuer) not in _ISSUERS[kind]:
        raise ClaimsError(f"an nkey of this kind may not issue {kind} claims")
    return Token(
        text=text,
        kind=kind,
        version=version,
        issuer=issuer,
        subject=fields.text("sub"),
        name=fields.text("name"),
        id=fields.text("jti"),
        audience=fields.text("aud"),
        issued_at=fields.number("iat"),
        expires=fields.number("exp"),
        not_before=fields.number("nbf"),
        tags=tuple((fields if is_old else body).texts("tags")),
        top=fields,
        body=body,
    )


def decode_generic(text: str) -> Token:
    """Returns a token of any other claim, such as a request to delete accounts. Raises ClaimsError."""
    header, payload, signature = _parts(text)
    algorithm = _check_header(_object(header))
    fields = Fields(_object(payload))
    issuer = fields.text("iss")
    signed = payload if algorithm == _ALGORITHMS[0] else f"{header}.{payload}"
    if not _is_signed(issuer, signed.encode(), _decode_part(signature)):
        raise ClaimsError("claim failed signature verification")
    return Token(
        text, "generic", _VERSION, issuer, fields.text("sub"), fields.text("name"), fields.text("jti"),
        fields.text("aud"), fields.number("iat"), fields.number("exp"), fields.number("nbf"), (), fields,
        fields.object("nats"),
    )  # fmt: skip


def _parts(text: str) -> list[str]:
    if len(text) > MAX_TOKEN_BYTES:
        raise ClaimsError(f"token size {len(text)} exceeds maximum of {MAX_TOKEN_BYTES} bytes: token too large")
    parts = text.split(".")
    if len(parts) != 3:
        raise ClaimsError("expected 3 chunks")
    return parts


def _check_header(header: Mapping[str, Any]) -> str:
    fields = Fields(header)
    if fields.text("typ").upper() != "JWT":
        raise ClaimsError(f'not supported type "{fields.text("typ")}"')
    algorithm = fields.text("alg").lower()
    if algorithm not in _ALGORITHMS:
        raise ClaimsError(f'unexpected "{fields.text("alg")}" algorithm')
    return algorithm


def _decode_part(part: str) -> bytes:
    part = part.replace("\n", "").replace("\r", "")
    if not _BASE64.fullmatch(part):
        raise ClaimsError("illegal base64 data")
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except binascii.Error:
        raise ClaimsError("illegal base64 data") from None


def _object(part: str) -> dict[str, Any]:
    raw = _decode_part(part)
    try:
        value = json.loads(raw)
        if _SURROGATE.search(raw):
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate would fail only when it is written
    except (ValueError, RecursionError):
        raise ClaimsError("a part is no JSON") from None
    if not isinstance(value, dict):
        raise ClaimsError("a part is no JSON object")
    return value


def _is_signed(issuer: str, signed: bytes, signature: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    kind = kind_of(issuer)
    if not kind:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(decode_key(kind, issuer)).verify(signature, signed)
    except (InvalidSignature, ValueError):
        return False
    return True
