"""The client port, opened first by `jetcluster serve`: the imports of a server take longer than the test harnesses of
some clients wait. Connections meanwhile wait for INFO in the system's accept queue.

The port is opened here only if flags and configuration file name it for certain. Otherwise, and after an error, the
server opens it later as usual and reports the error then. This module imports nothing slow.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final

LISTEN_BACKLOG: Final = 1024
MAX_OPEN_SECONDS: Final = 3.0
"""Time after which a server that is still starting closes the port, so that clients connect elsewhere."""
MAX_CONFIG_BYTES: Final = 64 * 1024
"""Largest configuration file that is parsed here too."""
_ADDRESS: Final = ("listen", "port", "host", "net")
_PID: Final = ("pid_file", "pidfile")

Flag = bool | int | str


class EarlyPort:
    """The early port of this process. `sockets` listen on `host` and `port`; empty while nothing is open."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self.host, self.port = "", 0

    def open(self, flags: Mapping[str, Flag]) -> None:
        """Opens the port of the command line or of its configuration file. Never raises."""
        wanted = _wanted(flags)
        if wanted is None:
            return
        self.close()
        self.host, self.port = wanted
        try:
            for family, address in _addresses(self.host):
                self.sockets.append(_listening(family, address, self.port))
        except OSError:
            self.close()

    def take(self, host: str, port: int) -> list[socket.socket]:
        """Hands over the sockets if they have this address, else closes them."""
        if (host, port) != (self.host, self.port):
            self.close()
        found, self.sockets = self.sockets, []
        return found

    def close(self) -> None:
        """Closes the port unless it was taken over."""
        for one in self.sockets:
            one.close()
        self.sockets.clear()


EARLY: Final = EarlyPort()


def _wanted(flags: Mapping[str, Flag]) -> tuple[str, int] | None:
    """Returns (host, port), or None if uncertain, random, or with a pid file, which must exist before the port is
    open."""
    host, port = "0.0.0.0", 4222  # noqa: S104 - nats-server's
    if flags.get("pid_file") or "workers" in flags or "worker" in flags:  # workers share the port
        return None
    if flags.get("config"):
        found = _of_file(str(flags["config"]), host, port)
        if found is None:
            return None
        host, port = found
    host = str(flags.get("host") or host)
    port = int(flags.get("port") or port)
    return (host, port) if 0 < port < 65536 else None


def _of_file(path: str, host: str, port: int) -> tuple[str, int] | None:
    from jetcluster.config.lexer import ConfigError
    from jetcluster.config.parser import parse_text, read_text

    try:
        if os.stat(path).st_size > MAX_CONFIG_BYTES:  # noqa: PTH116 - pathlib is for later
            return None
        pairs = parse_text(read_text(path), path, os.environ)
    except (ConfigError, OSError):
        return None
    for key, node in pairs.items():
        name, value = key.lower(), node.value
        if name in (*_PID, "workers"):
            return None
        if name in _ADDRESS:
            if name in ("host", "net") and isinstance(value, str):
                host = value
            elif name in ("port", "listen") and type(value) is int:
                port = value
            elif name == "listen" and isinstance(value, str) and value.count(":") == 1:
                given, _, number = value.partition(":")
                if not number.isascii() or not number.isdigit():
                    return None
                host, port = given or host, int(number)
            else:
                return None
    return host, port


def _addresses(host: str) -> list[tuple[int, str]]:
    """Returns (family, address) as `net.open_port` would bind them, none for a host name. Raises OSError."""
    if host in ("", "0.0.0.0", "::"):  # noqa: S104 - what the configuration says
        return [(socket.AF_INET, "0.0.0.0"), *_v6()]  # noqa: S104
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return [(family, host)]
    return []


def _v6() -> list[tuple[int, str]]:
    try:
        _listening(socket.AF_INET6, "::", 0).close()
    except OSError:
        return []  # this machine has no IPv6
    return [(socket.AF_INET6, "::")]


def _listening(family: int, address: str, port: int) -> socket.socket:
    # asyncio sets TCP_NODELAY only if the protocol is IPPROTO_TCP, which connections inherit. Without it a reply after
    # a delivery waits for the client's delayed ACK (40 ms).
    one = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind((address, port))
        one.listen(LISTEN_BACKLOG)
    except OSError:
        one.close()
        raise
    return one
