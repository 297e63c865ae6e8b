"""A port that workers share: nobody listens on it at first, and its holder gets no connection."""

from __future__ import annotations

import asyncio
import socket

import pytest

from jetcluster.net.open_port import open_port
from jetcluster.net.shared_ports import HeldPort, HeldPortError

HOST = "127.0.0.1"


def test_a_port_on_which_somebody_listens_is_refused() -> None:
    with socket.create_server((HOST, 0), reuse_port=True) as other:
        port = other.getsockname()[1]
        with pytest.raises(HeldPortError, match=rf"listen tcp 127\.0\.0\.1:{port}: bind: address already in use"):
            HeldPort(HOST, port)


def test_a_held_port_is_given_to_nobody_who_does_not_share_it() -> None:
    held = HeldPort(HOST, 0)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((HOST, held.port))
    held.close()
    with socket.socket() as other:
        other.bind((HOST, held.port))


async def test_several_listen_and_the_holder_gets_no_connection() -> None:
    accepted = [0, 0]

    class Counting(asyncio.Protocol):
        def __init__(self, index: int) -> None:
            accepted[index] += 1

    held = HeldPort(HOST, 0)
    servers = [await open_port(lambda i=i: Counting(i), HOST, held.port, shared=True) for i in (0, 1)]  # type: ignore[misc]
    sockets = [socket.create_connection((HOST, held.port), 1) for _ in range(64)]
    while sum(accepted) < len(sockets):
        await asyncio.sleep(0.01)
    assert min(accepted) > 8, f"the kernel does not share them out: {accepted}"
    for one in sockets:
        one.close()
    for server in servers:
        server.close()
    held.close()
