"""Text form of nkeys: base32 without padding of [prefix byte, 32 key bytes, CRC-16/XMODEM little-endian].

A kind is the first letter of a public key's text: Operator, Account, User, N (server), Cluster, X (curve). A seed
begins with `S` and the kind. Signatures are in `auth` and `config.claims`.
"""

from __future__ import annotations

import base64
import binascii

_PREFIXES = {"O": 14 << 3, "A": 0, "U": 20 << 3, "N": 13 << 3, "C": 2 << 3, "X": 23 << 3}
_KINDS = {prefix: kind for kind, prefix in _PREFIXES.items()}
_SEED_PREFIX = 18 << 3
_KEY_CHARS = 56
"""Characters of a public key."""
_MAX_TEXT_CHARS = 64


def encode_key(kind: str, key: bytes) -> str:
    """Returns the text of a 32-byte public key."""
    assert len(key) == 32, len(key)
    return _encode(bytes([_PREFIXES[kind]]) + key)


def decode_key(kind: str, text: str) -> bytes:
    """Returns the 32-byte public key. Raises ValueError for a key of another kind or a wrong checksum."""
    raw = _decode(text)
    if len(raw) != 33 or raw[0] != _PREFIXES[kind]:
        raise ValueError(f"not a public nkey of the kind {kind}")
    return raw[1:]


def is_key(kind: str, text: str) -> bool:
    """Returns True when `text` is a public key of the kind."""
    return kind_of(text) == kind


def kind_of(text: str) -> str:
    """Returns the kind of a public key; "" for any other text."""
    if len(text) != _KEY_CHARS:
        return ""
    try:
        raw = _decode(text)
    except ValueError:
        return ""
    return _KINDS.get(raw[0], "") if len(raw) == 33 else ""


def encode_seed(kind: str, key: bytes) -> str:
    """Returns the text of a 32-byte private key (`SU...`)."""
    assert len(key) == 32, len(key)
    prefix = _PREFIXES[kind]
    return _encode(bytes([_SEED_PREFIX | prefix >> 5, (prefix & 31) << 3]) + key)


def decode_seed(kind: str, text: str) -> bytes:
    """Returns the 32-byte private key of a seed. Raises ValueError, whose text does not show the seed."""
    raw, prefix = _decode(text), _PREFIXES[kind]
    if len(raw) != 34 or raw[0] != _SEED_PREFIX | prefix >> 5 or raw[1] != (prefix & 31) << 3:
        raise ValueError(f"not a seed of the kind {kind}")
    return raw[2:]


def encode_user_key(key: bytes) -> str:
    """Returns the `U...` text of a 32-byte Ed25519 public key."""
    return encode_key("U", key)


def decode_user_key(text: str) -> bytes:
    """Returns the 32-byte Ed25519 public key of a user nkey. Raises ValueError."""
    return decode_key("U", text)


def decode_user_seed(text: str) -> bytes:
    """Returns the 32-byte Ed25519 private key of a user's seed (`SU...`). Raises ValueError without the seed."""
    return decode_seed("U", text)


def _encode(body: bytes) -> str:
    return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")


def _decode(text: str) -> bytes:
    if len(text) > _MAX_TEXT_CHARS:
        raise ValueError("too long for an nkey")
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError):
        raise ValueError("not base32") from None
    if len(raw) < 3 or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise ValueError("checksum mismatch")
    return raw[:-2]
