"""The server's public name: an nkey of the kind "server", as nats-server has one."""

from __future__ import annotations

import base64

from jetcluster.clock import Rng
from jetcluster.config.nkeys import encode_key


def new_server_id(rng: Rng) -> str:
    """`N` and 55 base32 characters."""
    return encode_key("N", rng.token(32))


def new_nonce(rng: Rng) -> bytes:
    """INFO.nonce: 11 random bytes, base64url without padding."""
    return base64.urlsafe_b64encode(rng.token(11)).rstrip(b"=")
