"""The connections of the monitoring port: how many there may be, and how long each may take.

aiohttp waits without limit for a request, and for an answer to be read. A `Guard` stands between a connection and
aiohttp's protocol and ends it in time. nats-server, too, gives a request's head 5 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from aiohttp import web

from jetcluster.clock import Clock
from jetcluster.console.door import Door
from jetcluster.logs import get_logger

log = get_logger("monitor")

HEAD_SECONDS: Final = 5.0
"""From the accept, or from the first byte of a further request (from the answer before it, where that came later), to
the end of its headers."""
ANSWER_SECONDS: Final = 60.0
"""From the end of the headers until the answer is handed to the transport: for the page, and for its reader."""
IDLE_SECONDS: Final = 180.0
"""Between an answer and the next request; also the time to send what the transport still holds."""
END: Final = b"\r\n\r\n"
"""The end of a request's head."""
CONNECTIONS_WHEN_FULL: Final = 4
"""The limit when clients have taken all descriptors but the reserve: a full server can still be monitored."""
LOG_SECONDS: Final = 10.0
"""Seconds between two lines of the log about refused connections."""


class Connections:
    """The connections of one port. `has_room_at(descriptor)`: False when the store needs the descriptors that are left;
    then `CONNECTIONS_WHEN_FULL` is the limit, else `most`. At the limit the connection that has waited longest for a
    request makes room for a new one. `door` takes over those that ask for a WebSocket of the console."""

    def __init__(self, has_room_at: Callable[[int], bool], clock: Clock, most: int, door: Door | None = None) -> None:
        self.most = most
        self.door = door
        self._has_room_at = has_room_at
        self._clock = clock
        self._guards: dict[asyncio.BaseProtocol, Guard] = {}
        """Guards by aiohttp's protocol, longest wait first."""
        self._told = -LOG_SECONDS
        self._untold = 0

    def __len__(self) -> int:
        return len(self._guards)

    def __contains__(self, guard: object) -> bool:
        return isinstance(guard, Guard) and guard.inner in self._guards

    def factory(self, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """A factory of protocols around those that `make` makes."""
        return lambda: Guard(self, make())

    @web.middleware
    async def answer(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        guard = self._guards.get(request.protocol)
        if guard is None:  # the connection is gone
            return await handler(request)
        guard.wait(ANSWER_SECONDS, busy=True)
        try:
            response = await handler(request)
            await response.prepare(request)
            await response.write_eof()
        finally:
            guard.wait(IDLE_SECONDS)
        return response

    def add(self, guard: Guard, descriptor: int) -> bool:
        """Returns False when there is no room for the connection."""
        most = self.most if self._has_room_at(descriptor) else min(CONNECTIONS_WHEN_FULL, self.most)
        while len(self._guards) >= most:
            self.note(f"there is room for {most}")
            oldest = next((one for one in self._guards.values() if not one.busy), None)
            if oldest is None:
                return False
            oldest.end()
        self._guards[guard.inner] = guard
        return True

    def remove(self, guard: Guard) -> None:
        self._guards.pop(guard.inner, None)

    def moved(self, guard: Guard) -> None:
        """Notes that the connection was answered, so that the others have waited longer."""
        if self._guards.pop(guard.inner, None) is not None:
            self._guards[guard.inner] = guard

    def close(self) -> None:
        for guard in list(self._guards.values()):
            guard.end()

    def note(self, what: str) -> None:
        """Logs a line at most every `LOG_SECONDS`, because strangers can open any number of connections."""
        self._untold += 1
        now = self._clock.monotonic()
        if now - self._told >= LOG_SECONDS:
            log.info(f"Monitoring connection refused or closed: {what} ({self._untold} since the last such line)")
            self._told, self._untold = now, 0


class Guard(asyncio.Protocol):
    """One connection: passes everything on to aiohttp's protocol `inner`, and watches the time."""

    def __init__(self, connections: Connections, inner: asyncio.Protocol) -> None:
        self.inner = inner
        self.busy = False
        """A request is being answered."""
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._in_head = False
        self._tail = END
        """The last bytes received, as many as END has; at first END, as if a head had ended."""
        self._is_in = False
        """`inner` knows of the connection."""
        self._is_open = connections.door is not None
        """The next byte begins a request, which may be for the door."""
        self._first = b""
        """The bytes of it so far."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        socket = transport.get_extra_info("socket")
        if not self._connections.add(self, -1 if socket is None else socket.fileno()):
            asyncio.get_running_loop().call_soon(self._transport.abort)  # not in here: uvloop has yet to begin reading
            return
        if self._connections.door is None:
            self._let_in(self._transport)
        self.wait(HEAD_SECONDS)
        self._in_head = True

    def _let_in(self, transport: asyncio.Transport) -> None:
        self._is_in = True
        self.inner.connection_made(transport)

    def _passes_on(self, door: Door, transport: asyncio.Transport, data: bytes) -> bytes:
        """Returns what `inner` gets of a request's first bytes: nothing while more must come, and when the door takes
        over. A proxy may ask for a WebSocket on a connection that has had other requests."""
        self._first += data
        wanted = door.wants(self._first)
        if wanted is None:
            return b""
        self._is_open = False
        first, self._first = self._first, b""
        if wanted:
            self._hand_over(door.accept(), transport, first)
            return b""
        if not self._is_in:
            self._let_in(transport)
        return first

    def _hand_over(self, protocol: asyncio.Protocol, transport: asyncio.Transport, first: bytes) -> None:
        self._transport = None
        self._stop_waiting()
        self._connections.remove(self)
        if self._is_in:
            cast(Any, self.inner).transport = None  # aiohttp would close it
            self._is_in = False
            self.inner.connection_lost(None)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(first)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self not in self._connections:
            return
        if not self.busy and not self._in_head:
            self.wait(HEAD_SECONDS)
            self._in_head = True
        if self._is_open and self._connections.door is not None:
            data = self._passes_on(self._connections.door, self._transport, data)
            if not data:
                return
        self._tail = (self._tail + data[-len(END) :])[-len(END) :]
        self.inner.data_received(data)

    def wait(self, seconds: float, *, busy: bool = False) -> None:
        """Ends the connection after `seconds` unless something happens earlier."""
        if self.busy and not busy:
            self._connections.moved(self)
        # Bytes after the last request's head may be the first half of the next one, and no further byte may come.
        begun = self.busy and not busy and self._tail != END
        seconds = HEAD_SECONDS if begun else seconds
        if busy or begun:
            self._is_open = False
        elif self.busy:
            self._is_open = self._connections.door is not None
        self.busy, self._in_head = busy, begun
        self._stop_waiting()
        self._timer = None if self._transport is None else asyncio.get_running_loop().call_later(seconds, self.end)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """Aborts the connection; unwritten output is dropped."""
        if self._transport is not None:
            self._transport.abort()
        self._connections.remove(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._transport = None
        self._connections.remove(self)
        if self._is_in:
            self.inner.connection_lost(exc)

    def eof_received(self) -> bool | None:
        if not self._is_in:
            return None
        found: bool | None = self.inner.eof_received()
        return found

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()


class ShortLog:
    """The log of aiohttp's protocol: at times a short line about a malformed request, without a traceback. The pages
    log their own errors."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def exception(self, message: str, *args: object, exc_info: object = None, **_: object) -> None:
        lines = str(exc_info).strip().splitlines()
        why = f"{type(exc_info).__name__}: {lines[0][:80] if lines else ''}" if exc_info is not None else ""
        text = message % args if args else message
        self._connections.note(f"{text}: {why}")

    error = exception

    def debug(self, message: str, *args: object, **_: object) -> None:
        pass

    info = warning = debug
