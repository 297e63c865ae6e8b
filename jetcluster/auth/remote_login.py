"""The credentials with which a server logs in at the hub of a leaf link: a user's JWT and nkey, or only the nkey."""

from __future__ import annotations

import base64
from pathlib import Path

from jetcluster.config.claims.token import decorated
from jetcluster.config.nkeys import decode_user_seed, encode_user_key
from jetcluster.errors import PeerError

_MAX_FILE_BYTES = 64 * 1024


class LoginError(PeerError):
    """Credentials that cannot be used. The text contains no secret."""


def signed_login(credentials: str, seed: str, nonce: bytes) -> dict[str, str]:
    """Returns fields of CONNECT from the file `credentials` or from `seed`; none when both are empty. The file is read
    each time, so that a new one takes effect at once. Raises LoginError."""
    if credentials:
        jwt, seed = _read(credentials)
        return {"jwt": jwt, "sig": _sign(seed, nonce)[1]}
    if seed:
        nkey, signature = _sign(seed, nonce)
        return {"nkey": nkey, "sig": signature}
    return {}


def _read(path: str) -> tuple[str, str]:
    """Returns (JWT, seed)."""
    try:
        with Path(path).expanduser().open(encoding="ascii") as file:
            blocks = decorated(file.read(_MAX_FILE_BYTES))
    except OSError as error:
        raise LoginError(f"credentials file {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise LoginError(f"credentials file {path} is malformed") from None
    if len(blocks) < 2:
        raise LoginError(f"credentials file {path} is malformed: it needs a user JWT and a seed")
    return blocks[0], blocks[1]


def _sign(seed: str, nonce: bytes) -> tuple[str, str]:
    """Returns (public nkey, signature of `nonce`)."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        key = Ed25519PrivateKey.from_private_bytes(decode_user_seed(seed))
    except ValueError as error:
        raise LoginError(f"malformed seed: {error}") from None
    signature = base64.urlsafe_b64encode(key.sign(nonce)).decode().rstrip("=")
    return encode_user_key(key.public_key().public_bytes_raw()), signature
