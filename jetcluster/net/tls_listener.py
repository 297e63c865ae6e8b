"""A port whose connections begin with a TLS handshake, and which reports failed handshakes.

asyncio's `create_server(ssl=...)` does not report failed handshakes, and `start_tls` from `connection_made` is too late
on uvloop, which reads by then. So connections are accepted here, and a socket becomes a transport once its protocol is
known. Before its first byte a connection costs a socket and a timer; a handshake's state (about 50 KB) comes later.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from jetcluster.config.tls import alerts_on, say_goodbye
from jetcluster.net.open_port import addresses

_LOG = logging.getLogger("jetcluster.server")

MAX_HANDSHAKES = 1024
"""Simultaneous handshakes; further ones wait, within their timeout."""
MAX_SILENT = 16_384
"""Accepted connections, most without a first byte, that are not transports yet; further ones are not accepted."""
LISTEN_BACKLOG = 1024
ACCEPT_RETRY_SECONDS = 0.1
"""Pause after a failed accept, as when file descriptors run out."""
LOG_INTERVAL_SECONDS = 10.0
"""Pause between two log lines about failed accepts."""
SHUTDOWN_SECONDS = 2.0
"""Time for the peer to answer a close_notify."""
TLS_HANDSHAKE_RECORD = 0x16
"""First byte of a TLS connection: the record type of a handshake."""

Address = tuple[str, int]


class TlsListener:
    """A listening port. `refused(address, error)` is called for each failed handshake. `context` and `timeout` may be
    replaced; later handshakes use the new ones."""

    def __init__(
        self,
        context: ssl.SSLContext,
        timeout: float,
        make: Callable[[], asyncio.Protocol],
        refused: Callable[[Address, Exception], None],
        *,
        fallback: float = 0.0,
    ) -> None:
        """`fallback`: seconds without a first byte after which a connection goes on without TLS; 0 for never."""
        self.context = context
        self.timeout = timeout
        self.fallback = fallback
        self._make = make
        self._refused = refused
        self._silent = asyncio.Semaphore(MAX_SILENT)
        self._room = asyncio.Semaphore(MAX_HANDSHAKES)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ports: list[socket.socket] = []
        self._failure_logged_at = -LOG_INTERVAL_SECONDS

    async def start(self, host: str, port: int, *, shared: bool = False) -> Address:
        """Listens and returns the bound address; port 0 picks a free one. `shared`: other processes listen on it too
        (`net.shared_ports`). Raises OSError."""
        loop = asyncio.get_running_loop()
        ports: list[socket.socket] = []
        found = []
        for name in addresses(host):
            found += (await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE))[:1]
        for family, kind, protocol, _, address in found:
            one = socket.socket(family, kind, protocol)
            ports.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                one.bind((address[0], port, *address[2:]))
            except OSError:
                for bound in ports:
                    bound.close()
                raise
            port = one.getsockname()[1]
            one.listen(LISTEN_BACKLOG)
        return self.serve(ports)

    def serve(self, ports: Sequence[socket.socket]) -> Address:
        """Accepts connections on sockets that already listen, and owns them from now on."""
        self._ports = list(ports)
        for one in self._ports:
            one.setblocking(False)
            self._spawn(self._accept(one))
        address = self._ports[0].getsockname()
        return str(address[0]), int(address[1])

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening sockets, as `asyncio.Server.sockets`."""
        return tuple(self._ports)

    def close(self) -> None:
        """Stops accepting; open connections go on."""
        for task in self._tasks:
            task.cancel()
        for one in self._ports:
            one.close()
        self._ports.clear()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, port: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._silent.acquire()
            try:
                connection, address = await loop.sock_accept(port)
            except OSError as error:
                self._silent.release()
                self._log_failed(error)
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            except asyncio.CancelledError:
                self._silent.release()
                raise
            self._spawn(self._take(connection, (str(address[0]), int(address[1]))))

    def _log_failed(self, error: OSError) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._failure_logged_at >= LOG_INTERVAL_SECONDS:
            self._failure_logged_at = now
            _LOG.error("Error accepting a connection: %s", error.strerror or error)

    async def _take(self, connection: socket.socket, address: Address) -> None:
        try:
            await self._begin(connection, address)
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            connection.close()
            self._refused(address, error)
        except asyncio.CancelledError:
            connection.close()
            raise
        finally:
            self._silent.release()

    async def _begin(self, connection: socket.socket, address: Address) -> None:
        """Takes an accepted connection to its protocol. Raises OSError and TimeoutError."""
        if self.fallback and await first_byte(connection, self.fallback) is None:
            await self._stay_plain(connection, self._make)
            return
        await self._shake_hands(connection, self.context, self._make)

    async def _shake_hands(
        self, connection: socket.socket, context: ssl.SSLContext, make: Callable[[], asyncio.Protocol]
    ) -> None:
        """Runs the handshake; `timeout` covers the first byte, the wait for a turn and the handshake. Raises OSError
        and TimeoutError."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.timeout
        if await first_byte(connection, self.timeout) is None:
            raise TimeoutError
        async with asyncio.timeout_at(until):
            await self._room.acquire()
        with alerts_on(connection) as spare:
            try:
                await self._secured(connection, context, make, until)
            except ssl.SSLError:
                leaving = spare.dup()
                self._spawn(say_goodbye(leaving)).add_done_callback(lambda _: leaving.close())
                raise

    async def _secured(
        self, connection: socket.socket, context: ssl.SSLContext, make: Callable[[], asyncio.Protocol], until: float
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                make, connection,
                ssl=context, ssl_handshake_timeout=max(until - loop.time(), 0.001),
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )  # fmt: skip
        finally:
            self._room.release()

    @staticmethod
    async def _stay_plain(connection: socket.socket, make: Callable[[], asyncio.Protocol]) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(make, connection)


async def first_byte(connection: socket.socket, seconds: float) -> int | None:
    """Returns the first byte received on a socket, without consuming it; None if none comes within `seconds`. Raises
    OSError, also when the peer closes the connection."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            data = connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            ready: asyncio.Future[None] = loop.create_future()
            loop.add_reader(connection, _done, ready)
            try:
                async with asyncio.timeout(seconds):
                    await ready
            except TimeoutError:
                return None
            finally:
                loop.remove_reader(connection)
            continue
        if not data:
            raise ConnectionResetError("the other end closed the connection")
        return data[0]


def _done(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
