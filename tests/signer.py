"""Operators, accounts and users with their JWTs, made anew for each test and signed as `nsc` signs them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

OPERATOR, ACCOUNT, USER = "operator", "account", "user"
_PREFIXES = {OPERATOR: 14 << 3, ACCOUNT: 0, USER: 20 << 3}
NO_LIMITS = dict.fromkeys(("subs", "data", "payload"), -1)
ROOM = NO_LIMITS | dict.fromkeys(("imports", "exports", "conn", "leaf"), -1) | {"wildcards": True}
"""`limits` of an account that may do anything but JetStream."""
JETSTREAM = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)


class Key:
    """An nkey pair. `kind` is one of OPERATOR, ACCOUNT, USER."""

    def __init__(self, kind: str, secret: bytes = b"") -> None:
        """`secret`: 32 bytes that make the same pair each time; random ones by default."""
        prefix = _PREFIXES[kind]
        self.private = Ed25519PrivateKey.from_private_bytes(secret) if secret else Ed25519PrivateKey.generate()
        self.public = _text(bytes([prefix]) + self.private.public_key().public_bytes_raw())
        self.seed = _text(bytes([18 << 3 | prefix >> 5, (prefix & 31) << 3]) + self.private.private_bytes_raw())

    def signature(self, nonce: str) -> bytes:
        """Signature of an INFO's nonce, in base64."""
        return base64.b64encode(self.private.sign(nonce.encode()))

    def token(self, subject: Key | str, name: str, claims: dict[str, Any], **fields: Any) -> str:
        """A JWT of version 2 about the key `subject`, signed by this one. `fields`: `iat`, `exp`, `nbf`, ..."""
        about = subject if isinstance(subject, str) else subject.public
        body = {"iss": self.public, "sub": about, "name": name, "iat": 1, **fields}
        return self.sign({**body, "nats": {"version": 2, **claims}})

    def sign(self, body: dict[str, Any], header: dict[str, Any] | None = None) -> str:
        body = {
            **body,
            "jti": base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).decode().rstrip("="),
        }
        signed = f"{part(header or {'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{part(body)}"
        return f"{signed}.{url_base64(self.private.sign(signed.encode()))}"


class Operator:
    """`claims`: more of its JWT, such as `system_account`."""

    def __init__(self, **claims: Any) -> None:
        self.key = Key("operator")
        self.claims = claims

    @property
    def jwt(self) -> str:
        return self.key.token(self.key.public, "O", {"type": "operator", **self.claims})

    def account(self, name: str, **limits: Any) -> Account:
        return Account(self.key, name, limits)


class Account:
    """`limits` and `claims` may be changed; `jwt` is made anew each time. `fields` are those outside of `nats`."""

    def __init__(self, signer: Key, name: str, limits: dict[str, Any]) -> None:
        self.signer = signer
        self.key = Key("account")
        self.name = name
        self.limits: dict[str, Any] = ROOM | limits
        self.claims: dict[str, Any] = {}
        self.fields: dict[str, Any] = {}

    @property
    def public(self) -> str:
        return self.key.public

    @property
    def jwt(self) -> str:
        claims = {"type": "account", "limits": self.limits, **self.claims}
        return self.signer.token(self.public, self.name, claims, **self.fields)

    def user(
        self, name: str = "U", *, signer: Key | None = None, fields: dict[str, Any] | None = None, **claims: Any
    ) -> User:
        """`signer`: one of the account's signing keys; without it the account itself signs."""
        body = {"type": "user", **NO_LIMITS, **claims}
        if signer is not None:
            body["issuer_account"] = self.public
        return User(signer or self.key, name, body, fields or {})

    def scoped(self, name: str, signer: Key, *, fields: dict[str, Any] | None = None, **claims: Any) -> User:
        """A user of a scoped signing key: its JWT says nothing of what it may do."""
        return User(signer, name, {"type": "user", "issuer_account": self.public, **claims}, fields or {})


class User:
    def __init__(self, signer: Key, name: str, claims: dict[str, Any], fields: dict[str, Any]) -> None:
        self.key = Key("user")
        self.jwt = signer.token(self.key.public, name, claims, **fields)

    def connect(self, nonce: bytes) -> dict[str, str]:
        """The fields of CONNECT that name this user."""
        return {"jwt": self.jwt, "sig": self.key.signature(nonce.decode()).decode()}

    @property
    def credentials(self) -> str:
        """Text of a file of credentials."""
        return (
            f"-----BEGIN NATS USER JWT-----\n{self.jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{self.key.seed}\n------END USER NKEY SEED------\n"
        )

    @property
    def options(self) -> dict[str, Any]:
        """For `nats.connect` of nats-py."""
        return {"user_jwt_cb": self.jwt.encode, "signature_cb": self.key.signature}


def preload(*accounts: Account) -> str:
    """Lines of a configuration: the memory resolver and what it knows."""
    known = ", ".join(f"{account.public}: {json.dumps(account.jwt)}" for account in accounts)
    return f"resolver: MEMORY\nresolver_preload {{ {known} }}\n"


def _text(raw: bytes) -> str:
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def part(value: Any) -> str:
    return url_base64(json.dumps(value).encode())


def url_base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
