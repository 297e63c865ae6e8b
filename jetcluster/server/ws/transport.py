"""A WebSocket between a socket and a client connection.

`WebSocket` is the protocol of the socket: it answers the HTTP request, then parses frames. `WsTransport` is the
transport of the client connection: it turns each write into a frame. So the connection runs unchanged, with its batched
output, back-pressure and limits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from jetcluster.budget import BusyError, Job, LoopBudget, Steps
from jetcluster.log_limit import FROM_STRANGERS
from jetcluster.protocol import websocket
from jetcluster.protocol.websocket import FrameWriter, HandshakeError, Rules, UpgradeRequest, WebSocketReader
from jetcluster.server.fairness import SMALL_READ

if TYPE_CHECKING:
    from jetcluster.clock import TimerHandle, Timers
    from jetcluster.server.connection import Connection

log = logging.getLogger("jetcluster.server")

MAX_HEAD_BYTES = 16 * 1024
"""Largest HTTP request: a user JWT in a cookie takes 1000 to 4000 bytes."""
MAX_HANDSHAKES = 4096
"""Simultaneous handshakes; further connections are closed at once."""
STEP_BYTES = 64 * 1024
STEP_EVENTS = 128
"""Bytes of payload, and frames or inflated pieces, after which the rest of the input waits for a turn
(`budget.LoopBudget`): inflated, it may be a thousand times the bytes received."""
MAX_INFLATED_BYTES = 64 * 1024 * 1024
MAX_INFLATION = 8
"""A compressed message may inflate to MAX_INFLATION times max_payload and to MAX_INFLATED_BYTES, or to max_payload if
that is larger, as in nats-server."""
BUSY_RETRY_SECONDS = 0.05
"""Pause before a connection asks again for a turn when too many wait (BusyError)."""
MAX_PONG_BACKLOG_BYTES = 64 * 1024
"""Unwritten output up to which pings are answered: a client that does not read gets no pongs."""

_CODES: Mapping[str, int] = {
    **dict.fromkeys(("Client Closed",), websocket.NORMAL),
    **dict.fromkeys(("Write Error", "Read Error", "Stale Connection", "Server Shutdown"), websocket.GOING_AWAY),
    **dict.fromkeys(("Parse Error", "Protocol Violation", "Bad Client Protocol Version"), websocket.PROTOCOL_ERROR),
    "Maximum Message Payload Exceeded": websocket.TOO_BIG,
    **dict.fromkeys(
        (
            "Authentication Timeout",
            "Authentication Failure",
            "Authentication Expired",
            "Credentials Revoked",
            "Slow Consumer (Pending Bytes)",
            "Slow Consumer (Write Deadline)",
            "Maximum Connections Exceeded",
            "Maximum Account Connections Exceeded",
            "Maximum Control Line Exceeded",
            "Maximum Subscriptions Exceeded",
            "Missing Account",
        ),
        websocket.POLICY_VIOLATION,
    ),
}
"""Close reason -> status of the close frame, as in nats-server; other reasons are internal errors."""


class WsTransport(asyncio.Transport):
    """The transport of the connection above, on a socket whose handshake is done."""

    def __init__(self, socket: asyncio.Transport, owner: WebSocket, writer: FrameWriter) -> None:
        super().__init__()
        self._socket = socket
        self._owner = owner
        self._writer = writer
        self.close_frame: bytes | None = None
        """Payload of the close frame; None to derive it from the connection's close reason."""
        self.paused = False
        self._silent = False
        """True when nothing is written any more."""

    def fall_silent(self) -> None:
        """Stops writing: the socket is gone."""
        self._silent = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._silent:
            self._socket.write(self._writer.frames(bytes(data)))

    def control(self, opcode: int, payload: bytes) -> None:
        self.write_frames(websocket.control(opcode, payload))

    def write_frames(self, frames: bytes) -> None:
        if not self._silent and not self._socket.is_closing():
            self._socket.write(frames)

    def _send_close(self) -> None:
        payload = self.close_frame
        if payload is None:
            reason = self._owner.close_reason
            payload = websocket.close_payload(_CODES.get(reason, websocket.INTERNAL_ERROR), reason)
        self.control(websocket.CLOSE, payload)
        self._silent = True

    def can_write_eof(self) -> bool:
        return self._socket.can_write_eof()

    def write_eof(self) -> None:
        self._send_close()
        if not self._socket.is_closing():
            self._socket.write_eof()

    def close(self) -> None:
        self._send_close()
        self._socket.close()
        self._owner.given_up()

    def abort(self) -> None:
        self._silent = True
        self._socket.abort()
        self._owner.given_up()

    def is_closing(self) -> bool:
        return self._socket.is_closing()

    def pause_reading(self) -> None:
        self.paused = True
        self._owner.hold()

    def resume_reading(self) -> None:
        self.paused = False
        self._owner.go_on()

    def is_reading(self) -> bool:
        return not self.paused

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.get_extra_info(name, default)


class WebSocket(asyncio.Protocol):
    """The protocol of one socket. It is in `handshaking` during the handshake, at most `patience` seconds; then
    `open_client(request)` makes the connection above, or raises HandshakeError."""

    def __init__(
        self,
        rules: Rules,
        timers: Timers,
        budget: LoopBudget,
        patience: float,
        open_client: Callable[[UpgradeRequest], Connection],
        handshaking: set[WebSocket],
        has_room_at: Callable[[int], bool] | None = None,
    ) -> None:
        self._rules = rules
        self._timers = timers
        self._budget = budget
        self._open_client = open_client
        self._patience = patience
        self._handshaking = handshaking
        self._has_room_at = has_room_at
        """Returns False for a descriptor that the store needs."""
        self._head = b""
        self._socket: asyncio.Transport = cast(asyncio.Transport, None)
        self._upper: Connection | None = None
        self._transport: WsTransport | None = None
        self._reader: WebSocketReader | None = None
        """None before the handshake, and after an error or a close frame."""
        self._waiting = False
        """True while the rest of the input waits for a turn."""
        self._job: Job[None] | None = None
        self._lost: tuple[Exception | None] | None = None
        """The exception of `connection_lost`, while input received before it waits for turns."""
        self._timer: TimerHandle | None = None

    @property
    def close_reason(self) -> str:
        return "" if self._upper is None else self._upper.close_reason

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        if len(self._handshaking) >= MAX_HANDSHAKES or not self._has_room():
            self._timers.call_soon(self._socket.abort)  # not here: uvloop has not started reading yet
            return
        self._handshaking.add(self)
        self._timer = self._timers.call_later(self._patience, self._late)

    def _has_room(self) -> bool:
        found = self._socket.get_extra_info("socket")
        return self._has_room_at is None or found is None or self._has_room_at(found.fileno())

    def data_received(self, data: bytes) -> None:
        if self._reader is not None:
            self._reader.feed(data)
            if self._waiting or (self._transport is not None and self._transport.paused):
                return
            if (len(data) >= SMALL_READ and not self._budget.has_time()) or self._deliver():
                self.hold()
                self.go_on()
        elif self._timer is not None:  # else it is refused
            self._head += data
            self._handshake()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._upper is not None:
            self._upper.pause_writing()

    def resume_writing(self) -> None:
        if self._upper is not None:
            self._upper.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over()
        self._lost = (exc,)
        if self._transport is not None:
            self._transport.fall_silent()
        if self.close_reason or self._reader is None or not self._reader.more:
            self._end_upper()  # else after the input received before it

    def _end_upper(self) -> None:
        lost, self._lost, self._reader = self._lost, None, None
        if self._job is not None:
            self._job.cancel()
        if self._upper is not None and lost is not None:
            self._upper.connection_lost(*lost)

    def given_up(self) -> None:
        """Ends the connection above if the socket is gone: it wants no more input."""
        if self._lost is not None:
            self._timers.call_soon(self._end_upper)

    # ---- handshake

    def drop(self) -> None:
        """Aborts a connection during its handshake."""
        self._over()
        self._socket.abort()

    def _late(self) -> None:
        log.info("%s - websocket handshake error: not completed in time", self._peer(), extra=FROM_STRANGERS)
        self.drop()

    def _over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._handshaking.discard(self)

    def _peer(self) -> str:
        peer = self._socket.get_extra_info("peername")
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "?"

    def _handshake(self) -> None:
        head, end, rest = self._head.partition(websocket.END)
        if not end and len(head) <= MAX_HEAD_BYTES:
            return
        self._head = b""
        try:
            request, answer = self._judge(head, rest)
            upper = self._open_client(request)
        except HandshakeError as error:
            log.info("%s - websocket handshake error: %s", self._peer(), error, extra=FROM_STRANGERS)
            self._over()
            self._socket.write(websocket.refusal(error))
            self._socket.close()
            return
        self._over()
        self._socket.write(answer)
        deflate = self._rules.compression and request.deflate
        limit = websocket.BROWSER_FRAME_BYTES if request.browser else 0
        self._upper = upper
        most = upper.server.options.max_payload
        self._reader = WebSocketReader(
            deflate=deflate, most=max(min(MAX_INFLATION * most, MAX_INFLATED_BYTES), most + MAX_INFLATED_BYTES // 64)
        )
        self._transport = WsTransport(self._socket, self, FrameWriter(deflate=deflate, limit=limit))
        upper.connection_made(self._transport)

    def _judge(self, head: bytes, rest: bytes) -> tuple[UpgradeRequest, bytes]:
        """Returns the request and its answer. Raises HandshakeError."""
        if len(head) > MAX_HEAD_BYTES:
            raise HandshakeError(400, "request too long")
        request = websocket.parse(head)
        answer = websocket.accept(request, self._rules)
        if rest:
            raise HandshakeError(400, "client sent data before handshake is complete")
        return request, answer

    # ---- frames

    def hold(self) -> None:
        if not self._socket.is_closing():
            self._socket.pause_reading()

    def go_on(self) -> None:
        """Processes the waiting input in turns with other work, then resumes reading the socket."""
        if self._waiting or self._reader is None:
            if self._reader is None and not self._socket.is_closing():
                self._socket.resume_reading()
            return
        self._waiting = True
        try:
            self._job = self._budget.start(self, self._steps(), self._caught_up, self._broken, at_once=False)
        except BusyError:
            self._timers.call_later(BUSY_RETRY_SECONDS, self._ask_again)

    def _ask_again(self) -> None:
        self._waiting = False
        self.go_on()

    def _steps(self) -> Steps[None]:
        while self._transport is not None and not self._transport.paused and self._deliver():
            yield

    def _caught_up(self, _: None) -> None:
        self._waiting = False
        if self._transport is None or self._transport.paused:
            return
        if self._lost is not None:
            self._end_upper()
        elif not self._socket.is_closing():
            self._socket.resume_reading()

    def _broken(self, error: Exception) -> None:
        """Aborts the socket after an unexpected exception, which must not affect the loop or other clients."""
        log.error("websocket: internal error, closing the connection", exc_info=error)
        self._waiting = False
        self._socket.abort()

    def _deliver(self) -> bool:
        """Passes up one step of the input, or less if the connection above pauses; True when there is more to do."""
        upper, transport = self._upper, self._transport
        assert upper is not None
        assert transport is not None
        pieces: list[bytes] = []
        pongs: list[bytes] = []
        size = 0
        for _ in range(STEP_EVENTS):
            event, broken = self._event()
            if event is None or event[0] == websocket.CLOSE:
                self._hand_on(pieces, pongs)
                if broken is not None:
                    self._reader = None
                    log.info("cid %d: websocket: %s", upper.cid, broken)
                    self._end(websocket.close_payload(broken.code, str(broken)), "Protocol Violation")
                elif event is not None:
                    self._closed_by_peer(event[1])
                return False
            opcode, payload = event
            if opcode == websocket.BINARY:
                pieces.append(payload)
                size += len(payload)
                if size >= STEP_BYTES:
                    break
            elif opcode == websocket.PING:
                pongs.append(websocket.control(websocket.PONG, payload))
        self._hand_on(pieces, pongs)
        return self._reader is not None and not transport.paused

    def _event(self) -> tuple[websocket.Event | None, websocket.WebSocketError | None]:
        """Returns (the next event or None, the error or None)."""
        if self._reader is None:
            return None, None
        try:
            return self._reader.next(), None
        except websocket.WebSocketError as error:
            return None, error

    def _hand_on(self, pieces: list[bytes], pongs: list[bytes]) -> None:
        """Passes the payload up in one call, and writes the pongs at once."""
        upper, transport = self._upper, self._transport
        assert upper is not None
        assert transport is not None
        if pongs and transport.get_write_buffer_size() < MAX_PONG_BACKLOG_BYTES:
            transport.write_frames(b"".join(pongs))
        payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if payload:
            upper.data_received(payload)

    def _closed_by_peer(self, payload: bytes) -> None:
        """Answers a close frame with one of the same status, and closes the socket (RFC 6455, 5.5.1)."""
        self._reader = None
        self._end(payload, "Client Closed")
        self._socket.close()

    def _end(self, close_frame: bytes, reason: str) -> None:
        assert self._upper is not None
        assert self._transport is not None
        self._transport.close_frame = close_frame
        self._upper.close(reason)
