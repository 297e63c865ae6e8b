from __future__ import annotations

import asyncio
import socket

import pytest

from jetcluster.net import open_port as ports
from jetcluster.net.open_port import address_of, addresses, open_port

needs_ipv6 = pytest.mark.skipif(len(addresses("")) < 2, reason="no IPv6 on this machine")


@needs_ipv6
@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
async def test_all_addresses_are_those_of_both_families_on_one_port(host: str) -> None:
    server = await open_port(asyncio.Protocol, host, 0)
    try:
        shown, port = address_of(tuple(server.sockets))
        assert shown == "0.0.0.0" and {one.getsockname()[1] for one in server.sockets} == {port}
        for target in ("127.0.0.1", "::1"):
            socket.create_connection((target, port), timeout=2).close()
    finally:
        server.close()


async def test_one_address_is_that_one() -> None:
    server = await open_port(asyncio.Protocol, "127.0.0.1", 0)
    try:
        assert address_of(tuple(server.sockets))[0] == "127.0.0.1" and len(server.sockets) == 1
    finally:
        server.close()


async def test_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_works", lambda family: family == socket.AF_INET)
    server = await open_port(asyncio.Protocol, "0.0.0.0", 0)
    try:
        assert [one.family for one in server.sockets] == [socket.AF_INET]
    finally:
        server.close()


async def test_a_free_port_that_is_taken_meanwhile_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        offered = [taken.getsockname()[1]]
        real = ports._free_port
        monkeypatch.setattr(ports, "_free_port", lambda: offered.pop() if offered else real())
        server = await open_port(asyncio.Protocol, "", 0)
        assert not offered and server.sockets
        server.close()


async def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            await open_port(asyncio.Protocol, "0.0.0.0", taken.getsockname()[1])
