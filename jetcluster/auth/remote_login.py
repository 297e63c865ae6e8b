"""The credentials that a server shows at the hub of a leaf link: a user's JWT and nkey, or the nkey alone."""

from __future__ import annotations

import base64
from pathlib import Path

from jetcluster.config.claims.token import decorated
from jetcluster.config.nkeys import decode_user_seed, encode_user_key
from jetcluster.errors import PeerError

_MAX_BYTES = 64 * 1024


class LoginError(PeerError):
    """There is nothing to log in with. The text has no secret in it."""


def signed_login(credentials: str, seed: str, nonce: bytes) -> dict[str, str]:
    """Fields of CONNECT, by the file `credentials` or by `seed`; none when both are empty. The file is read each time,
    so that a new one is used as soon as it is there. Raises `LoginError`."""
    if credentials:
        jwt, seed = _read(credentials)
        return {"jwt": jwt, "sig": _sign(seed, nonce)[1]}
    if seed:
        nkey, signature = _sign(seed, nonce)
        return {"nkey": nkey, "sig": signature}
    return {}


def _read(path: str) -> tuple[str, str]:
    """(JWT, seed)."""
    try:
        with Path(path).expanduser().open(encoding="ascii") as file:
            blocks = decorated(file.read(_MAX_BYTES))
    except OSError as error:
        raise LoginError(f"credentials file {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise LoginError(f"credentials file {path} is malformed") from None
    if len(blocks) < 2:
        raise LoginError(f"credentials file {path} is malformed: it needs a user JWT and a seed")
    return blocks[0], blocks[1]


def _sign(seed: str, nonce: bytes) -> tuple[str, str]:
    """(public nkey, signature of `nonce`)."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        key = Ed25519PrivateKey.from_private_bytes(decode_user_seed(seed))
    except ValueError as error:
        raise LoginError(f"malformed seed: {error}") from None
    signature = base64.urlsafe_b64encode(key.sign(nonce)).decode().rstrip("=")
    return encode_user_key(key.public_key().public_bytes_raw()), signature
