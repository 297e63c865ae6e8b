"""The simulated network: TCP connections of processes over links between machines.

A link is one direction between two machines. What goes over it takes time; what is lost TCP sends again, so that it
comes later; what a cut holds up comes when the cut is over. Bytes of one connection stay in order, those of two
connections do not. The receiver's kernel takes what its window holds, also while the process stands still.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import zlib
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, cast

from testkit.sim.layout import ROUTE_PORT
from testkit.sim.link import Lane, Link
from testkit.sim.loop import Handle, Scheduler, SimLoop

READ = 256 << 10
"""Bytes of one `data_received`, as in uvloop."""
SPLIT = 0.125
"""Share of writes that come in two segments, cut anywhere, as TCP promises nothing about their bounds."""
ACCEPT_RETRY = 1.0
"""Seconds until a process without descriptors looks again whether somebody wants to connect."""
SYN_TIMEOUT = 127.0
EPHEMERAL = 40_000
FEW = 16
"""Descriptors that a process has open, unless they run short."""

Address = tuple[str, int]


class SimSocket:
    """The part of a listening socket that the product asks for."""

    family = socket.AF_INET

    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        return self._address


class SimServer:
    """A port that is open."""

    def __init__(self, endpoints: Endpoints, factory: Callable[[], asyncio.BaseProtocol], address: Address) -> None:
        self.endpoints = endpoints
        self.factory = factory
        self.address = address
        self.sockets: tuple[SimSocket, ...] = (SimSocket(address),)

    def accept(self, there: SimTransport) -> None:
        """Makes a connection that the kernel has made. Without a descriptor for it, later, as with asyncio."""
        if not self.sockets:
            there.abort()
        elif self.endpoints.host.exhausted:
            self.endpoints.loop.call_later(ACCEPT_RETRY, self.accept, there)
        else:
            there.made(self.factory)

    def close(self) -> None:
        if self.endpoints.network.ports.get(self.address) is self:
            del self.endpoints.network.ports[self.address]
        self.sockets = ()

    def is_serving(self) -> bool:
        return bool(self.sockets)

    async def wait_closed(self) -> None:
        pass


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, endpoints: Endpoints, own: Address, other: Address) -> None:
        super().__init__({"sockname": own, "peername": other, "socket": None})
        self.endpoints = endpoints
        self.own = own
        self.other = other
        self.peer: SimTransport | None = None
        """None until the other end has heard of it."""
        self.protocol: Any = None
        self.gone = False
        """The kernel knows nothing of it any more."""
        self._loop = endpoints.loop
        self._link = endpoints.network.link(own[0], other[0])
        self._lane = Lane()
        self._network, self._host = endpoints.network, endpoints.host
        self.between_servers = ROUTE_PORT in (own[1], other[1])
        """All that is written here is overheard; without it, whoever makes records of it says what they are made of."""
        self.waits: Callable[[], None] | None = None
        """Called when there is something to `peek` at, where no protocol has the connection yet."""
        self._delivery = Handle(self._deliver, (), None)
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._in_flight = 0
        self._high, self._low = 64 << 10, 16 << 10
        self._writing_paused = False
        self._received: deque[bytes] = deque()
        self._reading_paused = False
        self._delivering = False
        self._eof_received = False
        self._eof_wanted = False
        self._eof_sent = False
        self._forgotten = False
        self._closing = False
        self._made = False
        self._error: Exception | None = None

    # ---- asyncio.Transport

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self.protocol)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 << 10 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._queued

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.gone or self._eof_wanted or not data:
            return
        piece = bytes(data)
        if self.between_servers and (overhear := self._network.overhear) is not None:
            overhear(self.own, self.other, piece)
        self._queue.append(piece)
        self._queued += len(piece)
        self._pump()
        if self._queued > self._high and not self._writing_paused:
            self._writing_paused = True
            self.protocol.pause_writing()

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        self._eof_wanted = True
        self._pump()

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self._wake_reader()

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    def close(self) -> None:
        """Still sends what is queued."""
        if self._closing:
            return
        self._closing = True
        self._eof_wanted = True
        self._pump()
        if not self._queue:
            self._loop.call_soon(self._finish, None)

    def abort(self) -> None:
        if self.gone:
            return
        self._closing = True
        self._loop.call_soon(self._finish, None)
        self._reset()

    # ---- out

    def _pump(self) -> None:
        """Gives the network as much as the window takes."""
        assert self.peer is not None
        queue, arrived, window = self._queue, self.peer._arrived, self._link.window
        while queue and self._in_flight < window and not self.gone:
            data = queue.popleft()
            size, room = len(data), window - self._in_flight
            at = room if size > room else self._network.split(size)
            if at:
                queue.appendleft(data[at:])
                data, size = data[:at], at
            self._queued -= size
            self._in_flight += size
            self._send(size, arrived, data)
        if self._eof_wanted and not self._queue and not self._eof_sent and not self.gone:
            self._eof_sent = True
            self._send(40, self.peer._ended)
        if self._writing_paused and self._queued <= self._low:
            self._writing_paused = False
            self._loop.from_outside(self._resume_writing)
        if self._closing and not self._queue and not self.gone:
            self._loop.from_outside(self._finish, None)

    def forget(self) -> None:
        """The way to the other end is gone, as behind a firewall that forgot the connection: neither end notices, and
        what is sent is lost."""
        self._forgotten = True
        if self.peer is not None:
            self.peer._forgotten = True

    def _send(self, size: int, callback: Callable[..., None], *args: Any) -> None:
        if self._forgotten:
            return
        self._link.send(self._lane, size, callback, *args)

    def _resume_writing(self) -> None:
        if not self._writing_paused and not self.gone:
            self.protocol.resume_writing()

    def _taken(self, size: int) -> None:
        """The other end's process has read so much."""
        self._in_flight -= size
        if self._queue:
            self._pump()

    # ---- in; called by the network

    def _arrived(self, data: bytes) -> None:
        if self.gone or not self._host.up:
            self._unreachable()
            return
        self._network.seen(self.other, self.own, data)
        self._received.append(data)
        if not self._delivering:
            self._wake_reader()

    def _ended(self) -> None:
        if self._unreachable():
            return
        self._eof_received = True
        self._wake_reader()

    def _unreachable(self) -> bool:
        """A machine that is off hears nothing; one that knows no such connection says so."""
        if not self._host.up:
            return True
        if self.gone:
            self._reset()
        return self.gone

    def _reset(self) -> None:
        if self.peer is not None:
            self._send(40, self.peer._was_reset)

    def _was_reset(self) -> None:
        if self.endpoints.host.up and not self.gone:
            self._received.clear()
            self._loop.from_outside(self._finish, ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def peek(self) -> bytes | None:
        """The first that has come and nobody has read; b"" at the end, None where nothing is there. Raises OSError."""
        if self._received:
            return self._received[0]
        if self._error is not None:
            raise self._error
        return b"" if self._eof_received or self.gone else None

    def _wake_reader(self) -> None:
        if not self._made and self.waits is not None:
            self.waits()
        if (
            self._made
            and not self._delivering
            and not self._reading_paused
            and (self._received or self._eof_received)
            and not self.gone
        ):
            self._delivering = True
            self._loop.take(self._delivery)

    def _deliver(self) -> None:
        self._delivering = False
        if self.gone or self._reading_paused:
            return
        if self._received:
            received = self._received
            data = received.popleft()
            if received and len(data) < READ:
                pieces, size = [data], len(data)
                while received and size < READ:
                    pieces.append(received.popleft())
                    size += len(pieces[-1])
                data = b"".join(pieces)
            self._acknowledge(len(data))
            if not self._closing:
                self.protocol.data_received(data)
            if received or self._eof_received:
                self._wake_reader()
        elif self._eof_received:
            self._eof_received = False
            if not self._closing and not self.protocol.eof_received():
                self.close()

    def _acknowledge(self, size: int) -> None:
        sender, link = self.peer, self._link
        assert sender is not None
        if self._forgotten:
            return
        if sender._queue or link.cut_since is not None:
            link.send(Lane(), 40, sender._taken, size)
        else:
            sender._taken(size)  # nothing waits for it

    # ---- beginning and end

    def made(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Makes the connection, in the process's turn. As with asyncio, a protocol gets its connection whatever
        has become of it meanwhile, and of its end after that."""
        self.protocol = factory()
        self._made = True
        self.protocol.connection_made(self)
        if self.gone:
            self._loop.call_soon(self.protocol.connection_lost, self._error)
        else:
            self._wake_reader()

    def _finish(self, error: Exception | None) -> None:
        if self.gone:
            return
        self.gone = True
        self._closing = True
        self._error = error
        if self._received and error is None:
            self._reset()  # as the kernel does when a socket with unread input is closed
        self.endpoints.transports.pop(self, None)
        self._queue.clear()
        self._queued = 0
        if self._made:
            self.protocol.connection_lost(error)
        elif self.waits is not None:
            self.waits()

    def drop(self, tell: bool) -> None:
        """The process is gone. `tell`: the kernel is there to say so."""
        if self.gone:
            return
        self.gone = True
        if tell:
            if self._received:
                self._reset()
            elif not self._eof_sent and self.peer is not None:
                self._send(40, self.peer._ended)


class Host:
    """A machine as the network knows it."""

    def __init__(self, ip: str) -> None:
        self.ip = ip
        self.up = True
        self.next_port = EPHEMERAL
        self.descriptor: int | None = FEW
        """The number of the process's next descriptor; None: there is none left for another connection."""

    @property
    def exhausted(self) -> bool:
        return self.descriptor is None


class Endpoints:
    """Connections and ports of one process."""

    def __init__(self, network: Network, host: Host, loop: SimLoop) -> None:
        self.network = network
        self.host = host
        self.loop = loop
        self.transports: dict[SimTransport, None] = {}
        loop.endpoints = self

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: Any, port: int) -> SimServer:
        if host not in (None, self.host.ip) and [self.host.ip] != host:
            raise OSError(errno.EADDRNOTAVAIL, f"{self.host.ip} is not {host}")
        if not port:
            port, self.host.next_port = self.host.next_port, self.host.next_port + 1
        address = (self.host.ip, port)
        if address in self.network.ports:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        server = self.network.ports[address] = SimServer(self, factory, address)
        return server

    async def dial(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        """Raises OSError."""
        if self.host.exhausted:
            raise OSError(errno.EMFILE, "Too many open files")
        future = self.loop.create_future()
        own = (self.host.ip, self.host.next_port)
        self.host.next_port += 1
        here = SimTransport(self, own, (host, port))
        self.transports[here] = None
        link = self.network.link(self.host.ip, host)
        link.send(here._lane, 60, self.network.knock, here, future)
        give_up = self.loop.call_later(SYN_TIMEOUT, _fail, future, TimeoutError(errno.ETIMEDOUT, "timed out"))
        try:
            await future
        except BaseException:
            here.drop(tell=True)
            self.transports.pop(here, None)
            raise
        finally:
            give_up.cancel()
        here.made(factory)
        return here, here.protocol

    def drop(self, *, tell: bool) -> None:
        """The process is gone."""
        for address in [address for address, server in self.network.ports.items() if server.endpoints is self]:
            del self.network.ports[address]
        for transport in list(self.transports):
            transport.drop(tell)
        self.transports.clear()


class Network:
    """All links, open ports and machines by address."""

    def __init__(self, scheduler: Scheduler, rng: Random) -> None:
        self.scheduler = scheduler
        self.ports: dict[Address, SimServer] = {}
        self.hosts: dict[str, Host] = {}
        self.bytes = 0
        self.segments = 0
        self.checksum = 0
        self.watch: Callable[[Address, Address, bytes], None] | None = None
        """A function that gets all bytes that come: from, to, data."""
        self.awaited: list[tuple[re.Pattern[bytes], Callable[[str, str], None]]] = []
        """Patterns, each with a function that is called once when bytes with it come: from which machine, to which."""
        self.overhear: Callable[[Address, Address, bytes], None] | None = None
        """A function that gets all that is written between servers: from, to, data."""
        self._rng = rng
        self._chance = Random(rng.getrandbits(64)).random
        self._links: dict[tuple[str, str], Link] = {}
        self._severed: set[tuple[str, str]] = set()

    def sever(self, one: str, other: str) -> None:
        """Ends all connections of two machines as `reset` does, and lets them make no other until `rejoin`."""
        self._severed |= {(one, other), (other, one)}
        self.reset(one, other)

    def reset(self, one: str, other: str) -> None:
        """Ends all connections of two machines, of which both hear at once. What is under way is lost."""
        for machine, far in ((one, other), (other, one)):
            for server in [server for address, server in self.ports.items() if address[0] == machine]:
                for transport in list(server.endpoints.transports):
                    if transport.other[0] == far and transport.peer is not None:
                        transport._finish(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def rejoin(self, one: str, other: str) -> None:
        self._severed -= {(one, other), (other, one)}

    def joins(self, one: str, other: str) -> bool:
        """True when nothing keeps two machines, by their addresses, from connecting."""
        cut = any(self.link(*ends).cut_since is not None for ends in ((one, other), (other, one)))
        return not cut and (one, other) not in self._severed

    def link(self, source: str, target: str) -> Link:
        """The direction from one machine to another, by their addresses."""
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link(self.scheduler, self._rng)
            if source == target:
                found.delay = found.jitter = 20e-6
        return found

    def split(self, size: int) -> int:
        """The place at which a segment of `size` bytes is cut in two; 0: nowhere."""
        if size < 2:
            return 0
        chance = self._chance() / SPLIT
        return 1 + int(chance * (size - 1)) if chance < 1.0 else 0

    def links(self) -> list[tuple[tuple[str, str], Link]]:
        return list(self._links.items())

    def seen(self, source: Address, target: Address, data: bytes) -> None:
        self.bytes += len(data)
        self.segments += 1
        self.checksum = zlib.crc32(data, self.checksum)
        if self.watch is not None:
            self.watch(source, target, data)
        if self.awaited:
            found = [one for one in self.awaited if one[0].search(data)]
            self.awaited = [one for one in self.awaited if one not in found]
            for _, callback in found:
                callback(source[0], target[0])

    def knock(self, dialler: SimTransport, future: asyncio.Future[None]) -> None:
        """A SYN has come."""
        host = self.hosts.get(dialler.other[0])
        if host is None or not host.up or dialler.gone:
            return
        back = self.link(dialler.other[0], dialler.own[0])
        severed = (dialler.own[0], dialler.other[0]) in self._severed
        server = None if severed else self.ports.get(dialler.other)
        if server is None:
            error = ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {dialler.other}")
            back.send(Lane(), 40, dialler._loop.from_outside, _fail, future, error)
            return
        there = SimTransport(server.endpoints, dialler.other, dialler.own)
        there.peer, dialler.peer = dialler, there
        server.endpoints.transports[there] = None
        back.send(there._lane, 40, dialler._loop.from_outside, _succeed, future)
        server.endpoints.loop.from_outside(server.accept, there)


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _succeed(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
