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
    for host in (HOST, ""):  # a server, which may take the port of closed connections
        with pytest.raises(OSError, match="in use"):
            socket.create_server((host, held.port))
    held.close()
    socket.create_server((HOST, held.port)).close()


@pytest.mark.parametrize("host", [HOST, "localhost", "0.0.0.0"])
def test_nobody_holds_a_port_that_is_held(host: str) -> None:
    held = HeldPort(HOST, 0)
    with pytest.raises(HeldPortError, match=rf":{held.port}: bind: address already in use$"):
        HeldPort(host, held.port)
    held.close()
    HeldPort(host, held.port).close()


def test_one_of_two_that_ask_at_the_same_moment_gets_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = socket.socket.setsockopt, []

    def setsockopt(one: socket.socket, level: int, option: int, value: int) -> None:
        if option == socket.SO_REUSEPORT and not refused:  # the first one has seen that the port is free
            refused.append("")
            with pytest.raises(HeldPortError) as error:
                HeldPort(HOST, port)
            refused.append(str(error.value))
        real(one, level, option, value)

    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
    monkeypatch.setattr(socket.socket, "setsockopt", setsockopt)
    HeldPort(HOST, port).close()
    assert refused[1] == f"listen tcp {HOST}:{port}: bind: address already in use"


def test_a_port_with_connections_of_the_last_server_can_be_held() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((HOST, port)):
            server.accept()[0].close()
    HeldPort(HOST, port).close()


def test_a_number_that_is_no_port_is_refused() -> None:
    with pytest.raises(HeldPortError, match=rf"^listen tcp {HOST}:65536: bind: invalid argument$"):
        HeldPort(HOST, 65536)


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
