"""The HTTP request that opens a WebSocket, and the answers to it (RFC 6455 section 4), without I/O."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jetcluster.errors import PeerError

END = b"\r\n\r\n"

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_PHRASES = {400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed"}
_DEFLATE = "permessage-deflate"
_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}

Place = tuple[str, str, int]
"""(scheme, host, port) of an origin, in lower case."""


class HandshakeError(PeerError):
    """Not a request this server answers with 101. The text is for the log, and for the other end behind the status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True, frozen=True)
class UpgradeRequest:
    path: str
    headers: Mapping[str, str]
    """Names in lower case; a name's values joined with ", "."""

    @property
    def deflate(self) -> bool:
        """The other end offers permessage-deflate as we do it: no context kept from message to message, the window of
        32 KiB."""
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
    origins: frozenset[Place] = frozenset()
    """Empty: any."""
    compression: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    """Added to the answer."""


def parse(head: bytes) -> UpgradeRequest:
    """`head`: everything before the empty line. Raises HandshakeError."""
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
    """The answer that says no and ends the connection."""
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
    if not origin or not (rules.same_origin or rules.origins):
        return
    try:
        place = place_of(origin)
        own = place_of(f"{'https' if rules.tls else 'http'}://{headers['host']}")
    except ValueError:
        raise HandshakeError(403, "origin not allowed") from None
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
