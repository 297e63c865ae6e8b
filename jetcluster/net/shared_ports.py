"""Ports that several processes of one server listen on (SO_REUSEPORT): the kernel gives each of them its part of the
connections.

The supervisor holds such a port, bound and not listening: it gets no connections, and the system gives the port to
nobody else who asks for a free one while no worker listens. Processes of the same user can always share the port, so
nobody may listen on it at first.
"""

from __future__ import annotations

import errno
import os
import socket

from jetcluster.errors import OperatorError
from jetcluster.net.open_port import MAX_ATTEMPTS, addresses


class HeldPort:
    """A port that this process holds for others, at all addresses of `host`; `port` 0 takes a free one. Raises
    HeldPortError."""

    def __init__(self, host: str, port: int) -> None:
        self._sockets: list[socket.socket] = []
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
        for address in addresses(host):
            family, kind, protocol, _, place = socket.getaddrinfo(
                address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            if port:
                _bound(family, kind, protocol, place, shared=False).close()
            held = _bound(family, kind, protocol, place, shared=True)
            self._sockets.append(held)
            port = port or int(held.getsockname()[1])

    def close(self) -> None:
        for one in self._sockets:
            one.close()
        self._sockets.clear()


class HeldPortError(OperatorError):
    """The port cannot be held: the text says why."""

    def __init__(self, host: str, port: int, error: OSError) -> None:
        why = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
        shown = f"[{host}]" if ":" in host else host
        super().__init__(f"listen tcp {shown}:{port}: bind: {why}")


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
