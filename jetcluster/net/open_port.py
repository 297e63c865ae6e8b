"""Opening a port. A wildcard host includes IPv6, as in Go servers: a client may resolve `localhost` to ::1 alone."""

from __future__ import annotations

import asyncio
import errno
import functools
import socket
from collections.abc import Callable

WILDCARDS = frozenset(("", "0.0.0.0", "::"))  # noqa: S104 - what the configuration says
MAX_ATTEMPTS = 8
"""Attempts to bind a free port for IPv4 and IPv6 before another process takes it."""


def addresses(host: str) -> list[str]:
    """Returns the addresses to bind for `host`, IPv4 first."""
    if host not in WILDCARDS:
        return [host]
    return [*(["0.0.0.0"] if _works(socket.AF_INET) else []), *(["::"] if _works(socket.AF_INET6) else [])]  # noqa: S104


@functools.cache
def _works(family: socket.AddressFamily) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", 0))  # noqa: S104
    except OSError:
        return False
    return True


async def open_port(
    factory: Callable[[], asyncio.Protocol], host: str, port: int, backlog: int = 100, *, shared: bool = False
) -> asyncio.Server:
    """Listens on one port at all addresses of `host`; port 0 picks a free one. `shared`: other processes listen on it
    too (`net.shared_ports`). Raises OSError."""
    loop, hosts = asyncio.get_running_loop(), addresses(host)
    if shared:
        return await loop.create_server(factory, hosts, port, backlog=backlog, reuse_port=True)
    for _ in range(MAX_ATTEMPTS if not port and len(hosts) > 1 else 0):
        try:
            return await loop.create_server(factory, hosts, _free_port(), backlog=backlog)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return await loop.create_server(factory, hosts if port else hosts[:1], port, backlog=backlog)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))  # noqa: S104
        return int(probe.getsockname()[1])


def address_of(sockets: tuple[socket.socket, ...]) -> tuple[str, int]:
    """Returns (host, port) of an open port, the IPv4 address if there are two."""
    first = min(sockets, key=lambda one: one.family != socket.AF_INET)
    address = first.getsockname()
    return str(address[0]), int(address[1])


def own_address() -> str:
    """Returns this machine's outbound address, or loopback if it has none. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
