"""One API request: what its headers ask for, and its size."""

from __future__ import annotations

import pytest

from tests.unit.api.fakes import Client


@pytest.mark.parametrize(
    ("level", "passes"), [(b"0", True), (b"4", True), (b"5", False), (b"x", False), (b"-1", False)]
)
async def test_required_api_level(level: bytes, passes: bool) -> None:
    headers = b"NATS/1.0\r\nNats-Required-Api-Level: " + level + b"\r\n\r\n"
    reply = await Client().ask("STREAM.NAMES", headers=headers)
    if passes:
        assert "error" not in reply
    else:
        assert reply["error"]["code"] == 412
        assert reply["error"]["err_code"] == 10185
        assert (reply["total"], reply["streams"]) == (0, [])


async def test_an_oversized_body_is_refused() -> None:
    reply = await Client().ask("STREAM.CREATE.S", b'{"name":"S","description":"' + b"x" * (1 << 20) + b'"}')
    assert reply["error"]["err_code"] == 10025
