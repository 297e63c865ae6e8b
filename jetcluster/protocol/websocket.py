"""WebSocket frames (RFC 6455) and their compression (RFC 7692), without I/O: a NATS connection's bytes inside frames.

A NATS connection is a stream, so frame boundaries have no meaning: payload is handed on as it comes, also of an
incomplete frame, and a compressed message is inflated piece by piece. So no frame is ever held in memory, and the NATS
parser above limits a message. Each write makes one frame.

The code is our own because the libraries make a cold start too slow (aiohttp) or cost more per small frame, and hold
frames and messages until they are whole (websockets; docs/compatibility.md, WebSocket).

The HTTP request that opens a WebSocket, and the answers to it (RFC 6455 section 4), are here too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from jetcluster.errors import PeerError

END = b"\r\n\r\n"

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_PHRASES = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}
_DEFLATE = "permessage-deflate"
_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}

Place = tuple[str, str, int]
"""(scheme, host, port) of an origin, in lower case."""


class HandshakeError(PeerError):
    """A request that this server refuses. The text goes to the log, and to the client after the status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True, frozen=True)
class UpgradeRequest:
    """A client's request to upgrade HTTP to WebSocket (RFC 6455, section 4.1)."""

    path: str
    headers: Mapping[str, str]
    """Names in lower case; a name's values joined with ", "."""

    @property
    def deflate(self) -> bool:
        """True when the client offers permessage-deflate as implemented here: no context kept between messages, a
        window of 32 KiB."""
        return any(_acceptable(offer) for offer in self.headers.get("sec-websocket-extensions", "").split(","))

    @property
    def browser(self) -> bool:
        return self.headers.get("user-agent", "").startswith("Mozilla/")

    def cookie(self, name: str) -> str:
        for pair in self.headers.get("cookie", "").split(";"):
            key, _, value = pair.strip().partition("=")
            if key == name:
                return value.strip('"')
        return ""


@dataclass(slots=True, frozen=True)
class Rules:
    """The listener's demands on a request."""

    tls: bool = False
    same_origin: bool = False
    same_host: bool = False
    """The origin's host and port are those of the request, whatever its scheme."""
    origins: frozenset[Place] = frozenset()
    """Allowed origins; empty for any."""
    compression: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    """Added to the answer."""


def parse(head: bytes) -> UpgradeRequest:
    """Parses `head`, everything before the empty line. Raises HandshakeError."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or words[2] == "HTTP/1.0":
        raise HandshakeError(400, "not an HTTP/1.1 request")
    method, target, _ = words
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or "\n" in line or "\r" in line or "\0" in line:
            raise HandshakeError(400, "malformed header")
        name, value = name.lower(), value.strip()
        if name == "host" and name in headers:
            raise HandshakeError(400, "too many Host headers")
        separator = "; " if name == "cookie" else ", "
        headers[name] = f"{headers[name]}{separator}{value}" if name in headers else value
    if method != "GET":
        raise HandshakeError(405, "request method must be GET")
    return UpgradeRequest(target.partition("?")[0], headers)


def accept(request: UpgradeRequest, rules: Rules) -> bytes:
    """The answer that opens the WebSocket. Raises HandshakeError."""
    headers = request.headers
    if not headers.get("host"):
        raise HandshakeError(400, "missing required Host header")
    if request.path == "/mqtt" or request.path.startswith("/mqtt/"):
        raise HandshakeError(404, "MQTT is not supported")
    if request.path == "/leafnode" or request.path.startswith("/leafnode/"):
        raise HandshakeError(404, "leaf nodes over WebSocket are not supported, use the leafnodes port")
    if "websocket" not in _tokens(headers.get("upgrade", "")):
        raise HandshakeError(400, "invalid value for header 'Upgrade'")
    if "upgrade" not in _tokens(headers.get("connection", "")):
        raise HandshakeError(400, "invalid value for header 'Connection'")
    key = headers.get("sec-websocket-key", "")
    if not _is_key(key):
        raise HandshakeError(400, "key missing or invalid")
    if headers.get("sec-websocket-version") != "13":
        raise HandshakeError(400, "invalid version")
    _check_origin(headers, rules)
    digest = base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()
    lines = [
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {digest}",
    ]
    if rules.compression and request.deflate:
        lines.append(f"Sec-WebSocket-Extensions: {_DEFLATE}; server_no_context_takeover; client_no_context_takeover")
    lines += [f"{name}: {value}" for name, value in rules.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


def refusal(error: HandshakeError) -> bytes:
    """Returns the answer that refuses the request and ends the connection."""
    phrase = _PHRASES[error.status]
    body = f"{phrase}: {error}\n".encode()
    head = (
        f"HTTP/1.1 {error.status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\nSec-WebSocket-Version: 13\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def place_of(url: str) -> Place:
    """The scheme, host and port of an origin as browsers send it, `scheme://host[:port]`. Raises ValueError."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    port = parts.port  # raises ValueError
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").lower(), port or _PORTS.get(scheme, 80)


def places_of(urls: Sequence[str]) -> frozenset[Place]:
    """Raises ValueError."""
    return frozenset(place_of(url) for url in urls)


def _check_origin(headers: Mapping[str, str], rules: Rules) -> None:
    """Only browsers send an origin; a request without one is not from a page."""
    origin = headers.get("origin") or headers.get("sec-websocket-origin", "")
    if not origin or not (rules.same_origin or rules.same_host or rules.origins):
        return
    try:
        place = place_of(origin)
        own = place_of(f"{'https' if rules.tls else 'http'}://{headers['host']}")
    except ValueError:
        raise HandshakeError(403, "origin not allowed") from None
    if rules.same_host and (place[0] not in _PORTS or place[1:] != place_of(f"{place[0]}://{headers['host']}")[1:]):
        raise HandshakeError(403, "not the same host")  # "null", of a page in a sandbox, has no scheme
    if rules.same_origin and place != own:  # the scheme, too, as nats-server 2.15 looks at it
        raise HandshakeError(403, "not same origin")
    if rules.origins and place not in rules.origins:
        raise HandshakeError(403, "origin not allowed")


def _acceptable(offer: str) -> bool:
    name, *parameters = (part.strip() for part in offer.split(";"))
    if name.lower() != _DEFLATE:
        return False
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "server_max_window_bits" and value.strip().strip('"') != "15":
            return False
        if key.strip() not in (
            "server_no_context_takeover",
            "client_no_context_takeover",
            "server_max_window_bits",
            "client_max_window_bits",
        ):
            return False
    return True


def _tokens(value: str) -> list[str]:
    return [token.strip().lower() for token in value.split(",")]


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA

NORMAL = 1000
GOING_AWAY = 1001
PROTOCOL_ERROR = 1002
INVALID_PAYLOAD = 1007
POLICY_VIOLATION = 1008
TOO_BIG = 1009
INTERNAL_ERROR = 1011

MAX_CONTROL_BYTES = 125
"""Bytes of payload of a ping, a pong or a close frame."""
PIECE_BYTES = 64 * 1024
"""Bytes that are inflated at a time."""
PACKED_BYTES = 8 * 1024
"""Compressed bytes that are read at a time: they may hold any number of empty blocks."""
MAX_DEFLATE_STREAMS = 16
"""Deflate streams within one message. A sender may end one anywhere; no sender needs to do so more than once."""
MAX_INFLATED_BYTES = 8 * 1024 * 1024
"""Bytes a compressed message may inflate to, unless the reader is told otherwise."""
COMPRESS_ABOVE_BYTES = 64
"""A longer message is compressed."""
BROWSER_FRAME_BYTES = 4096
"""Payload of a frame to a browser, at most: it hands a frame on only when it is whole."""

_FIN, _RSV1, _RSV23, _MASK = 0x80, 0x40, 0x30, 0x80
_TAIL = b"\x00\x00\xff\xff"
"""The end of a deflated message, which senders leave out."""
_TABLE_BYTES = 1536
"""Bytes from which on four passes with tables are quicker than one XOR of long integers (measured)."""

Event = tuple[int, bytes]
"""(BINARY, payload of text and binary messages) or (PING | PONG | CLOSE, payload)."""
NOTHING: Event = (BINARY, b"")
"""An event without content, of a frame without payload or a block that inflates to nothing: more may follow, and a
caller that has enough for now can stop."""


class WebSocketError(PeerError):
    """A violation of the protocol by the client. `code` and text are those of the close frame."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class WebSocketReader:
    """Frames of a client. `feed` takes bytes as they come, `next` gives what they hold, one event at a time, each of a
    bounded amount of work, so that a caller may stop in between. `deflate`: permessage-deflate was
    agreed on; a compressed message inflates to `most` bytes and no more."""

    def __init__(self, *, deflate: bool, most: int = MAX_INFLATED_BYTES) -> None:
        self._deflate = deflate
        self._most = most
        self._data = b""
        self._at = 0
        self._left = 0
        """Payload bytes of the current data frame that have not been handed on."""
        self._key = b""
        self._final = True
        """The current data frame is the last of its message; False from the first frame of a message to its last."""
        self._inflater: zlib._Decompress | None = None
        """Inflates the current message; None when it is not compressed."""
        self._packed = b""
        self._packed_at = 0
        self._inflated = 0
        self._ends = 0
        """Bytes of the current message that were inflated, and deflate streams in it that have ended."""
        self._more = False
        """True when the inflater has more output."""
        self._over = False
        """A close frame has come; what follows it is not read."""

    def feed(self, data: bytes) -> None:
        if self._over:
            return
        self._data = self._data[self._at :] + data if self._at < len(self._data) else data
        self._at = 0

    @property
    def more(self) -> bool:
        """True when `next` has bytes to read, perhaps not a whole frame."""
        return not self._over and (self._more or self._at < len(self._data))

    def next(self) -> Event | None:
        """Returns the next event, or None when more bytes are needed. Raises WebSocketError; then reading must end."""
        while not self._over:
            if self._more:
                return BINARY, self._inflate()
            if self._left:
                if self._at >= len(self._data):
                    return None
                piece = self._payload()
                if not self._more:
                    return BINARY, piece
            else:
                event = self._header()
                if event is not NOTHING or not (self._left or self._more):
                    return event
        return None

    def _header(self) -> Event | None:
        """Reads one frame header, and a control frame whole; NOTHING for a data frame, None when more is to come."""
        data = self._data
        at = self._at
        if len(data) - at < 2:
            return None
        first, second = data[at], data[at + 1]
        opcode, length, at = first & 0x0F, second & 0x7F, at + 2
        self._check(first, second)
        if length == 126:
            if len(data) < at + 2:
                return None
            (length,) = struct.unpack_from(">H", data, at)
            at += 2
        elif length == 127:
            if len(data) < at + 8:
                return None
            (length,) = struct.unpack_from(">Q", data, at)
            at += 8
            if length >> 63:
                raise WebSocketError(PROTOCOL_ERROR, "invalid 64-bit payload length")
        control = opcode >= CLOSE
        if len(data) < at + 4 + (length if control else 0):
            return None
        key, at = data[at : at + 4], at + 4
        if control:
            self._at = at + length
            return self._control(opcode, unmasked(data[at : at + length], key))
        self._at = at
        self._begin(first, opcode, length, key)
        return NOTHING

    def _check(self, first: int, second: int) -> None:
        """The two bytes that every frame begins with, checked before anything of it is waited for."""
        opcode = first & 0x0F
        if not second & _MASK:
            raise WebSocketError(PROTOCOL_ERROR, "mask bit missing")
        if first & _RSV23:
            raise WebSocketError(PROTOCOL_ERROR, "RSV2 and RSV3 must be clear")
        if opcode in (CLOSE, PING, PONG):
            if second & 0x7F > MAX_CONTROL_BYTES:
                raise WebSocketError(PROTOCOL_ERROR, "control frame length bigger than maximum allowed of 125 bytes")
            if not first & _FIN:
                raise WebSocketError(PROTOCOL_ERROR, "control frame does not have final bit set")
            if first & _RSV1:
                raise WebSocketError(PROTOCOL_ERROR, "control frame is compressed")
        elif opcode in (TEXT, BINARY):
            if not self._final:
                text = "new message started before final frame for previous message was received"
                raise WebSocketError(PROTOCOL_ERROR, text)
            if first & _RSV1 and not self._deflate:
                text = "compressed frame received without negotiated permessage-deflate"
                raise WebSocketError(PROTOCOL_ERROR, text)
        elif opcode == CONTINUATION:
            if self._final or first & _RSV1:
                raise WebSocketError(PROTOCOL_ERROR, "invalid continuation frame")
        else:
            raise WebSocketError(PROTOCOL_ERROR, f"unknown opcode {opcode}")

    def _begin(self, first: int, opcode: int, length: int, key: bytes) -> None:
        """Begins a data frame."""
        self._final = bool(first & _FIN)
        if opcode != CONTINUATION:
            self._inflater = zlib.decompressobj(-15) if first & _RSV1 else None
            self._inflated = self._ends = 0
        self._left = length
        self._key = key
        if not length and self._final:
            self._end_message()

    def _payload(self) -> bytes:
        """Returns the available payload of the current frame, inflated when it is compressed."""
        start = self._at
        self._at = min(start + self._left, len(self._data))
        chunk = unmasked(self._data[start : self._at], self._key)
        self._left -= len(chunk)
        turn = len(chunk) % 4
        self._key = self._key[turn:] + self._key[:turn]
        if self._inflater is None:
            return chunk
        self._packed, self._packed_at = chunk, 0
        self._more = True
        if not self._left and self._final:
            self._end_message()
        return b""

    def _end_message(self) -> None:
        if self._inflater is not None:
            self._packed = self._packed[self._packed_at :] + _TAIL
            self._packed_at = 0
            self._more = True

    def _inflate(self) -> bytes:
        inflater = self._inflater
        assert inflater is not None
        packed = self._packed[self._packed_at : self._packed_at + PACKED_BYTES]
        try:
            piece = inflater.decompress(packed, PIECE_BYTES)
        except zlib.error as error:
            raise WebSocketError(INVALID_PAYLOAD, "corrupt compressed message") from error
        if inflater.eof:  # a sender may end its deflate stream anywhere; what follows is another one
            left = inflater.unused_data
            self._inflater = zlib.decompressobj(-15)
            self._ends += 1
        else:
            left = inflater.unconsumed_tail
        self._packed_at += len(packed) - len(left)
        self._inflated += len(piece)
        if self._ends > MAX_DEFLATE_STREAMS or self._inflated > self._most:
            raise WebSocketError(TOO_BIG, "compressed message is too large")
        self._more = self._packed_at < len(self._packed) or len(piece) == PIECE_BYTES
        if not self._more:
            self._packed, self._packed_at = b"", 0
        if not self._more and self._final and not self._left:
            self._inflater = None  # 40 KB that an idle connection has no use for
        return piece

    def _control(self, opcode: int, payload: bytes) -> Event:
        if opcode == CLOSE:
            self._over = True
            _check_close(payload)
        return opcode, payload


def _check_close(payload: bytes) -> None:
    if not payload:
        return
    if len(payload) == 1:
        raise WebSocketError(PROTOCOL_ERROR, "close frame payload cannot be 1 byte")
    code = int.from_bytes(payload[:2])
    if not (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999):
        raise WebSocketError(PROTOCOL_ERROR, f"invalid close status code {code}")
    try:
        payload[2:].decode()
    except UnicodeDecodeError as error:
        raise WebSocketError(INVALID_PAYLOAD, "invalid utf8 body in close frame") from error


class FrameWriter:
    """Binary frames of a server, unmasked. `limit`: bytes of payload per frame, 0 for none."""

    def __init__(self, *, deflate: bool, limit: int = 0) -> None:
        self._deflate = deflate
        self._limit = limit

    def frames(self, data: bytes) -> bytes:
        """One message, or as many of at most `limit` bytes as it takes."""
        limit = self._limit
        if not limit or len(data) <= limit:
            return self._message(data)
        return b"".join([self._message(data[at : at + limit]) for at in range(0, len(data), limit)])

    def _message(self, data: bytes) -> bytes:
        if self._deflate and len(data) > COMPRESS_ABOVE_BYTES:
            deflater = zlib.compressobj(zlib.Z_BEST_SPEED, zlib.DEFLATED, -15)
            packed = (deflater.compress(data) + deflater.flush(zlib.Z_SYNC_FLUSH))[: -len(_TAIL)]
            if len(packed) < len(data):
                return _frame(_FIN | _RSV1 | BINARY, packed)
        return _frame(_FIN | BINARY, data)


def control(opcode: int, payload: bytes) -> bytes:
    """A ping, pong or close frame of a server."""
    assert len(payload) <= MAX_CONTROL_BYTES
    return _frame(_FIN | opcode, payload)


def close_payload(code: int, text: str) -> bytes:
    """The payload of a close frame; the text is cut to what fits."""
    body = text.encode()[: MAX_CONTROL_BYTES - 2].decode(errors="ignore").encode()
    return code.to_bytes(2) + body


def _frame(first: int, payload: bytes) -> bytes:
    length = len(payload)
    if length < 126:
        return bytes((first, length)) + payload
    if length < 65536:
        return struct.pack(">BBH", first, 126, length) + payload
    return struct.pack(">BBQ", first, 127, length) + payload


def unmasked(data: bytes, key: bytes) -> bytes:
    """XOR with the four bytes of `key`, over and over; masks as well as it unmasks."""
    length = len(data)
    if length < _TABLE_BYTES:
        mask = (key * (length // 4 + 1))[:length]
        return (int.from_bytes(data, "little") ^ int.from_bytes(mask, "little")).to_bytes(length, "little")
    plain = bytearray(length)
    for lane in range(4):
        plain[lane::4] = data[lane::4].translate(_table(key[lane]))
    return bytes(plain)


@cache
def _table(byte: int) -> bytes:
    return bytes(other ^ byte for other in range(256))
