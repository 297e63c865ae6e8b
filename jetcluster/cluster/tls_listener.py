"""A port whose connections begin with a TLS handshake, and whose failed handshakes are told.

asyncio's `create_server(ssl=...)` says nothing of a handshake that fails, and a `start_tls` out of `connection_made`
comes too late on uvloop, where reading has begun by then. So connections are accepted here.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

MAX_HANDSHAKES = 256
"""Under way at a time; further connections wait in the system's queue."""
BACKLOG = 128
PAUSE = 0.1
"""Seconds after an accept that failed, for want of file descriptors."""


class TlsListener:
    """`refused(address, error)` is called for each handshake that comes to nothing."""

    def __init__(
        self,
        context: ssl.SSLContext,
        timeout: float,
        make: Callable[[], asyncio.Protocol],
        refused: Callable[[tuple[str, int], Exception], None],
    ) -> None:
        self._context = context
        self._timeout = timeout
        self._make = make
        self._refused = refused
        self._room = asyncio.Semaphore(MAX_HANDSHAKES)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ports: list[socket.socket] = []

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listens; returns the address. Raises OSError. Port 0 is any free one."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found[:1] if host else found:
            one = socket.socket(family, kind, protocol)
            self._ports.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                one.bind((address[0], port, *address[2:]))
            except OSError:
                self.close()
                raise
            port = one.getsockname()[1]
            one.listen(BACKLOG)
            one.setblocking(False)
        for one in self._ports:
            self._spawn(self._accept(one))
        address = self._ports[0].getsockname()
        return str(address[0]), int(address[1])

    def close(self) -> None:
        """Takes no more connections; those that stand go on."""
        for task in self._tasks:
            task.cancel()
        for one in self._ports:
            one.close()
        self._ports.clear()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, port: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            try:
                connection, address = await loop.sock_accept(port)
            except OSError:
                self._room.release()
                await asyncio.sleep(PAUSE)
                continue
            except asyncio.CancelledError:
                self._room.release()
                raise
            self._spawn(self._shake_hands(connection, (str(address[0]), int(address[1]))))

    async def _shake_hands(self, connection: socket.socket, address: tuple[str, int]) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, connection, ssl=self._context, ssl_handshake_timeout=self._timeout
            )
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            connection.close()
            self._refused(address, error)
        finally:
            self._room.release()
