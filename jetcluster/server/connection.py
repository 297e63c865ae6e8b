"""The I/O half of a connection: coalesced output, bounded buffers, liveness, and the ways to end.

Output is a list of pieces that is joined and written once per loop turn. Output that the client does not read
accumulates here; beyond `max_pending` the connection is closed (nats-server: slow consumer). `client.Client` adds the
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

_LINGER_SECONDS = 1.0
"""Time for which a closing connection's input is discarded: unread, it would cause a reset that overtakes the -ERR."""

_STALL_SECONDS = 0.005
"""Time for which a publisher pauses when a connection that it fills is beyond three quarters of max_pending."""

_BUSY_SECONDS = 0.1
"""A client counts as sending for this time after its last input."""
_MAX_PING_DELAYS = 50
"""Times that a PING is delayed for a sending client: 10 s in all."""
_FIRST_PING_SECONDS = 2.0
_MAX_RTT_AGE_SECONDS = 3600.0


class Sockets:
    """The connections of a server that have a socket: open ones, and closed ones that still write."""

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
        """Closes all, and returns when their queued output is written, or after `patience` seconds."""
        for connection in list(self._open):
            connection.close(reason, linger=False)
            connection.transport.close()
        if not self._open:
            return
        self._drained = asyncio.Event()
        try:
            async with asyncio.timeout(patience):
                await self._drained.wait()
        except TimeoutError:
            for connection in list(self._open):
                connection.transport.abort()
            await asyncio.sleep(0)


class Reader(Protocol):
    """The part of a connection that takes its input."""

    def receive(self, data: bytes) -> None:
        """Processes or keeps the bytes of a read. Not called on a closed connection. Must not raise."""


class Connection(Origin, asyncio.Protocol):
    """The common part of all kinds of connections: timers, limits, queued output, state."""

    kind = "client"
    trace_kind = ""
    """The protocol trace's name for connections of this kind; "" for kinds that it does not show."""
    reader: Reader
    """Set by the subclass."""

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
        """Monotonic seconds of the last input."""
        self.rtt = 0.0
        """Seconds; 0.0 before the first PONG."""
        self.state = ConnectionState.NEW
        """Changed only by `advance`."""
        self.close_reason = ""
        """nats-server's text, set once when `state` becomes CLOSED; "" before."""
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._held = 0
        self.blocked = False
        """True while nothing may be written."""
        self.holds: set[object] = set()
        """Holders of `pause_reading`: nothing is read while there is one."""
        self._pings_out = 0
        self._ping_sent = 0.0
        self._put_off = 0
        """Number of delays of the due PING."""
        self._rtt_at = 0.0
        self._timers: dict[str, TimerHandle] = {}

    # ---- beginning and end

    @property
    def made(self) -> bool:
        """True once there has been a transport."""
        return cast("asyncio.Transport | None", self.transport) is not None

    def advance(self, event: ConnectionEvent) -> None:
        """Moves to the next `state`. Raises AssertionError if `event` is not allowed in this one."""
        self.state = after(self.state, event)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        # low=0: `resume_writing` means that the whole flush was written, which write_deadline limits.
        self.transport.set_write_buffer_limits(high=64 * 1024, low=0)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.ip, self.port = peer[0], peer[1]
        self.arm_ping()
        self.sockets.add(self)
        self._debug("Client connection created")
        if self.server.stopping:  # accepted in the turn in which the port was closed
            self.abort("Server Shutdown")
        else:
            self.opened()

    @property
    def ping_interval(self) -> float:
        return self.server.options.ping_interval

    @property
    def ping_max(self) -> int:
        return self.server.options.ping_max

    def arm_ping(self) -> None:
        interval = min(_FIRST_PING_SECONDS, self.ping_interval)
        self.arm("ping", interval * (1 + 0.2 * self.server.rng.random()), self._ping_due)

    def opened(self) -> None:
        """Called when the connection is made; the subclass advances the state (`ConnectionEvent.MAKE`)."""

    def ended(self) -> None:
        """Called once when the connection ends, with `close_reason` set; for the subclass."""

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
        """Ends the connection: writes the queued output, then an -ERR if there is a text."""
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
            except OSError:  # the peer has reset the connection, and the transport has not noticed yet
                transport.abort()
                return
            self.holds.clear()
            transport.resume_reading()
            self.arm("linger", _LINGER_SECONDS, self._linger_due, self.server.options.write_deadline)
        else:
            transport.close()

    def end_unmade(self, reason: str) -> None:
        """Ends a connection that never got a transport."""
        self.close_reason = reason
        self.advance(ConnectionEvent.CLOSE)

    def bound_input(self, size: int) -> None:
        """Limits the kernel's receive buffer, and so the window offered to the peer, to about `size` bytes."""
        found = self.transport.get_extra_info("socket")
        if found is not None:
            with contextlib.suppress(OSError):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def _linger_due(self, patience: float) -> None:
        # Unwritten output has as much time as a flush; unread input alone does not keep the socket open.
        if patience > 0 and self.transport.get_write_buffer_size():
            self.arm("linger", _LINGER_SECONDS, self._linger_due, patience - _LINGER_SECONDS)
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
        """Logs nats-server's text at the debug level."""
        if self.trace_kind and log.isEnabledFor(logging.DEBUG):
            log.debug("%s - %s", self.head(), text)

    def head(self) -> str:
        """Returns the head of log and trace lines about this connection; "" if it has none."""
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
        """Queues a frame other than a message: +OK, PONG, INFO, -ERR."""
        if self.close_reason:
            return
        if not self.out:
            self.wake()
        self.out.append(data)
        self.pending += len(data)
        if self.pending > self.congestion_mark:
            self.congested(self)

    def flush(self) -> None:
        """Writes the queued output, unless the previous flush is not written yet."""
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
            self._report_slow("Slow Consumer (Write Deadline)")
            self.arm("write", self.server.options.write_deadline, self._write_due)
        else:
            self._slow("Slow Consumer (Write Deadline)")

    def congested(self, origin: Origin) -> None:
        """Stalls publisher `origin` beyond three quarters of max_pending; beyond all of it, closes this connection."""
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
        self._report_slow(reason)
        self.abort(reason)

    def _report_slow(self, reason: str) -> None:
        self.server.slow_consumers += 1
        log.warning("cid %d: %s, %d bytes pending", self.cid, reason, self.pending)

    # ---- back-pressure on input

    def pause_reading(self, holder: object) -> None:
        """Stops reading until every holder has resumed."""
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
        """Pauses this publisher for a moment: it fills another connection faster than that one reads."""
        if self.server.options.no_fast_producer_stall:
            return
        if "stall" not in self._timers and not self.close_reason:
            self.stalls += 1
            self.server.stalled_clients += 1
            self.pause_reading("stall")
            self.arm("stall", _STALL_SECONDS, self._unstall)

    def _unstall(self) -> None:
        self.disarm("stall")
        self.resume_reading("stall")

    # ---- liveness

    def _ping_due(self, looked: bool = False) -> None:
        if not looked:  # after a delay of the loop, timers run before the input that waits is read
            self.arm("ping", 0.001, self._ping_due, True)
            return
        now = self.server.clock.monotonic()
        if (self.holds or now - self.last_activity < _BUSY_SECONDS) and self._put_off < _MAX_PING_DELAYS:
            # The client is sending. If it is gone already, a failing write would end the connection and lose its
            # unread input. The round trip would also include the server's work on that input.
            self._put_off += 1
            self.arm("ping", 2 * _BUSY_SECONDS, self._ping_due)
            return
        self._put_off = 0
        fresh = self.rtt > 0 and now - self._rtt_at < _MAX_RTT_AGE_SECONDS
        if not fresh or now - self.last_activity >= self.ping_interval:
            if self._pings_out + 1 > self.ping_max:
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
