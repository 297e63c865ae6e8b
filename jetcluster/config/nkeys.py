"""Text form of nkeys: base32 without padding of [prefix byte, 32 key bytes, CRC-16/XMODEM little-endian].

Source: shared/reference/core-and-consumers.md section 2.2. Only the form is handled here; signatures are in `auth`.
"""

from __future__ import annotations

import base64
import binascii

_USER_PREFIX = 20 << 3
"""Makes the first base32 character a `U`."""
_SEED_PREFIX = 18 << 3
"""`S`; a seed has the kind of its key in the bits behind that."""


def encode_user_key(key: bytes) -> str:
    """`U...` text of a 32-byte Ed25519 public key."""
    assert len(key) == 32, len(key)
    body = bytes([_USER_PREFIX]) + key
    body += binascii.crc_hqx(body, 0).to_bytes(2, "little")
    return base64.b32encode(body).decode().rstrip("=")


def decode_user_key(text: str) -> bytes:
    """The 32-byte Ed25519 public key of a user nkey. Raises ValueError when it is none or its checksum is wrong."""
    raw = _decode(text)
    if len(raw) != 33 or raw[0] != _USER_PREFIX:
        raise ValueError("not a user nkey")
    return raw[1:]


def decode_user_seed(text: str) -> bytes:
    """The 32-byte Ed25519 private key of a user's seed (`SU...`). Raises ValueError, which does not show the text."""
    raw = _decode(text)
    if len(raw) != 34 or raw[0] != _SEED_PREFIX | _USER_PREFIX >> 5 or raw[1] != (_USER_PREFIX & 31) << 3:
        raise ValueError("not a user's seed")
    return raw[2:]


def _decode(text: str) -> bytes:
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError):
        raise ValueError("not base32") from None
    if len(raw) < 3 or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise ValueError("checksum mismatch")
    return raw[:-2]
