"""TLS without its ciphers, for simulated connections: its records and who says what when, and nothing is encrypted.

What a program sees of TLS is as with asyncio: the handshake takes its way and its time, may fail, be cut off or never
end, a connection that is secure is another transport than the one below it, has an `ssl_object` and cannot be closed by
halves, and its two ends tell each other before they close. Bytes that are no record end it with an SSLError.
A certificate is a text: the path of its authority, the name it is of, and a number that grows with each renewal.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from testkit.sim.layout import AUTHORITY, Security

if TYPE_CHECKING:
    from testkit.sim.loop import SimLoop
    from testkit.sim.network import SimTransport

ALERT, HANDSHAKE, DATA = 0x15, 0x16, 0x17
CLIENT_HELLO, SERVER_HELLO, FINISHED = b"\x01", b"\x02", b"\x14"
CLOSE_NOTIFY, REFUSED = b"\x01\x00", b"\x02\x2a"
ASKS = b"?"
"""In a server's hello: it wants to see a certificate."""
MAX_RECORD = 16_384
HANDSHAKE_SECONDS = 60.0
SHUTDOWN_SECONDS = 30.0
"""asyncio's own limits, where a program names none."""
_HEAD = struct.Struct(">B2sH")
_VERSION = b"\x03\x03"


class TlsError(ssl.SSLError):
    """An SSLError, with the words of OpenSSL."""

    def __init__(self, why: str) -> None:
        super().__init__(1, why)
        self.reason = why


class InClear(TlsError):
    """The other end has said something in clear: `said`."""

    said = b""


def record(kind: int, body: bytes) -> bytes:
    return _HEAD.pack(kind, _VERSION, len(body)) + body


class Files:
    """Certificates: what a file has changes with its renewal, and who has read it before has the old one."""

    renewals: ClassVar[dict[str, int]] = {}
    """By path, how often the certificate was renewed."""

    @classmethod
    def read(cls, path: str) -> str:
        found = PurePosixPath(path)
        return f"{found.parent} {found.stem} {cls.renewals.get(path, 0)}" if path else ""


@dataclass(slots=True, frozen=True)
class Context:
    """The part of an `ssl.SSLContext` that the simulation has."""

    certificate: str = ""
    authority: str = ""
    """The one whose certificates are good; "" where nobody is asked for any."""

    def refuses(self, certificate: str, name: str | None = None) -> str:
        """Why a certificate is not good; "" for one that is. `name`: the name that it has to have."""
        if not self.authority:
            return ""
        if not certificate:
            return "peer did not return a certificate"
        authority, of, _ = certificate.split(" ")
        if authority != self.authority:
            return "certificate verify failed"
        return "" if name in (None, of) else f"the certificate is of {of} and not of {name}"

    async def connect(
        self, loop: SimLoop, factory: Callable[[], Any], host: str, port: int, options: dict[str, Any]
    ) -> tuple[Secured, Any]:
        """As `create_connection`. Raises OSError."""
        _, secured = await loop.endpoints.dial(lambda: Secured(loop, self, factory(), options), host, port)
        assert isinstance(secured, Secured)
        return await secured.finished(), secured.above

    async def upgrade(self, loop: SimLoop, below: SimTransport, above: Any, options: dict[str, Any]) -> Secured:
        """As `start_tls`. Raises OSError."""
        secured = Secured(loop, self, above, options, made=True)
        below.pause_reading()
        below.set_protocol(secured)
        loop.call_soon(secured.connection_made, below)
        loop.call_soon(below.resume_reading)
        return await secured.finished()


def of_client() -> Any:
    """The context of one whom servers know, in place of an `ssl.SSLContext`; None where there is no TLS."""
    return Context(Files.read(f"{AUTHORITY}/client.pem"), AUTHORITY) if Security.mode else None


class Session:
    """The part of an `ssl.SSLObject` that programs look at."""

    def __init__(self, certificate: str) -> None:
        """`certificate`: of the other end."""
        self.certificate = certificate

    def getpeercert(self, binary_form: bool = False) -> Any:
        return (self.certificate.encode() or None) if binary_form else {"subject": self.certificate}

    def version(self) -> str:
        return "TLSv1.3"

    def cipher(self) -> tuple[str, str, int]:
        return "TLS_AES_128_GCM_SHA256", "TLSv1.3", 128


class Secured(asyncio.Transport, asyncio.Protocol):
    """The protocol of a connection, and the transport of `above`, which is made once the handshake is done."""

    def __init__(
        self, loop: SimLoop, context: Context, above: Any, options: dict[str, Any], *, made: bool = False
    ) -> None:
        """`made`: `above` has had its connection in clear."""
        super().__init__()
        self.above = above
        self.below: Any = None
        self.session: Session | None = None
        """None until the handshake is done."""
        self._loop = loop
        self._context = context
        self._server = bool(options.get("server_side"))
        self._name = options.get("server_hostname")
        self._patience = options.get("ssl_handshake_timeout") or HANDSHAKE_SECONDS
        self._leaving = options.get("ssl_shutdown_timeout") or SHUTDOWN_SECONDS
        self._done: asyncio.Future[None] = loop.create_future()
        self._made = made
        self._shown = ""
        self._input = b""
        self._paused = self._closing = self._told_to_close = self._tells = False
        self._error: Exception | None = None
        self._timer: Any = None

    async def finished(self) -> Secured:
        """Returns itself after the handshake. Raises OSError."""
        try:
            await self._done
        except BaseException:
            if not self._closing:  # else its last words are under way
                self.below.abort()
            raise
        return self

    # ---- the connection's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.below = transport
        self._tells, self.below.between_servers = self.below.between_servers, False
        self._timer = self._loop.call_later(self._patience, self._too_late)
        if not self._server:
            self._say(HANDSHAKE, CLIENT_HELLO + (self._name or "").encode())

    def _too_late(self) -> None:
        self._fail(ConnectionAbortedError(f"SSL handshake is taking longer than {self._patience} seconds"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        error = exc if exc is not None and self.session is None else self._error or exc
        if not self._done.done():
            self._done.set_exception(error or ConnectionResetError("lost"))
        if self._made:
            self.above.connection_lost(error)

    def pause_writing(self) -> None:
        if self._made:
            self.above.pause_writing()

    def resume_writing(self) -> None:
        if self._made:
            self.above.resume_writing()

    def eof_received(self) -> bool:
        if isinstance(self._error, InClear):
            self._fail(self._error)
        elif self.session is None:
            self._fail(ConnectionResetError("the other end closed the connection"))
        else:
            self._leave()
        return False

    def data_received(self, data: bytes) -> None:
        if isinstance(self._error, InClear):
            self._error.said += data
            return
        self._input += data
        self._read()

    def _read(self) -> None:
        got: list[bytes] = []
        try:
            while self._error is None and (self.session is None or not self._paused) and (one := self._next()):
                self._take(*one, got)
        except ssl.SSLError as error:
            self._hand_on(got)
            self._fail(error)
            return
        self._hand_on(got)
        if self._told_to_close:
            self._leave()

    def _hand_on(self, got: list[bytes]) -> None:
        data = b"".join(got)
        if data and not self._closing:
            self.above.data_received(data)

    def _next(self) -> tuple[int, bytes] | None:
        """Takes one record out of what has come. Raises SSLError."""
        if self._input and self._input[0] not in (ALERT, HANDSHAKE, DATA):
            error = InClear("wrong version number")
            error.said, self._input = self._input, b""
            if self._server or self.session is not None:
                raise error
            self._error = error  # nothing more is said: the rest of it comes, until the end or the time is over
            return None
        if len(self._input) < _HEAD.size:
            return None
        kind, version, size = _HEAD.unpack_from(self._input)
        if version[0] != _VERSION[0] or size > MAX_RECORD:
            raise TlsError("wrong version number")
        end = _HEAD.size + size
        if len(self._input) < end:
            return None
        body, self._input = self._input[_HEAD.size : end], self._input[end:]
        return kind, body

    def _take(self, kind: int, body: bytes, got: list[bytes]) -> None:
        """Raises SSLError."""
        if kind == ALERT and body == CLOSE_NOTIFY and self.session is not None:
            self._told_to_close = True
        elif kind == ALERT:
            raise TlsError("tlsv13 alert certificate required")
        elif kind == DATA and self.session is not None:
            got.append(body)
        elif kind == HANDSHAKE and self.session is None:
            (self._take_of_client if self._server else self._take_of_server)(body)
        else:
            raise TlsError("unexpected message")

    def _take_of_client(self, body: bytes) -> None:
        if not self._shown and body[:1] == CLIENT_HELLO:
            self._shown = self._context.certificate
            asks = ASKS if self._context.authority else b""
            self._say(HANDSHAKE, SERVER_HELLO + asks + self._shown.encode())
        elif self._shown and body[:1] == FINISHED:
            self._check(body[1:].decode())
        else:
            raise TlsError("unexpected message")

    def _take_of_server(self, body: bytes) -> None:
        if body[:1] != SERVER_HELLO:
            raise TlsError("unexpected message")
        asks = body[1:2] == ASKS
        certificate = body[2 if asks else 1 :].decode()
        if why := self._context.refuses(certificate, self._name):
            self._say(ALERT, REFUSED)
            raise TlsError(why)
        self._say(HANDSHAKE, FINISHED + (self._context.certificate.encode() if asks else b""))
        self._check(certificate)

    def _check(self, certificate: str) -> None:
        """Ends the handshake. Raises SSLError."""
        if why := self._context.refuses(certificate):
            self._say(ALERT, REFUSED)
            raise TlsError(why)
        self._timer.cancel()
        self.session = Session(certificate)
        if not self._made:
            self._made = True
            self.above.connection_made(self)
        if not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: Exception) -> None:
        """The connection is over; what was said last still goes out."""
        self._error = self._error or error
        self._closing = True
        self._timer.cancel()
        if not self._done.done():
            self._done.set_exception(self._error)
            self._done.exception()
        if isinstance(error, ssl.SSLError):
            self.below.close()
        else:
            self.below.abort()

    def _leave(self) -> None:
        """The other end closes."""
        if not self._closing:
            self.above.eof_received()
            self.close()
        self._timer.cancel()
        self.below.close()

    def _say(self, kind: int, body: bytes) -> None:
        self.below.write(record(kind, body))

    # ---- the transport of what is above

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.session if name == "ssl_object" else self.below.get_extra_info(name, default)

    def get_protocol(self) -> Any:
        return self.above

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.above = protocol

    def is_closing(self) -> bool:
        return self._closing or bool(self.below.is_closing())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return int(self.below.get_write_buffer_size())

    def can_write_eof(self) -> bool:
        return False

    def write_eof(self) -> None:
        raise NotImplementedError

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        said = bytes(data)
        if self._tells and (overhear := self.below.endpoints.network.overhear) is not None:
            overhear(self.below.own, self.below.other, said)
        pieces = (said[at : at + MAX_RECORD] for at in range(0, len(said), MAX_RECORD))
        self.below.write(b"".join(record(DATA, piece) for piece in pieces))

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def is_reading(self) -> bool:
        return not self._paused and not self.is_closing()

    def pause_reading(self) -> None:
        self._paused = True
        self.below.pause_reading()

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self.below.resume_reading()
            if self._input:
                self._loop.call_soon(self._read)

    def close(self) -> None:
        """Sends what is queued, and waits a while for the other end to close as well."""
        if self._closing:
            return
        self._closing = True
        self._say(ALERT, CLOSE_NOTIFY)
        self._timer = self._loop.call_later(self._leaving, self.below.abort)
        self.resume_reading()

    def abort(self) -> None:
        self._closing = True
        self.below.abort()
