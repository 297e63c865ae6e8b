"""Logs that go to syslog, local and remote."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from jetcluster import logs
from jetcluster.config.options import Options

pytestmark = pytest.mark.usefixtures("restored_logs")


def _datagrams(socket_: socket.socket, count: int) -> list[bytes]:
    socket_.settimeout(5.0)
    return [socket_.recv(65536) for _ in range(count)]


def test_remote_syslog_gets_level_and_text() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        logs.configure(Options(remote_syslog=f"udp://127.0.0.1:{server.getsockname()[1]}", debug=True, trace=True))
        log = logs.get_logger("x")
        log.info("hello", n=1)
        log.warning("w")
        log.error("e")
        log.fatal("f")
        log.debug("d")
        log.trace("t")
        ident = f"nats-server[{os.getpid()}]: ".encode()
        expected = [(5, b"hello n=1"), (4, b"w"), (3, b"e"), (2, b"f"), (7, b"d"), (5, b"t")]
        assert _datagrams(server, 6) == [b"<%d>%b%b" % (severity, ident, text) for severity, text in expected]
        assert not logs.reopen()
        logs.shutdown()


def test_syslog_on_a_socket_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "log")
    monkeypatch.setattr("jetcluster.log_syslog.LOCAL_SOCKETS", (str(tmp_path / "none"), path))
    with pytest.raises(OSError, match="Unix syslog delivery error"):
        logs.configure(Options(syslog=True))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        logs.configure(Options(syslog=True))
        logs.get_logger("x").info("hello")
        assert _datagrams(server, 1)[0].startswith(b"<29>nats-server[")  # daemon.notice
        logs.shutdown()


def test_syslog_over_tcp_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetcluster.log_syslog.RETRY_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        logs.configure(Options(remote_syslog=f"tcp://127.0.0.1:{listener.getsockname()[1]}"))
        first, _ = listener.accept()
        log = logs.get_logger("x")
        log.info("one")
        assert b"one" in first.recv(1000)
        first.close()
        listener.settimeout(5.0)
        for _ in range(20):  # the first ones go into the closed connection
            log.info("again")
            time.sleep(0.01)
        second, _ = listener.accept()
        assert b"again" in second.recv(1000)
        second.close()
        logs.shutdown()


@pytest.mark.parametrize("url", ["http://h:1", "localhost:514", "udp:///x"])
def test_a_syslog_url_of_another_kind(url: str) -> None:
    with pytest.raises(ValueError, match="error invalid network type"):
        logs.configure(Options(remote_syslog=url))
