"""Ports that several processes of one server listen on (SO_REUSEPORT): the kernel gives each of them its part of the
connections.

The supervisor holds such a port, bound and not listening: it gets no connections, and the system gives the port to
nobody else while no worker listens, as long as the others do not share it. Processes of the same user can always do
that, so nobody may hold it or listen on it at first, and each address has a lock between supervisors: the name of a
Unix socket in the abstract namespace, which belongs to the network namespace as ports do, and ends with its process.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

from jetcluster.errors import OperatorError
from jetcluster.net.open_port import MAX_ATTEMPTS, addresses

MAX_PORT: Final = 65535


class HeldPort:
    """A port that this process holds for others, at all addresses of `host`; `port` 0 takes a free one. Raises
    HeldPortError."""

    def __init__(self, host: str, port: int) -> None:
        self._sockets: list[socket.socket] = []
        self._locks: list[socket.socket] = []
        for attempt in range(MAX_ATTEMPTS):
            try:
                self._hold(host, port)
                break
            except OSError as error:
                self.close()
                taken = error.errno == errno.EADDRINUSE  # a free port for IPv4 that IPv6 does not have
                if not taken or port or attempt == MAX_ATTEMPTS - 1:
                    raise HeldPortError(host, port, error) from error
        self.port = int(self._sockets[0].getsockname()[1])

    def _hold(self, host: str, port: int) -> None:
        if port > MAX_PORT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        for address in addresses(host):
            family, kind, protocol, _, place = socket.getaddrinfo(
                address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            if port:
                self._locks.append(_lock(place[0], port))
                with _bound(family, kind, protocol, place, shared=False) as probe:
                    probe.listen()
            held = _bound(family, kind, protocol, place, shared=True)
            self._sockets.append(held)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # it was for connections of the last server
            if not port:
                port = int(held.getsockname()[1])
                self._locks.append(_lock(place[0], port))

    def close(self) -> None:
        for one in (*self._sockets, *self._locks):
            one.close()
        self._sockets.clear()
        self._locks.clear()


class HeldPortError(OperatorError):
    """The port cannot be held: the text says why."""

    def __init__(self, host: str, port: int, error: OSError, more: str = "") -> None:
        self.error = error
        why = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
        shown = f"[{host}]" if ":" in host else host
        super().__init__(f"listen tcp {shown}:{port}: bind: {why}{more}")


def _lock(address: str | int | bytes, port: int) -> socket.socket:
    """Returns the lock of an address. Raises OSError (EADDRINUSE) while another supervisor has it."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.bind(f"\0jetcluster:[{address!s}]:{port}")
    except OSError:
        one.close()
        raise
    return one


def _bound(
    family: int, kind: int, protocol: int, place: tuple[str | int | bytes, ...], *, shared: bool
) -> socket.socket:
    one = socket.socket(family, kind, protocol)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(place)
    except OSError:
        one.close()
        raise
    return one
