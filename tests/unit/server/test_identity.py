from __future__ import annotations

import base64
import binascii
import re

from jetcluster.server.identity import new_nonce, new_server_id
from testkit.twins.time import SeededRng


def test_server_id_is_a_server_nkey() -> None:
    ids = {new_server_id(SeededRng(seed)) for seed in range(50)}
    assert len(ids) == 50
    for server_id in ids:
        assert re.fullmatch("N[A-Z2-7]{55}", server_id)
        raw = base64.b32decode(server_id)
        assert binascii.crc_hqx(raw[:-2], 0) == int.from_bytes(raw[-2:], "little")


def test_nonce() -> None:
    assert re.fullmatch(rb"[A-Za-z0-9_-]{15}", new_nonce(SeededRng(1)))
