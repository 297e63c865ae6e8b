from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetcluster.net.early_port import MAX_CONFIG_BYTES, EarlyPort
from jetcluster.server.listener import OpenPorts
from testkit.harness import free_port


@pytest.fixture
def early() -> Iterator[EarlyPort]:
    port = EarlyPort()
    yield port
    port.close()


@pytest.fixture
def free() -> int:
    return free_port()


def connects(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


def test_who_connects_waits_until_somebody_serves(early: EarlyPort, free: int) -> None:
    early.open({"host": "127.0.0.1", "port": free})
    assert connects(free)
    (one,) = early.take("127.0.0.1", free)
    early.close()
    assert connects(free), "it belongs to the one who took it"
    assert early.take("127.0.0.1", free) == []
    one.close()
    assert not connects(free)


async def test_small_answers_are_sent_at_once(early: EarlyPort, free: int) -> None:
    early.open({"host": "127.0.0.1", "port": free})
    made: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    class Client(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            sock = transport.get_extra_info("socket")
            made.set_result(bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
            transport.close()

    ports = await OpenPorts.serve(early.take("127.0.0.1", free), Client)
    assert connects(free)
    assert await asyncio.wait_for(made, 2)
    ports.close()


def test_all_addresses_are_those_of_ipv6_too(early: EarlyPort, free: int) -> None:
    early.open({"port": free})
    assert connects(free)
    assert len(early.sockets) == 1 or connects(free, "::1")


def test_another_address_than_the_servers_is_given_back(early: EarlyPort, free: int) -> None:
    early.open({"host": "127.0.0.1", "port": free})
    assert early.take("127.0.0.1", free + 1) == []
    assert not connects(free)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("port: {port}", "0.0.0.0"),
        ("host: 127.0.0.1\nPORT = {port}\njetstream {{ store_dir: x }}", "127.0.0.1"),
        ("P: {port}\nlisten: $P", "0.0.0.0"),
        ("listen: '127.0.0.1:{port}'", "127.0.0.1"),
        ('include "./more.conf"', "127.0.0.1"),
        ("port: 1", "0.0.0.0"),
    ],
)
def test_the_address_of_a_file(early: EarlyPort, free: int, tmp_path: Path, text: str, host: str) -> None:
    (tmp_path / "more.conf").write_text(f"listen: 127.0.0.1:{free}\n")
    (tmp_path / "c.conf").write_text(text.format(port=free) + "\n")
    flags: dict[str, bool | int | str] = {"config": str(tmp_path / "c.conf")}
    if text == "port: 1":
        flags["port"] = free  # flags win
    early.open(flags)
    assert (early.host, early.port) == (host, free) and connects(free)


@pytest.mark.parametrize(
    "text",
    [
        "port: -1", "port: [1]", "port: {port}\nlisten: '[::1]:{port}'", "listen: ':x'", "port: {port}\npid_file: x",
        "port: {port}\nx {{", "port: {port}\nlisten: true", "# " + "x" * MAX_CONFIG_BYTES + "\nport: {port}",
    ],
)  # fmt: skip
def test_nothing_is_opened_where_it_is_not_certain(early: EarlyPort, free: int, tmp_path: Path, text: str) -> None:
    (tmp_path / "c.conf").write_text(text.format(port=free) + "\n")
    early.open({"config": str(tmp_path / "c.conf")})
    assert early.sockets == [] and not connects(free)


def test_flags_with_which_nothing_is_opened(early: EarlyPort, free: int, tmp_path: Path) -> None:
    for flags in (
        {"port": -1}, {"port": 70000}, {"host": "localhost", "port": free}, {"host": "192.0.2.1", "port": free},
        {"port": free, "pid_file": str(tmp_path / "pid")}, {"port": free, "config": str(tmp_path / "none.conf")},
    ):  # fmt: skip
        early.open(flags)  # type: ignore[arg-type]
        assert early.sockets == []


def test_a_port_that_is_taken_is_left_to_the_server_to_tell_of(early: EarlyPort) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        early.open({"host": "127.0.0.1", "port": other.getsockname()[1]})
        assert early.sockets == []


def test_it_needs_nothing_that_takes_time() -> None:
    code = (
        "import sys; from jetcluster.cli import main, flags; from jetcluster.net import early_port\n"
        "heavy = {'asyncio', 'ssl', 'uvloop', 'pydantic', 'logging', 'dataclasses', 'pathlib', 'jetcluster.server'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
