from __future__ import annotations

import asyncio
import socket

import pytest

from jetcluster.config.options import Options
from jetcluster.net.early_port import EARLY
from jetcluster.server.listener import OpenPorts, advertised, bound_address, host_port, listen


@pytest.mark.parametrize(
    ("host", "advertise", "url"),
    [
        ("127.0.0.1", "", "127.0.0.1:4222"),
        ("::1", "", "[::1]:4222"),
        ("127.0.0.1", "nats.example.com", "nats.example.com:4222"),
        ("127.0.0.1", "nats.example.com:7000", "nats.example.com:7000"),
        ("127.0.0.1", "[fe80::1]:7000", "[fe80::1]:7000"),
        ("127.0.0.1", "fe80::1", "[fe80::1]:4222"),
    ],
)
def test_advertised(host: str, advertise: str, url: str) -> None:
    assert advertised(advertise, host, 4222) == url


def test_any_address_is_not_advertised() -> None:
    for host in ("0.0.0.0", "::", ""):
        assert not advertised("", host, 4222).startswith(("0.0.0.0", "[::]", ":"))


def test_host_port() -> None:
    assert (host_port("a", 1), host_port("::1", 1)) == ("a:1", "[::1]:1")


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"INFO")


async def test_a_port_that_is_open_already_is_taken_over_with_who_waits_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    EARLY.open({"port": port})
    addresses = ["127.0.0.1", "::1"][: len(EARLY.sockets)]
    waiting = [await asyncio.open_connection(address, port) for address in addresses]
    options = Options(port=port)
    served = await listen(options, Greeting)
    assert isinstance(served, OpenPorts) and EARLY.sockets == []
    assert bound_address(served) == ("0.0.0.0", port)
    for reader, writer in waiting:
        assert await reader.readexactly(4) == b"INFO"
        writer.close()
    served.close()
    await asyncio.sleep(0)
    again = await listen(options, Greeting)
    assert isinstance(again, asyncio.Server)
    again.close()
