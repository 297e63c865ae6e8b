"""The server's public name: an nkey of the kind "server", as nats-server has one (reference sheet core 1.2, 2.2)."""

from __future__ import annotations

import base64
import binascii

from jetcluster.clock import Rng

_SERVER_PREFIX = 13 << 3  # the first base32 character is then "N"


def new_server_id(rng: Rng) -> str:
    """`N` and 55 base32 characters: prefix byte, 32 key bytes, CRC-16 (XMODEM, little endian)."""
    body = bytes([_SERVER_PREFIX]) + rng.token(32)
    return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode()


def new_nonce(rng: Rng) -> bytes:
    """INFO.nonce: 11 random bytes, base64url without padding."""
    return base64.urlsafe_b64encode(rng.token(11)).rstrip(b"=")
