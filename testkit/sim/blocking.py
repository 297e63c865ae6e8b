"""Blocking programs in the simulation, such as `jetcluster backup`: each runs in a greenlet, and waits on the loop.

`Blocking` stands in the places of `socket`, `time`, `os` and of threads in the modules of `jetcluster.client` and
`jetcluster.backup` while its program runs. What these threads do is left out: they show that a run is alive, and read
ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from greenlet import getcurrent, greenlet

from jetcluster.backup import account, lock, restore
from jetcluster.client import connection, restore_transfer, servers, survey
from jetcluster.client.connection import Connection
from jetcluster.client.servers import ServerOptions
from testkit.sim.layout import WEB_PORT, Security
from testkit.sim.machine import EPOCH_NS
from testkit.sim.plain_tls import of_client
from testkit.sim.websocket import WebSocket

T = TypeVar("T")
TIMED: Final = (account, connection, restore, restore_transfer, servers, survey)
"""Modules that look at the time, and sleep."""


async def run(work: Callable[[], T]) -> T:
    """The result of a program that waits with `wait`. Raises what it raises."""
    program = greenlet(work)
    passed: Any = program.switch()
    while not program.dead:
        try:
            found = await passed
        except BaseException as error:
            program.parent = getcurrent()
            passed = program.throw(error)
        else:
            program.parent = getcurrent()
            passed = program.switch(found)
    result: T = passed
    return result


def wait(what: Awaitable[T]) -> T:
    """Returns the result of `what`, in a program of `run`."""
    found: T = getcurrent().parent.switch(what)
    return found


class _Incoming(asyncio.Protocol):
    """The bytes that came over a connection and were not read."""

    def __init__(self) -> None:
        self.data = b""
        self.ended = False
        self.came = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.came.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self.came.set()


class Socket:
    """A connected socket."""

    def __init__(self, transport: Any, incoming: _Incoming) -> None:
        self.transport = transport
        self.incoming = incoming
        self._timeout = 0.0

    def setsockopt(self, *_: int) -> None:
        pass

    def settimeout(self, seconds: float) -> None:
        self._timeout = seconds

    def sendall(self, data: bytes) -> None:
        if self.incoming.ended:
            raise BrokenPipeError
        self.transport.write(bytes(data))

    def recv(self, most: int) -> bytes:
        wait(self._arrival())
        incoming = self.incoming
        data, incoming.data = incoming.data[:most], incoming.data[most:]
        return data

    async def _arrival(self) -> None:
        incoming = self.incoming
        async with asyncio.timeout(self._timeout):
            while not (incoming.data or incoming.ended):
                incoming.came.clear()
                await incoming.came.wait()

    def close(self) -> None:
        self.transport.close()


class _Connection(Connection):
    """TLS is the network's."""

    def _begin_tls(self, host: str) -> None:
        held: Any = self._socket
        assert isinstance(held, Socket)
        if held.transport.get_extra_info("ssl_object") is None:
            loop = asyncio.get_running_loop()
            held.transport = wait(loop.start_tls(held.transport, held.incoming, of_client(), server_hostname=host))


class Options(ServerOptions):
    """The simulated servers."""

    def connect_to(self, *servers: str) -> Connection:
        return _Connection(
            servers, credentials=self.credentials, timeout=self.connect_timeout, api_prefix=self.api_prefix,
            inbox_prefix=self.inbox_prefix, name=self.name,
        )  # fmt: skip


class WallClock:
    """Clock of a program on a machine whose clock is right. `skip` has it later than it is."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._skipped = 0.0

    def skip(self, seconds: float) -> None:
        self._skipped += seconds

    def monotonic(self) -> float:
        return self._now() + self._skipped

    def uptime(self) -> float:
        return self.monotonic()

    def time_ns(self) -> int:
        return EPOCH_NS + int(self.monotonic() * 1e9)


class Blocking:
    """The system of blocking programs of one client."""

    def __init__(self, name: str, addresses: Sequence[tuple[str, int]], clock: WallClock, rng: Random) -> None:
        self.options = Options(tuple(f"nats://{host}:{port}" for host, port in addresses), name=name)
        self.clock = clock
        self._rng = rng
        self._opened = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Raises what `work` raises."""
        with self._in_place():
            return await run(work)

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[None]:
        clock = SimpleNamespace(
            monotonic=self.clock.monotonic, time_ns=self.clock.time_ns,
            sleep=lambda seconds: wait(asyncio.sleep(seconds)),
        )  # fmt: skip
        places: list[tuple[Any, str, Any]] = [(module, "time", clock) for module in TIMED]
        places += [
            (connection, "os", SimpleNamespace(urandom=self._rng.randbytes)),
            (connection, "socket", SimpleNamespace(
                create_connection=self._connected, IPPROTO_TCP=6, TCP_NODELAY=1, SOL_SOCKET=1, SO_KEEPALIVE=9)),
            (lock.BackupLock, "_keep", lambda lock: None),
            (restore_transfer, "with_pauses", _read_at_once),
        ]  # fmt: skip
        with contextlib.ExitStack() as stack:
            for where, name, new in places:
                stack.callback(setattr, where, name, getattr(where, name))
                setattr(where, name, new)
            yield

    def _connected(self, address: tuple[str, int], timeout: float) -> Socket:
        """Raises OSError."""
        return wait(self._connect(*address, timeout))

    async def _connect(self, host: str, port: int, timeout: float) -> Socket:
        incoming = _Incoming()
        self._opened += 1
        web = port == WEB_PORT
        protocol: Any = WebSocket(incoming, self.options.name, self._opened) if web else incoming
        context = of_client() if web or Security.mode == "first" else None
        async with asyncio.timeout(timeout):
            try:
                transport, _ = await asyncio.get_running_loop().create_connection(
                    lambda: protocol, host, port, ssl=context, server_hostname=host if context is not None else None
                )
            except ssl.SSLError as error:
                raise ConnectionRefusedError(str(error)) from error
        return Socket(protocol if web else transport, incoming)


def _read_at_once(items: Iterable[T], seconds: float) -> Iterator[T]:
    return iter(items)
