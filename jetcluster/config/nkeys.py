"""Text form of nkeys: base32 without padding of [prefix byte, 32 key bytes, CRC-16/XMODEM little-endian].

Source: shared/reference/core-and-consumers.md section 2.2. Only the form is handled here; signatures are in `auth`.
"""

from __future__ import annotations

import base64
import binascii

_USER_PREFIX = 20 << 3
"""Makes the first base32 character a `U`."""


def encode_user_key(key: bytes) -> str:
    """`U...` text of a 32-byte Ed25519 public key."""
    assert len(key) == 32, len(key)
    body = bytes([_USER_PREFIX]) + key
    body += binascii.crc_hqx(body, 0).to_bytes(2, "little")
    return base64.b32encode(body).decode().rstrip("=")


def decode_user_key(text: str) -> bytes:
    """The 32-byte Ed25519 public key of a user nkey. Raises ValueError when it is none or its checksum is wrong."""
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError) as error:
        raise ValueError("not base32") from error
    if len(raw) != 35 or raw[0] != _USER_PREFIX:
        raise ValueError("not a user nkey")
    if binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise ValueError("checksum mismatch")
    return raw[1:-2]
