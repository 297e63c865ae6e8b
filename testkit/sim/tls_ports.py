"""Servers with plain TLS (`plain_tls`): how they are configured, their contexts, and sockets that listen and that were
accepted, as `jetcluster.net.tls_listener` has them. What it does with them is its own."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from testkit.sim.layout import AUTHORITY, Security
from testkit.sim.loop import SimLoop
from testkit.sim.network import SimServer, SimTransport
from testkit.sim.plain_tls import Context, Files, Secured

if TYPE_CHECKING:
    from jetcluster.config.tls_options import TlsOptions
    from jetcluster.net.tls_listener import TlsListener


class AcceptedSocket:
    """A connection that has no transport yet, or `spare`, another descriptor of one."""

    def __init__(self, below: SimTransport, *, spare: bool = False) -> None:
        self._below = below
        self._given = spare
        """It has a transport, and is not to be closed here."""

    def recv(self, size: int, flags: int) -> bytes:
        """Raises OSError."""
        assert flags == socket.MSG_PEEK
        data = self._below.peek()
        if data is None:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return data[:size]

    def when_readable(self, callback: Callable[[], None] | None) -> None:
        self._below.waits = callback

    def fileno(self) -> int:
        return self._below.endpoints.host.descriptor or 0

    def dup(self) -> AcceptedSocket:
        return AcceptedSocket(self._below, spare=True)

    async def send(self, data: bytes) -> None:
        """Raises OSError."""
        if self._below.gone:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        self._below.write(data)

    async def rest(self) -> bytes:
        """All that comes after a handshake that failed: the other end's transport has seen to it."""
        return b""

    def shutdown(self, how: int) -> None:
        if not self._given:
            self._below.write_eof()

    def close(self) -> None:
        if not self._given:
            self._below.waits = None
            self._below.close()

    async def given(
        self, loop: SimLoop, factory: Callable[[], Any], context: Context | None, options: dict[str, Any]
    ) -> tuple[Any, Any]:
        """As `connect_accepted_socket`. Raises OSError."""
        self._given = True
        self._below.waits = None
        if context is None:
            self._below.made(factory)
            return self._below, self._below.protocol
        secured = Secured(loop, context, factory(), {**options, "server_side": True})
        self._below.made(lambda: secured)
        return await secured.finished(), secured.above


class ListeningSocket(SimServer):
    """A port whose connections wait until somebody accepts them."""

    family = socket.AF_INET

    def __init__(self, loop: SimLoop, host: str, port: int) -> None:
        """Raises OSError."""
        before = loop.endpoints.listen(asyncio.Protocol, host, port)
        super().__init__(loop.endpoints, asyncio.Protocol, before.address)
        self.endpoints.network.ports[self.address] = self
        self._waiting: deque[SimTransport] = deque()
        self._come = asyncio.Event()

    def accept(self, there: SimTransport) -> None:
        if not self.sockets:
            there.abort()
            return
        self._waiting.append(there)
        self._come.set()

    async def accepted(self) -> tuple[AcceptedSocket, tuple[str, int]]:
        """Raises OSError."""
        while not self._waiting:
            self._come.clear()
            await self._come.wait()
        if self.endpoints.host.exhausted:
            raise OSError(errno.EMFILE, "Too many open files")
        there = self._waiting.popleft()
        return AcceptedSocket(there), there.other

    def setblocking(self, blocking: bool) -> None:
        assert not blocking

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def close(self) -> None:
        super().close()
        while self._waiting:
            self._waiting.popleft().abort()


async def _start(self: TlsListener, host: str, port: int, *, shared: bool = False) -> tuple[str, int]:
    """In place of `TlsListener.start`."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop) and not shared
    return self.serve([cast(socket.socket, ListeningSocket(loop, host, port))])


def _server_context(tls: TlsOptions, *, mutual: bool = False) -> Context:
    """In place of `server_context`."""
    return Context(Files.read(tls.cert_file), AUTHORITY if tls.verify or mutual else "")


def _client_context(tls: TlsOptions) -> Context:
    """In place of `client_context`."""
    return Context(Files.read(tls.cert_file), "" if tls.insecure else AUTHORITY)


@contextmanager
def chosen(mode: str) -> Iterator[None]:
    """All servers have TLS meanwhile, of this kind (`layout.Security`); "" for none."""
    if not mode:
        yield
        return
    from jetcluster.config import tls
    from jetcluster.monitor import facts, varz
    from jetcluster.net.tls_listener import TlsListener
    from jetcluster.server.leaf import tls as of_leaves

    with Security.chosen(mode), ExitStack() as stack:
        for module in (tls, of_leaves):
            stack.enter_context(patch.object(module, "server_context", _server_context))
            stack.enter_context(patch.object(module, "client_context", _client_context))
        for reader in (facts, varz):  # which would look for the files on this machine
            stack.enter_context(patch.object(reader, "certificate_end", lambda tls, loaded_ns: ""))
        stack.enter_context(patch.object(TlsListener, "start", _start))
        stack.enter_context(patch.object(Files, "renewals", {}))
        yield
