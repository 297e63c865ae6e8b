"""Opening the client port."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jetcluster.config.options import Options
from jetcluster.errors import OperatorError
from jetcluster.net.early_port import EARLY
from jetcluster.net.open_port import WILDCARDS, address_of, open_port, own_address

if TYPE_CHECKING:
    from jetcluster.net.tls_listener import TlsListener

LISTEN_BACKLOG = 1024


class ListenError(OperatorError):
    """The port could not be opened; the text is nats-server's `[FTL]` line."""


class OpenPorts:
    """Several sockets that already listen, served as one: `asyncio.Server` takes a single socket."""

    def __init__(self, servers: list[asyncio.Server]) -> None:
        self._servers = servers

    @classmethod
    async def serve(cls, sockets: Sequence[socket.socket], factory: Callable[[], asyncio.Protocol]) -> OpenPorts:
        loop = asyncio.get_running_loop()
        return cls([await loop.create_server(factory, sock=one, backlog=LISTEN_BACKLOG) for one in sockets])

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return tuple(one for server in self._servers for one in server.sockets)

    def close(self) -> None:
        for server in self._servers:
            server.close()


PlainPort = asyncio.Server | OpenPorts


async def listen(
    options: Options, factory: Callable[[], asyncio.Protocol], secure: TlsListener | None = None
) -> PlainPort | TlsListener:
    """Listens on options.host and port, or takes over the early port (`net.early_port`); port -1 picks a free one.
    With TLS, `secure` accepts the connections. Raises ListenError."""
    port = 0 if options.port == -1 else options.port
    address = host_port(options.host, port)
    if not 0 <= port < 65536:
        raise ListenError(f'Error listening on port: {address}, "listen tcp: address {port}: invalid port"')
    try:
        if early := EARLY.take(options.host, options.port):
            if secure is not None:
                secure.serve(early)
                return secure
            return await OpenPorts.serve(early, factory)
        shared = options.worker is not None
        if secure is not None:
            await secure.start(options.host, port, shared=shared)
            return secure
        return await open_port(factory, options.host, port, LISTEN_BACKLOG, shared=shared)
    except socket.gaierror as error:
        why = f"listen tcp: lookup {options.host}: no such host"
        raise ListenError(f'Error listening on port: {address}, "{why}"') from error
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno else str(error)
        raise ListenError(f'Error listening on port: {address}, "listen tcp {address}: bind: {why}"') from error


def take_over(plain: PlainPort, secure: TlsListener) -> TlsListener:
    """Lets `secure` accept the connections of an open port; connections meanwhile wait in the accept queue."""
    ports = [socket.socket(fileno=os.dup(one.fileno())) for one in plain.sockets]
    plain.close()
    secure.serve(ports)
    return secure


def host_port(host: str, port: int) -> str:
    """Returns `host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bound_address(server: PlainPort | TlsListener) -> tuple[str, int]:
    return address_of(tuple(server.sockets))


def advertised(advertise: str, host: str, port: int) -> str:
    """Returns the `host:port` to advertise: `advertise`, whose port is optional, or else the listening `host`."""
    if advertise:
        name, _, given = advertise.rpartition(":")
        if name and given.isdigit() and (name.endswith("]") or ":" not in name):
            return advertise
        return host_port(advertise.strip("[]"), port)
    return host_port(own_address() if host in WILDCARDS else host, port)
