"""nkeys and JWTs as nats-server reads them, made anew for each test."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

OPERATOR, ACCOUNT, USER = 14 << 3, 0, 20 << 3


class Key:
    """`kind` is one of OPERATOR, ACCOUNT, USER."""

    def __init__(self, kind: int) -> None:
        self._key = Ed25519PrivateKey.generate()
        self.public = _text(bytes([kind]) + self._key.public_key().public_bytes_raw())
        self.seed = _text(bytes([18 << 3 | kind >> 5, (kind & 31) << 3]) + self._key.private_bytes_raw())

    def signature(self, nonce: str) -> bytes:
        """Of an INFO's nonce, in base64."""
        return base64.b64encode(self._key.sign(nonce.encode()))

    def token(self, subject: Key, name: str, claims: dict[str, Any]) -> str:
        """A JWT of version 2 about `subject`, signed by this key."""
        body = {"iss": self.public, "sub": subject.public, "name": name, "iat": 1, "nats": {**claims, "version": 2}}
        body["jti"] = base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).decode().rstrip("=")
        signed = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(body)}"
        return f"{signed}.{_url(self._key.sign(signed.encode()))}"


def _text(raw: bytes) -> str:
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def _part(value: dict[str, Any]) -> str:
    return _url(json.dumps(value).encode())


def _url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
