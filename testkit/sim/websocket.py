"""A client's end of a WebSocket (RFC 6455), between a simulated connection and a `Session`, and strict with servers.

It knows nothing of the server's code. What it sends differs from frame to frame in all that the RFC leaves to a client:
masks, lengths of frames, messages in fragments, and pings between these. All is counted and nothing is drawn, so that a
run replays. Compression is left out: its bytes depend on the machine's zlib.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import struct
from typing import Any

CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
FINAL, MASKED = 0x80, 0x80
MAX_CONTROL_BYTES = 125
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
LENGTHS = (1, 7, 125, 126, 500, 4096, 65_536)
"""Bytes of a message's first fragment, in turn: each way to write a length is met."""
FRAGMENTED = 5
"""One in so many writes goes in fragments."""
PINGED = 11
"""One in so many has a ping in it."""
NORMAL = struct.pack(">H", 1000)


class Broken(AssertionError):
    """The server has sent what RFC 6455 forbids."""


def masked(payload: bytes, mask: bytes) -> bytes:
    """Masks or unmasks (RFC 6455, 5.3)."""
    size = len(payload)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")


def frame(opcode: int, payload: bytes, mask: bytes, *, final: bool = True) -> bytes:
    size, first = len(payload), opcode | (FINAL if final else 0)
    if size <= MAX_CONTROL_BYTES:
        head = struct.pack(">BB", first, MASKED | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", first, MASKED | 126, size)
    else:
        head = struct.pack(">BBQ", first, MASKED | 127, size)
    return head + mask + masked(payload, mask)


class Frames:
    """Bytes that came, until they are whole frames."""

    def __init__(self) -> None:
        self._data = b""
        self._opened = False
        """A message has begun and not ended."""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return (opcode, payload) of all frames that are whole. Raises Broken."""
        self._data += data
        found = []
        while (one := self._next()) is not None:
            found.append(one)
        return found

    def _next(self) -> tuple[int, bytes] | None:
        if len(self._data) < 2:
            return None
        first, size = self._data[0], self._data[1]
        at = 2
        if size & MASKED or first & 0x70:
            raise Broken(f"a server's frame has a mask or a bit of an extension: {self._data[:2].hex()}")
        if size > MAX_CONTROL_BYTES:
            width = 2 if size == 126 else 8
            if len(self._data) < at + width:
                return None
            size, least = int.from_bytes(self._data[at : at + width], "big"), 126 if width == 2 else 1 << 16
            if size < least:
                raise Broken(f"a length is not as short as it may be: {size} in {width} bytes")
            at += width
        if len(self._data) < at + size:
            return None
        self._check(first, size)
        payload, self._data = self._data[at : at + size], self._data[at + size :]
        return first & 0x0F, payload

    def _check(self, first: int, size: int) -> None:
        opcode, final = first & 0x0F, bool(first & FINAL)
        if opcode not in (CONTINUED, BINARY, CLOSE, PING, PONG):
            raise Broken(f"opcode {opcode:#x}: NATS goes in binary messages")
        if opcode >= CLOSE:
            if not final or size > MAX_CONTROL_BYTES:
                raise Broken(f"a control frame of {size} bytes, or one in fragments")
            return
        if self._opened != (opcode == CONTINUED):
            raise Broken("a fragment without a beginning, or a message in the midst of another one")
        self._opened = not final


class WebSocket(asyncio.Protocol):
    """The protocol of the connection, and the transport of `above`, which is made once the server has agreed."""

    def __init__(self, above: Any, name: str, number: int) -> None:
        """`name`, `number`: of the client, and of this connection; its key is made of them."""
        self.above = above
        self._key = base64.b64encode(hashlib.md5(f"{name} {number}".encode(), usedforsecurity=False).digest())
        self._count = itertools.count(number)
        self._transport: Any = None
        self._head: bytes | None = b""
        """Bytes of the answer so far; None once it has been whole."""
        self._frames = Frames()
        self._pings: list[bytes] = []
        self._closing = False

    # ---- the connection's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        host, port = transport.get_extra_info("peername")
        self._transport.write(
            f"GET /nats?x=1 HTTP/1.1\r\nHost: {host}:{port}\r\n"
            "uPGRADE: WebSocket\r\nConnection: keep-alive, Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {self._key.decode()}\r\n\r\n".encode()
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self.above.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            head, end, data = (self._head + data).partition(b"\r\n\r\n")
            if not end:
                self._head = head
                return
            self._agree(head)
        for opcode, payload in self._frames.feed(data):
            self._take(opcode, payload)

    def _agree(self, head: bytes) -> None:
        accepted = base64.b64encode(hashlib.sha1(self._key + GUID, usedforsecurity=False).digest())
        if head.startswith(b"HTTP/1.1 503 "):  # its queue of those that begin is full, or it is leaving
            self._transport.abort()
            return
        if not head.startswith(b"HTTP/1.1 101 ") or b"\r\nSec-WebSocket-Accept: " + accepted not in head:
            raise Broken(f"no upgrade: {head!r}")
        self._head = None
        self.above.connection_made(self)

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self._transport.write(frame(PONG, payload, self._mask()))
        elif opcode == PONG:
            if payload not in self._pings:
                raise Broken(f"a pong that answers no ping: {payload!r}")
            del self._pings[: self._pings.index(payload) + 1]  # it may answer the newest one alone (5.5.3)
        elif opcode == CLOSE:
            if len(payload) == 1 or (payload and not 1000 <= int.from_bytes(payload[:2], "big") < 5000):
                raise Broken(f"a close frame with {payload!r}")
            self.close()
        elif payload:
            self.above.data_received(payload)

    # ---- the transport of what is above

    def _mask(self) -> bytes:
        return struct.pack(">I", next(self._count) * 0x9E3779B1 & 0xFFFFFFFF)

    def write(self, data: bytes) -> None:
        if self._closing:
            return
        number = next(self._count)
        first = LENGTHS[number % len(LENGTHS)]
        pieces = [data]
        if number % FRAGMENTED == 0 and first < len(data):
            pieces = [data[:first], b"", data[first:]]  # one in the middle may be empty
        parts = []
        for at, piece in enumerate(pieces):
            if at == len(pieces) - 1 and number % PINGED == 0:
                self._pings.append(b"%d" % number)
                parts.append(frame(PING, self._pings[-1], self._mask()))
            parts.append(frame(CONTINUED if at else BINARY, piece, self._mask(), final=at == len(pieces) - 1))
        self._transport.write(b"".join(parts))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._transport.write(frame(CLOSE, NORMAL, self._mask()))
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def get_extra_info(self, name: str) -> Any:
        return self._transport.get_extra_info(name)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()
