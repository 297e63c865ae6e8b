"""The I/O half of a client connection: coalesced output, bounded buffers, liveness, and the ways to end.

Output is a list of pieces that is joined and written once per loop turn. What the client does not read piles up here,
is bounded by `max_pending`, and closes the connection beyond it (nats-server: slow consumer). `client.Client` adds the
commands of clients, `leaf.link.LeafLink` those of leaf nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Protocol, cast

from jetcluster.clock import TimerHandle
from jetcluster.ordered import OrderedSet
from jetcluster.protocol import writer
from jetcluster.protocol.bus import Origin
from jetcluster.protocol.connection_states import ConnectionEvent, ConnectionState, after
from jetcluster.server.state import ServerState

log = logging.getLogger("jetcluster.server")

_LINGER = 1.0
"""Seconds a closing connection's input is thrown away. Closing a socket with unread input resets it, and the reset
would overtake the -ERR that says why."""

_STALL = 0.005
"""Seconds a publisher waits when a connection it fills is at three quarters of max_pending."""

_BUSY = 0.1
"""Seconds since the last input within which a client counts as sending."""
_PUT_OFF = 50
"""Times a PING waits for that to end: 10 s."""
_FIRST_PING = 2.0
_RTT_AGE = 3600.0


class Sockets:
    """The connections of a server that have a socket: those that are open, and those that still write their last."""

    def __init__(self) -> None:
        self._open: OrderedSet[Connection] = OrderedSet()
        self._drained: asyncio.Event | None = None

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> None:
        self._open.add(connection)

    def discard(self, connection: Connection) -> None:
        self._open.discard(connection)
        if not self._open and self._drained is not None:
            self._drained.set()

    async def close(self, reason: str, patience: float) -> None:
        """Closes them, and returns when all that was queued for them is written, or after `patience` seconds."""
        for connection in list(self._open):
            connection.close(reason, linger=False)
            connection.transport.close()
        if not self._open:
            return
        self._drained = asyncio.Event()
        try:
            await asyncio.wait_for(self._drained.wait(), patience)
        except TimeoutError:
            for connection in list(self._open):
                connection.transport.abort()
            await asyncio.sleep(0)


class Reader(Protocol):
    """The part of a connection that is given its input."""

    def receive(self, data: bytes) -> None:
        """Works on a read, or keeps it. Not called once the connection is closed. Must not raise."""
        ...


class Connection(Origin, asyncio.Protocol):
    """A connection, and what every kind of them has: timers, limits, what waits to be sent, its state."""

    kind = "client"
    trace_kind = ""
    """The protocol trace's name for connections like this one; "" for those that it does not show."""
    reader: Reader
    """Given by the subclass."""

    def __init__(self, server: ServerState, sockets: Sockets, cid: int) -> None:
        options = server.options
        self.server = server
        self.sockets = sockets
        self.cid = cid
        self.account = ""
        self.ip = ""
        self.port = 0
        self.out: list[bytes] = []
        self.pending = 0
        self.congestion_mark = options.max_pending * 3 // 4
        self.in_msgs = 0
        self.out_msgs = 0
        self.in_bytes = 0
        self.out_bytes = 0
        self.stalls = 0
        self.start_ns = server.clock.time_ns()
        self.last_activity = server.clock.monotonic()
        """Monotonic time of the last input."""
        self.rtt = 0.0
        """Seconds; 0.0 before the first PONG."""
        self.state = ConnectionState.NEW
        """Changed by `advance` alone."""
        self.close_reason = ""
        """Set once, in nats-server's words, when `state` becomes CLOSED; "" before."""
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._held = 0
        self.blocked = False
        """Nothing is to be written now."""
        self.holds: set[object] = set()
        """Those who do not want anything to be read now; changed by `pause_reading` and `resume_reading`."""
        self._pings_out = 0
        self._ping_sent = 0.0
        self._put_off = 0
        """Times that the PING that is due was put off."""
        self._rtt_at = 0.0
        self._timers: dict[str, TimerHandle] = {}

    # ---- beginning and end

    @property
    def made(self) -> bool:
        """There is, or was, a transport."""
        return cast("asyncio.Transport | None", self.transport) is not None

    def advance(self, event: ConnectionEvent) -> None:
        """Goes on to the next `state`. Raises AssertionError when there is none for `event`."""
        self.state = after(self.state, event)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        # low=0: `resume_writing` says that a flush has gone out entirely, which is what write_deadline is about.
        self.transport.set_write_buffer_limits(high=64 * 1024, low=0)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.ip, self.port = peer[0], peer[1]
        self.arm_ping()
        self.sockets.add(self)
        self._debug("Client connection created")
        if self.server.stopping:  # it was accepted in the turn in which the port was closed
            self.abort("Server Shutdown")
        else:
            self.opened()

    @property
    def ping_interval(self) -> float:
        return self.server.options.ping_interval

    def arm_ping(self) -> None:
        interval = min(_FIRST_PING, self.ping_interval)
        self.arm("ping", interval * (1 + 0.2 * self.server.rng.random()), self._ping_due)

    def opened(self) -> None:
        """The connection stands; for the subclass, which says so (`ConnectionEvent.MAKE`)."""

    def ended(self) -> None:
        """The connection is over, `close_reason` is set; for the subclass. Called once."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish("Client Closed" if exc is None else "Read Error")
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.sockets.discard(self)

    def data_received(self, data: bytes) -> None:
        if not self.close_reason:
            self.reader.receive(data)

    def eof_received(self) -> bool:
        return False

    def close(self, reason: str, text: str | None = None, *, linger: bool = True) -> None:
        """Ends the connection: writes what is queued, then the -ERR if there is a text, then nothing more."""
        if self.close_reason:
            return
        if text is not None:
            self.out.append(writer.err(text))
        data = b"".join(self.out)
        if self.server.tracer is not None:
            self.server.tracer.sent(self.head(), data)
        self._finish(reason)
        transport = self.transport
        if transport.is_closing():
            return
        if data:
            transport.write(data)
        if linger and transport.can_write_eof():
            try:
                transport.write_eof()
            except OSError:  # the peer reset the connection, which the transport has not noticed yet
                transport.abort()
                return
            self.holds.clear()
            transport.resume_reading()
            self.arm("linger", _LINGER, self._linger_due, self.server.options.write_deadline)
        else:
            transport.close()

    def never_made(self, reason: str) -> None:
        """There is no socket, and there will be none."""
        self.close_reason = reason
        self.advance(ConnectionEvent.CLOSE)

    def bound_input(self, size: int) -> None:
        """The kernel takes in no more than about `size` bytes while nobody reads, and offers the peer as much."""
        found = self.transport.get_extra_info("socket")
        if found is not None:
            with contextlib.suppress(OSError):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def _linger_due(self, patience: float) -> None:
        # Output that is still on its way gets what a flush gets; input alone is no reason to stay.
        if patience > 0 and self.transport.get_write_buffer_size():
            self.arm("linger", _LINGER, self._linger_due, patience - _LINGER)
        else:
            self.transport.abort()

    def abort(self, reason: str) -> None:
        """Ends the connection at once; queued output is lost."""
        if not self.close_reason:
            self._finish(reason)
            self.transport.abort()

    def _finish(self, reason: str) -> None:
        if self.close_reason:
            return
        self.close_reason = reason
        self.advance(ConnectionEvent.CLOSE)
        self._debug(f"Client connection closed: {reason}")
        self.disarm_all()
        self.ended()
        self.out.clear()
        self.pending = 0

    def _debug(self, text: str) -> None:
        """For the log at its debug level, in nats-server's words."""
        if self.trace_kind and log.isEnabledFor(logging.DEBUG):
            log.debug("%s - %s", self.head(), text)

    def head(self) -> str:
        """The head of lines of the log, and of the protocol trace, about this connection; "": there are none."""
        return ""

    def arm(self, name: str, delay: float, callback: object, *args: object) -> None:
        self.disarm(name)
        self._timers[name] = self.server.timers.call_later(delay, callback, *args)  # type: ignore[arg-type]

    def disarm(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def disarm_all(self) -> None:
        for name in list(self._timers):
            self.disarm(name)

    # ---- output

    def wake(self) -> None:
        self.server.timers.call_soon(self.flush)

    def send(self, data: bytes) -> None:
        """Queues a frame that is no message: +OK, PONG, INFO, -ERR."""
        if self.close_reason:
            return
        if not self.out:
            self.wake()
        self.out.append(data)
        self.pending += len(data)
        if self.pending > self.congestion_mark:
            self.congested(self)

    def flush(self) -> None:
        """Writes everything queued, unless the previous flush is still on its way."""
        out = self.out
        if self.blocked or not out or self.close_reason:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        transport = self.transport
        if self.server.tracer is not None:
            self.server.tracer.sent(self.head(), data)
        transport.write(data)
        self.pending = self._held = transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        self.blocked = True
        self.arm("write", self.server.options.write_deadline, self._write_due)

    def resume_writing(self) -> None:
        self.blocked = False
        self.disarm("write")
        self.pending -= self._held
        self._held = 0
        self.flush()

    def _write_due(self) -> None:
        if self.server.options.write_timeout == "retry":
            self._told_slow("Slow Consumer (Write Deadline)")
            self.arm("write", self.server.options.write_deadline, self._write_due)
        else:
            self._slow("Slow Consumer (Write Deadline)")

    def congested(self, origin: Origin) -> None:
        """Called when `pending` is beyond three quarters of max_pending."""
        if self.close_reason:
            return
        held = self.transport.get_write_buffer_size()
        self.pending += held - self._held
        self._held = held
        if self.pending > self.server.options.max_pending:
            self._slow("Slow Consumer (Pending Bytes)")
        elif self.pending > self.congestion_mark and isinstance(origin, Connection) and origin is not self:
            origin.stall()

    def _slow(self, reason: str) -> None:
        if self.close_reason:
            return
        self._told_slow(reason)
        self.abort(reason)

    def _told_slow(self, reason: str) -> None:
        self.server.slow_consumers += 1
        log.warning("cid %d: %s, %d bytes pending", self.cid, reason, self.pending)

    # ---- back-pressure on input

    def pause_reading(self, holder: object) -> None:
        """Stops reading from the client until every holder has resumed. Called by a taker that cannot keep up."""
        if self.close_reason:
            return
        if not self.holds:
            self.transport.pause_reading()
        self.holds.add(holder)

    def resume_reading(self, holder: object) -> None:
        if holder in self.holds:
            self.holds.discard(holder)
            if not self.holds and not self.close_reason:
                self.transport.resume_reading()

    def stall(self) -> None:
        """Slows this publisher down: what it sends fills another connection faster than that one reads."""
        if self.server.options.no_fast_producer_stall:
            return
        if "stall" not in self._timers and not self.close_reason:
            self.stalls += 1
            self.server.stalled_clients += 1
            self.pause_reading("stall")
            self.arm("stall", _STALL, self._unstall)

    def _unstall(self) -> None:
        self.disarm("stall")
        self.resume_reading("stall")

    # ---- liveness

    def _ping_due(self, looked: bool = False) -> None:
        if not looked:  # in a loop that could not run for a while timers go off before input is read
            self.arm("ping", 0.001, self._ping_due, True)
            return
        now = self.server.clock.monotonic()
        if (self.holds or now - self.last_activity < _BUSY) and self._put_off < _PUT_OFF:
            # It is sending. It may be gone, with what it sent last still to be read: a write that fails ends the
            # connection, and that would be lost. And the time to its PONG would be that of our own work.
            self._put_off += 1
            self.arm("ping", 2 * _BUSY, self._ping_due)
            return
        self._put_off = 0
        options = self.server.options
        fresh = self.rtt > 0 and now - self._rtt_at < _RTT_AGE
        if not fresh or now - self.last_activity >= self.ping_interval:
            if self._pings_out + 1 > options.ping_max:
                self.server.stale_connections += 1
                self.close("Stale Connection", "Stale Connection")
                return
            self._pings_out += 1
            self._ping_sent = now
            self.send(writer.PING)
        self.arm("ping", self.ping_interval, self._ping_due)

    def pong_received(self) -> None:
        if self._pings_out:
            now = self.server.clock.monotonic()
            self.rtt = max(now - self._ping_sent, 1e-9)
            self._rtt_at = now
        self._pings_out = 0
