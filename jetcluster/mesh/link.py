"""One TCP connection of the mesh: handshake, framing, coalesced output, keepalive figures.

Output has two lanes. SUB, MSG, CALL, REPLY, NOTICE and INFO go in order through the ordered lane. Raft frames, PING and
PONG have the urgent lane. Each loop turn writes the urgent lane first, then the ordered lane, in one `transport.write`.
While the connection is congested (more than `HIGH_WATER_BYTES` wait in the transport) urgent frames are passed on, with
no more bytes of the ordered lane than of the urgent one. Heartbeats and appends then wait behind at most
`HIGH_WATER_BYTES` plus one slice plus the socket buffers, however many gigabytes of messages are published, and twice
their own size. Without that share a lagging replica, which always has appends waiting, would delay the acks and answers
for its node's clients until it has caught up. Large frames cannot be overtaken, so catch-up asks for bounded chunks
(replica/catchup.py).

Bounds: publishers wait (`protocol.bus`) from `FULL_LANE_BYTES` in the ordered lane on, except for a silent peer.
Messages are dropped (core NATS delivers at most once) when half of `max_pending` waits. The link is closed when all of
it does, or when the other end has taken nothing for `WRITE_SECONDS`. For a peer that is no member publishers do not
wait, and `STRANGER_BYTES` is the bound: a holder of the routes' password could otherwise stop publishers by reading
slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import cast

from jetcluster.clock import Clock
from jetcluster.mesh.auth import Handshake, Reason, Refused, encode_refused, own_addresses
from jetcluster.mesh.frames import (
    MAX_HANDSHAKE_BYTES,
    FrameError,
    FrameReader,
    Kind,
    Span,
    encode_ping,
)
from jetcluster.mesh.options import MeshOptions
from jetcluster.mesh.peer_link import MeshCounters, PeerLink, RouteTraffic
from jetcluster.protocol.connection_states import CLOSED, JOINED, ConnectionEvent
from jetcluster.records import NamedTuple

HIGH_WATER_BYTES = 256 * 1024
LOW_WATER_BYTES = 64 * 1024
SLICE_BYTES = 128 * 1024
"""Bytes of the ordered lane per write, so that the transport can pause it in between."""
GREETING_FRAMES = 512
"""Frames of a greeting made, or taken, per loop turn; of up to a million, at 1 us each and 6 us at the other end."""
FULL_LANE_BYTES = 512 * 1024
"""Bytes of the ordered lane from which on publishers wait, so that its requests and acks are not delayed."""
_SUB = int(Kind.SUB)
FULL_READ_BYTES = 128 * 1024
"""Bytes of a read from which on the next read waits for the next loop turn."""

WRITE_SECONDS = 10.0
"""Time for which pending bytes may wait while the other end takes none, as nats-server's `write_deadline`."""
STRANGER_BYTES = 8 * 1024 * 1024
"""Pending bytes for a peer that is no member, instead of `max_pending`."""

PING_SECONDS = 0.9
"""Time without any data after which the peer is pinged."""
RTT_SECONDS = 5.0
"""Time between pings of a busy link, for its round-trip time."""
LINGER_SECONDS = 1.0
"""Time that a closed connection has to flush its last bytes."""


class LinkEvents(NamedTuple):
    """Callbacks of a connection to its mesh. Those that take a body or concern a login raise Refused and FrameError."""

    opened: Callable[[TcpLink], bool]
    """Returns False when the connection was closed at once."""
    authenticated: Callable[[TcpLink], None]
    """Both sides have proven themselves."""
    info_received: Callable[[TcpLink, bytes], None]
    """(link, body): the other half of the INFO exchange, which makes the connection the link."""
    frames_received: Callable[[PeerLink, bytes, list[Span]], None]
    """(link, buffer, places of the frames in it), once the link is up."""
    part_received: Callable[[str], object]
    """(peer id): a part of a frame has come, and no complete frame."""
    heard_again: Callable[[PeerLink], None]
    """A silent link is heard again."""
    refused: Callable[[TcpLink, Refused], None]
    """The connection is closed with this refusal, by either side."""
    signature_of: Callable[[TcpLink, Refused], bytes]
    """Returns the signature that proves to the other end that this node left it out; b"" for any other refusal."""
    finished: Callable[[TcpLink], None]
    """Nothing more comes from the connection."""
    is_member: Callable[[str], bool]
    """(peer id) -> True for a member."""


class LinkContext(NamedTuple):
    """Objects shared by the connections of a node."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    log: logging.Logger
    counters: MeshCounters
    traffic: RouteTraffic
    options: Callable[[], MeshOptions]
    """Returns the present options."""
    cluster_url: Callable[[], str]
    """Returns the address at which other nodes reach this one."""


class TcpLink(PeerLink, asyncio.Protocol):
    """A connection from its first byte on. It is a *link* (`up`) once both sides are authenticated and agreed on it."""

    def __init__(self, context: LinkContext, events: LinkEvents, handshake: Handshake) -> None:
        options = context.options()
        super().__init__(options.max_frame, context.counters, context.traffic)
        self._events = events
        self._process = events.frames_received
        self._options = context.options
        self._cluster_url = context.cluster_url
        self.log = context.log
        self.handshake = handshake
        self.stats.did_solicit = handshake.dialer
        self.outcome: asyncio.Future[Refused | None] = context.loop.create_future()
        """For the dialer: None once up, or why the connection never became a link."""
        self.lost: asyncio.Future[None] = context.loop.create_future()
        self.close_reason = ""
        self.dialled = ""
        """The dialled address, if it is known from other nodes only."""
        self.local = False
        """True when the other end is on this machine."""
        self._loop = context.loop
        self._clock = context.clock
        self._reader = FrameReader(MAX_HANDSHAKE_BYTES)
        self._left: list[Span] = []
        self._left_in = b""
        """Frames that were read and wait for their turn, and their buffer."""
        self._transport: asyncio.Transport | None = None
        self._ordered: deque[bytes] = deque()
        self._greeting: Iterator[bytes] | None = None
        """Frames to send after `_ordered` and before `_later`, made as the connection takes them."""
        self._later: deque[bytes] = deque()
        self._urgent: list[bytes] = []
        self._ordered_bytes = 0
        self._share = 0
        """Bytes of the ordered lane that may still be sent while congested; negative after a very large frame."""
        self._pending = 0
        self._max_pending = min(STRANGER_BYTES, options.max_pending)
        """Raised for a member, once it matters."""
        self._taken = 0
        self._taken_at = 0.0
        """Bytes that the operating system had taken when it last took some, and the time of that."""
        self._scheduled = False
        self._condemned = False
        self._last_ping = 0.0
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def descriptor(self) -> int:
        """The socket's file descriptor; -1 without one."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if sock is None else sock.fileno()

    @property
    def own_addresses(self) -> tuple[str, ...]:
        """See `mesh.auth`."""
        transport = self._transport
        return own_addresses(self._cluster_url(), None if transport is None else transport.get_extra_info("sockname"))

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.advance(ConnectionEvent.MAKE)
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=LOW_WATER_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            size = self._options().socket_buffer
            if size:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        peername = transport.get_extra_info("peername") or ("", 0)
        self.stats.ip, self.stats.port = str(peername[0]), int(peername[1])
        self.local = is_local(self.stats.ip, transport.get_extra_info("sockname"))
        self.stats.started = self.stats.last_activity = self._clock.monotonic()
        self.stats.started_ns = self._clock.time_ns()
        if not self._events.opened(self) or not self.check_certificate():
            return
        timeout = self._options().handshake_timeout
        self._deadline = self._loop.call_later(timeout, self._handshake_expired)
        hello = self.handshake.start()
        if hello:
            self.send(hello)

    def check_certificate(self) -> bool:
        """Returns False, and refuses the connection, when the certificate of the other end is not permitted."""
        tls, transport = self._options().tls, self._transport
        if tls is None or tls.check is None or transport is None:
            return True
        from jetcluster.auth.certificates import CertificateError, certificate_of

        try:
            tls.check(certificate_of(transport), not self.handshake.dialer)
        except CertificateError as error:
            self.refuse(Refused(Reason.AUTHORIZATION, f"TLS handshake error: {error}"))
            return False
        return True

    def data_received(self, data: bytes) -> None:
        """Takes bytes. Raises nothing: uvloop closes a connection whose callback raises, without a log line."""
        if self.state is CLOSED:
            return
        stats = self.stats
        stats.in_bytes += len(data)
        stats.last_activity = self._clock.monotonic()
        if self.silent:
            self._events.heard_again(self)
        self._guarded(self._read, data)

    def _read(self, data: bytes) -> None:
        while self._left:  # a transport may have read before the pause took effect
            self._take_portion()
        reader = self._reader
        spans = reader.feed(data)
        if self.state is not JOINED:
            self._before_up(reader, spans)
        elif not spans:
            self._events.part_received(self.peer_id)
        elif len(spans) > GREETING_FRAMES and reader.error is None and any(kind == _SUB for kind, _, _ in spans):
            self._left, self._left_in = spans, reader.buffer
            self._take_portion()
        else:
            self._process(self, reader.buffer, spans)
        if reader.error is not None:
            self._malformed(reader.error)
        if self._left or len(data) >= FULL_READ_BYTES:
            self._pause_for_a_turn()

    def _take_portion(self) -> None:
        """Processes a part of a long list of the other end's interest."""
        spans, self._left = self._left[:GREETING_FRAMES], self._left[GREETING_FRAMES:]
        self._process(self, self._left_in, spans)

    def _guarded(self, take: Callable[..., None], *args: object) -> None:
        try:
            take(*args)
        except FrameError as error:
            self._malformed(str(error))
        except Refused as refusal:
            self.refuse(refusal)
        except Exception as error:
            self.log.exception("Mesh: reading from %s failed", self.describe())
            self.close(f"internal error: {error!r}", abort=True)

    def _pause_for_a_turn(self) -> None:
        """Pauses reading for one loop turn: libuv would read on up to 32 times before other connections and timers."""
        transport = self._transport
        if transport is not None and not self.closed:
            transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._left and not self.closed:
            self._guarded(self._take_portion)
        if self._left and not self.closed:
            self._loop.call_soon(self._read_on)
        elif self._transport is not None and not self.closed:
            self._transport.resume_reading()

    def _malformed(self, text: str) -> None:
        if not self.closed:
            self._counters.malformed += 1
            self.refuse(Refused(Reason.MALFORMED, f"malformed: {text}"))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(f"connection lost: {exc}" if exc else "connection closed by the peer")
        self._transport = None
        if not self.lost.done():
            self.lost.set_result(None)

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False
        self._share = 0
        if self._ordered and not self._scheduled:
            self._flush()

    # -- handshake -----------------------------------------------------------------------------------------------

    def _before_up(self, reader: FrameReader, spans: list[Span]) -> None:
        buffer = reader.buffer
        for number, (kind, start, end) in enumerate(spans):
            if self.closed:
                return
            if self.up:
                self._process(self, buffer, spans[number:])
                return
            self._handshake_frame(kind, buffer[start:end])

    def _handshake_frame(self, kind: int, body: bytes) -> None:
        handshake = self.handshake
        if kind == Kind.INFO and handshake.done:
            self._events.info_received(self, body)
            return
        answer = handshake.receive(kind, body)
        if answer:
            self.send(answer)
        if handshake.done:
            assert handshake.remote is not None
            self.advance(ConnectionEvent.CONNECT)
            self.peer_id = handshake.remote.peer_id
            # The end that sends PROOF waits for INFO, which fits the smaller limit: no larger frame is in this read.
            self._reader.max_frame = self._max_frame
            self._events.authenticated(self)

    def became_up(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if not self.outcome.done():
            self.outcome.set_result(None)

    def _handshake_expired(self) -> None:
        if not self.up and not self.closed:
            self.refuse(Refused(Reason.MALFORMED, "handshake not completed in time"))

    def refuse(self, refusal: Refused) -> None:
        """Closes the connection and sends the reason, unless the other side refused."""
        if self.closed:
            return
        if not refusal.by_peer and not self.up:
            self.send(encode_refused(refusal.reason, str(refusal), self._events.signature_of(self, refusal)))
        if not self.outcome.done():
            self.outcome.set_result(refusal)
        self._events.refused(self, refusal)
        self.close(str(refusal))

    # -- output --------------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        if self.state is CLOSED or self._condemned:
            return
        if self._gathered:
            self._seal()
        self._queue_expected(frame)
        self._expect(len(frame))

    def _queue_expected(self, frame: bytes) -> None:
        (self._ordered if self._greeting is None else self._later).append(frame)

    def _expect(self, size: int) -> None:
        self._ordered_bytes += size
        self._pending += size
        if self._ordered_bytes > FULL_LANE_BYTES and not self.valve.closed and not self.silent and self._is_member():
            self.valve.close()
        if not self._scheduled:
            self._schedule()
        if self._pending > self._max_pending:
            self._overflow()

    def greet(self, frames: Iterator[bytes]) -> None:
        assert self._greeting is None
        self._greeting = frames
        self._continue_greeting()
        self._schedule()

    def _continue_greeting(self) -> None:
        """Queues the next portion of the greeting, and after the last one the frames sent meanwhile."""
        if self._greeting is None:
            return
        portion = list(islice(self._greeting, GREETING_FRAMES))
        self._ordered += portion
        self._ordered_bytes += sum(map(len, portion))
        if len(portion) < GREETING_FRAMES:
            self._greeting = None
            self._ordered += self._later
            self._later.clear()

    def send_urgent(self, frame: bytes) -> bool:
        if self.state is CLOSED or self._condemned:
            return False
        self._urgent.append(frame)
        self._pending += len(frame)
        self._schedule()
        if self._pending > self._max_pending:
            self._overflow()
        return not self._condemned

    def accepts_msgs(self) -> bool:
        return self.state is not CLOSED and (
            self._pending * 2 <= self._max_pending
            or self._drained() * 2 <= self._max_pending
            or (self._raise_bound() and self._pending * 2 <= self._max_pending)
        )

    def _is_member(self) -> bool:
        return self._events.is_member(self.peer_id)

    def _raise_bound(self) -> bool:
        """Raises the bound to that of a member, for a member; returns whether it did."""
        most = self._options().max_pending
        if self._max_pending >= most or not self._is_member():
            return False
        self._max_pending = most
        return True

    @property
    def pending(self) -> int:
        return self._drained()

    def _drained(self) -> int:
        """Returns the pending bytes, without those that the transport has sent since the last flush."""
        transport = self._transport
        urgent = sum(map(len, self._urgent))
        in_transport = transport.get_write_buffer_size() if transport is not None else 0
        self._pending = self._ordered_bytes + urgent + in_transport
        return self._pending

    def _overflow(self) -> None:
        """Closes later in the loop turn: the caller may be the router in the middle of its tables."""
        if self._drained() <= self._max_pending or (self._raise_bound() and self._pending <= self._max_pending):
            return
        self._slow(f"{self._pending} bytes pending")

    def _slow(self, why: str) -> None:
        self._condemned = True
        self._counters.slow += 1
        self._loop.call_soon(lambda: self.close(f"slow peer: {why}", abort=True))

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def flush(self) -> None:
        """Hands the queued frames to the transport now; later ones, urgent or not, come after them."""
        self._flush()

    def _flush(self) -> None:
        self._scheduled = False
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._gathered:
            self._seal()
        if self.congested or self._ordered_bytes > SLICE_BYTES:
            self._flush_slices(transport)
        else:
            self._ordered_bytes -= sum(map(len, self._ordered)) if self._later else self._ordered_bytes
            self._urgent += self._ordered
            self._ordered.clear()
            self._write(transport, self._urgent)
        if self._greeting is not None and not self._ordered:
            self._continue_greeting()
            self._schedule()
        self._pending = self._ordered_bytes + transport.get_write_buffer_size()
        if self._ordered_bytes < FULL_LANE_BYTES // 4:
            self.valve.open()

    def _flush_slices(self, transport: asyncio.Transport) -> None:
        if self._urgent:
            if self.congested:
                self._urgent += self._shared()
            self._write(transport, self._urgent)
        ordered = self._ordered
        while ordered and not self.congested:
            batch: list[bytes] = []
            size = 0
            while ordered and size < SLICE_BYTES:
                frame = ordered.popleft()
                size += len(frame)
                batch.append(frame)
            self._ordered_bytes -= size
            self._write(transport, batch)

    def _shared(self) -> list[bytes]:
        """Returns frames of the ordered lane to send after the urgent ones in spite of congestion."""
        ordered, taken = self._ordered, []
        share = min(self._share + sum(map(len, self._urgent)), SLICE_BYTES)
        while ordered and share >= min(len(ordered[0]), SLICE_BYTES):
            frame = ordered.popleft()
            share -= len(frame)
            self._ordered_bytes -= len(frame)
            taken.append(frame)
        self._share = share
        return taken

    def _write(self, transport: asyncio.Transport, frames: list[bytes]) -> None:
        data = b"".join(frames)
        frames.clear()
        self.stats.out_bytes += len(data)
        # uvloop raises where the socket has failed, and `connection_lost` is still to come; `is_closing` is False then.
        with contextlib.suppress(RuntimeError):
            transport.write(data)

    # -- keepalive and close -------------------------------------------------------------------------------------

    def keepalive(self, now: float, stale_after: float) -> None:
        """Pings and watches the peer; called a few times per second while up."""
        silent = now - self.stats.last_activity
        if silent > stale_after:
            self._counters.stale += 1
            self.close(f"stale: nothing received for {silent:.1f} s", abort=True)
            return
        self._watch_writes(now)
        if now - self._last_ping >= (PING_SECONDS if silent >= PING_SECONDS else RTT_SECONDS):
            self._last_ping = now
            self.send_urgent(encode_ping(Kind.PING, int(self._clock.monotonic() * 1e9)))

    def excuse(self, seconds: float) -> None:
        """Extends the time limits by a time in which this process stood still, and has read nothing."""
        self.stats.last_activity += seconds
        self._taken_at += seconds

    def _watch_writes(self, now: float) -> None:
        waiting = self._drained()
        in_transport = self._transport.get_write_buffer_size() if self._transport is not None else 0
        taken = self.stats.out_bytes - in_transport
        if not waiting or taken != self._taken:
            self._taken, self._taken_at = taken, now
        elif now - self._taken_at > WRITE_SECONDS and not self._condemned:
            self._slow(f"nothing taken for {now - self._taken_at:.0f} s, {waiting} bytes pending")

    def close(self, reason: str, *, abort: bool = False) -> None:
        """Closes the link; the peer is down for all callers on return. Queued bytes are still sent unless `abort`."""
        if self.closed:
            return
        transport = self._transport
        if transport is not None and not abort and not self._condemned:
            if self._gathered:
                self._seal()
            self._write(transport, [*self._urgent, *self._ordered])
        self._finish(reason)
        if transport is None:
            return
        if abort:
            transport.abort()
        else:
            transport.close()
            self._loop.call_later(LINGER_SECONDS, transport.abort)

    def _finish(self, reason: str) -> None:
        if self.closed:
            return
        self.advance(ConnectionEvent.CLOSE)
        self.close_reason = reason
        self._urgent.clear()
        self._ordered.clear()
        self._later.clear()
        self._gathered.clear()
        self._greeting = None
        self._left.clear()
        self._ordered_bytes = self._pending = 0
        self.valve.open()
        if self._deadline is not None:
            self._deadline.cancel()
        if not self.outcome.done():
            self.outcome.set_result(Refused(Reason.MALFORMED, reason, by_peer=True))
        self._events.finished(self)

    def describe(self) -> str:
        remote = self.handshake.remote
        name = f"{remote.name} ({remote.peer_id}) at " if remote is not None else ""
        return f"{name}{self.stats.ip}:{self.stats.port}"


def is_local(ip: str, sockname: tuple[str, int] | None) -> bool:
    """Returns True when the other end, at `ip`, is on the machine of this end, which is at `sockname`."""
    plain = ip.removeprefix("::ffff:")
    return plain == "::1" or plain.startswith("127.") or (sockname is not None and bool(ip) and ip == sockname[0])
