"""The credentials of a client: `Credentials` names the files and environment variables that hold secrets, `Secrets`
holds them itself.

A Spark job has the first: options of a query appear in its plan and its event log, so no option is a secret, and the
process that connects reads it. A command has the second: its options, environment and contexts hold secrets.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jetcluster.errors import JetclusterError

_USER_SEED = (18 << 3 | (20 << 3) >> 5, ((20 << 3) & 31) << 3)
"""The two prefix bytes of a user's seed: `SU` in base32."""


class CredentialsError(JetclusterError):
    """A file or variable that should hold a secret is missing, or holds none."""


@dataclass(frozen=True)
class Credentials:
    """Names of files and environment variables (`*_env`), no secrets: it may be pickled and logged."""

    user: str = ""
    password_env: str = ""
    password_file: str = ""
    token_env: str = ""
    token_file: str = ""
    nkey_file: str = ""
    """A file with a user nkey's seed (`SU...`)."""
    creds_file: str = ""
    """A `.creds` file: a JWT and a seed."""
    tls: bool = False
    tls_first: bool = False
    """The TLS handshake precedes the server's first line."""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    @property
    def wants_tls(self) -> bool:
        return self.tls or self.tls_first or bool(self.tls_ca or self.tls_cert)

    def context(self) -> ssl.SSLContext:
        """Raises CredentialsError."""
        try:
            context = ssl.create_default_context(cafile=self.tls_ca or None)
            if self.tls_cert:
                context.load_cert_chain(self.tls_cert, self.tls_key or None)
        except OSError as error:  # ssl.SSLError is one
            raise CredentialsError(f"TLS files ({self.tls_ca}, {self.tls_cert}, {self.tls_key}): {error}") from error
        return context

    def fields(self, nonce: str) -> dict[str, Any]:
        """Returns the user's fields of CONNECT. Raises CredentialsError."""
        if self.creds_file:
            jwt, seed = parts_of_creds(_read(self.creds_file), self.creds_file)
            return {"jwt": jwt} | _signed(seed, nonce, self.creds_file, with_key=False)
        if self.nkey_file:
            seed = seed_of(_read(self.nkey_file), self.nkey_file)
            return _signed(seed, nonce, self.nkey_file, with_key=True)
        if self.token_env or self.token_file:
            return {"auth_token": _secret(self.token_env, self.token_file)}
        if self.user:
            return {"user": self.user, "pass": _secret(self.password_env, self.password_file)}
        return {}


@dataclass(frozen=True)
class Secrets(Credentials):
    """Credentials with the secrets themselves, which no text of it shows. At most one kind is given."""

    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    jwt: str = field(default="", repr=False)
    seed: str = field(default="", repr=False)
    """A user nkey's seed; `jwt` goes with it, or may be missing."""

    def fields(self, nonce: str) -> dict[str, Any]:
        """Returns the user's fields of CONNECT. Raises CredentialsError."""
        if self.user:
            return {"user": self.user, "pass": self.password}
        if self.token:
            return {"auth_token": self.token}
        if self.jwt:
            signed = _signed(self.seed, nonce, "the seed", with_key=False) if self.seed else {}
            return {"jwt": self.jwt} | signed
        if self.seed:
            return _signed(self.seed, nonce, "the seed", with_key=True)
        return super().fields(nonce)


def parts_of_creds(text: str, where: str) -> tuple[str, str]:
    """Returns the JWT and the seed of a `.creds` file's text; `where` names it in errors. Raises CredentialsError."""
    return _block(text, "NATS USER JWT", where), _block(text, "USER NKEY SEED", where)


def seed_of(text: str, where: str) -> str:
    """Returns the seed in the text of a user nkey's file; `where` names it in errors. Raises CredentialsError."""
    seed = re.search(r"\bSU[A-Z2-7]{56}\b", text)
    if seed is None:
        raise CredentialsError(f"{where} holds no user nkey seed")
    return seed[0]


def _secret(variable: str, path: str) -> str:
    if path:
        return _read(path).strip("\r\n")
    value = os.environ.get(variable)
    if not variable or value is None:
        raise CredentialsError(
            f"environment variable {variable} is not set on {os.uname().nodename}"
            if variable
            else "a user needs passwordEnv or passwordFile"
        )
    return value


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise CredentialsError(f"credentials file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CredentialsError(f"credentials file {path} is no text") from error


def _block(text: str, title: str, path: str) -> str:
    found = re.search(rf"-+BEGIN {title}-+\s+(\S+)\s+-+END {title}-+", text)
    if found is None:
        raise CredentialsError(f"{path} holds no {title}")
    return found[1]


def _signed(seed: str, nonce: str, path: str, *, with_key: bool) -> dict[str, Any]:
    sign, public = open_seed(seed, path)
    fields: dict[str, Any] = {"sig": base64.urlsafe_b64encode(sign(nonce.encode())).decode().rstrip("=")}
    if with_key:
        fields["nkey"] = public
    return fields


def open_seed(seed: str, where: str) -> tuple[Callable[[bytes], bytes], str]:
    """Returns (signer, public key) of a user nkey's seed; `where` names it in errors. Raises CredentialsError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except binascii.Error as error:
        raise CredentialsError(f"{where}: the seed is not base32") from error
    if len(raw) != 36 or (raw[0], raw[1]) != _USER_SEED:
        raise CredentialsError(f"{where}: not a user nkey's seed")
    if binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise CredentialsError(f"{where}: the seed's checksum is wrong")
    key = Ed25519PrivateKey.from_private_bytes(raw[2:-2])
    body = bytes([20 << 3]) + key.public_key().public_bytes_raw()
    body += binascii.crc_hqx(body, 0).to_bytes(2, "little")
    return key.sign, base64.b32encode(body).decode().rstrip("=")
